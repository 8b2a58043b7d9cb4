"""One engine at a time: who holds the lease, who may write, and when somebody else takes over."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from weft.engines.kubernetes.api.api_client import ApiError
from weft.engines.kubernetes.api.resources import CONFIG_MAPS, LEASES
from weft.engines.kubernetes.controller.election import Election, NotLeadingError
from weft.testing.api_server import FakeApiServer
from weft.testing.virtual_time import run

SPACE = "default"


def _election(server: FakeApiServer, identity: str, duration_s: float = 15.0) -> Election:
    return Election(server.client(f"lease-{identity}"), SPACE, identity, duration_s=duration_s)


def _holder(server: FakeApiServer) -> str:
    return server.store.objects(LEASES)[f"{SPACE}/weft-engine"]["spec"]["holderIdentity"]


def _play(work: Coroutine[Any, Any, None]) -> None:
    run(work)


def test_the_first_leads_and_the_second_waits() -> None:
    async def life() -> None:
        server = FakeApiServer()
        first, second = _election(server, "first"), _election(server, "second")
        await first.wait()
        assert first.leading
        waiting = asyncio.create_task(second.wait())
        keeping = asyncio.create_task(first.keep())
        await asyncio.sleep(600)
        assert not waiting.done()
        assert not second.leading
        assert _holder(server) == "first"
        for task in (waiting, keeping):
            task.cancel()

    _play(life())


def test_a_lease_that_is_not_renewed_is_taken_after_its_duration() -> None:
    async def life() -> None:
        server = FakeApiServer()
        first, second = _election(server, "first"), _election(server, "second")
        await first.wait()
        began = asyncio.get_running_loop().time()
        await second.wait()
        waited = asyncio.get_running_loop().time() - began
        assert 15.0 < waited < 15.0 + 2 * 3.0
        assert _holder(server) == "second"

    _play(life())


@pytest.mark.parametrize("duration_s", [1.0, 5.0, 60.0])
def test_no_two_ever_lead_at_once(duration_s: float) -> None:
    async def life() -> None:
        server = FakeApiServer()
        first, second = _election(server, "first", duration_s), _election(server, "second", duration_s)
        await first.wait()
        taken = asyncio.create_task(second.wait())
        both = 0
        for _ in range(400):
            both += first.leading and second.leading
            await asyncio.sleep(duration_s / 100)
        assert both == 0
        assert taken.done()
        assert second.leading or not first.leading

    _play(life())


def test_a_lease_that_was_given_up_is_free_at_once() -> None:
    async def life() -> None:
        server = FakeApiServer()
        first, second = _election(server, "first"), _election(server, "second")
        await first.wait()
        await first.give_up()
        assert not first.leading
        assert _holder(server) == ""
        began = asyncio.get_running_loop().time()
        await second.wait()
        assert asyncio.get_running_loop().time() == began

    _play(life())


def test_giving_up_what_is_somebody_elses_changes_nothing() -> None:
    async def life() -> None:
        server = FakeApiServer()
        first, second = _election(server, "first"), _election(server, "second")
        await second.give_up()
        await first.wait()
        await second.give_up()
        assert _holder(server) == "first"
        server.fail(409, "PUT", "leases")
        await first.give_up()
        assert _holder(server) == "first", "somebody was quicker; that is only logged"

    _play(life())


def test_the_same_name_goes_on_at_once() -> None:
    async def life() -> None:
        server = FakeApiServer()
        await _election(server, "same").wait()
        again = _election(server, "same")
        await again.wait()
        assert asyncio.get_running_loop().time() < 1
        assert again.leading

    _play(life())


def test_a_holder_that_cannot_renew_stops_before_others_may_begin() -> None:
    async def life() -> None:
        server = FakeApiServer()
        first = _election(server, "first")
        await first.wait()
        server.fail(403, "", "leases", times=10_000)
        with pytest.raises(NotLeadingError, match="was lost"):
            await first.keep()
        assert asyncio.get_running_loop().time() <= 15.0
        assert not first.leading

    _play(life())


def test_a_lost_race_is_no_lease() -> None:
    async def life() -> None:
        server = FakeApiServer()
        server.fail(409, "POST", "leases")
        first = _election(server, "first")
        assert not await first._try()
        assert await first._try()
        server.fail(409, "PUT", "leases")
        assert not await first._try()
        server.fail(403, "PUT", "leases")
        with pytest.raises(ApiError):
            await first._try()

    _play(life())


def test_writes_without_the_lease_are_not_sent() -> None:
    async def life() -> None:
        server = FakeApiServer()
        first = _election(server, "first")
        async with server.client("engine", before=first.guard) as client:
            assert await client.list(CONFIG_MAPS) == []
            with pytest.raises(NotLeadingError, match="POST /api/v1/namespaces/default/configmaps was not sent"):
                await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, SPACE)
            await first.wait()
            await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, SPACE)
            await asyncio.sleep(15.0)
            with pytest.raises(NotLeadingError):
                await client.delete(CONFIG_MAPS, "c", SPACE)
        assert len(server.store.objects(CONFIG_MAPS)) == 1

    _play(life())
