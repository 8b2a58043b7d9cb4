"""What a run costs: time over goodput, an interval around it, and money, energy and carbon in proportion."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.planning.run.goodput import DAY_S, HOUR_S, Goodput
from weft.planning.run.run_cost import MODEL_ERROR, NINETY, RunCost, Tariff, run_cost

GOOD = Goodput(
    mttf_s=6 * HOUR_S, interval_s=600.0, write_s=10.0, restart_s=300.0, share=0.9, linear_share=0.9, spares=3,
    degraded_share=0.99, faults=(),
)  # fmt: skip
TARIFF = Tariff(cents_per_kwh=10.0, carbon_g_per_kwh=400.0, gpu_hour_cents=200.0)


def cost(
    steps: int = 10_000, step_s: float = 10.0, gpus: int = 1024, good: Goodput = GOOD, tariff: Tariff = TARIFF
) -> RunCost:
    return run_cost(steps, step_s, gpus, goodput=good, meter_w=1e6, tariff=tariff)


@given(st.integers(1, 10**6), st.floats(0.01, 100), st.integers(1, 10**5))
def test_a_run_takes_its_steps_over_the_share_of_time_that_is_work(steps: int, step_s: float, gpus: int):
    found = cost(steps, step_s, gpus)
    assert found.days == pytest.approx(steps * step_s / 0.9 / DAY_S)
    assert found.gpu_hours == pytest.approx(gpus * 24 * found.days)
    assert found.failures == pytest.approx(found.days * 4)


@given(st.integers(1, 10**6), st.floats(0.01, 100), st.floats(600, 1e7))
def test_the_interval_holds_the_expected_time_and_never_beats_perfect_steps(steps: int, step_s: float, mttf_s: float):
    found = cost(steps, step_s, good=replace(GOOD, mttf_s=mttf_s))
    assert found.days_low <= found.days <= found.days_high
    assert found.days_low >= steps * step_s * (1 - NINETY * MODEL_ERROR) / DAY_S * (1 - 1e-12)


@given(st.floats(600, 1e6), st.floats(1.5, 100))
def test_more_failures_widen_the_interval(mttf_s: float, factor: float):
    rare, often = (cost(good=replace(GOOD, mttf_s=each)) for each in (factor * mttf_s, mttf_s))
    assert often.days_high - often.days > rare.days_high - rare.days


@pytest.mark.parametrize(
    ("field", "of"),
    [("cents_per_kwh", "energy_cents"), ("carbon_g_per_kwh", "carbon_kg"), ("gpu_hour_cents", "gpu_cents")],
)
def test_prices_count_in_proportion_and_change_nothing_else(field: str, of: str):
    before, after = cost(), cost(tariff=replace(TARIFF, **{field: 3 * getattr(TARIFF, field)}))
    assert getattr(after, of) == pytest.approx(3 * getattr(before, of))
    assert replace(after, **{of: getattr(before, of)}) == before


def test_energy_is_power_times_time():
    found = cost()
    assert found.energy_kwh == pytest.approx(1000 * 24 * found.days)
    assert found.energy_cents == pytest.approx(10 * found.energy_kwh)
    assert found.carbon_kg == pytest.approx(0.4 * found.energy_kwh)


def test_a_machine_that_never_fails_has_the_models_error_alone():
    found = cost(good=replace(GOOD, mttf_s=math.inf))
    assert found.failures == 0
    assert found.days_high / found.days == pytest.approx(1 + NINETY * MODEL_ERROR)


def test_a_run_that_never_gets_anywhere_takes_for_ever():
    assert math.isinf(cost(good=replace(GOOD, share=0.0)).days)
