import asyncio

from weft.core.errors import FailedError
from weft.engines.kubernetes.controller.lanes import Lanes


def test_a_short_line_is_not_kept_waiting_by_a_long_one():
    order: list[str] = []

    async def main() -> None:
        lanes = Lanes(width=8, kept=2, rate_per_s=1e9)

        def piece(name: str):
            async def work() -> None:
                await asyncio.sleep(0)
                order.append(name)

            return work

        for _ in range(2000):
            lanes.put("long", piece("long"))
        task = asyncio.create_task(lanes.run())
        while len(order) < 100:
            await asyncio.sleep(0)
        before = len(order)
        for _ in range(3):
            lanes.put("short", piece("short"))
        while order.count("short") < 3:
            await asyncio.sleep(0)
        # Three turns: as many of the long line as are in flight beside each.
        assert len(order) - before < 3 * 2 * 8
        while lanes.waiting("long"):
            await asyncio.sleep(0)
        task.cancel()
        assert lanes.done == 2003

    asyncio.run(main())


def test_no_more_than_the_width_is_in_flight_and_long_lines_leave_some_places():
    async def main() -> None:
        lanes = Lanes(width=8, kept=2, rate_per_s=1e9)
        now = most = 0
        release = asyncio.Event()

        async def work() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await release.wait()
            now -= 1

        for number in range(100):
            lanes.put("long", work)
            lanes.put(f"short{number}", work)
        task = asyncio.create_task(lanes.run())
        await asyncio.sleep(0.02)
        assert now == 8
        release.set()
        while lanes.done < 200:
            await asyncio.sleep(0)
        task.cancel()
        assert most == 8

    asyncio.run(main())


def test_work_that_fails_does_not_stop_the_others():
    async def main() -> None:
        lanes = Lanes(width=4, kept=1)

        async def bad() -> None:
            raise FailedError("no")

        async def good() -> None:
            pass

        lanes.put("a", bad)
        lanes.put("a", good)
        task = asyncio.create_task(lanes.run())
        while lanes.waiting("a"):
            await asyncio.sleep(0)
        task.cancel()
        assert (lanes.done, lanes.failed) == (1, 1)

    asyncio.run(main())
