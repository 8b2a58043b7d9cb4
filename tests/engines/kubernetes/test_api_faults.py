import asyncio
import random
from dataclasses import replace

import pytest
from tests.engines.kubernetes.proxy import Proxy
from tests.engines.kubernetes.stage import Theatre, playing, running, until
from tests.engines.kubernetes.witness import Witness

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine

_NODES = 12
_MOST = 8 * _NODES
_SEED = 7

pytestmark = [pytest.mark.kube, pytest.mark.timeout(250)]


def test_a_server_that_refuses_lags_and_falls_silent_is_lived_with_and_nothing_is_done_twice(theatre: Theatre):
    asyncio.run(_live(theatre))


async def _live(theatre: Theatre) -> None:
    chance = random.Random(_SEED)
    sizes = {f"job{number}": chance.choice((1, 2, 4, 8)) for number in range(12)}
    proxy = Proxy(theatre.plane.access(), _SEED)
    address = await proxy.start()
    try:
        async with theatre.open(_MOST) as client, playing(theatre, theatre.stage(_NODES, run_s=0.3)):
            witness = Witness(client, theatre.name, sizes, _MOST)
            spoiled = replace(theatre.plane.access(), server=address, tls=None)
            async with ApiClient(spoiled, agent="engine") as mine:
                one = KubernetesEngine(mine, theatre.settings(silence_s=3.0))
                async with running(witness.cache.run(), one.run()):
                    for name, size in sizes.items():
                        await theatre.submit(client, name, size)

                    async def all_are_done() -> bool:
                        assert not witness.wrong, witness.wrong
                        return set((await theatre.states(client)).values()) == {"done"}

                    await until(all_are_done, 200.0)
                    most = await theatre.most_bound(client)
                    relists = sum(cache.relists for cache in one.cache.reflectors)
            # One that was let past a blocked job and gave way to it begins again, and only such a one does.
            assert sum(sizes.values()) <= witness.bound <= most, "every rank ran exactly once"
            assert not witness.half
            assert relists > len(one.cache.reflectors), "some watch was lost on the way"
            met = {what for what, count in proxy.done.items() if count}
            assert met == {"429", "500", "slow", "stale list", "lost answer", "closed watch", "silent watch", "410"}
    finally:
        await proxy.stop()
