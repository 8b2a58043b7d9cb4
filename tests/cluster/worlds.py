"""Random small clusters that live: jobs come, end and fail, nodes break and return, clocks jump."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from weft.cluster.health.quarantine import repaired, report
from weft.cluster.invariants import broken
from weft.cluster.plan import decide, plan
from weft.cluster.records.actions import Action, Bind, Preempt, Replace, Reserve, Resize, Stop
from weft.cluster.records.effects import checkpointed, ended, requeued, stopped, witnessed
from weft.cluster.records.job import Gang, Job, JobState, Team
from weft.cluster.records.node import Location, Node, NodeEvidence, NodeState, Override
from weft.cluster.records.snapshot import Power, SchedulingPolicy, Snapshot
from weft.cluster.scheduling.state import ClusterState

Draw = Callable[[st.SearchStrategy[Any]], Any]
TEAMS = ("red", "blue", "green")


def nodes_of(count: int, gpus: int, odd: bool) -> tuple[Node, ...]:
    return tuple(
        Node(number, f"n{number}", gpus + (odd and number % 3 == 0), Location(number // 2, number // 2, number // 4))
        for number in range(count)
    )


def badly_bound(before: Snapshot, actions: Sequence[Action]) -> list[str]:
    """Return which new bindings use nodes that take no work, judged by the nodes as the pass left or found them."""
    found: list[str] = []
    for action in actions:
        if not isinstance(action, Bind | Replace | Resize):
            continue
        if isinstance(action, Replace):
            new = action.spares
        else:
            old = next((job.placement for job in before.jobs if job.id == action.job), None)
            new = tuple(set(action.placement.nodes) - set(old.nodes if old else ()))
        for number in new:
            node = before.nodes[number]
            if node.override == "out" or node.state in (NodeState.DRAINING, NodeState.RETIRED, NodeState.REPAIRING):
                found.append(f"{action.job} got {node.name}, which is {node.state} {node.override}")
    return found


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    count, gpus = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 4]))
    nodes = nodes_of(count, gpus, draw(st.booleans()))
    pool = sum(node.gpus for node in nodes)
    shares = [draw(st.integers(0, pool // 2)) for _ in TEAMS[:2]]
    shares.append(max(0, pool - sum(shares)))
    teams = tuple(
        Team(name, quota, draw(st.sampled_from([None, quota, pool]))) for name, quota in zip(TEAMS, shares, strict=True)
    )
    policy = SchedulingPolicy(
        backfill=draw(st.booleans()), preempt=draw(st.booleans()), fair=draw(st.booleans()),
        borrow=draw(st.booleans()), lane_nodes=draw(st.integers(0, 2)), spare_nodes=draw(st.integers(0, 1)),
        aged_ms=draw(st.sampled_from([200, 5000, 10**9])), grace_most_ms=50, reclaim_ms=100, forget_ms=300,
        pause_ms=2000, drain_ms=400, brake_window_ms=500, brake_least=draw(st.integers(0, 3)), lane_limit_ms=40,
        half_life_ms=1000, patience_ms=20, test_at_once=draw(st.integers(0, 2)), test_every_ms=500,
    )  # fmt: skip
    budget = draw(st.sampled_from([None, count * 10 + pool * 70, count * 10 + pool * 100]))
    power = Power(site_w=budget, node_idle_w=10, gpu_rise_w=100, ramp_w_per_s=draw(st.sampled_from([None, 1000])))
    return Snapshot(nodes, teams=teams, policy=policy, power=power)


@st.composite
def jobs(draw: st.DrawFn, number: int, now_ms: int, snapshot: Snapshot) -> Job:
    nodes = draw(st.integers(1, len(snapshot.nodes)))
    elastic = draw(st.booleans())
    return Job(
        f"j{number:03d}",
        Gang(
            nodes, draw(st.integers(1, max(node.gpus for node in snapshot.nodes))),
            draw(st.integers(1, nodes)) if elastic else 0,
        ),
        now_ms,
        draw(st.sampled_from(["training", "experiment", "service"])),
        draw(st.sampled_from(TEAMS)),
        draw(st.sampled_from([0, 100, 250])),
        draw(st.sampled_from([None, 20, 100, 1000])),
        after=(f"j{draw(st.integers(0, number - 1)):03d}",) if number and draw(st.integers(0, 6)) == 0 else (),
        array="sweep" if (member := draw(st.integers(0, 4)) == 0) else "",
        array_at_once=2 if member else 0,
        grace_ms=draw(st.sampled_from([0, 30, 500])),
        min_run_ms=draw(st.sampled_from([0, 50])),
        takes_degraded=draw(st.booleans()),
    )  # fmt: skip


class Life:
    """A cluster under a state, with what the world does to it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.cluster = ClusterState(snapshot)
        self.now_ms = 0
        self.submitted = 0
        self.promises: dict[str, int] = {}
        self.disturbed: set[str] = set()
        self.bound: list[Bind] = []

    def decide(self) -> tuple[Action, ...]:
        """Make a pass over the state, hold it against `plan`, and check everything that must hold."""
        before = self.cluster.snapshot()
        expected = plan(before, self.now_ms)
        assert plan(before, self.now_ms) == expected
        actions = decide(self.cluster, self.now_ms)
        assert actions == expected
        after = self.cluster.snapshot()
        wrong = broken(after) + badly_bound(before, actions)
        assert not wrong, wrong
        assert ClusterState(after).snapshot() == after
        self.bound += [action for action in actions if isinstance(action, Bind)]
        for action in actions:
            if isinstance(action, Reserve):
                self.promises.setdefault(action.job, action.at_ms)
            elif isinstance(action, Preempt | Stop) and action.job in self.cluster.jobs:
                job = self.cluster.jobs[action.job]
                if job.state is JobState.STOPPING:
                    self.put(stopped(job, self.now_ms))
        return actions

    def put(self, record: Job | Node) -> None:
        self.cluster.put(record, self.now_ms)

    def holders(self) -> list[Job]:
        return [self.cluster.jobs[name] for name in sorted(self.cluster.nodes_of)]

    def act(self, draw: Draw) -> None:
        """Let the world do one thing."""
        what = draw(st.sampled_from(["submit"] * 4 + ["end"] * 3 + ["run", "node", "node", "wait", "leave", "drain"]))
        holders = self.holders()
        if what == "submit":
            self.put(draw(jobs(self.submitted, self.now_ms, self.cluster.snapshot())))
            self.submitted += 1
        elif what == "wait":
            self.now_ms += draw(st.sampled_from([1, 10, 100, 3000]))
        elif what in ("node", "drain"):
            self._node(draw, what)
        elif holders:
            job = draw(st.sampled_from(holders))
            if what == "end":
                self.put(ended(job, draw(st.sampled_from([JobState.DONE, JobState.FAILED]))))
            elif what == "run" and job.state is JobState.STARTING:
                self.put(checkpointed(replace(job, state=JobState.RUNNING), self.now_ms))
            elif what == "leave":
                self.put(requeued(job, self.now_ms))

    def _node(self, draw: Draw, what: str) -> None:
        node = draw(st.sampled_from(self.cluster.pool.nodes))
        if what == "drain":
            state = {NodeState.READY: NodeState.DRAINING, NodeState.DRAINING: NodeState.READY}.get(node.state)
            override: Override = draw(st.sampled_from(("", "keep", "out")))
            self.put(replace(node, state=state or node.state, since_ms=self.now_ms, override=override))
            return
        passed = draw(st.booleans())
        seen = draw(
            st.sampled_from([
                NodeEvidence("silent", self.now_ms, "fatal"), NodeEvidence("ecc", self.now_ms, "warning"),
                NodeEvidence("xid", self.now_ms, "fatal", gpu=0), repaired(self.now_ms),
                *(report(program, self.now_ms, passed=passed) for program in ("preflight", "diagnose", "validate")),
            ])
        )  # fmt: skip
        self.put(witnessed(node, seen))
