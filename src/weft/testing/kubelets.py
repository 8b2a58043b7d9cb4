"""Simulated nodes: thousands of nodes that heartbeat and move pods through their states, without machines behind them.

For rehearsals and tests: the server, its objects and all decisions are real; only kubelets are simulated. A node is
silenced by letting it stop. Leases are renewed at a rate that fits the number of nodes, spread over time. With an
`Executor` the pods' commands run as processes of this machine.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError, WeftError
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError, explaining
from weft.engines.kubernetes.api.reflector import Reflector
from weft.engines.kubernetes.api.resources import GPU, LEASES, NODES, PODS, POOL_LABEL, POOL_TAINT
from weft.testing.pod_processes import Executor, NoProcesses, PodProcesses, SimulatedPod

_LOG = logging.getLogger(__name__)
_LEASES = "kube-node-lease"
_NOT_READY = "node.kubernetes.io/not-ready"
_LOOPBACK = 127 << 24
_AT_ONCE = 48
_SOON_S = 0.2


@dataclass(frozen=True)
class SimulatedNodes:
    """What is simulated."""

    nodes: int
    """How many nodes."""
    gpus: int = 8
    """GPUs in each."""
    pool: str = "weft"
    """The pool that they join."""
    prefix: str = "simulated"
    """How their names begin."""
    per_t0: int = 32
    """Nodes under one first-tier switch."""
    heartbeats_per_s: float = 100.0
    """Most lease renewals in a second, for all nodes together."""
    least_period_s: float = 10.0
    """Shortest time between two heartbeats of a node, however few there are."""
    start_s: float = 0.0
    """From a pod's being bound to its running."""
    run_s: float | None = None
    """How long pods run before they end well; for ever where none."""
    moves: bool = True
    """Whether pods are moved at all."""
    taint: bool = True
    """Whether the pool's taint is put on the nodes."""

    def name(self, number: int) -> str:
        """Return the name of a node."""
        return f"{self.prefix}-{number:05d}"

    @property
    def period_s(self) -> float:
        """Return the time between two heartbeats of a node."""
        return max(self.least_period_s, self.nodes / self.heartbeats_per_s)


def node_object(stage: SimulatedNodes, number: int, now: str) -> dict[str, Any]:
    """Return a node as its kubelet would register it."""
    address = _LOOPBACK + (1 << 16) + number + 1
    room = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(stage.gpus)}
    t0 = number // stage.per_t0
    labels = {
        POOL_LABEL: stage.pool, "kubernetes.io/hostname": stage.name(number), "kubernetes.io/os": "linux",
        "cluster.weft/t0": f"t0-{t0}", "cluster.weft/block": f"block-{t0 // 32}",
        "topology.kubernetes.io/rack": f"rack-{number // 4}", "cluster.weft/simulated": "true",
    }  # fmt: skip
    taints = [{"key": POOL_TAINT, "value": stage.pool, "effect": "NoSchedule"}] if stage.taint else []
    status = {
        "capacity": room, "allocatable": room, "conditions": [ready(now)],
        "addresses": [{"type": "InternalIP", "address": ".".join(str(address >> s & 255) for s in (24, 16, 8, 0))}],
        "nodeInfo": {"kubeletVersion": "v0-simulated", "operatingSystem": "linux", "architecture": "amd64",
                     "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "simulated",
                     "containerRuntimeVersion": "simulated", "kubeProxyVersion": ""},
    }  # fmt: skip
    meta = {"name": stage.name(number), "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": taints}, "status": status}


def ready(now: str) -> dict[str, str]:
    """Return the condition of a node that is well."""
    return {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated",
            "lastHeartbeatTime": now, "lastTransitionTime": now}  # fmt: skip


@dataclass
class Kubelets:
    """Plays the kubelets of a stage."""

    client: ApiClient
    """The server."""
    stage: SimulatedNodes
    """What is simulated."""
    silent: set[str] = field(default_factory=set)
    """Nodes that have fallen silent."""
    beats: int = 0
    """Heartbeats so far."""

    def __post_init__(self) -> None:
        """Name the nodes."""
        self.executor: Executor = NoProcesses()
        self.names = {self.stage.name(number) for number in range(self.stage.nodes)}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._started: set[str] = set()
        self._standing: list[str] = []
        self._keep_items = False
        self.pods: Reflector[SimulatedPod] = Reflector(self.client, PODS, self._keep, self._changed)

    def run_in(self, executor: Executor) -> None:
        """Run the pods' commands with `executor`."""
        self.executor = executor
        self._keep_items = True

    async def register(self) -> None:
        """Make the nodes, smoothed by the number in flight, and take off the taint that admission puts on new ones."""
        numbers = iter(range(self.stage.nodes))

        async def work() -> None:
            for number in numbers:
                await self._register(number)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))

    async def _register(self, number: int) -> None:
        body = node_object(self.stage, number, _now())
        try:
            there = await self.client.create(NODES, body)
        except ApiError as error:
            if not error.conflict:
                raise
            there = await self.client.get(NODES, self.stage.name(number))
            await self.client.patch(NODES, self.stage.name(number), {"status": body["status"]}, part="status")
        kept = [one for one in there["spec"].get("taints") or () if one["key"] != _NOT_READY]
        if kept != (there["spec"].get("taints") or []):
            await self.client.patch(NODES, self.stage.name(number), {"spec": {"taints": kept}})
        name = self.stage.name(number)
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": there["metadata"]["uid"]}
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind,
                 "metadata": {"name": name, "ownerReferences": [owner]}, "spec": self._lease(name)}  # fmt: skip
        with contextlib.suppress(ApiError):
            await self.client.create(LEASES, lease, _LEASES)
        self._standing.append(name)

    def _lease(self, name: str) -> dict[str, Any]:
        return {"holderIdentity": name, "leaseDurationSeconds": int(4 * self.stage.period_s), "renewTime": _now_micro()}

    async def run(self) -> None:
        """Heartbeat and move pods until cancelled."""
        tasks = [asyncio.create_task(self._beat())]
        if self.stage.moves:
            tasks.append(asyncio.create_task(self.pods.run()))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in (*tasks, *self._tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _beat(self) -> None:
        """Renew the leases in turn, evenly over the period; a turn that fails is only a beat that was missed."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # Those that have registered beat already while others still do.
            standing = list(self._standing)
            pause_s = self.stage.period_s / max(1, len(standing))
            if not standing:
                await asyncio.sleep(_SOON_S)
                continue
            for name in standing:
                if name not in self.silent:
                    await self._places.acquire()
                    self._spawn(self._renew(name))
                # Who is late does not hurry: that would be a burst when the server is slow.
                due = max(due + pause_s, loop.time())
                await asyncio.sleep(max(0.0, due - loop.time()))
            with contextlib.suppress(WeftError):
                await self._mind()

    async def _renew(self, name: str) -> None:
        try:
            await self.client.patch(LEASES, name, {"spec": self._lease(name)}, _LEASES)
            self.beats += 1
        except WeftError as error:
            _LOG.info("%s: %s", name, error)
        finally:
            self._places.release()

    def silence(self, names: Iterable[str]) -> None:
        """Let nodes fall silent: no heartbeat, and what runs on them is gone."""
        for name in names:
            self.silent.add(name)
            self.executor.lose(name)

    async def revive(self, names: Sequence[str]) -> None:
        """Let silent nodes come back, empty."""
        for name in names:
            self.silent.discard(name)
            await self._places.acquire()
            await self._renew(name)
            await self._stand_up(name)
            for pod in list(self.pods.items.values()):
                if pod.node == name:
                    self._changed(None, pod)

    async def _stand_up(self, name: str) -> None:
        """Say that a node is ready, as its kubelet does when it finds that it was given up."""
        with contextlib.suppress(WeftError):
            await self.client.patch(NODES, name, {"status": {"conditions": [ready(_now())]}}, part="status")

    async def _mind(self) -> None:
        """Stand up again where a beat came too late for those who listen."""
        pages = self.client.pages(NODES, labels=f"{POOL_LABEL}={self.stage.pool}")
        async with contextlib.aclosing(pages):
            async for page, _ in pages:
                for item in page:
                    name = item["metadata"]["name"]
                    well = any(
                        one["type"] == "Ready" and one["status"] == "True" for one in item["status"]["conditions"]
                    )
                    if not well and name in self.names and name not in self.silent:
                        await self._stand_up(name)

    def _keep(self, item: Mapping[str, Any]) -> SimulatedPod:
        meta, spec = item["metadata"], item["spec"]
        grace = meta.get("deletionGracePeriodSeconds")
        return SimulatedPod(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            node=spec.get("nodeName") or "",
            phase=(item.get("status") or {}).get("phase") or "Pending",
            leaving="deletionTimestamp" in meta,
            grace_s=30 if grace is None else int(grace),
            item=item if self._keep_items else None,
        )

    def _changed(self, old: SimulatedPod | None, new: SimulatedPod | None) -> None:
        if new is None:
            if old is not None and old.node not in self.silent:
                self._spawn(self.executor.stop(old, 0.0))
            return
        if new.node not in self.names or new.node in self.silent:
            return
        if new.leaving and (old is None or not old.leaving or old.node != new.node):
            self._spawn(self._leave(new))
        elif not new.leaving and new.phase == "Pending" and new.uid not in self._started:
            self._started.add(new.uid)
            self._spawn(self._start(new))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pod: SimulatedPod) -> None:
        await asyncio.sleep(self.stage.start_s)
        if await self._say(pod, _running(_now())):
            self.executor.start(pod, self._ended)
            if self.stage.run_s is not None:
                await asyncio.sleep(self.stage.run_s)
                await self._say(pod, _over(_now(), 0))

    def _ended(self, pod: SimulatedPod, code: int) -> None:
        if pod.node not in self.silent:
            self._spawn(self._say_ended(pod, code))

    async def _say_ended(self, pod: SimulatedPod, code: int) -> None:
        await self._say(pod, _over(_now(), code))

    async def _leave(self, pod: SimulatedPod) -> None:
        """End a pod that is being deleted, then take its object away as kubelets do."""
        await self.executor.stop(pod, pod.grace_s)
        if pod.node in self.silent:
            return
        async with self._places:
            with contextlib.suppress(WeftError):
                await self.client.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0)

    async def _say(self, pod: SimulatedPod, status: Mapping[str, Any]) -> bool:
        """Write a pod's status; returns whether it is still there and its node still speaks."""
        if pod.node in self.silent:
            return False
        async with self._places:
            try:
                body = {"metadata": {"uid": pod.uid}, "status": status}
                await self.client.patch(PODS, pod.name, body, pod.namespace, part="status")
            except ApiError as error:
                if error.missing or error.conflict:
                    return False
                _LOG.warning("%s: %s", pod.name, error)
                return False
            except WeftError as error:
                _LOG.warning("%s: %s", pod.name, error)
                return False
        return True


def _running(now: str) -> dict[str, Any]:
    state = {"running": {"startedAt": now}}
    return {"phase": "Running", "startTime": now, "conditions": _conditions("True", now),
            "containerStatuses": [_container(state, ready=True)]}  # fmt: skip


def _over(now: str, code: int) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "finishedAt": now, "reason": "Completed" if code == 0 else "Error"}}
    return {"phase": "Succeeded" if code == 0 else "Failed", "conditions": _conditions("False", now),
            "containerStatuses": [_container(state, ready=False)]}  # fmt: skip


def _conditions(value: str, now: str) -> list[dict[str, str]]:
    kinds = ("Ready", "ContainersReady")
    return [{"type": kind, "status": value, "lastTransitionTime": now} for kind in kinds]


def _container(state: Mapping[str, Any], *, ready: bool) -> dict[str, Any]:
    return {"name": "job", "image": "simulated", "imageID": "", "ready": ready, "restartCount": 0, "state": state}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now_micro() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def simulate(
    access: Access, stage: SimulatedNodes, ready: Callable[[], None], folder: Path | None, silence: tuple[float, float]
) -> None:
    """Register the nodes of a stage and play them until cancelled; `silence` is a share of them, and after how long."""
    share, after_s = silence
    async with explaining(), ApiClient(access, agent="weft-actor") as client:
        actor = Kubelets(client, stage)
        if folder is not None:
            actor.run_in(PodProcesses(folder, client))

        async def register() -> None:
            await actor.register()
            ready()
            await asyncio.sleep(after_s)
            actor.silence(sorted(actor.names)[: int(share * stage.nodes)])

        await asyncio.gather(actor.run(), register())


def checked_count(stage: SimulatedNodes) -> SimulatedNodes:
    """Refuse more nodes than can be simulated."""
    most = 60_000
    if not 1 <= stage.nodes <= most:
        raise UsageError(f"--nodes {stage.nodes}: write a number from 1 to {most:,}")
    return stage
