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
        "Megatron-Bridge": lambda n, s: f"Step Time : {s!r}s GPU utilization: 719.9MODEL_TFLOP/s/GPU",
        "weft": lambda n, s: json.dumps({"step": n, "seconds": {"compute": s / 2, "exposed": s / 2}}),
    }
    made = [forms[source](number, each) for number, each in enumerate(seconds, 1)]
    return "\n".join(["starting up", *made, "{not json", "the end"])


SIZE = ':::MLLOG {"key": "global_batch_size", "value": 16}\n'


def tracked(value: dict[str, float]) -> str:
    return ":::MLLOG " + json.dumps({"key": "tracked_stats", "value": value})


def block(number: int, step_s: float) -> str:
    """Return the lines of a block of ten steps of 16 sequences, and a long pause after it."""
    start, stop = number * (10_000 * step_s + 77_000), number * (10_000 * step_s + 77_000) + 10_000 * step_s
    times = (("block_start", start, 160 * number), ("block_stop", stop, 160 * (number + 1)))
    return "\n".join(
        ":::MLLOG " + json.dumps({"key": key, "time_ms": at, "metadata": {"samples_count": count}})
        for key, at, count in times
    )


SOURCES = ["MLPerf", "Megatron-LM", "Megatron-Bridge", "NeMo", "torchtitan", "weft"]


@pytest.mark.parametrize("source", SOURCES)
@given(st.lists(st.floats(0.98, 1.02), min_size=5, max_size=60), st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_every_format_gives_its_times_without_the_warm_up(source: str, jitter: list[float], step_s: float):
    seconds = [step_s * each for each in jitter]
    found = read_log(lines(source, seconds), "run.log", tokens=TOKENS, gpus=GPUS)
    assert (found.source, found.warm_up, found.odd) == (source, 1, 0)
    assert found.seconds == pytest.approx(seconds[1:])


@st.composite
def disturbed(draw: st.DrawFn) -> tuple[float, list[float]]:
    """Return the time of an ordinary step and those of a run that compiles, evaluates and writes checkpoints."""
    step_s = draw(st.floats(0.05, 50))
    jitter = draw(st.lists(st.floats(0.97, 1.03), min_size=12, max_size=120))
    warm = draw(st.lists(st.floats(1.5, 60), min_size=1, max_size=len(jitter) // 4))
    every, longer = draw(st.integers(3, 20)), draw(st.floats(1.2, 30))
    steady = [step_s * each * (longer if n % every == every - 1 else 1) for n, each in enumerate(jitter)]
    return step_s, [step_s * each for each in warm] + steady


@pytest.mark.parametrize("source", SOURCES)
@given(disturbed())
@settings(max_examples=40, deadline=None)
def test_evaluations_checkpoints_and_compiling_do_not_count(source: str, run: tuple[float, list[float]]):
    step_s, seconds = run
    found = read_log(lines(source, seconds), "run.log", tokens=TOKENS, gpus=GPUS)
    assert found.median_s == pytest.approx(step_s, rel=0.035)
    assert max(found.seconds) < 1.2 * step_s
    assert found.warm_up + found.odd + len(found.seconds) == len(seconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        # NeMo 1 and 2, carriage returns of a progress bar, ranks in front; torchtitan as it was, and on several ranks.
        (
            "\r".join(f"Epoch 0: : 1%| {n}/9 [00:01<00:00, v_num=x, train_step_timing in s=3.5{n}]" for n in range(9)),
            3.545,
        ),
        ("\n".join(f"[default7]: iteration {n} | train_step_timing in s: 2.0{n}, x" for n in range(9)), 2.045),
        ("\n".join(f"[rank{n % 2}]:[titan] step: {n} loss: 1 wps: 32,768 mfu: 1%" for n in range(9)), 1.0),
        ("\n".join(f"[rank0] step: {n} loss: 1 tps: 3.2768e4 mfu: 1%" for n in range(9)), 1.0),
        ("\n".join(f" iteration {n}/ 50 | elapsed time per iteration (ms): 2553{n}.1 |" for n in range(9)), 25.5351),
        ("\n".join(f" iteration {n}/ 50 | elapsed time per iteration (s): 2.0{n} |" for n in range(9)), 2.045),
        # MLPerf as others write it: sequences a second, or blocks of steps with evaluations between them.
        (SIZE + "\n".join(tracked({"throughput": 16 / (2 + n / 100)}) for n in range(9)), 2.045),
        (SIZE + "\n".join(block(n, 2.0) for n in range(9)), 2.0),
    ],
)
def test_what_people_have_in_their_folders_is_read(text: str, seconds: float):
    assert read_log(text, "run.log", tokens=TOKENS, gpus=GPUS).median_s == pytest.approx(seconds, rel=1e-3)


@given(st.sampled_from(SOURCES), st.integers(4, 40), st.integers(4, 40), st.floats(1.5, 20), st.booleans())
@settings(max_examples=60, deadline=None)
def test_two_runs_in_one_file_are_told_apart(source: str, one: int, other: int, slower: float, first: bool):
    fast, slow = [1.0] * one, [slower] * other
    text = lines(source, fast + slow if first else slow + fast)
    if min(one, other) > 1 + 0.25 * (one + other):
        with pytest.raises(UsageError, match=r"steps of two kinds|no more than half of them are alike"):
            read_log(text, "run.log", tokens=TOKENS, gpus=GPUS)


@pytest.mark.parametrize("source", ["MLPerf", "Megatron-LM"])
def test_a_log_of_another_batch_is_refused_and_a_ramp_is_passed_over(source: str):
    def logged(batch: int, step_s: float) -> str:
        if source == "MLPerf":
            size = '0: :::MLLOG {"key": "global_batch_size", "value": %d}\n' % batch  # noqa: UP031
            return size + lines(source, [step_s] * 12)
        return lines(source, [step_s] * 12).replace("| loss", f"| global batch size: {batch} | loss")

    text = logged(16, 0.5) + "\n" + logged(32, 1.0)
    assert read_log(text, "run.log", tokens=TOKENS, gpus=GPUS, sequences=32).median_s == 1.0
    with pytest.raises(UsageError, match=r"16 and 32 sequences, and the job's batch.sequences is 64"):
        read_log(text, "run.log", tokens=TOKENS, gpus=GPUS, sequences=64)


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
