import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.fabric.theory import flaps
from weft.fabric.theory.estimate import agrees

# Formula and simulation differ by chance: the same examples every time, so that a failure is a fault.
CHANCE = settings(derandomize=True, deadline=None)


def test_the_published_flap_rate_gives_the_published_flaps() -> None:
    assert 2 <= flaps.flaps_per_minute(300_000, 700_000) <= 5


def test_a_dead_t1_touches_a_quarter_or_an_eighth() -> None:
    assert flaps.touched_share(128, 1, 32) == pytest.approx(0.25)
    assert flaps.touched_share(256, 1, 32) == pytest.approx(0.125)


@given(st.integers(1, 60), st.data())
def test_touched_is_one_minus_a_ratio_of_binomials(paths: int, data: st.DataObject) -> None:
    through, chosen = data.draw(st.integers(1, paths)), data.draw(st.integers(1, paths))
    exact = 1 - math.comb(paths - through, chosen) / math.comb(paths, chosen)
    assert flaps.touched_share(paths, through, chosen) == pytest.approx(exact, abs=1e-12)


def test_feedback_within_a_rotation_loses_about_one_packet() -> None:
    assert flaps.lost_in_order(77, 256) == 1
    assert flaps.lost_reshuffled(1, 256) == pytest.approx(1)
    assert flaps.lost_reshuffled(307, 256) == pytest.approx(307 / 256 + 7 / 12, abs=0.005)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_slower_feedback_never_loses_less(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert flaps.lost_reshuffled(low, 100) <= flaps.lost_reshuffled(high, 100) + 1e-12
    assert flaps.lost_in_order(low, 100) <= flaps.lost_in_order(high, 100)


@settings(CHANCE, max_examples=10)
@given(st.integers(0, 9), st.integers(1, 1000), st.sampled_from([2, 8, 256]))
def test_a_rotated_set_loses_what_the_formulas_say(seed: int, feedback: int, values: int) -> None:
    generator = Seed(seed).stream("rotate")
    shuffled = flaps.simulated_lost(generator, values, feedback, 4000, shuffled=True)
    assert agrees(flaps.lost_reshuffled(feedback, values), shuffled)
    assert flaps.simulated_lost(generator, values, feedback, 50, shuffled=False).value == math.ceil(feedback / values)


@settings(CHANCE, max_examples=10)
@given(st.integers(0, 9), st.floats(0.1, 20), st.floats(0.01, 20))
def test_outages_on_a_time_line_agree(seed: int, per_minute: float, outage_s: float) -> None:
    hours = 100 / per_minute / 60
    estimate = flaps.simulated_stalled(Seed(seed).stream("line"), per_minute, outage_s, hours, 100)
    assert agrees(flaps.stalled_share(per_minute, outage_s * 1e12), estimate)


@settings(CHANCE, max_examples=8)
@given(st.integers(0, 9), st.integers(2, 40), st.integers(1, 20), st.data())
def test_broken_links_and_pulled_ports_agree(seed: int, size: int, spines: int, data: st.DataObject) -> None:
    generator = Seed(seed).stream("break")
    dead = data.draw(st.integers(1, size))
    sets = flaps.simulated_own_sets(generator, size, dead, spines, 200)
    assert agrees(flaps.own_sets_share(size, dead, spines), sets)
    ports, planes = data.draw(st.integers(1, size)), data.draw(st.sampled_from([1, 2, 8]))
    whole = flaps.simulated_still_whole(generator, ports, size, planes, 300)
    assert agrees(flaps.still_whole(ports, size, planes), whole)
    touched = flaps.simulated_touched(generator, size, 1, dead, 500)
    assert agrees(flaps.touched_share(size, 1, dead), touched)


def test_a_job_on_one_plane_stops_with_the_first_port() -> None:
    assert flaps.simulated_slowest(Seed(0).stream("one"), 1, 10, 1, 5).value == 0
    assert flaps.simulated_slowest(Seed(0).stream("eight"), 1, 10, 8, 5).value == 7 / 8
