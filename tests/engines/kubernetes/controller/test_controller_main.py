"""The engine as a program: it is elected, serves metrics and reports, and says what the user has to put right."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.engines.kubernetes.stage import running

from weft.core.errors import UsageError, WeftError
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.resources import JOBS, LEASES, NAMESPACES, PODS, TEAMS
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.controller_main import NAMESPACE, Leading, control
from weft.engines.kubernetes.controller.settings import Settings
from weft.testing.api_server import FakeApiServer
from weft.testing.control_plane import _free_port
from weft.testing.kubelets import Kubelets, SimulatedNodes

_QUICK = Settings(pool="weft", heart_s=0.05, pass_s=0.001, teams_s=0.1, resync_s=0.5)


@contextlib.asynccontextmanager
async def _server(nodes: int = 2) -> AsyncIterator[tuple[FakeApiServer, Access]]:
    server = FakeApiServer()
    async with server.listening() as address, server.client("kubelets") as client:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await client.create(TEAMS, {"metadata": {"name": "default"}, "spec": {"quota": 100}})
        kubelets = Kubelets(client, SimulatedNodes(nodes))
        async with running(kubelets.run()):
            await kubelets.register()
            yield server, Access(address, "fake")


async def _until(question: Any) -> None:
    for _ in range(1500):
        if question():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not so after fifteen seconds")


def _job(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"command": ["true"]}}


def _state(server: FakeApiServer, name: str) -> str:
    return (server.store.objects(JOBS)[f"default/{name}"].get("status") or {}).get("state", "")


async def _post(port: int, document: Any) -> tuple[int, str]:
    address = f"http://127.0.0.1:{port}/v1/report"
    async with aiohttp.ClientSession() as session, session.post(address, json=document) as answer:
        return answer.status, await answer.text()


async def _get(port: int, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        assert answer.status == 200
        return await answer.text()


def test_an_engine_leads_runs_jobs_serves_metrics_and_hears_reports() -> None:
    async def life() -> None:
        port = _free_port()
        engines: list[KubernetesEngine] = []
        async with _server() as (server, access):
            leading = Leading(identity="one", metrics=f"127.0.0.1:{port}", lease_s=5.0)
            async with running(control(access, _QUICK, leading, on_engine=engines.append)), server.client() as client:
                await client.create(JOBS, _job("job"), "default")
                await _until(lambda: _state(server, "job") == "running")
                text = await _get(port, "/metrics")
                found = {one.name: {tuple(s.labels.values()): s.value for s in one.samples}
                         for one in text_string_to_metric_families(text)}  # fmt: skip
                assert found["weft_leading"] == {(): 1.0}
                assert found["weft_jobs"] == {("running",): 1.0}
                assert found["weft_nodes"] == {("ready",): 2.0}
                assert found["weft_api_requests"][("POST",)] >= 2
                assert found["weft_passes"][()] > 0
                assert found["weft_pods_bound"][()] == 1
                assert 'weft_wait_seconds_bucket{le="+Inf",nodes="1"} 1.0' in text
                assert "weft_pass_seconds_count" in text
                assert found["weft_writes_failed"] == {(): 0.0}
                assert found["weft_relists"] == {(): 6.0}
                assert "# TYPE weft_decisions_total counter" in text
                assert found["weft_peak_memory_bytes"][()] > 10**6
                assert await _get(port, "/healthz") == "alive\n"
                uid = server.store.objects(JOBS)["default/job"]["metadata"]["uid"]
                node = next(iter(server.store.objects(PODS).values()))["spec"]["nodeName"]
                about = {"job": "default/job", "uid": uid, "node": node}
                assert await _post(port, {**about, "checkpoint_ms": 5}) == (200, "heard\n")
                assert (await _post(port, {**about, "uid": "another"}))[0] == 404
                assert (await _post(port, {"job": 7}))[0] == 400
                await _until(lambda: engines[0].entries["default/job"].record.checkpoint_ms == 5)
            lease = server.store.objects(LEASES)[f"{NAMESPACE}/weft-engine"]
            assert lease["spec"]["holderIdentity"] == "", "who leaves gives the lease up"

    asyncio.run(life())


def test_an_engine_that_waits_for_the_lease_hears_nothing() -> None:
    async def life() -> None:
        port = _free_port()
        async with _server() as (server, access):
            async with server.client() as client:
                spec = {"holderIdentity": "other", "renewTime": "x"}
                await client.create(LEASES, {"metadata": {"name": "weft-engine"}, "spec": spec}, NAMESPACE)
            async with running(control(access, _QUICK, Leading(identity="two", metrics=f":{port}", lease_s=60.0))):
                for _ in range(500):
                    with contextlib.suppress(aiohttp.ClientError):
                        assert (await _post(port, {}))[0] == 503
                        break
                    await asyncio.sleep(0.01)
                assert "weft_leading 0.0" in await _get(port, "/metrics")

    asyncio.run(life())


def test_an_engine_without_the_kinds_or_permissions_says_what_to_do() -> None:
    async def life() -> None:
        server = FakeApiServer(crds=False)
        async with server.listening() as address:
            async with server.client() as client:
                await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
            with pytest.raises(UsageError, match="weft cluster install"):
                await control(Access(address, "fake"), _QUICK, Leading())
            server.users = {"nobody": []}
            with pytest.raises(UsageError, match="a permission is missing: leases is forbidden"):
                await control(Access(address, "fake", token="nobody"), _QUICK, Leading())

    asyncio.run(life())


def test_an_engine_that_loses_the_lease_ends() -> None:
    async def life() -> None:
        async with _server() as (server, access):
            engines: list[KubernetesEngine] = []
            work = control(access, _QUICK, Leading(identity="one", lease_s=0.6), on_engine=engines.append)
            task = asyncio.create_task(work)
            await _until(lambda: bool(engines))
            server.store.merge(
                server.store.target(LEASES.path(NAMESPACE, "weft-engine")),
                {"spec": {"holderIdentity": "other", "renewTime": "now"}},
            )
            with pytest.raises(WeftError, match="was lost"):
                await asyncio.wait_for(task, 30)

    asyncio.run(life())


@pytest.mark.parametrize(
    ("where", "words"), [("nonsense", "write HOST:PORT"), ("256.1.1.1:80", "--metrics 256.1.1.1:80")]
)
def test_an_address_for_metrics_that_cannot_be_is_refused(where: str, words: str) -> None:
    async def life() -> None:
        async with _server() as (_, access):
            with pytest.raises(UsageError, match=words):
                await control(access, _QUICK, Leading(metrics=where))

    asyncio.run(life())


def test_a_look_fills_the_caches_and_writes_nothing() -> None:
    async def life() -> None:
        async with _server() as (server, access), ApiClient(access) as client:
            await client.create(JOBS, _job("job"), "default")
            await client.create(JOBS, {"metadata": {"name": "spoilt"}, "spec": {"nodes": 1}}, "default")
            writes = [one for one in server.writes if "leases" not in one]
            engine = KubernetesEngine(client)
            await engine.look()
            assert list(engine.entries) == ["default/job"]
            assert [node.gpus for node in engine.cluster.pool.nodes] == [8, 8]
            assert [one for one in server.writes if "leases" not in one] == writes

    asyncio.run(life())


def test_a_follower_passes_reports_on_to_the_one_that_leads_and_says_503_when_nobody_does() -> None:
    async def life() -> None:
        ports = {"one": _free_port(), "two": _free_port()}
        engines: list[KubernetesEngine] = []

        def leading(name: str) -> Leading:
            where = f"127.0.0.1:{ports[name]}"
            return Leading(identity=name, metrics=where, lease_s=2.0, advertise=f"http://{where}")

        async with _server() as (server, access), server.client() as client, contextlib.AsyncExitStack() as first:
            await first.enter_async_context(running(control(access, _QUICK, leading("one"), on_engine=engines.append)))
            await client.create(JOBS, _job("job"), "default")
            await _until(lambda: _state(server, "job") == "running")
            async with running(control(access, _QUICK, leading("two"), on_engine=engines.append)):
                job = server.store.objects(JOBS)["default/job"]
                node = job["status"]["placement"]["nodes"][0]
                known = {"job": "default/job", "uid": job["metadata"]["uid"], "node": node, "checkpoint_ms": 1}
                answers: list[tuple[int, str]] = []

                async def ask(document: Any, status: int) -> None:
                    for _ in range(300):
                        with contextlib.suppress(aiohttp.ClientError):
                            answers.append(await _post(ports["two"], document))
                            if answers[-1][0] == status:
                                return
                        await asyncio.sleep(0.05)
                    raise AssertionError(f"never {status}: {answers[-3:]}")

                # The follower knows of no job; the one that leads answers for it, whatever the answer is.
                await ask(known, 200)
                await ask({**known, "uid": "another"}, 404)
                await ask({"job": "nonsense"}, 400)
                assert [one.entries for one in engines[1:]] == []
                await first.aclose()
                # Nobody answers where the lease points to, until the other has taken it.
                await ask(known, 503)
                await ask(known, 200)
                assert len(engines) == 2

    asyncio.run(life())
