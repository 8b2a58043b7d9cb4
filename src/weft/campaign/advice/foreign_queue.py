"""What readers of other schedulers' snapshots yield: nodes, jobs and teams as they name them; and the answer.

A snapshot is read, never changed. Readers know one scheduler each; what a cluster of ours makes of their words (the
pool that a job can use, gangs, placements) is found here, and answered by `cluster.why`. Knows no format.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.campaign.importing import shape
from weft.cluster.records.job import Gang, Job, JobState, Placement, Team
from weft.cluster.records.node import Node, NodeState
from weft.cluster.records.snapshot import SchedulingPolicy, Snapshot
from weft.cluster.why import Why, why
from weft.core.errors import UsageError

ANY: frozenset[str] = frozenset()
_SHOWN = 5


class UnreadableQueueError(Exception):
    """A document that is no snapshot of the scheduler that it is said to be of; the text says where and why."""


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node of a foreign cluster that has GPUs."""

    name: str
    gpus: int
    in_service: bool = True
    groups: frozenset[str] = ANY
    """Partitions or flavors that it belongs to."""
    models: frozenset[str] = ANY
    """Models of its GPUs, where they are named."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of a foreign queue that wants or has GPUs."""

    name: str
    submit_ms: int
    gpus: int
    """GPUs of each piece."""
    pieces: int = 1
    """Parts that run together and each have their GPUs on one node."""
    nodes: int | None = None
    """Nodes that it asks for; none where only pieces are named."""
    team: str = "all"
    priority: int = 0
    limit_ms: int | None = None
    start_ms: int | None = None
    """When it started; none where it waits."""
    places: Mapping[str, int] = field(default_factory=dict)
    """GPUs that it has on each node; empty where that is not known."""
    groups: frozenset[str] = ANY
    """Partitions or flavors whose nodes it may use; all where empty."""
    model: str = ""
    after: tuple[str, ...] = ()
    held: str = ""
    """What its own scheduler holds it for, where that is no question of room."""
    said: str = ""
    """What its own scheduler says of it."""


@dataclass(frozen=True, slots=True)
class ForeignQueue:
    """A snapshot of another scheduler's queue."""

    source: str
    """What the scheduler is called."""
    now_ms: int
    nodes: tuple[PoolNode, ...]
    jobs: tuple[QueuedJob, ...]
    teams: tuple[Team, ...] = ()
    """Teams that have quotas; the others may have everything."""
    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    left_out: Counter[str] = field(default_factory=Counter)

    def job(self, name: str) -> QueuedJob:
        """Return the job called `name`, with its namespace or without."""
        found = [job for job in self.jobs if name in (job.name, job.name.partition("/")[2])]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{name!r} is not one job: {', '.join(job.name for job in found[:_SHOWN])}")
        waiting = [job.name for job in self.jobs if job.start_ms is None]
        known = ", ".join(waiting[:_SHOWN]) + (f" and {len(waiting) - _SHOWN:,} more" if len(waiting) > _SHOWN else "")
        raise UsageError(f"{self.source} has no job {name!r} that wants GPUs; these wait: {known or 'none'}")

    def without(self, name: str) -> "ForeignQueue":
        """Return the queue as it would be had a job been cancelled."""
        gone = self.job(name)
        return replace(self, jobs=tuple(job for job in self.jobs if job is not gone))

    def changed(self, name: str, **fields: Any) -> "ForeignQueue":
        """Return the queue as it would be with other fields of a job."""
        which = self.job(name)
        return replace(self, jobs=tuple(replace(job, **fields) if job is which else job for job in self.jobs))


@dataclass(frozen=True, slots=True)
class Advice:
    """What is answered about one job of a foreign queue."""

    why: Why
    said: str
    """What its own scheduler says."""
    nodes: int
    """Nodes in service that it could use."""
    gpus: int
    free_gpus: int


def advise(queue: ForeignQueue, name: str) -> Advice:
    """Return why a job of a foreign queue waits and when it starts, by the rules of `cluster.decide`."""
    job = queue.job(name)
    snapshot = snapshot_for(queue, job)
    if job.start_ms is not None:
        where = ", ".join(list(job.places)[:_SHOWN]) or "nodes that are not named"
        found = Why(job.name, str(JobState.RUNNING), "", f"it runs on {where}", 0, (), (), job.start_ms, ())
    elif job.held:
        text = f"its own scheduler holds it, whatever room there is: {job.held}"
        found = Why(job.name, str(JobState.WAITING), "held", text, 0, (), (), None, ())
    else:
        answered = why(snapshot, job.name, queue.now_ms)
        assert answered is not None, "the job that is asked about is in the snapshot"
        found = answered
    taken = sum(each.placement.gpus for each in snapshot.jobs if each.placement is not None)
    usable = [node for node in snapshot.nodes if node.state is NodeState.READY]
    gpus = sum(node.gpus for node in usable)
    return Advice(found, job.said, len(usable), gpus, max(0, gpus - taken))


def snapshot_for(queue: ForeignQueue, asked: QueuedJob) -> Snapshot:
    """Return the part of a queue that matters to one job: nodes that could serve it, and who holds or wants them."""
    reach = [node for node in queue.nodes if _serves(node, asked)] or list(queue.nodes)
    if asked.start_ms is not None:
        reach = list(queue.nodes)
    free = {node.name: node.gpus for node in reach}
    numbers = {node.name: at for at, node in enumerate(reach)}
    largest = max(free.values(), default=0)
    jobs: list[Job] = []
    busy: set[str] = set()
    for each in queue.jobs:
        if each.start_ms is not None:
            held = _holders(each, free, numbers, {node.name: node.gpus for node in reach})
            busy.update(reach[number].name for job in held if job.placement for number in job.placement.nodes)
            jobs += held
        elif not each.held and (each is asked or any(_serves(node, each) for node in reach)):
            jobs.append(_waiting(each, queue, largest))
    nodes = tuple(
        Node(at, node.name, node.gpus, state=_state(node, node.name in busy)) for at, node in enumerate(reach)
    )
    known = {team.name for team in queue.teams}
    strangers = sorted({job.team for job in jobs} - known)
    teams = (*queue.teams, *(Team(name, 0) for name in strangers))
    return Snapshot(nodes, tuple(jobs), teams, policy=queue.policy)


def _state(node: PoolNode, busy: bool) -> NodeState:
    if node.in_service:
        return NodeState.READY
    return NodeState.DRAINING if busy else NodeState.REPAIRING


def _serves(node: PoolNode, job: QueuedJob) -> bool:
    grouped = not job.groups or bool(job.groups & node.groups)
    return grouped and (not job.model or not node.models or job.model in node.models)


def _waiting(job: QueuedJob, queue: ForeignQueue, largest: int) -> Job:
    """Return a waiting job as a gang: the nodes that it asks for, or as few as hold its pieces."""
    if job.nodes is not None:
        nodes, gpus = job.nodes, -(-job.gpus * job.pieces // job.nodes)
    else:
        nodes, gpus = shape(job.gpus, job.pieces, max(1, largest, job.gpus))
    there = {each.name for each in queue.jobs}
    after = tuple(each for each in job.after if each in there)
    return Job(
        job.name, Gang(nodes, gpus), job.submit_ms, "training" if nodes > 1 else "experiment", job.team, job.priority,
        job.limit_ms, after,
    )  # fmt: skip


def _holders(
    job: QueuedJob, free: dict[str, int], numbers: Mapping[str, int], sizes: Mapping[str, int]
) -> list[Job]:  # fmt: skip
    """Return a running job as it holds the pool's nodes: one for each number of GPUs that it has on a node."""
    places = {name: gpus for name, gpus in (job.places or _guessed(job, free)).items() if name in numbers and gpus > 0}
    by_gpus: dict[int, list[str]] = {}
    for name, gpus in places.items():
        given = min(gpus, free[name])
        if given > 0:
            by_gpus.setdefault(given, []).append(name)
    found: list[Job] = []
    for gpus, names in sorted(by_gpus.items()):
        devices = tuple(tuple(range(sizes[name] - free[name], sizes[name] - free[name] + gpus)) for name in names)
        whole = all(sizes[name] == gpus for name in names)
        placement = Placement(tuple(numbers[name] for name in names), gpus, () if whole else devices)
        for name in names:
            free[name] -= gpus
        found.append(
            Job(job.name + f"~{len(found) + 1}" * bool(found), Gang(len(names), gpus), job.submit_ms, "experiment",
                job.team, job.priority, job.limit_ms, state=JobState.RUNNING, placement=placement,
                start_ms=job.start_ms)
        )  # fmt: skip
    return found


def _guessed(job: QueuedJob, free: Mapping[str, int]) -> dict[str, int]:
    """Return where a running job may be whose nodes are not known: on the fullest nodes that have its GPUs free."""
    found: dict[str, int] = {}
    left = job.pieces
    for name, gpus in sorted(free.items(), key=lambda item: (item[1], item[0])):
        fits = min(left, gpus // max(1, job.gpus))
        if fits:
            found[name] = fits * job.gpus
            left -= fits
    return found


def teams_with(teams: Sequence[Team], name: str, quota: int) -> tuple[Team, ...]:
    """Return the teams with another quota for one of them."""
    if all(team.name != name for team in teams):
        known = ", ".join(team.name for team in teams[:_SHOWN]) or "none"
        raise UsageError(f"there is no quota of {name!r} in this snapshot; there are: {known}")
    return tuple(
        replace(
            team, quota_gpus=quota,
            most_gpus=None if team.most_gpus is None else max(quota, team.most_gpus + quota - team.quota_gpus),
        )
        if team.name == name else team
        for team in teams
    )  # fmt: skip
