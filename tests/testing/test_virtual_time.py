"""Virtual time: sleeping costs nothing, order is kept, and threads still count."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.testing.virtual_time import VirtualLoop, run


def test_a_day_of_sleep_passes_at_once() -> None:
    async def work() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(86_400)
        return loop.time() - began

    began = time.process_time()
    assert run(work()) == pytest.approx(86_400, abs=0.01)
    assert time.process_time() - began < 60, "a day was not waited for"


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_sleepers_wake_in_the_order_of_their_times(pauses: list[int]) -> None:
    async def work() -> list[int]:
        woken: list[int] = []

        async def one(pause: int) -> None:
            await asyncio.sleep(pause / 10)
            woken.append(pause)

        await asyncio.gather(*(one(pause) for pause in pauses))
        return woken

    assert run(work()) == sorted(pauses)


@given(st.floats(0.001, 1000), st.floats(0.001, 1000))
def test_a_timeout_ends_what_lasts_longer(limit: float, lasts: float) -> None:
    async def work() -> bool:
        try:
            async with asyncio.timeout(limit):
                await asyncio.sleep(lasts)
        except TimeoutError:
            return False
        return True

    if abs(limit - lasts) > 0.01:
        assert run(work()) == (lasts < limit)


def test_a_thread_is_waited_for_in_real_time() -> None:
    assert run(_threaded()) == 7


async def _threaded() -> int:
    return await asyncio.to_thread(lambda: 7)


def test_a_loop_begins_at_zero() -> None:
    loop = VirtualLoop()
    assert loop.time() == 0.0
    loop.close()
