import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.fabric.theory import loss
from weft.fabric.theory.estimate import agrees

# Formula and simulation differ by chance: the same examples every time, so that a failure is a fault.
CHANCE = settings(derandomize=True, deadline=None)


@given(st.floats(0.0001, 0.5), st.integers(2, 1000))
def test_going_back_is_never_better(chance: float, window: int) -> None:
    assert loss.go_back_n(chance, window) < loss.selective_repeat(chance)
    assert loss.go_back_n(chance, 1) == pytest.approx(loss.selective_repeat(chance))


@settings(CHANCE, max_examples=6)
@given(st.integers(0, 9), st.sampled_from([0.01, 0.1]), st.sampled_from([1, 8, 30]))
def test_a_stepped_sender_agrees(seed: int, chance: float, window: int) -> None:
    generator = Seed(seed).stream("loss")
    back = loss.simulated_go_back_n(generator, chance, window, 50, 4000)
    assert agrees(loss.go_back_n(chance, window), back, tolerance=window / 4000)
    once = loss.simulated_selective_repeat(generator, chance, window, 50, 1000)
    assert agrees(loss.selective_repeat(chance), once)


def test_without_loss_every_packet_counts() -> None:
    generator = Seed(0).stream("none")
    assert loss.simulated_go_back_n(generator, 0.0, 300, 2, 1000).value == 1
    assert loss.simulated_selective_repeat(generator, 0.0, 300, 2, 1000).value == 1


@settings(CHANCE, max_examples=10)
@given(st.integers(0, 9), st.integers(1, 50), st.integers(1, 50))
def test_paused_bystanders_agree(seed: int, senders: int, links: int) -> None:
    estimate = loss.simulated_paused_share(Seed(seed).stream("pause"), senders, links, 20, 500)
    assert agrees(loss.paused_share(senders, links), estimate)


def test_a_seven_to_one_incast_pauses_most_of_four_spines() -> None:
    assert loss.paused_share(7, 4) == pytest.approx(0.87, abs=0.005)
