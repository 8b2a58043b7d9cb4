"""What must hold of every snapshot: tests look at each, engines and replays at a sample.

`broken` returns what is broken, in words; nothing where all is well.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from weft.cluster.records.job import Job
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.scheduling.topology import places

SAMPLED = 256
"""One pass in so many is looked at in the product: a look costs about as much as a pass over a fresh state."""


class InvariantError(AssertionError):
    """A state breaks what must hold of every state."""


class InvariantSampler:
    """Looks at a cluster's state on the first pass after a restore, and on one in `SAMPLED` from then on."""

    def __init__(self, every: int = SAMPLED) -> None:
        """Look at one pass in `every`."""
        self._every, self._passes = every, 0
        self._known: set[str] = set()

    def after_pass(self, cluster: ClusterState) -> list[str]:
        """Count a pass; return what is newly broken if it is one to look at."""
        self._passes += 1
        if (self._passes - 1) % self._every:
            return []
        found = [text for text in broken(cluster.snapshot()) if text not in self._known]
        self._known.update(found)
        return found

    def demand(self, cluster: ClusterState) -> None:
        """Count a pass; raise where it is one to look at and something is broken."""
        if found := self.after_pass(cluster):
            raise InvariantError("; ".join(found))


def broken(snapshot: Snapshot) -> list[str]:
    """Return what is wrong with a state: gangs in parts, GPUs given twice, teams above what they may have."""
    holders = [job for job in snapshot.jobs if job.holds]
    return [
        *(text for job in holders for text in _gang(job)),
        *(text for job in holders for text in _shape(snapshot, job)),
        *_doubled(snapshot, holders),
        *_teams(snapshot, holders),
        *_power(snapshot, holders),
    ]


def _gang(job: Job) -> list[str]:
    if job.placement is None:
        return [f"{job.id} is {job.state} without nodes"]
    gang, placement = job.gang, job.placement
    found: list[str] = []
    if not gang.fewest <= len(placement.nodes) <= gang.nodes:
        found.append(f"{job.id} has {len(placement.nodes)} nodes of {gang.nodes}, fewest {gang.fewest}")
    if len(set(placement.nodes)) != len(placement.nodes):
        found.append(f"{job.id} has a node twice")
    if placement.gpus_per_node != gang.gpus_per_node:
        found.append(f"{job.id} has {placement.gpus_per_node} GPUs on a node instead of {gang.gpus_per_node}")
    if placement.devices and any(len(set(each)) != gang.gpus_per_node for each in placement.devices):
        found.append(f"{job.id} has devices {placement.devices} for {gang.gpus_per_node} GPUs a node")
    return found


def _shape(snapshot: Snapshot, job: Job) -> list[str]:
    gang, level = job.gang, job.gang.within or job.gang.apart
    nodes = job.placement.nodes if job.placement is not None and level else ()
    groups = [getattr(snapshot.nodes[node].place, level) for node in nodes]
    width = 1 if gang.apart else gang.slice_nodes or max(1, len(nodes))
    whole = all(len(set(groups[at : at + width])) == 1 for at in range(0, len(nodes), width))
    if whole and (not gang.apart or len(set(groups)) == len(groups)):
        return []
    return [f"{job.id} has nodes in {groups} and needs {len(nodes)}{places(gang)}"]


def _doubled(snapshot: Snapshot, holders: Sequence[Job]) -> list[str]:
    taken: Counter[int] = Counter()
    devices: dict[int, Counter[int]] = defaultdict(Counter)
    for job in holders:
        if job.placement is None:
            continue  # `_gang` has named it already
        taken.update(dict.fromkeys(job.placement.nodes, job.placement.gpus_per_node))
        for node, each in zip(job.placement.nodes, job.placement.devices, strict=False):
            devices[node].update(each)
    found = [
        f"{snapshot.nodes[node].name} has {snapshot.nodes[node].gpus} GPUs and gave {gpus}"
        for node, gpus in taken.items()
        if gpus > snapshot.nodes[node].gpus
    ]
    return found + [
        f"{snapshot.nodes[node].name} gave GPU {device} {times} times"
        for node, counts in devices.items()
        for device, times in counts.items()
        if times > 1
    ]


def _teams(snapshot: Snapshot, holders: Sequence[Job]) -> list[str]:
    held: Counter[str] = Counter()
    for job in holders:
        held[job.team] += job.gpus
    most = {team.name: team.quota_gpus if not snapshot.policy.borrow else team.most_gpus for team in snapshot.teams}
    return [
        f"team {name} has {gpus} GPUs and may have {most[name]}"
        for name, gpus in held.items()
        if (limit := most.get(name)) is not None and gpus > limit
    ]


def _power(snapshot: Snapshot, holders: Sequence[Job]) -> list[str]:
    power = snapshot.power
    if power.site_w is None or not snapshot.policy.power:
        return []
    drawn = len(snapshot.nodes) * power.node_idle_w
    for job in holders:
        drawn += job.gpus * (power.gpu_rise_w if job.watts_per_gpu is None else job.watts_per_gpu)
    return [f"the site draws {drawn} W of {power.site_w} W"] if drawn > power.site_w else []
