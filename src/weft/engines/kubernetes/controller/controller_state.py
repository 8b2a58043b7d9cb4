"""What the controller has in mind between two passes, and what one pass sees and answers. Pure: no I/O, no clock.

`Observation` is what the caches hold and what has changed in them; `ControllerState` joins it with the scheduler's
state and is all that a pass remembers; `Write` is what a pass wants written. A state that is lost, by a crash say, is
made anew from an observation alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from weft.cluster.health.tickets import repair_for, ticket_document
from weft.cluster.invariants import InvariantSampler
from weft.cluster.log import RecordedState
from weft.cluster.records.job import HOLDING, Job, Team
from weft.cluster.records.node import Node, NodeState
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.scheduling.pool import Pool
from weft.engines.kubernetes.api.crds import TopologyBody
from weft.engines.kubernetes.controller.gangs import Step
from weft.engines.kubernetes.controller.histograms import ControllerMeasures
from weft.engines.kubernetes.controller.ledger import JobEntry
from weft.engines.kubernetes.controller.node_index import NodeIndex
from weft.engines.kubernetes.controller.node_tests import NodeTests
from weft.engines.kubernetes.controller.observed import (
    ObservedHealth,
    ObservedJob,
    ObservedNode,
    ObservedPod,
    ObservedTeam,
    PodReport,
)
from weft.engines.kubernetes.controller.settings import Now, Settings
from weft.engines.kubernetes.controller.workload_gangs import WorkloadStep
from weft.engines.kubernetes.controller.workloads import WorkloadsView, WorkloadWrite
from weft.engines.policy_file import with_policy
from weft.specs import PolicySpec


@dataclass(frozen=True)
class Observation:
    """What the caches hold, and the names of what has changed since the last pass."""

    jobs: Mapping[str, ObservedJob]
    nodes: Mapping[str, ObservedNode]
    teams: Mapping[str, ObservedTeam]
    health: Mapping[str, ObservedHealth]
    topologies: Mapping[str, Mapping[str, Any]]
    pods_of: Mapping[str, Mapping[str, ObservedPod]]
    """Pods that bear a job's name, by name."""
    pods_on: Mapping[str, Mapping[str, ObservedPod]]
    """Pods of each node, by uid."""
    owners_of: Mapping[str, Mapping[str, int]]
    """How many pods of each job's name belong to which job, by uid."""
    changed_jobs: Set[str] = frozenset()
    changed_nodes: Set[str] = frozenset()
    changed_teams: Set[str] = frozenset()
    reports: tuple[PodReport, ...] = ()
    """What pods have reported since the last pass."""
    workloads: WorkloadsView = field(default_factory=WorkloadsView)
    """Workloads of other controllers that are queued."""

    def ready(self, node: str) -> bool:
        """Return whether a node is there and heard."""
        seen = self.nodes.get(node)
        return seen is not None and seen.ready

    def unremarkable(self, node: str) -> bool:
        """Return whether a node is heard and bears no condition that means a fault."""
        seen = self.nodes.get(node)
        return seen is not None and seen.ready and not seen.conditions


@dataclass(frozen=True)
class WriteStatus:
    """Write a job's status: a decision, before anything is done for it."""

    entry: JobEntry
    record: Job
    """What was decided; the entry may have moved on when it is written."""
    changed: dict[str, Any]


@dataclass(frozen=True)
class MovePod:
    """Make or remove a pod of a job."""

    entry: JobEntry
    step: Step | WorkloadStep
    at_ms: int


@dataclass(frozen=True)
class ClearPod:
    """Remove a pod whose job has gone."""

    job_id: str
    pod: ObservedPod
    at_once: bool
    """Whether nobody is left on its node to end it gently."""


@dataclass(frozen=True)
class RefuseJob:
    """Say in a job's status why it cannot be read."""

    seen: ObservedJob
    status: dict[str, Any]


@dataclass(frozen=True)
class MarkNode:
    """Write down where a node stands in its life, and mark the node itself."""

    node: Node
    reason: str


@dataclass(frozen=True)
class WriteTeam:
    """Write what a team holds."""

    name: str
    status: dict[str, int]


@dataclass(frozen=True)
class TellEvent:
    """Write an event about a job."""

    seen: ObservedJob
    reason: str
    message: str


@dataclass(frozen=True)
class SendTicket:
    """Send a repair ticket to whoever repairs nodes."""

    document: dict[str, Any]


Write = SendTicket | WriteStatus | MovePod | ClearPod | RefuseJob | MarkNode | WriteTeam | TellEvent | WorkloadWrite


@dataclass
class ControllerState:
    """What the controller has in mind."""

    settings: Settings
    cluster: RecordedState = field(init=False)
    """The scheduler's state, which remembers its changes for the log of decisions."""
    lines: list[str] = field(default_factory=list)
    """What goes to the log of decisions, where there is one."""
    node_index: NodeIndex = field(default_factory=NodeIndex)
    entries: dict[str, JobEntry] = field(default_factory=dict)
    """What was decided for each job."""
    alarms: dict[str, str] = field(default_factory=dict)
    """Alarms that are on, by kind."""
    passes: int = 0
    decisions: int = 0
    live: set[str] = field(default_factory=set)
    """Jobs that are looked at in every pass: they hold nodes, or a decision about them is not written yet."""
    silent: set[str] = field(default_factory=set)
    """Nodes that are not heard or bear a bad condition; that is said again as long as it is so."""
    unfit: set[str] = field(default_factory=set)
    """Jobs that no node is large enough for."""
    orphans: dict[str, Job] = field(default_factory=dict)
    """Records that stand for pods whose job has gone: they hold nodes until they have left."""
    clearing: set[str] = field(default_factory=set)
    """Orphaned pods whose deletion is on its way, by uid."""
    refused: dict[str, str] = field(default_factory=dict)
    """The version in which a job that cannot be read was last refused, by uid."""
    adopting: set[str] = field(default_factory=set)
    """What is on its way for workloads, or was said of them once: keys of `WorkloadWrite`."""
    invariants: InvariantSampler = field(default_factory=InvariantSampler)
    """Looks at the scheduler's state now and then."""
    measures: ControllerMeasures = field(default_factory=ControllerMeasures)
    """What is counted for whoever operates it."""
    opened: bool = False
    resynced_s: float = float("-inf")
    teams_s: float = float("-inf")

    def __post_init__(self) -> None:
        """Begin with an empty cluster."""
        self.tests = NodeTests(self.settings.test_s)
        self._decide_on(Snapshot((), policy=self.settings.policy, power=self.settings.power))

    def open(self, seen: Observation) -> None:
        """Give every node a number, neighbours next to each other, before the first pass."""
        self.opened = True
        for spec in seen.topologies.values():
            body = TopologyBody.model_validate(spec)
            if body.pool == self.settings.pool:
                self.node_index.topology = body
        for name in self.node_index.sorted_names(seen.nodes):
            self.node_index.number(name)
        for job in seen.jobs.values():
            for name in job.placed.nodes if job.placed else ():
                self.node_index.number(name)

    def put_nodes(self, changed: Set[str], seen: Observation, now: Now) -> bool:
        """Put changed nodes into the scheduler's state; returns whether it was made anew because it has grown."""
        index, known = self.node_index, self.cluster.pool.count
        ours = index.enrol(changed, seen.nodes)
        new = index.names[known:]
        for name in (*ours, *new):
            (self.silent.discard if seen.unremarkable(name) else self.silent.add)(name)
        records = list(self.cluster.pool.nodes)
        for name in new + [one for one in ours if index.numbers[one] < known]:
            number = index.numbers[name]
            before = records[number] if number < known else None
            record = index.record(name, seen.nodes.get(name), seen.health.get(name), before, now.ms)
            if number >= known:
                records.append(record)
            elif record != before:
                records[number] = record
                if not new:
                    self.cluster.put(record, now.ms)
        if new:
            # The columns of the scheduler have a fixed length: more nodes need new columns.
            self._decide_on(replace(self.cluster.snapshot(), nodes=tuple(records)))
        return bool(new)

    def take_policy(self, spec: PolicySpec) -> None:
        """Decide by a policy file from now on."""
        self._decide_on(with_policy(self.cluster.snapshot(), spec))

    def _decide_on(self, snapshot: Snapshot) -> None:
        self.cluster = RecordedState(snapshot, recording=self.settings.decisions is not None)

    def put_team(self, name: str, seen: Observation, now: Now) -> None:
        """Put a team's quota into the scheduler's state."""
        team = seen.teams.get(name)
        if team is not None and team.body is not None:
            self.cluster.put(Team(name, team.body.quota, team.body.most), now.ms)
        elif name in self.cluster.shares.index:
            # A team that has gone keeps what runs and gets no more.
            self.cluster.put(Team(name, 0, 0), now.ms)

    def team_statuses(self, seen: Observation) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield what each team holds and how many of its jobs wait, where that has changed."""
        waiting = Counter(job.team for job in self.cluster.jobs.values() if job.state not in HOLDING)
        shares = self.cluster.shares
        for name, team in seen.teams.items():
            if name in shares.index:
                status = {"gpus": int(shares.held[shares.index[name]]), "waiting": waiting[name]}
                if {key: team.status.get(key) for key in status} != status:
                    yield name, status


def open_tickets(pool: Pool, now_ms: int) -> Iterator[dict[str, Any]]:
    """Yield the tickets of nodes under repair."""
    for node in (pool.nodes[number] for number in sorted(pool.watched)):
        if node.state is NodeState.REPAIRING:
            found = [each for each in node.evidence if each.severity == "fatal"]
            finding = found[-1].text or found[-1].check if found else "under repair"
            yield ticket_document(node, repair_for(node, finding, now_ms))
