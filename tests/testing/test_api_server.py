"""The fake API server as clients see it: in process and over real HTTP alike."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest

from weft.core.errors import UsageError
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import MERGE, ApiClient, ApiError, explaining
from weft.engines.kubernetes.api.resources import (
    CONFIG_MAPS,
    DEFINITIONS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    TEAMS,
)
from weft.engines.kubernetes.commands.installation import install
from weft.testing.api_server import Crash, FakeApiServer, Trouble
from weft.testing.virtual_time import run

Scenario = Callable[[FakeApiServer, ApiClient], Awaitable[None]]
WAYS = ("in process", "http")


@contextlib.asynccontextmanager
async def _client(server: FakeApiServer, way: str, **more: Any) -> AsyncIterator[ApiClient]:
    if way == "in process":
        async with server.client(**more) as client:
            yield client
        return
    token = more.pop("token", "admin")
    async with server.listening() as address, ApiClient(Access(address, "fake", token=token), **more) as client:
        yield client


def _play(way: str, scenario: Scenario, server: FakeApiServer | None = None, **more: Any) -> FakeApiServer:
    one = server or FakeApiServer()

    async def main() -> None:
        async with _client(one, way, **more) as client:
            await scenario(one, client)

    (run if way == "in process" else asyncio.run)(main())
    return one


def _config(name: str = "c", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"app": "x"}}, "data": data}


@pytest.mark.parametrize("way", WAYS)
def test_an_object_is_made_read_changed_and_removed(way: str) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        made = await client.create(CONFIG_MAPS, _config(a="1"), "default")
        assert await client.get(CONFIG_MAPS, "c", "default") == made
        changed = await client.patch(CONFIG_MAPS, "c", {"data": {"b": "2"}}, "default")
        assert changed["data"] == {"a": "1", "b": "2"}
        with pytest.raises(ApiError) as caught:
            await client.replace(CONFIG_MAPS, {**made, "data": {}}, "default")
        assert caught.value.conflict
        assert await client.delete(CONFIG_MAPS, "c", "default", uid=made["metadata"]["uid"])
        assert not await client.delete(CONFIG_MAPS, "c", "default")
        assert await client.find(CONFIG_MAPS, "c", "default") is None
        assert [one.split()[0] for one in server.writes] == ["POST", "PATCH", "DELETE"]

    _play(way, scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_list_comes_in_pages(way: str) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        for number in range(1203):
            server.store.create(server.store.target(CONFIG_MAPS.path("default")), _config(f"c{number:04d}"))
        sizes = [len(page) async for page, _ in client.pages(CONFIG_MAPS, "default", labels="app=x")]
        assert sizes == [500, 500, 203]
        assert len(await client.list(CONFIG_MAPS)) == 1203
        (named,) = [page async for page, _ in client.pages(CONFIG_MAPS, fields="metadata.name=c0007")]
        assert [one["metadata"]["name"] for one in named] == ["c0007"]

    _play(way, scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_watch_tells_what_happens_after_a_version(way: str) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        await client.create(CONFIG_MAPS, _config("before"), "default")
        version = str(server.store.version)
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "60", "labelSelector": "app=x"}
        seen: list[tuple[str, str]] = []
        async with client.stream(CONFIG_MAPS.path("default"), query, 10.0) as lines:
            await client.create(CONFIG_MAPS, _config("a"), "default")
            await client.create(CONFIG_MAPS, {"metadata": {"name": "unlabelled"}}, "default")
            await client.patch(CONFIG_MAPS, "a", {"data": {"x": "y"}}, "default")
            await client.patch(CONFIG_MAPS, "a", {"metadata": {"labels": {"app": None}}}, "default")
            await client.delete(CONFIG_MAPS, "before", "default")
            async for line in lines:
                event = orjson.loads(line)
                seen.append((event["type"], event["object"]["metadata"]["name"]))
                if len(seen) == 4:
                    break
        assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("DELETED", "before")]

    _play(way, scenario)


def test_a_watch_that_has_nothing_to_tell_sends_bookmarks_and_ends_in_time() -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        query = {"watch": "1", "resourceVersion": "1", "timeoutSeconds": "100"}
        async with client.stream(PODS.path(), query, 60.0) as lines:
            kinds = [orjson.loads(line)["type"] async for line in lines]
        assert kinds == ["BOOKMARK"] * 4
        assert loop.time() - began == pytest.approx(100, abs=0.01)
        assert server.requests["WATCH pods"] == 1

    _play("in process", scenario)


def test_a_muted_watch_says_nothing_until_the_client_gives_up() -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        server.mute("pods")
        query = {"watch": "1", "resourceVersion": "1", "timeoutSeconds": "300"}
        async with client.stream(PODS.path(), query, 40.0) as lines:
            with pytest.raises(TimeoutError):
                await anext(lines)
        assert asyncio.get_running_loop().time() == pytest.approx(40, abs=0.1)

    _play("in process", scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_version_that_was_compacted_is_gone(way: str) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        await client.create(CONFIG_MAPS, _config(), "default")
        server.store.compact()
        with pytest.raises(ApiError) as caught:
            async with client.stream(CONFIG_MAPS.path(), {"watch": "1", "resourceVersion": "1"}, 5.0):
                raise AssertionError("it is not opened")
        assert caught.value.gone

    _play(way, scenario)


def test_a_compaction_during_a_watch_is_told_as_an_error() -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        query = {"watch": "1", "resourceVersion": str(server.store.version)}
        async with client.stream(CONFIG_MAPS.path(), query, 50.0) as lines:
            await client.create(CONFIG_MAPS, _config(), "default")
            server.store.compact()
            server.mute("none")
            event = orjson.loads(await anext(lines))
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)

    _play("in process", scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_planned_fault_happens_as_often_as_planned(way: str) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        server.fail(429, "POST", "configmaps", times=2, retry_after_s=0)
        await client.create(CONFIG_MAPS, _config(), "default")
        assert client.sent["POST"] == 3
        server.fail(503, times=100)
        with pytest.raises(ApiError) as caught:
            await client.get(CONFIG_MAPS, "c", "default")
        assert caught.value.status == 503

    _play(way, scenario, tries=3)


def test_an_answer_that_is_lost_was_done() -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        server.fail(500, "POST", done=True)
        with pytest.raises(ApiError) as caught:
            await client.create(CONFIG_MAPS, _config(), "default")
        assert caught.value.conflict, "the second try finds what the first has made"

    _play("in process", scenario)


@pytest.mark.parametrize("seed", range(3))
def test_trouble_is_the_same_for_the_same_seed(seed: int) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        server.trouble = Trouble(too_many=0.2, failed=0.2, lost=0.1, latency_s=0.5)
        for number in range(30):
            with contextlib.suppress(ApiError):
                await client.create(CONFIG_MAPS, _config(f"c{number}"), "default")

    def life() -> tuple[list[str], int]:
        server = _play("in process", scenario, FakeApiServer(seed), tries=2)
        return server.writes, server.requests["POST configmaps"]

    assert life() == life()
    assert len(life()[0]) < 30


def test_a_crash_ends_a_client_after_its_last_write_and_no_other() -> None:
    async def main() -> None:
        server = FakeApiServer()
        server.crash = Crash("doomed", 2)
        async with server.client("doomed") as doomed, server.client("other") as other:
            await doomed.create(CONFIG_MAPS, _config("a"), "default")
            last = asyncio.create_task(doomed.create(CONFIG_MAPS, _config("b"), "default"))
            await server.crash.reached.wait()
            await other.create(CONFIG_MAPS, _config("c"), "default")
            more = asyncio.create_task(doomed.create(CONFIG_MAPS, _config("d"), "default"))
            await asyncio.sleep(600)
            assert not last.done()
            assert not more.done()
            for task in (last, more):
                task.cancel()
            assert sorted(server.store.objects(CONFIG_MAPS)) == ["default/a", "default/b", "default/c"]

    run(main())


@pytest.mark.parametrize("way", WAYS)
def test_rules_say_who_may_do_what(way: str) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        server.users = {"reader": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]}
        assert await client.list(CONFIG_MAPS) == []
        with pytest.raises(ApiError) as caught:
            await client.create(CONFIG_MAPS, _config(), "default")
        assert caught.value.forbidden
        assert "cannot create" in caught.value.message
        assert client.refused == ["POST /api/v1/namespaces/default/configmaps"]
        with pytest.raises(UsageError, match="permission is missing"):
            async with explaining():
                await client.list(PODS)
        server.users = {}
        with pytest.raises(UsageError, match="does not accept the credentials"):
            async with explaining():
                await client.list(CONFIG_MAPS)

    _play(way, scenario, token="reader")


def test_patches_of_another_kind_are_refused() -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        await client.create(CONFIG_MAPS, _config(), "default")
        path = CONFIG_MAPS.path("default", "c")
        await client.request("PATCH", path, body={"data": {"z": "1"}}, content=MERGE)
        with pytest.raises(ApiError) as caught:
            await client.request("PATCH", path, body={"data": {"z": "1"}}, content="application/json-patch+json")
        assert caught.value.status == 415
        with pytest.raises(ApiError) as caught:
            await client.request("POST", CONFIG_MAPS.path("default", "c", "status"), body={})
        assert caught.value.status == 405
        assert server.writes[-1].startswith("PATCH")

    _play("in process", scenario)


@pytest.mark.parametrize("versions", [("v1", "v1beta1"), ("v1beta1",)])
def test_evictions_heed_budgets_of_old_servers_and_new(versions: tuple[str, ...]) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        server.policy_versions = versions
        pod = {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"nodeName": "n"}}
        uid = (await client.create(PODS, pod, "default"))["metadata"]["uid"]
        budgets = await client.budgets()
        assert budgets.version == versions[0]
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"a": "b"}}}
        await client.create(budgets, {"metadata": {"name": "b"}, "spec": spec}, "default")
        assert await client.evict("default", "p", uid) == 10.0
        await client.delete(budgets, "b", "default")
        assert await client.evict("default", "p", uid, 0) is None
        assert await client.evict("default", "p", uid) is None, "it has gone already"

    _play("in process", scenario)


@pytest.mark.parametrize("way", WAYS)
def test_logs_of_pods_are_text(way: str) -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        server.logs["default/p"] = "step 1\n"
        with pytest.raises(ApiError):
            await client.text(PODS.path("default", "p", "log"))
        await client.create(PODS, {"metadata": {"name": "p"}, "spec": {}}, "default")
        assert await client.text(PODS.path("default", "p", "log")) == "step 1\n"

    _play(way, scenario)


def test_kinds_are_served_from_the_time_of_their_definition() -> None:
    async def main() -> None:
        server = FakeApiServer(crds=False)
        async with server.client() as client:
            with pytest.raises(UsageError, match="weft cluster install"):
                async with explaining():
                    await client.list(JOBS)
        async with server.listening() as address:
            names = await install(Access(address, "fake"))
        assert names == sorted(names, key=names.index)
        async with server.client() as client:
            assert await client.list(JOBS) == await client.list(TEAMS) == []
            assert len(await client.list(DEFINITIONS)) == len(names)

    asyncio.run(main())


def test_a_node_whose_lease_is_not_renewed_is_said_to_be_unknown() -> None:
    async def scenario(server: FakeApiServer, client: ApiClient) -> None:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        for name in ("heard", "silent"):
            await client.create(NODES, {"metadata": {"name": name}, "status": ready})
            await client.create(LEASES, {"metadata": {"name": name}, "spec": {"renewTime": "0"}}, "kube-node-lease")
        monitor = asyncio.create_task(server.monitor_nodes(20.0))
        for beat in range(6):
            await asyncio.sleep(10)
            await client.patch(LEASES, "heard", {"spec": {"renewTime": str(beat)}}, "kube-node-lease")
        states = {one["metadata"]["name"]: one["status"]["conditions"][0]["status"] for one in await client.list(NODES)}
        assert states == {"heard": "True", "silent": "Unknown"}
        monitor.cancel()

    _play("in process", scenario)


def test_times_are_the_loops_inside_one_and_fixed_outside() -> None:
    server = FakeApiServer()

    async def scenario(one: FakeApiServer, client: ApiClient) -> None:
        del client
        before = one.now_ms()
        await asyncio.sleep(3600)
        assert one.now_ms() - before == pytest.approx(3_600_000, abs=5)

    outside = server.now_ms()
    _play("in process", scenario, server)
    assert server.now_ms() == outside
