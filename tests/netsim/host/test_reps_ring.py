"""REPS: what goes into the ring, what comes out, and what freezing does, each worked out by hand."""

from typing import Any

import numpy as np
from tests.netsim.scenarios import fault, pair, scenario, simulate, small_site

from weft.netsim.host import reps_ring
from weft.netsim.host.host_state import REPS, HostState


def ring(size: int = 4, freeze_ps: int = 100) -> HostState:
    """Return columns of which only REPS's own are there."""
    columns: dict[str, Any] = dict.fromkeys(HostState._fields) | {
        "ring": np.full((1, size), -1, np.int16),
        "ring_at": np.zeros((1, 2), np.int16),
        "frozen": np.zeros((1, 2), np.int64),
        "spray": np.array([REPS, freeze_ps], np.int64),
    }
    return HostState(**columns)


def take(h: HostState, now_ps: int = 0) -> int:
    """Take the entropy for one packet."""
    found = int(reps_ring.wished(h, 0, now_ps))
    if found >= 0:
        reps_ring.used(h, 0)
    return found


def test_what_worked_is_used_again_oldest_first_and_once():
    h = ring()
    assert take(h) == -1, "nothing is known yet"
    for e in (7, 3, 9):
        reps_ring.remember(h, 0, e)
    assert [take(h) for _ in range(4)] == [7, 3, 9, -1]


def test_the_newest_takes_the_place_of_the_oldest():
    h = ring(size=4)
    for e in range(6):
        reps_ring.remember(h, 0, e)
    assert [take(h) for _ in range(5)] == [2, 3, 4, 5, -1]


def test_frozen_it_goes_round_what_it_knows_and_thaws_in_time():
    h = ring(size=4, freeze_ps=100)
    for e in (5, 6):
        reps_ring.remember(h, 0, e)
    assert [take(h), take(h), take(h)] == [5, 6, -1]
    reps_ring.freeze(h, 0, 1000)
    # Two of four places are filled; the head stands at the third.
    assert [take(h, 1001) for _ in range(4)] == [5, 6, 5, 6]
    reps_ring.remember(h, 0, 8)
    assert take(h, 1050) == 8, "what is valid goes first"
    assert take(h, 1100) == -1


def test_frozen_without_anything_known_it_still_sends():
    h = ring()
    reps_ring.freeze(h, 0, 0)
    assert take(h, 1) == -1


def test_after_a_black_hole_losses_end_sooner_with_freezing():
    hole = fault("black-hole", "t1-p0-i2", at_us=20)
    site = small_site(planes=1)
    spec = scenario(pair(size=1000 * 4096), faults=(hole,))
    frozen, random = (simulate(spec, site, name, seed=4).faults[0].data_lost for name in ("reps", "random"))
    assert 0 < frozen < random / 2
