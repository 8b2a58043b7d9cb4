"""A day of a whole cluster on the fake API server, in virtual time: what is submitted, what breaks, and what is seen.

Everything is drawn from one seed. Pods end when their work is done, agents report faults, obey orders and test nodes;
the engine and its client are those that run on real clusters.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.health.recorded_faults import GPUS
from tests.engines.kubernetes.fake_cluster import SPACE, FakeCluster
from tests.engines.kubernetes.stage import running

from weft.cluster.health.faults import FaultMonitor, gpu_numbers
from weft.cluster.health.quarantine import report
from weft.cluster.records.snapshot import Power, SchedulingPolicy
from weft.core.seeds import Seed
from weft.engines.health.fault_data import shipped_catalogue
from weft.engines.kubernetes.api.resources import JOB_LABEL, PODS
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.observed import PodReport
from weft.testing.kubelets import Kubelets

HOUR_S = 3600.0
_LOOK_S = 20.0
_DEAD = "NVRM: Xid (PCI:0000:43:00): 79, pid=1, GPU has fallen off the bus."
_GPU_W, _IDLE_W = 900, 2000
_TEST_S = 60.0


@dataclass(frozen=True)
class DayPlan:
    """What a day looks like."""

    nodes: int
    hours: float
    seed: int = 1
    faults: int = 6
    """GPUs that die on nodes that are Ready."""
    small_per_hour: float = 20.0
    """Experiments on one node, of minutes."""
    gangs_per_hour: float = 3.0
    """Trainings on 1 to 20 % of the nodes, of hours."""

    @property
    def ramp_w_per_s(self) -> int:
        """Return a ramp by which half of the cluster takes five minutes to start."""
        return self.nodes * 8 * _GPU_W // 2 // 300

    def policy(self) -> SchedulingPolicy:
        """Return the rules of the day."""
        return SchedulingPolicy(
            lane_nodes=max(1, self.nodes // 50), spare_nodes=max(1, self.nodes // 100), test_at_once=self.nodes // 20,
            test_every_ms=int(6 * HOUR_S * 1000),
        )  # fmt: skip

    def power(self) -> Power:
        """Return what may be drawn."""
        most_w = self.nodes * (8 * _GPU_W + _IDLE_W)
        return Power(site_w=most_w, ramp_w_per_s=self.ramp_w_per_s, node_idle_w=_IDLE_W, gpu_rise_w=_GPU_W)

    def jobs(self) -> Iterator[tuple[float, str, dict[str, Any], float]]:
        """Yield when each job is submitted, its name, what it asks and how long it works, in seconds."""
        draw = Seed(self.seed).stream("day", self.nodes)
        for number in range(round(self.small_per_hour * self.hours)):
            work_s = float(draw.uniform(120, 1500))
            asked = {"nodes": 1, "gpusPerNode": int(draw.choice([1, 2, 8])), "timeLimit": "30 min"}
            yield float(draw.uniform(0, self.hours * HOUR_S)), f"small-{number}", {**asked, "team": "own"}, work_s
        for number in range(round(self.gangs_per_hour * self.hours)):
            nodes = max(2, int(self.nodes * float(draw.uniform(0.01, 0.2))))
            work_s = float(draw.uniform(0.5, 4) * HOUR_S)
            team = "own" if number % 3 else "other"
            limit = f"{round(work_s / 60 * 1.5)} min"
            asked = {"kind": "training", "nodes": nodes, "team": team, "timeLimit": limit, "restarts": 5}
            yield float(draw.uniform(0, 0.8 * self.hours * HOUR_S)), f"gang-{number}", asked, work_s
        # In the middle of the day somebody needs half of the cluster at once.
        big = {"nodes": self.nodes // 2, "team": "other", "priority": 900, "timeLimit": "3 h"}
        yield self.hours * HOUR_S / 2, "urgent", big, HOUR_S


@dataclass
class DaySeen:
    """What was seen of a day."""

    waits_s: dict[str, float] = field(default_factory=dict)
    """From submission to the last pod bound, by job."""
    borrowed: int = 0
    """Looks at which a team had more than its quota."""
    over_most: int = 0
    """Looks at which one had more than it may."""
    preempted: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    """Gangs that went on with another node in place of one that was taken out."""
    out_after_s: list[float] = field(default_factory=list)
    """From a fault on a Ready node to the node's being out."""
    idle_tests: int = 0
    returned: int = 0
    """Nodes that came back after a fault."""
    ramp_most: float = 0.0
    """Largest rise over a minute, by what the ramp allows in it."""
    done: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """What the engine asked of the server."""
    pods: int = 0
    wrong: list[str] = field(default_factory=list)


class Day:
    """Plays a day."""

    def __init__(self, plan: DayPlan) -> None:
        """Set the stage."""
        self.plan = plan
        self.seen = DaySeen()
        self.cluster = FakeCluster(plan.nodes, seed=plan.seed, least_period_s=1800.0)
        self._work_s: dict[str, float] = {}
        self._submitted: dict[str, float] = {}
        self._made: list[float] = []
        self._monitor = FaultMonitor(shipped_catalogue(), gpu_numbers(GPUS))
        self._sick: dict[str, float] = {}

    async def play(self) -> DaySeen:
        """Play it to its end."""
        loop, plan = asyncio.get_running_loop(), self.plan
        async with self.cluster.server.client("kubelets") as client:
            kubelets = Kubelets(client, self.cluster.fleet)
            async with running(kubelets.run()):
                await kubelets.register()
                quota = plan.nodes * 8 // 2
                await self.cluster.team(client, "own", quota, most=quota * 3 // 2)
                await self.cluster.team(client, "other", quota)
                settings = {"policy": plan.policy(), "power": plan.power(), "heart_s": 10.0, "resync_s": 120.0}
                async with self.cluster.engine(**settings) as engine:
                    began = loop.time()
                    before = Counter(engine.client.sent)
                    jobs = [self._job(*each) for each in plan.jobs()]
                    async with running(*jobs, self._faults(engine), self._agents(engine), self._look(engine)):
                        await asyncio.sleep(plan.hours * HOUR_S - (loop.time() - began))
                    self.seen.requests = Counter(engine.client.sent) - before
                    self.seen.idle_tests = sum(
                        node.tested_ms is not None for node in engine.state.cluster.pool.nodes if not node.outs
                    )
        return self.seen

    async def _job(self, at_s: float, name: str, asked: dict[str, Any], work_s: float) -> None:
        await asyncio.sleep(at_s)
        self._work_s[name] = work_s
        now_s = asyncio.get_running_loop().time()
        await self.cluster.submit(name, **asked)
        self._submitted[name] = now_s
        async with self.cluster.server.client("kubelets") as client:
            async for pods in self._runs(name):
                for pod in pods:
                    body = {"status": {"phase": "Succeeded"}}
                    await client.patch(PODS, pod["metadata"]["name"], body, SPACE, part="status")
                self.seen.done += 1
                break
        await asyncio.Event().wait()

    async def _runs(self, name: str) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the pods of a job once it has worked long enough since it last started."""
        loop, since = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            state = self.cluster.state(name)
            since = (since or loop.time()) if state == "running" else 0.0
            if state == "running" and loop.time() - since >= self._work_s[name]:
                yield self.cluster.pods(name)

    async def _faults(self, engine: KubernetesEngine) -> None:
        """Let GPUs die on nodes of gangs that run, now and then."""
        draw = Seed(self.plan.seed).stream("faults")
        loop = asyncio.get_running_loop()
        for _ in range(self.plan.faults):
            await asyncio.sleep(self.plan.hours * HOUR_S / (self.plan.faults + 1))
            gangs = sorted(
                name for name in self._submitted if "small" not in name and self.cluster.state(name) == "running"
            )
            nodes = self.cluster.on(gangs[int(draw.integers(len(gangs)))]) if gangs else []
            if not nodes:
                continue
            name = nodes[int(draw.integers(len(nodes)))]
            verdict = self._monitor.take(_DEAD, self.cluster.server.now_ms())
            assert verdict is not None
            engine.hear_agent(PodReport("", "", name, None, (verdict.evidence(self.cluster.server.now_ms()),)))
            self._sick[name] = loop.time()
            while not engine.is_out(name):
                await asyncio.sleep(0.1)
            self.seen.out_after_s.append(loop.time() - self._sick[name])

    async def _agents(self, engine: KubernetesEngine) -> None:
        """Play the agents: each says that it is there, hears its orders and reports its tests, which pass."""
        while True:
            await asyncio.sleep(_TEST_S)
            for number in range(self.plan.nodes):
                name = self.cluster.fleet.name(number)
                engine.hear_agent(PodReport("", "", name, None, ()))
                for order in engine.orders(name):
                    if order["kind"] == "test":
                        passed = report(order["program"], self.cluster.server.now_ms(), passed=True)
                        engine.hear_agent(PodReport("", "", name, None, (passed,)))

    async def _look(self, engine: KubernetesEngine) -> None:
        """Look again and again at what stands on the cluster."""
        seen, plan, loop = self.seen, self.plan, asyncio.get_running_loop()
        known: dict[str, set[str]] = {}
        drawn: list[float] = []
        for _ in itertools.count():
            await asyncio.sleep(_LOOK_S)
            held: Counter[str] = Counter()
            by_job = Counter(
                one["metadata"]["labels"][JOB_LABEL] for one in self.cluster.pods()
                if (one.get("status") or {}).get("phase") in ("Pending", "Running")
            )  # fmt: skip
            for name in list(self._submitted):
                spec, status = self.cluster.job(name)["spec"], self.cluster.status(name)
                state = status.get("state", "")
                held[spec["team"]] += by_job[name] * spec.get("gpusPerNode", 8)
                if state == "running" and name not in seen.waits_s:
                    seen.waits_s[name] = loop.time() - self._submitted[name]
                if (status.get("record") or {}).get("preemptions") and "small" not in name:
                    seen.preempted.add(name)
                if state == "running" and name.startswith("gang"):
                    nodes = set(self.cluster.on(name))
                    if name in known and len(nodes) == len(known[name]) and len(nodes - known[name]) == 1:
                        seen.moved.add(name)
                    known[name] = nodes
            quota = plan.nodes * 8 // 2
            seen.borrowed += any(gpus > quota for gpus in held.values())
            seen.over_most += held["own"] > quota * 3 // 2
            drawn.append(held.total() * _GPU_W)
            if len(drawn) > 3:
                rise = drawn[-1] - drawn[-4]
                seen.ramp_most = max(seen.ramp_most, rise / (plan.ramp_w_per_s * 3 * _LOOK_S))
            seen.pods = max(seen.pods, by_job.total())
            seen.returned = sum(1 for name in self._sick if not engine.is_out(name))
            seen.wrong += engine.state.invariants.after_pass(engine.state.cluster)
