"""Simulated nodes: they register, heartbeat, move pods through their states, fall silent and come back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.stage import running

from weft.core.errors import UsageError
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.resources import CONFIG_MAPS, GPU, LEASES, NODES, PODS, POOL_LABEL
from weft.testing.api_server import FakeApiServer
from weft.testing.kubelets import Kubelets, SimulatedNodes, checked_count, simulate
from weft.testing.pod_processes import PodProcesses, SimulatedPod
from weft.testing.virtual_time import run


@asynccontextmanager
async def _fleet(server: FakeApiServer, nodes: int = 3, **more: Any) -> AsyncIterator[tuple[Kubelets, ApiClient]]:
    async with server.client("kubelets") as client:
        kubelets = Kubelets(client, SimulatedNodes(nodes, prefix="n", **more))
        async with running(kubelets.run()):
            await kubelets.register()
            yield kubelets, client


def _pod(name: str, node: str | None = "n-00000", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {**({"nodeName": node} if node else {}), "containers": [], **spec}}


def _phase(server: FakeApiServer, name: str) -> str:
    return server.store.objects(PODS)[f"default/{name}"]["status"]["phase"]


def test_nodes_register_with_labels_addresses_and_gpus() -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with _fleet(server, 40, gpus=4, pool="mine", per_t0=8):
            nodes = server.store.objects(NODES)
            assert len(nodes) == 40
            assert {one["status"]["allocatable"][GPU] for one in nodes.values()} == {"4"}
            assert {one["metadata"]["labels"][POOL_LABEL] for one in nodes.values()} == {"mine"}
            assert len({one["metadata"]["labels"]["cluster.weft/t0"] for one in nodes.values()}) == 5
            assert len({one["status"]["addresses"][0]["address"] for one in nodes.values()}) == 40
            assert len(server.store.objects(LEASES)) == 40

    run(main())


def test_nodes_that_are_there_already_are_taken_over() -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with _fleet(server):
            uids = [one["metadata"]["uid"] for one in server.store.objects(NODES).values()]
        taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
        server.store.merge(server.store.target(NODES.path(None, "n-00001")), {"spec": {"taints": [taint]}})
        async with _fleet(server):
            assert [one["metadata"]["uid"] for one in server.store.objects(NODES).values()] == uids
            assert server.store.objects(NODES)["n-00001"]["spec"]["taints"] == []

    run(main())


@pytest.mark.parametrize(("nodes", "period_s"), [(3, 10.0), (5000, 50.0)])
def test_heartbeats_slow_down_with_the_number_of_nodes(nodes: int, period_s: float) -> None:
    assert SimulatedNodes(nodes).period_s == period_s


def test_every_node_heartbeats_once_in_a_period() -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with _fleet(server, 5) as (kubelets, _):
            before = kubelets.beats
            await asyncio.sleep(100)
            assert kubelets.beats - before == pytest.approx(50, abs=6)

    run(main())


def test_a_pod_runs_after_its_start_and_ends_well_after_its_time() -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with _fleet(server, start_s=5.0, run_s=20.0) as (_, client):
            await client.create(PODS, _pod("p"), "default")
            await client.create(PODS, _pod("unbound", None), "default")
            await client.create(PODS, _pod("elsewhere", "other"), "default")
            phases: list[str] = []
            for _ in range(4):
                phases.append(_phase(server, "p"))
                await asyncio.sleep(8)
            assert phases == ["Pending", "Running", "Running", "Running"] or phases[-1] == "Succeeded"
            await asyncio.sleep(10)
            assert _phase(server, "p") == "Succeeded"
            assert _phase(server, "unbound") == _phase(server, "elsewhere") == "Pending"

    run(main())


def test_a_pod_that_is_deleted_leaves_and_one_on_a_silent_node_stays() -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with _fleet(server) as (kubelets, client):
            for number in range(2):
                await client.create(PODS, _pod(f"p{number}", f"n-0000{number}"), "default")
            await asyncio.sleep(5)
            kubelets.silence(["n-00001"])
            for number in range(2):
                await client.delete(PODS, f"p{number}", "default")
            await asyncio.sleep(60)
            assert sorted(server.store.objects(PODS)) == ["default/p1"]
            await kubelets.revive(["n-00001"])
            await asyncio.sleep(5)
            assert not server.store.objects(PODS)

    run(main())


def test_a_node_that_was_given_up_stands_up_again() -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with _fleet(server) as (_, client):
            unknown = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
            await client.patch(NODES, "n-00002", {"status": unknown}, part="status")
            await asyncio.sleep(30)
            assert server.store.objects(NODES)["n-00002"]["status"]["conditions"][0]["status"] == "True"

    run(main())


def test_nodes_that_do_not_move_pods_leave_them_alone() -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with _fleet(server, moves=False, taint=False) as (_, client):
            await client.create(PODS, _pod("p"), "default")
            await asyncio.sleep(60)
            assert _phase(server, "p") == "Pending"
            assert server.store.objects(NODES)["n-00000"]["spec"]["taints"] == []

    run(main())


@pytest.mark.parametrize("status", [404, 409, 500])
def test_a_status_that_is_refused_is_only_a_pod_that_does_not_start(status: int) -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with _fleet(server, run_s=1.0) as (_, client):
            server.fail(status, "PATCH", "/pods/p/status", times=50)
            await client.create(PODS, _pod("p"), "default")
            await asyncio.sleep(300)
            assert _phase(server, "p") == "Pending"

    run(main())


@pytest.mark.parametrize("nodes", [0, -1, 60_001])
def test_a_number_of_nodes_that_cannot_be_simulated_is_refused(nodes: int) -> None:
    with pytest.raises(UsageError, match="write a number from 1"):
        checked_count(SimulatedNodes(nodes))
    assert checked_count(SimulatedNodes(1)).nodes == 1


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_share_of_the_nodes_falls_silent(share: float, tmp_path: Path) -> None:
    async def main() -> None:
        server = FakeApiServer()
        said: list[str] = []
        async with server.listening() as address:
            work = simulate(
                Access(address, "fake"), SimulatedNodes(4), lambda: said.append("ready"), tmp_path, (share, 0.05)
            )
            task = asyncio.create_task(work)
            while not said:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(server.store.objects(NODES)) == 4

    asyncio.run(main())


async def _until(question: Callable[[], bool]) -> None:
    for _ in range(1000):
        if question():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not so after ten seconds")


def _simulated(command: list[str], **spec: Any) -> SimulatedPod:
    container = {"command": command, **spec.pop("container", {})}
    item = {"spec": {"containers": [container], **spec}}
    return SimulatedPod("default", "p", "uid", "n-00000", "Running", leaving=False, grace_s=1, item=item)


@pytest.mark.parametrize(
    ("command", "code"), [(["true"], 0), (["false"], 1), (["sh", "-c", "exit 7"], 7), (["no-such-program"], 127)]
)
def test_a_pods_command_runs_and_its_status_is_heard(command: list[str], code: int, tmp_path: Path) -> None:
    async def main() -> None:
        ended: list[int] = []
        processes = PodProcesses(tmp_path, FakeApiServer().client())
        processes.start(_simulated(command), lambda _, status: ended.append(status))
        await _until(lambda: bool(ended))
        assert ended == [code]

    asyncio.run(main())


def test_volumes_are_folders_and_paths_are_moved_into_them(tmp_path: Path) -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            data = {"data": {"text": "hello"}, "binaryData": {"raw": "aGk="}}
            await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}, **data}, "default")
            mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("config", "claim", "host", "empty")]
            volumes = [
                {"name": "config", "configMap": {"name": "c"}},
                {"name": "claim", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "host", "hostPath": {"path": str(tmp_path)}},
            ]
            script = 'cat /config/text >/dev/null; cp "$SOURCE" "$TARGET"; echo "$SOURCE"; touch "$NOTE" "$MARK"'
            names = {"SOURCE": "/config/raw", "TARGET": "/claim/copy", "NOTE": "/host/note", "MARK": "/empty"}
            environment = [{"name": key, "value": value} for key, value in names.items()]
            pod = _simulated(
                ["sh", "-c", script], volumes=volumes, container={"volumeMounts": mounts, "env": environment}
            )
            ended: list[int] = []
            processes = PodProcesses(tmp_path / "all", client)
            processes.start(pod, lambda _, status: ended.append(status))
            await _until(lambda: bool(ended))
        assert (tmp_path / "all" / "claims" / "default" / "data" / "copy").read_bytes() == b"hi"
        assert (tmp_path / "note").exists()
        assert processes.log("default", "p").read_text().strip().endswith("/raw")

    asyncio.run(main())


@pytest.mark.parametrize("how", ["asked", "killed", "lost"])
def test_a_pods_command_ends_when_it_is_asked_killed_or_lost(how: str, tmp_path: Path) -> None:
    async def main() -> None:
        ended: list[int] = []
        processes = PodProcesses(tmp_path, FakeApiServer().client())
        pod = _simulated(["sleep", "60"])
        processes.start(pod, lambda _, status: ended.append(status))
        await _until(lambda: bool(processes._running))
        if how == "lost":
            processes.lose("another")
            processes.lose("n-00000")
        else:
            await processes.stop(pod, 5.0 if how == "asked" else 0.0)
        await _until(lambda: bool(ended))
        assert ended == [143 if how == "asked" else 137]
        await processes.stop(pod, 0.0)

    asyncio.run(main())
