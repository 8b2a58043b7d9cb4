import asyncio
import re
import time
from collections import Counter

import pytest
from tests.engines.kubernetes.stage import GRACE_S, Theatre, engine, playing, until

from weft.engines.kubernetes.api.api_client import ApiClient

_SECONDS = 12.0
_SMALL, _LARGE = 100, 1000
_ENGINE_PER_S = 4.0
"""What the engine may ask of the server when nothing happens, whatever the number of nodes."""
_HEARTBEATS_PER_S = 120.0
"""What all nodes together may renew, whatever their number."""

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]


def test_what_is_asked_of_the_server_does_not_grow_with_the_number_of_nodes(plane):
    # The patience of this server's own controllers is set for other tests; here they would only add requests.
    plane.stop("kube-controller-manager")
    few = asyncio.run(_load(Theatre(plane, "load-few"), _SMALL))
    many = asyncio.run(_load(Theatre(plane, "load-many"), _LARGE))
    plane.start_controllers(grace_s=GRACE_S)
    for counts in (few, many):
        assert counts["engine"] <= _ENGINE_PER_S, counts
        assert counts["heartbeats"] <= _HEARTBEATS_PER_S, counts
        # Objects of the pool change only when something happens to them.
        assert counts["nodes written"] <= 1.0, counts
    # Ten times the nodes: the engine asks no more.
    assert many["engine"] <= few["engine"] + 1.0, (few, many)
    # One write for each pod, and a few for the gang as a whole.
    for counts in (few, many):
        assert counts["writes of a gang"] <= counts["pods of a gang"] + 30, counts


async def _load(theatre: Theatre, nodes: int) -> dict[str, float]:
    """Return requests per second at rest, and what one gang costs."""
    stage = theatre.stage(nodes, heartbeats_per_s=_HEARTBEATS_PER_S / 1.2, least_period_s=10.0, moves=False)
    settings = theatre.settings(heart_s=2.0, resync_s=15.0)
    async with (
        theatre.open(8 * nodes) as client,
        playing(theatre, stage),
        engine(theatre, settings) as one,
    ):
        size = nodes // 2
        await theatre.submit(client, "gang", size)

        async def bound() -> bool:
            return (await theatre.bound(client))["gang"] == size

        await until(bound, 120.0)
        await asyncio.sleep(2.0)
        writes, mine = _writes(one), sum(one.client.sent.values())
        before, begun = await _counters(client), time.monotonic()
        await asyncio.sleep(_SECONDS)
        after, passed = await _counters(client), time.monotonic() - begun
        spent = after - before
        return {
            "engine": (sum(one.client.sent.values()) - mine) / passed,
            "heartbeats": spent["leases", "PATCH"] / passed,
            "nodes written": (spent["nodes", "PATCH"] + spent["nodes", "PUT"]) / passed,
            "writes of a gang": writes,
            "pods of a gang": size,
        }


def _writes(one) -> int:
    return sum(count for method, count in one.client.sent.items() if method not in ("GET", "WATCH"))


async def _counters(client: ApiClient) -> Counter[tuple[str, str]]:
    """Return the server's own count of requests, by resource and verb."""
    found: Counter[tuple[str, str]] = Counter()
    pattern = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<value>\S+)$")
    for line in (await client.text("/metrics")).splitlines():
        if match := pattern.match(line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
            found[labels.get("resource", ""), labels.get("verb", "")] += int(float(match["value"]))
    return found
