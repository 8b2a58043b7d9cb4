"""Rates from samples of a running count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_lab.measurements.rates import Sample, binned_bps, carried_until, longest_stall_s, mean_bps, reached_bps

STEPS = st.lists(st.tuples(st.floats(0.01, 0.5), st.integers(0, 10_000)), min_size=1, max_size=30)


def samples_of(steps: list[tuple[float, int]]) -> list[Sample]:
    samples = [Sample(0.0, 0)]
    for span_s, more in steps:
        samples.append(Sample(samples[-1].at_s + span_s, samples[-1].bytes + more))
    return samples


@given(STEPS)
def test_bins_hold_everything_that_was_carried(steps: list[tuple[float, int]]):
    samples = samples_of(steps)
    bin_s = 0.05
    rates = binned_bps(samples, samples[-1].at_s, bin_s)
    assert sum(rates) * bin_s / 8 == pytest.approx(carried_until(samples, len(rates) * bin_s), abs=1e-6)


@given(STEPS)
def test_a_mean_over_all_is_bytes_over_time(steps: list[tuple[float, int]]):
    samples = samples_of(steps)
    last = samples[-1]
    assert mean_bps(samples, 0.0, last.at_s) == pytest.approx(8 * last.bytes / last.at_s)


@given(STEPS)
def test_a_stall_is_never_longer_than_the_run(steps: list[tuple[float, int]]):
    samples = samples_of(steps)
    end_s = samples[-1].at_s
    stall = longest_stall_s(samples, 0.0, end_s)
    assert 0 <= stall <= end_s + 1e-9
    if all(more == 0 for _, more in steps):
        assert stall == pytest.approx(end_s)


def test_a_pause_is_measured_from_the_last_byte_to_the_next():
    samples = [Sample(0.0, 0), Sample(0.1, 10), Sample(0.2, 20), *(Sample(n / 10, 20) for n in range(3, 9))]
    samples.append(Sample(0.9, 30))
    assert longest_stall_s(samples, 0.0, 0.9) == pytest.approx(0.6)


def test_silence_at_the_end_counts():
    assert longest_stall_s([Sample(0.0, 0), Sample(1.0, 10)], 0.0, 3.0) == pytest.approx(2.0)
    assert longest_stall_s([], 1.0, 3.0) == pytest.approx(2.0)


@given(STEPS)
def test_the_rate_reached_lies_between_the_slowest_and_the_fastest_bin(steps: list[tuple[float, int]]):
    samples = samples_of(steps)
    rates = binned_bps(samples, samples[-1].at_s, 0.1)
    reached = reached_bps(samples, 0.0, len(rates) * 0.1, 0.1)
    if rates:
        assert min(rates) - 1e-6 <= reached <= max(rates) + 1e-6
        assert 4 * sum(rate >= reached - 1e-6 for rate in rates) >= len(rates)


def test_a_machine_that_is_busy_half_of_the_time_does_not_hide_what_is_reached():
    samples = [Sample(0.0, 0)]
    for number in range(16):
        samples.append(Sample(samples[-1].at_s + 0.25, samples[-1].bytes + (1_000 if number % 2 else 200)))
    assert reached_bps(samples, 0.0, 4.0, 0.25) == pytest.approx(32_000)
