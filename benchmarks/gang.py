"""One gang as large as the cluster, bound by weft and by kube-scheduler one after the other on the same API server.

A real kube-apiserver and etcd (`make kube-assets`), simulated nodes, whole-node pods. Measured from the first pod
that is
created to the last that is bound, as a watch sees it; kube-scheduler's request limits are lifted. Then small jobs are
submitted while a gang is being bound. Prints medians, their ratio, the engine's peak memory, the small jobs' p95, and
the processor time of scheduler, API server and etcd together, whose ratio a busy machine changes less.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.reflector import Reflector
from weft.engines.kubernetes.api.resources import GPU, JOBS, NAMESPACES, PODS, POOL_TAINT, TEAMS
from weft.engines.kubernetes.commands.installation import install
from weft.engines.kubernetes.controller.controller_main import NAMESPACE
from weft.testing.control_plane import ControlPlane, assets, missing
from weft.testing.kubelets import Kubelets, SimulatedNodes

_GPUS = 8
_HOME = "default"
_AT_ONCE = 64
_PATIENCE_S = 900.0
_ENGINE = [sys.executable, "-c", "from weft.cli.main import run; run()", "cluster", "control"]


class Watcher:
    """Sees pods come and be bound, and when."""

    def __init__(self, client: ApiClient) -> None:
        """Watch every pod."""
        self.bound: dict[str, float] = {}
        self.first: float | None = None
        self.cache: Reflector[tuple[str, bool]] = Reflector(client, PODS, _kept, self._changed)

    def reset(self) -> None:
        """Forget what was seen."""
        self.bound.clear()
        self.first = None

    def _changed(self, old: tuple[str, bool] | None, new: tuple[str, bool] | None) -> None:
        if new is None:
            return
        now = time.monotonic()
        if self.first is None and old is None:
            self.first = now
        if new[1]:
            self.bound.setdefault(new[0], now)

    async def until(self, prefix: str, count: int) -> float:
        """Return the seconds from the first pod to the `count`th bound one whose name begins with `prefix`."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            times = sorted(at for name, at in self.bound.items() if name.startswith(prefix))
            if len(times) >= count:
                assert self.first is not None, "what is bound has been seen"
                return times[count - 1] - self.first
            await asyncio.sleep(0.2)
        raise SystemExit(f"{len(self.bound)} of {count} pods were bound after {_PATIENCE_S:.0f} s")


def _kept(item: Any) -> tuple[str, bool]:
    return item["metadata"]["name"], bool(item["spec"].get("nodeName"))


def job(name: str, nodes: int) -> dict[str, Any]:
    """Return a WeftJob of whole nodes."""
    spec = {"nodes": nodes, "gpusPerNode": _GPUS, "command": ["train"], "timeLimit": "30 min"}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": name}, "spec": spec}


def bare_pod(name: str) -> dict[str, Any]:
    """Return a whole-node pod for kube-scheduler."""
    room = {GPU: str(_GPUS)}
    container = {"name": "job", "image": "weft:latest", "resources": {"requests": room, "limits": room}}
    spec = {"containers": [container], "tolerations": [{"key": POOL_TAINT, "operator": "Exists"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def engine(plane: ControlPlane) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run the engine as the process that it is in a cluster."""
    log = Path(plane.folder / "engine.log").open("ab")  # noqa: SIM115 - closed with the process
    command = [*_ENGINE, "--kubeconfig", str(plane.kubeconfig()), "--identity", "bench", "--rate", "5000"]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        log.close()


def load() -> str:
    """Return how busy the machine was during the last minute."""
    return f"load {os.getloadavg()[0]:.1f}"


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server_cpu_s(plane: ControlPlane) -> float:
    """Return the processor seconds of API server and etcd."""
    return sum(cpu_s(plane.processes[name].pid) for name in ("kube-apiserver", "etcd"))


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """Return the most memory that a process has held so far, in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6


async def sweep(client: ApiClient, watcher: Watcher) -> None:
    """Take every job and pod away."""
    for one in await client.list(JOBS, _HOME):
        await client.delete(JOBS, one["metadata"]["name"], _HOME)
    query = {"gracePeriodSeconds": "0"}
    client.timeout_s = 600.0
    await client.request("DELETE", PODS.path(_HOME), query=query)
    while watcher.cache.items:
        await asyncio.sleep(0.2)
    watcher.reset()


async def ours(
    plane: ControlPlane, client: ApiClient, watcher: Watcher, nodes: int, number: int
) -> tuple[float, float, float]:
    """Return the seconds that weft takes for the gang, the processor seconds, and its peak memory in MB."""
    async with engine(plane) as process:
        await asyncio.sleep(8.0)
        before, used = server_cpu_s(plane), cpu_s(process.pid)
        await client.create(JOBS, job(f"gang{number}", nodes), _HOME)
        seconds = await watcher.until(f"gang{number}-", nodes)
        memory = peak_mb(process)
        mine, servers = cpu_s(process.pid) - used, server_cpu_s(plane) - before
        spent = f"CPU {mine:.1f} s and {servers:.1f} s of the server's"
        print(f"weft: {seconds:.1f} s, peak {memory:.0f} MB, {spent}, {load()}", flush=True)
    await sweep(client, watcher)
    return seconds, mine + servers, memory


async def theirs(
    plane: ControlPlane, client: ApiClient, watcher: Watcher, nodes: int, number: int
) -> tuple[float, float]:
    """Return the seconds that kube-scheduler takes for as many pods, and the processor seconds."""
    plane.start_scheduler()
    await asyncio.sleep(8.0)
    names = iter(range(nodes))
    scheduler = plane.processes["kube-scheduler"].pid
    before, used = server_cpu_s(plane), cpu_s(scheduler)

    async def work() -> None:
        for at in names:
            await client.create(PODS, bare_pod(f"bare{number}-{at}"), _HOME)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    seconds = await watcher.until(f"bare{number}-", nodes)
    mine, servers = cpu_s(scheduler) - used, server_cpu_s(plane) - before
    spent = f"CPU {mine:.1f} s and {servers:.1f} s of the server's"
    memory = plane.peak_memory_bytes("kube-scheduler") / 1e6
    print(f"kube-scheduler: {seconds:.1f} s, peak {memory:.0f} MB, {spent}, {load()}", flush=True)
    plane.stop("kube-scheduler")
    await sweep(client, watcher)
    return seconds, mine + servers


async def beside(
    plane: ControlPlane, client: ApiClient, watcher: Watcher, nodes: int, small: int
) -> tuple[list[float], int]:
    """Return submit-to-bound seconds of small jobs during the bind of a gang, and how many were bound before it was."""
    async with engine(plane) as process:
        await asyncio.sleep(8.0)
        await client.create(JOBS, job("large", nodes), _HOME)
        while watcher.first is None:
            await asyncio.sleep(0.01)
        waits: list[float] = []
        during = 0
        for number in range(small):
            name = f"small{number}"
            begun = time.monotonic()
            await client.create(JOBS, job(name, 1), _HOME)
            while f"{name}-1-0" not in watcher.bound:
                await asyncio.sleep(0.005)
            waits.append(watcher.bound[f"{name}-1-0"] - begun)
            during += sum(one.startswith("large-") for one in watcher.bound) < nodes
        del process
        await watcher.until("large-", nodes)
    await sweep(client, watcher)
    return waits, during


async def measure(plane: ControlPlane, nodes: int, rounds: int, small: int) -> dict[str, Any]:
    """Make all runs and return the figures."""
    await install(plane.access())
    found: dict[str, Any] = {
        "nodes": nodes, "weft_s": [], "kube_scheduler_s": [], "weft_peak_mb": [], "weft_cpu_s": [],
        "kube_scheduler_cpu_s": [],
    }  # fmt: skip
    async with ApiClient(plane.access(), agent="bench") as client, ApiClient(plane.access(), agent="actor") as acting:
        await client.apply(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        team = {"apiVersion": TEAMS.api_version, "kind": TEAMS.kind, "metadata": {"name": "default"}}
        await client.apply(TEAMS, {**team, "spec": {"quota": _GPUS * (nodes + small)}})
        watcher = Watcher(client)
        task = asyncio.create_task(watcher.cache.run())
        actor = Kubelets(acting, SimulatedNodes(nodes + small, _GPUS, moves=False, heartbeats_per_s=20.0))
        begun = time.monotonic()
        await actor.register()
        print(f"{nodes + small:,} nodes registered in {time.monotonic() - begun:.1f} s", flush=True)
        beats = asyncio.create_task(actor.run())
        for number in range(rounds):
            seconds, spent, memory = await ours(plane, client, watcher, nodes, number)
            found["weft_cpu_s"].append(round(spent, 1))
            found["weft_s"].append(round(seconds, 2))
            found["weft_peak_mb"].append(round(memory))
            seconds, spent = await theirs(plane, client, watcher, nodes, number)
            found["kube_scheduler_cpu_s"].append(round(spent, 1))
            found["kube_scheduler_s"].append(round(seconds, 2))
        waits, during = await beside(plane, client, watcher, nodes, small)
        found["small_p50_s"] = round(statistics.median(waits), 3)
        found["small_p95_s"] = round(statistics.quantiles(waits, n=20)[-1], 3)
        found["small_during"] = during
        beats.cancel()
        task.cancel()
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=7500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", type=int, default=50)
    asked = parser.parse_args()
    folder = assets(os.environ)
    if missing(folder) or not (folder / "kube-scheduler").is_file():
        print(f"gang: no API server in {folder}; run make kube-assets")
        return
    with ControlPlane(folder) as plane:
        found = asyncio.run(measure(plane, asked.nodes, asked.rounds, asked.small))
    if asked.rounds:
        mine, other = statistics.median(found["weft_s"]), statistics.median(found["kube_scheduler_s"])
        found["ratio"] = round(other / mine, 2)
        found["cpu_ratio"] = round(
            statistics.median(found["kube_scheduler_cpu_s"]) / statistics.median(found["weft_cpu_s"]), 2
        )
        print(
            f"gang of {asked.nodes:,}: weft {mine:.1f} s, kube-scheduler {other:.1f} s, {other / mine:.1f} times faster"
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
