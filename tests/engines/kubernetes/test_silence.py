import asyncio

import pytest
from tests.engines.kubernetes.stage import Theatre, engine, playing, until

from weft.cluster.records.node import NodeState
from weft.cluster.records.snapshot import SchedulingPolicy
from weft.engines.kubernetes.api.resources import PODS

_NODES = 40
_SILENT = 12
_BRAKE = 3

pytestmark = [pytest.mark.kube, pytest.mark.timeout(200)]


def test_thirty_per_cent_silent_at_once_is_an_alarm_and_not_a_mass_eviction(theatre: Theatre):
    asyncio.run(_silence(theatre))


async def _silence(theatre: Theatre) -> None:
    stage = theatre.stage(_NODES)
    settings = theatre.settings(policy=SchedulingPolicy(brake_rest_ms=10_000))
    async with theatre.open(8 * _NODES) as client, playing(theatre, stage) as actor, engine(theatre, settings) as one:
        for number in range(_NODES):
            await theatre.submit(client, f"job{number}", 1)

        async def all_run() -> bool:
            return list((await theatre.states(client)).values()) == ["running"] * _NODES

        await until(all_run)
        before = {pod["metadata"]["uid"] for pod in await client.list(PODS, theatre.name)}
        silent = [stage.name(number) for number in range(_SILENT)]
        actor.silence(silent)

        async def all_are_missed() -> bool:
            return sum(not one.cache.nodes.items[name].ready for name in silent) == _SILENT

        await until(all_are_missed)
        await until(_yes(lambda: "brake" in one.state.alarms))
        # Longer than Kubernetes itself would need to begin with evictions of pods that do not tolerate it.
        await asyncio.sleep(5.0)
        after = {pod["metadata"]["uid"] for pod in await client.list(PODS, theatre.name)}
        assert len(before - after) <= _BRAKE
        taken_out = [node for node in one.cluster.pool.nodes if node.state not in (NodeState.READY, NodeState.SUSPECT)]
        assert len(taken_out) <= _BRAKE
        assert {node.name for node in taken_out} <= set(silent)
        await actor.revive(silent)
        await until(_yes(lambda: "brake" not in one.state.alarms))
        still = {pod["metadata"]["uid"] for pod in await client.list(PODS, theatre.name)}
        assert before & after <= still


def _yes(question):
    async def asked() -> bool:
        return bool(question())

    return asked
