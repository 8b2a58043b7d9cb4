from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from weft.fabric.theory import frames, reach
from weft.mrc.wire.overhead import payload_share

EVEN = st.integers(1, 512).map(lambda half: 2 * half)


@given(EVEN)
def test_reach_is_the_known_polynomial_of_the_radix(k: int) -> None:
    assert [reach.hosts(tiers, k) for tiers in (1, 2, 3, 4)] == [k, k**2 // 2, k**3 // 4, k**4 // 8]


def test_published_sizes_of_a_51t_switch() -> None:
    assert (reach.hosts(3, 64), reach.hosts(2, 256), reach.hosts(2, 512)) == (65_536, 32_768, 131_072)
    assert reach.switches_per_nic(2, 512, 8) * 131_072 == 6144
    assert reach.switches_per_nic(3, 64) * 65_536 == 5120


@given(EVEN, st.sampled_from([2, 4, 8, 16]))
def test_a_split_takes_three_fifths_of_the_switches(k: int, planes: int) -> None:
    assert reach.switches_per_nic(2, k * planes, planes) / reach.switches_per_nic(3, k) == Fraction(3, 5)


def test_the_fewest_tiers_are_found() -> None:
    assert [reach.tiers_needed(n, 64) for n in (64, 65, 2048, 65_536, 131_072)] == [1, 2, 2, 3, 4]
    assert reach.tiers_needed(131_072, 2) is None
    assert (reach.longest_path(2), reach.longest_path(3)) == (3, 5)


def test_headers_leave_ninety_six_percent() -> None:
    assert frames.frame_bytes(4096) == 4096 + 166
    assert round(payload_share(4096), 3) == 0.961


def test_a_round_trip_holds_319_packets_and_a_rotation_takes_10_9_us() -> None:
    assert round(frames.in_flight(800 * 10**9, 13_080_000, 4096)) == 319
    assert round(frames.rotation_ps(256, 4262, 800 * 10**9) / 1e6, 1) == 10.9
