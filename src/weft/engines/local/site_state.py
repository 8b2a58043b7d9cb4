"""What stands beside the jobs: nodes, teams, rules, promises, alarms, and the log of decisions.

The database holds the records; this turns them into the snapshot that `cluster` decides on, and back.
"""

from collections.abc import Sequence
from dataclasses import replace

from weft.cluster.records.encoding import as_plain, from_plain
from weft.cluster.records.job import Job, Team
from weft.cluster.records.node import Node
from weft.cluster.records.snapshot import Power, Reservation, SchedulingPolicy, Snapshot
from weft.cluster.scheduling.admission import admit_team
from weft.cluster.scheduling.state import ClusterState
from weft.core.errors import UsageError
from weft.engines.decision_log import DecisionLog
from weft.engines.local.home import Home
from weft.engines.local.store import JobStore

MOST_NODES = 4096
MOST_GPUS = 1024
DEFAULT_TEAM = "default"


class SiteState:
    """Everything that an engine knows, but for processes."""

    def __init__(self, home: Home) -> None:
        """Open the database in `home`."""
        self.store = JobStore(home.state)
        self.decisions = DecisionLog(home.decisions)

    def configured(self) -> bool:
        """Return whether there are nodes."""
        return bool(self.store.nodes())

    def configure(self, nodes: int, gpus: int, teams: Sequence[Team], policy: SchedulingPolicy) -> None:
        """Write down what the cluster is made of; teams are checked against what there is to give."""
        if not 1 <= nodes <= MOST_NODES or not 1 <= gpus <= MOST_GPUS:
            raise UsageError(
                f"{nodes} nodes of {gpus} GPUs: write 1 to {MOST_NODES} nodes and 1 to {MOST_GPUS} GPUs in each"
            )
        records = [Node(number, f"slot-{number}", gpus) for number in range(nodes)]
        for at, team in enumerate(teams):
            admit_team(team, teams[:at], records)
        if self.store.open() and len(self.store.nodes()) not in (0, nodes):
            raise UsageError("there are jobs that have not ended; the number of nodes can be changed when they have")
        free = nodes * gpus - sum(team.quota_gpus for team in teams)
        named = list(teams)
        if all(team.name != DEFAULT_TEAM for team in teams):
            named.append(Team(DEFAULT_TEAM, free))
        with self.store.transaction():
            known = {node.number: node for node in self.store.nodes()}
            self.store.forget_nodes()
            for node in records:
                self.store.save_node(replace(known[node.number], gpus=gpus) if node.number in known else node)
            self.store.save_fact("teams", [as_plain(team) for team in named])
            self.store.save_fact("policy", as_plain(policy))

    def snapshot(self, jobs: Sequence[Job]) -> Snapshot:
        """Return the state that was written down, with `jobs` in it."""
        fact = self.store.fact
        standing = fact("standing") or {}
        reservation = standing.get("reservation")
        after = tuple(sorted({name for job in jobs for name in job.after}))
        return Snapshot(
            nodes=tuple(self.store.nodes()), jobs=tuple(jobs),
            teams=tuple(from_plain(Team, team) for team in standing.get("teams") or fact("teams") or []),
            power=from_plain(Power, standing.get("power") or {}),
            policy=from_plain(SchedulingPolicy, fact("policy") or {}),
            ended=self.store.endings(after),
            reservation=None if reservation is None else from_plain(Reservation, reservation),
            alarms=tuple(standing.get("alarms") or ()), planned_ms=standing.get("planned_ms"),
        )  # fmt: skip

    def save_standing(self, cluster: ClusterState) -> None:
        """Write down what a pass has changed besides jobs and nodes."""
        self.store.save_fact(
            "standing",
            {
                "teams": [as_plain(team) for team in cluster.shares.records()], "power": as_plain(cluster.power),
                "reservation": None if cluster.reservation is None else as_plain(cluster.reservation),
                "alarms": sorted(cluster.alarms), "planned_ms": cluster.planned_ms,
            },
        )  # fmt: skip
