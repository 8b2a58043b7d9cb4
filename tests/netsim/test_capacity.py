"""One flow uses what is left of its T0's uplinks, however many of them are dead."""

import random

import pytest
from tests.netsim.scenarios import GBPS, fault, flows, scenario, small_site

from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of

RATE = 400


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_flow_takes_nine_tenths_of_what_dead_uplinks_leave(seed: int) -> None:
    draw = random.Random(seed)
    uplinks = draw.choice([2, 4, 8])
    dead = draw.sample(range(uplinks), draw.randint(1, uplinks - 1))
    names = [f"link1-p0-i0-u{number}" for number in range(uplinks)]
    # Uplinks that together have the rate of the NIC: every one that dies is missed.
    slow = [fault("slow", name, amount=1 / uplinks) for name in names]
    down = [fault("link-down", names[number], 300, 10**5) for number in dead]
    site = small_site(gpus=uplinks * uplinks, planes=1, radix=2 * uplinks, rate=RATE * GBPS)
    spec = scenario(flows((0, uplinks, 2**32)), faults=(*slow, *down), until_us=2300)
    setup = set_up(spec, site, draw.randrange(10**6))
    (transport,) = transports_of(setup, ("mrc",))
    found = run(setup, transport, engine="engine")
    rates = found.series.rates_bps()[80:] / GBPS
    left = RATE * (uplinks - len(dead)) / uplinks
    # Headers and SRv6 take a twenty-fifth, packets that try the dead uplinks that `min_active` keeps a 33rd.
    assert rates.mean() > 0.9 * left
    assert rates.reshape(-1, 10).mean(axis=1).min() > 0.5 * left
