"""Runs by their steps: a change is dated, a jump of the loss is seen, noise is nobody's fault."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.diagnosis.step_series import StepSeries, examine


@given(st.integers(0, 10_000), st.floats(0.0005, 0.03), st.integers(20, 200))
def test_noise_is_no_finding(seed: int, noise: float, count: int) -> None:
    seconds = 2.0 * np.exp(np.random.default_rng(seed).normal(0, noise, count))
    assert examine(StepSeries(range(count), seconds.tolist())).healthy


@given(st.integers(0, 10_000), st.integers(24, 120), st.floats(1.08, 3.0), st.data())
def test_a_run_that_became_slower_is_dated(seed: int, count: int, factor: float, data: st.DataObject) -> None:
    since = data.draw(st.integers(10, count - 10))
    seconds = np.exp(np.random.default_rng(seed).normal(0, 0.005, count))
    seconds[since:] *= factor
    found = [one for one in examine(StepSeries(range(count), seconds.tolist())).findings if one.cause == "slower-since"]
    assert len(found) == 1
    assert found[0].since_step is not None
    assert abs(found[0].since_step - since) <= 2
    assert found[0].slowdown is not None
    assert abs(found[0].slowdown / factor - 1) < 0.02


def test_a_loss_that_jumps_or_is_no_number_is_wrong() -> None:
    smooth = [5 - 0.01 * step for step in range(60)]
    spiked = [*smooth[:40], 9.0, *smooth[41:]]
    broken = [*smooth[:40], float("nan"), *smooth[41:]]
    ones = [1.0] * 60
    assert examine(StepSeries(range(60), ones, smooth)).healthy
    assert [one.since_step for one in examine(StepSeries(range(60), ones, spiked)).findings] == [40]
    assert [one.cause for one in examine(StepSeries(range(60), ones, broken)).findings] == ["loss-not-finite"]


def test_steps_that_are_long_in_a_rhythm_are_noted_with_their_period() -> None:
    seconds = [1.0 + 2.0 * (step % 10 == 9) for step in range(60)]
    found = examine(StepSeries(range(60), seconds)).findings
    assert [one.verdict for one in found] == ["note"]
    assert "every 10" in found[0].sentence


def test_no_steps_are_no_figures() -> None:
    assert examine(StepSeries([], [])).figures == {}
