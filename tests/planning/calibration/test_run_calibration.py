"""A run's log read, whoever wrote it; a site that meets it; and what larger runs then take."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.planning.calibration.run_calibration import calibrated
from weft.planning.calibration.run_logs import read_log
from weft.planning.calibration.step_probes import times_of
from weft.specs import load_job, load_site
from weft.specs.job import JobSpec, PlanSpec
from weft.specs.software import SoftwareSpec

TOKENS, GPUS = 262_144, 8


def lines(source: str, seconds: list[float]) -> str:
    """Return a log as that software writes it, between lines that are none of it."""
    forms = {
        "MLPerf": lambda n, s: '0: :::MLLOG {"key": "tracked_stats", "value": {"train_step_time": %r}}' % s,  # noqa: UP031
        "Megatron-LM": lambda n, s: f" iteration {n}/ 500 | elapsed time per iteration (ms): {1000 * s!r} | loss: 1.0",
        "NeMo": lambda n, s: f"Training epoch 0, iteration {n}/9 | lr: 1e-4 | train_step_timing in s: {s!r}",
        "torchtitan": lambda n, s: f"\x1b[31mstep: {n:2}\x1b[39m loss: 8.1  tps: {TOKENS / GPUS / s!r}  mfu: 40%",
        "weft": lambda n, s: json.dumps({"step": n, "seconds": {"compute": s / 2, "exposed": s / 2}}),
    }
    made = [forms[source](number, each) for number, each in enumerate(seconds, 1)]
    return "\n".join(["starting up", *made, "{not json", "the end"])


@pytest.mark.parametrize("source", ["MLPerf", "Megatron-LM", "NeMo", "torchtitan", "weft"])
@given(st.lists(st.floats(0.01, 100), min_size=5, max_size=60))
@settings(max_examples=20, deadline=None)
def test_every_format_gives_its_times_without_the_warm_up(source: str, seconds: list[float]):
    found = read_log(lines(source, seconds), "run.log", tokens=TOKENS, gpus=GPUS)
    assert found.source == source
    assert found.seconds == pytest.approx(seconds[-len(found.seconds) :])
    assert len(seconds) / 2 <= len(found.seconds) < len(seconds)


@pytest.mark.parametrize("text", ["", "no times here", lines("NeMo", [1.0, 2.0])])
def test_a_log_without_steps_is_refused(text: str):
    with pytest.raises(UsageError, match=r"run\.log holds"):
        read_log(text, "run.log", tokens=TOKENS, gpus=GPUS)


def job(dp: int, tp: int) -> JobSpec:
    update = {"plan": PlanSpec(dp=dp, tp=tp, pp=8, zero=1), "software": SoftwareSpec(preset="nemo-2025")}
    batch = load_job("gpt3-175b").batch.model_copy(update={"sequences": 32 * dp})
    return load_job("gpt3-175b").model_copy(update={**update, "batch": batch})


@given(st.sampled_from([1, 2, 8]), st.sampled_from([4, 8]), st.floats(1.0, 4.0))
@settings(max_examples=25, deadline=None)
def test_a_calibrated_site_meets_the_run_and_keeps_the_fabric(dp: int, tp: int, factor: float):
    site = load_site("h100-400g-16k")
    wanted = factor * float(times_of(site, job(dp, tp)).step_s[0])
    found = calibrated(site, job(dp, tp), wanted)
    assert float(found.adjusted.step_s[0]) == pytest.approx(wanted, rel=1e-6)
    assert found.pace == pytest.approx(1.0) or (found.pace > 1) == (factor > 1)
    # The written site says the same to whoever plans on it.
    again = calibrated(found.site, job(dp, tp), wanted)
    assert again.pace == pytest.approx(found.pace, rel=1e-3)
    assert float(again.expected.step_s[0]) == pytest.approx(wanted, rel=1e-3)
    assert [each.gpus for each in found.forecasts] == [dp * tp * 8 * grown for grown in (2, 4, 8, 16)]
    # More replicas share the optimizer, and wait for more of their own.
    assert all(0.9 * wanted < each.low_s < each.step_s < each.high_s < 1.3 * wanted for each in found.forecasts)


@pytest.mark.parametrize("measured", [1e-4, 1e6])
def test_a_run_that_nothing_explains_is_refused(measured: float):
    with pytest.raises(UsageError, match="out of reach"):
        calibrated(load_site("h100-400g-16k"), job(8, 8), measured)


def test_an_open_plan_is_refused():
    with pytest.raises(UsageError, match=r"\[plan\]"):
        calibrated(load_site("h100-400g-16k"), load_job("llama3-405b"), 10.0)
