import asyncio
from collections import Counter

import pytest
from tests.engines.kubernetes.stage import Theatre, engine, playing, until

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.resources import GPU, JOB_LABEL, PODS, POOL_TAINT

_NODES = 200

pytestmark = pytest.mark.kube


def test_two_gangs_that_need_everything_run_one_after_the_other_and_kube_scheduler_starts_neither(theatre: Theatre):
    asyncio.run(_two_gangs(theatre))


async def _two_gangs(theatre: Theatre) -> None:
    async with theatre.open(8 * _NODES) as client:
        stage = theatre.stage(_NODES, run_s=4.0)
        async with playing(theatre, stage):
            # First kube-scheduler, on the same nodes: whatever it binds of one it cannot bind of the other.
            halves = await _by_kube_scheduler(theatre, client)
            assert sum(halves.values()) == _NODES
            assert 0 < halves["first"] < _NODES
            assert 0 < halves["second"] < _NODES
            async with engine(theatre):
                await theatre.submit(client, "first", _NODES)
                await theatre.submit(client, "second", _NODES)

                async def first_is_whole() -> bool:
                    counts = await theatre.bound(client)
                    assert counts["second"] == 0 or (await theatre.states(client))["first"] == "done"
                    return counts["first"] == _NODES

                async def both_are_done() -> bool:
                    states = await theatre.states(client)
                    assert states != {"first": "running", "second": "running"}
                    return set(states.values()) == {"done"}

                await until(first_is_whole)
                status = await theatre.status(client, "second")
                assert status["state"] == "waiting"
                assert status["why"]
                await until(both_are_done, 120.0)


async def _by_kube_scheduler(theatre: Theatre, client: ApiClient) -> Counter[str]:
    """Return how many pods of two gangs kube-scheduler binds when each asks for every node, then take them away."""
    room = {GPU: "8"}
    container = {"name": "job", "image": "none", "resources": {"requests": room, "limits": room}}
    spec = {
        "containers": [container],
        "tolerations": [{"key": POOL_TAINT, "operator": "Exists"}],
        "nodeSelector": {"cluster.weft/pool": theatre.name},
    }
    pods = [
        {
            "metadata": {"name": f"{gang}-{number}", "labels": {"gang": gang}},
            "spec": spec,
            "kind": "Pod",
            "apiVersion": "v1",
        }
        for number in range(_NODES)
        for gang in ("first", "second")
    ]
    theatre.plane.start_scheduler()
    try:
        await asyncio.gather(*(client.create(PODS, pod, theatre.name) for pod in pods))
        counts: Counter[str] = Counter()

        async def all_nodes_are_taken() -> bool:
            there = await client.list(PODS, theatre.name, labels=f"!{JOB_LABEL}")
            counts.clear()
            counts.update(one["metadata"]["labels"]["gang"] for one in there if one["spec"].get("nodeName"))
            return sum(counts.values()) == _NODES

        await until(all_nodes_are_taken, 240.0)
        found = Counter(counts)
    finally:
        theatre.plane.stop("kube-scheduler")
    await client.request("DELETE", PODS.path(theatre.name), query={"gracePeriodSeconds": "0"})

    async def gone() -> bool:
        return not await client.list(PODS, theatre.name)

    await until(gone)
    return found
