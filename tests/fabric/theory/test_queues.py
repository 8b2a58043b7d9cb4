import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.fabric.theory import queues
from weft.fabric.theory.estimate import agrees

# Formula and simulation differ by chance: the same examples every time, so that a failure is a fault.
CHANCE = settings(derandomize=True, deadline=None)


@pytest.mark.parametrize(("load", "waiting"), [(0.8, 1.6), (0.95, 9.0), (0.99, 49.0)])
def test_random_arrivals_queue_as_published(load: float, waiting: float) -> None:
    assert queues.md1_waiting(load) == pytest.approx(waiting, rel=0.01)
    assert queues.md1_waiting(load) == pytest.approx(load * queues.md1_backlog(load))


@given(st.integers(1, 200), st.floats(1.0, 5.0))
def test_periodic_sources_find_the_port_busy_as_often_as_it_is_loaded(sources: int, stretch: float) -> None:
    period = sources * stretch + 1e-6
    assert queues.ndd1_tail(0.0, sources, period) == pytest.approx(sources / period, rel=1e-6)


@given(st.integers(2, 100), st.floats(1.0, 3.0))
def test_the_tail_falls_and_ends_at_the_number_of_sources(sources: int, stretch: float) -> None:
    tails = [queues.ndd1_tail(x + 0.5, sources, sources * stretch) for x in range(sources)]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(tails))
    assert queues.ndd1_tail(sources, sources, sources * stretch) == 0


def test_one_source_never_meets_itself() -> None:
    # Its own frame is all the work there ever is: half a frame for a share 1/4 of the time.
    assert queues.ndd1_backlog(1, 4.0) == pytest.approx(0.125)


@given(st.integers(2, 64), st.floats(0.3, 0.97))
def test_taking_turns_queues_less_than_chance(sources: int, load: float) -> None:
    assert queues.ndd1_backlog(sources, sources / load) < queues.md1_backlog(load)


def test_many_sources_at_full_load_make_a_brownian_bridge() -> None:
    assert queues.ndd1_backlog(1000, 1000) == pytest.approx(queues.bridge_backlog(1000), rel=0.02)


@settings(CHANCE, max_examples=8)
@given(st.integers(0, 9), st.integers(1, 40), st.floats(0.3, 1.0))
def test_a_simulated_round_robin_agrees(seed: int, sources: int, load: float) -> None:
    estimate = queues.simulated_ndd1_backlog(Seed(seed).stream("turns"), sources, sources / load, 500)
    assert agrees(queues.ndd1_backlog(sources, sources / load), estimate)


@settings(CHANCE, max_examples=5)
@given(st.integers(0, 9), st.sampled_from([0.3, 0.6, 0.8]))
def test_a_simulated_random_queue_agrees(seed: int, load: float) -> None:
    estimate = queues.simulated_md1_backlog(Seed(seed).stream("random"), load, 60, 4000, 1000)
    assert agrees(queues.md1_backlog(load), estimate)
