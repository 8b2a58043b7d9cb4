import asyncio
import os
import random
import sys
from pathlib import Path

import pytest
from tests.engines.kubernetes.stage import Theatre, playing, running, until
from tests.engines.kubernetes.witness import Witness

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.resources import JOBS

_KILLS = 100
_NODES = 12
_MOST = 8 * 10
_SEED = 20261115
_RESYNC_S = 30.0

pytestmark = [pytest.mark.kube, pytest.mark.timeout(400)]


def test_an_engine_killed_at_a_hundred_points_binds_nothing_twice_and_leaves_no_half_gang(theatre: Theatre):
    asyncio.run(_churn(theatre))


async def _churn(theatre: Theatre) -> None:
    chance = random.Random(_SEED)
    sizes: dict[str, int] = {}
    async with theatre.open(_MOST) as client, playing(theatre, theatre.stage(_NODES, run_s=0.3)):
        await theatre.team(client, theatre.name, _MOST, _MOST)
        witness = Witness(client, theatre.name, sizes, _MOST)
        program = Path(__file__).with_name("lives.py")
        served = await asyncio.create_subprocess_exec(
            sys.executable, str(program), str(theatre.plane.kubeconfig()), theatre.name,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=dict(os.environ),
        )  # fmt: skip
        assert served.stdin is not None
        assert served.stdout is not None
        async with running(witness.cache.run()):
            killed = 0
            try:
                while killed < _KILLS:
                    await _submit(theatre, client, chance, sizes)
                    served.stdin.write(f"{chance.randrange(1, 14)} 20\n".encode())
                    answer = await asyncio.wait_for(served.stdout.readline(), 60.0)
                    assert int(answer) in (9, 14), f"an engine ended by itself: {int(answer)}"
                    killed += int(answer) == 9
                    assert not witness.wrong, witness.wrong
                served.stdin.write(b"0 60\n")

                async def all_are_done() -> bool:
                    states = await theatre.states(client)
                    assert not witness.wrong, witness.wrong
                    return set(states.values()) <= {"done"} and len(states) == len(sizes)

                await until(all_are_done, 90.0)
                most = await theatre.most_bound(client)
            finally:
                served.kill()
                await served.wait()
        assert not witness.wrong, witness.wrong
        assert not witness.half
        assert witness.longest_half_s < _RESYNC_S
        # Every rank of every job ran in exactly one pod, but for jobs that gave way: a second attempt is bound again.
        assert sum(sizes.values()) <= witness.bound <= most


async def _submit(theatre: Theatre, client: ApiClient, chance: random.Random, sizes: dict[str, int]) -> None:
    """Keep a few jobs waiting or running at any time."""
    left = [name for name, state in (await theatre.states(client)).items() if state != "done"]
    while len(left) < 8:
        name = f"job{len(sizes)}"
        sizes[name] = chance.choice((1, 1, 2, 3, 5, 10))
        await client.create(JOBS, theatre.job(name, sizes[name]), theatre.name)
        left.append(name)
