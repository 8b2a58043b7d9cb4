"""Caches that stay true: lists, watches, bookmarks, versions that are gone, servers that lag or fall silent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from weft.engines.kubernetes.api.api_client import Answer, ApiClient, ApiError, Call
from weft.engines.kubernetes.api.reflector import Reflector, Relist, WatchScope
from weft.engines.kubernetes.api.resources import CONFIG_MAPS, JOBS, NODES
from weft.testing.api_server import FakeApiServer, InProcessClient, Trouble
from weft.testing.virtual_time import run

_Kept = tuple[str, str]
_ACTS = ["put", "delete", "compact", "mute", "wait"]


def _keep(item: Mapping[str, Any]) -> _Kept:
    return item["metadata"]["name"], (item.get("data") or {}).get("v", "")


class _Cache:
    """A reflector and the differences that it has told."""

    def __init__(self, client: ApiClient, scope: WatchScope | None = None) -> None:
        self.told: list[tuple[_Kept | None, _Kept | None]] = []
        self.reflector: Reflector[_Kept] = Reflector(
            client, CONFIG_MAPS, _keep, lambda old, new: self.told.append((old, new)), scope or WatchScope()
        )

    @property
    def names(self) -> dict[str, str]:
        return dict(self.reflector.items.values())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reflector.run())
        try:
            await self.reflector.synced.wait()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _put(client: ApiClient, name: str, value: str = "", **meta: Any) -> None:
    body = {"metadata": {"name": name, **meta}, "data": {"v": value}}
    await client.apply(CONFIG_MAPS, body, "default")


def test_a_cache_holds_what_was_there_and_follows_what_happens() -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            await _put(client, "a", "1")
            cache = _Cache(client)
            async with cache.running():
                assert cache.names == {"a": "1"}
                await _put(client, "b", "2")
                await _put(client, "a", "3")
                await client.delete(CONFIG_MAPS, "b", "default")
                await asyncio.sleep(1)
                assert cache.names == {"a": "3"}
            assert cache.told == [
                (None, ("a", "1")), (None, ("b", "2")), (("a", "1"), ("a", "3")), (("b", "2"), None),
            ]  # fmt: skip
            assert cache.reflector.relists == 1

    run(life())


def test_a_change_that_its_reader_does_not_keep_is_no_news() -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            await _put(client, "a", "1")
            cache = _Cache(client)
            async with cache.running():
                await _put(client, "a", "1", labels={"x": "y"})
                await asyncio.sleep(1)
            assert len(cache.told) == 1

    run(life())


def test_a_scope_chooses_namespace_and_labels() -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            await _put(client, "a", labels={"app": "x"})
            await _put(client, "b")
            cache = _Cache(client, WatchScope("default", "app=x"))
            async with cache.running():
                await _put(client, "c", labels={"app": "x"})
                await client.patch(CONFIG_MAPS, "a", {"metadata": {"labels": {"app": "z"}}}, "default")
                await asyncio.sleep(1)
                assert list(cache.names) == ["c"]

    run(life())


def test_a_watch_ends_after_its_time_and_is_taken_up_without_a_list() -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            cache = _Cache(client, WatchScope(watch_s=30))
            async with cache.running():
                for number in range(10):
                    await asyncio.sleep(20)
                    await _put(client, f"c{number}")
                await asyncio.sleep(1)
                assert len(cache.names) == 10
            assert cache.reflector.relists == 1
            assert server.requests["WATCH configmaps"] > 4

    run(life())


def test_a_silent_watch_is_taken_up_where_it_stood() -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            cache = _Cache(client, WatchScope(silence_s=45.0))
            async with cache.running():
                server.mute("configmaps")
                await _put(client, "a")
                await asyncio.sleep(40)
                assert not cache.names
                server.mute("configmaps", muted=False)
                await asyncio.sleep(10)
                assert list(cache.names) == ["a"]
            assert cache.reflector.relists == 1

    run(life())


@pytest.mark.parametrize("way", ["refused", "told"])
def test_a_version_that_is_gone_makes_a_new_list(way: str) -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            await _put(client, "stays")
            await _put(client, "goes")
            cache = _Cache(client, WatchScope(watch_s=20))
            async with cache.running():
                if way == "refused":
                    server.fail(410, "WATCH", "configmaps")
                    await asyncio.sleep(60)
                else:
                    await client.delete(CONFIG_MAPS, "goes", "default")
                    await _put(client, "new")
                    server.store.compact()
                    await asyncio.sleep(60)
                    assert list(cache.names) == ["stays", "new"]
                assert cache.reflector.relists == 2

    run(life())


def test_a_watch_that_is_closed_before_its_time_makes_a_new_list() -> None:
    async def life() -> None:
        server = FakeApiServer(3)
        server.trouble = Trouble(closed=1.0)
        async with server.client() as client:
            cache = _Cache(client)
            async with cache.running():
                for number in range(60):
                    await _put(client, f"c{number}")
                    await asyncio.sleep(1)
                server.trouble = Trouble()
                await asyncio.sleep(60)
                assert len(cache.names) == 60
                assert cache.reflector.relists > 2

    run(life())


def test_a_list_that_is_older_than_what_was_seen_is_not_believed() -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            cache = _Cache(client)
            async with cache.running():
                await _put(client, "a")
                await asyncio.sleep(1)
            cache.reflector._version = "1000000"
            with pytest.raises(Relist, match="the server is behind"):
                await cache.reflector._list()
            assert list(cache.names) == ["a"]

    run(life())


@pytest.mark.parametrize("event", [{"type": "ERROR", "object": {}}, {"type": "ERROR", "object": {"message": "late"}}])
def test_an_error_event_says_why_it_lists_again(event: dict[str, Any]) -> None:
    async def life() -> None:
        async with FakeApiServer().client() as client:
            with pytest.raises(Relist, match=event["object"].get("message", "the watch failed")):
                _Cache(client).reflector._take(event)

    run(life())


def test_a_deletion_of_what_was_never_seen_is_no_news() -> None:
    async def life() -> None:
        async with FakeApiServer().client() as client:
            cache = _Cache(client)
            item = {"metadata": {"name": "x", "namespace": "default", "resourceVersion": "9"}}
            cache.reflector._take({"type": "DELETED", "object": item})
            assert not cache.told

    run(life())


@pytest.mark.parametrize(("status", "ends"), [(401, True), (403, True), (404, True), (400, False), (500, False)])
def test_only_a_missing_kind_or_permission_ends_a_cache(status: int, ends: bool) -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client(tries=2) as client:
            fault = server.fail(status, "GET", "configmaps", times=6)
            cache = _Cache(client)
            task = asyncio.create_task(cache.reflector.run())
            await asyncio.wait([task], timeout=120)
            if ends:
                with pytest.raises(ApiError):
                    task.result()
            else:
                assert fault.times == 0
                assert cache.reflector.synced.is_set()
                task.cancel()

    run(life())


def test_a_server_that_cannot_be_reached_is_tried_again() -> None:
    class _Broken(InProcessClient):
        broken = 3

        @override
        async def exchange(self, call: Call) -> Answer:
            if self.broken:
                type(self).broken -= 1
                raise ConnectionResetError
            return await super().exchange(call)

    async def life() -> None:
        server = FakeApiServer()
        client = _Broken(server, server.access(), tries=1)
        cache = _Cache(client)
        async with cache.running():
            assert cache.reflector.relists == 1

    run(life())


def test_a_watch_that_is_cut_in_the_middle_of_an_event_makes_a_new_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:

            @contextlib.asynccontextmanager
            async def cut(*_: Any) -> AsyncIterator[AsyncIterator[bytes]]:
                async def lines() -> AsyncIterator[bytes]:
                    yield b'{"type": "ADD'

                yield lines()

            cache = _Cache(client)
            monkeypatch.setattr(client, "stream", cut)
            with pytest.raises(Relist, match="in the middle of an event"):
                await cache.reflector._watch(10)

    run(life())


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.sampled_from(["put", "delete", "compact", "mute", "wait"])), max_size=30
    ),
    st.integers(0, 5),
)
def test_whatever_happens_the_cache_becomes_what_the_server_holds(acts: list[tuple[str, str]], seed: int) -> None:
    async def life() -> None:
        server = FakeApiServer(seed)
        server.trouble = Trouble(0.05, 0.05, 0.0, 0.0, 0.1, 0.2, 0.2, 0.2)
        async with server.client() as client:
            cache = _Cache(client, WatchScope(silence_s=20.0, watch_s=60))
            async with cache.running():
                for number, (name, act) in enumerate(acts):
                    if act == "put":
                        await _put(client, name, str(number))
                    elif act == "delete":
                        await client.delete(CONFIG_MAPS, name, "default")
                    elif act == "compact":
                        server.store.compact()
                    elif act == "mute":
                        server.mute("configmaps", muted=number % 2 == 0)
                    else:
                        await asyncio.sleep(7)
                server.trouble = Trouble()
                server.mute("configmaps", muted=False)
                await asyncio.sleep(200)
                held = {one["metadata"]["name"]: one["data"]["v"] for one in server.store.objects(CONFIG_MAPS).values()}
                assert cache.names == held
            # Every difference that was told leads from the last one to the next.
            known: dict[str, _Kept] = {}
            for old, new in cache.told:
                some = new or old
                assert some is not None
                assert known.get(some[0]) == old
                if new is None:
                    del known[some[0]]
                else:
                    known[some[0]] = new

    run(life())


def test_kinds_without_namespaces_are_kept_by_name() -> None:
    async def life() -> None:
        server = FakeApiServer()
        async with server.client() as client:
            await client.create(NODES, {"metadata": {"name": "n"}})
            await client.create(JOBS, {"metadata": {"name": "j"}, "spec": {}}, "default")
            kept = [Reflector(client, kind, lambda item: item["kind"], lambda *_: None) for kind in (NODES, JOBS)]
            tasks = [asyncio.create_task(one.run()) for one in kept]
            for one in kept:
                await one.synced.wait()
            assert [dict(one.items) for one in kept] == [{"n": "Node"}, {"default/j": "WeftJob"}]
            for task in tasks:
                task.cancel()

    run(life())
