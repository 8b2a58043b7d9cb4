import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.core.errors import FailedError, UsageError
from weft.specs import JobSpec, load_job
from weft.training.metrics.step_line import StepLine, bits, from_bits
from weft.training.resumed_job import begun
from weft.training.run_dir import (
    METRICS,
    RESULT,
    SESSIONS,
    RunDir,
    RunRecord,
    find,
    latest,
    records,
    resumed_model,
)

JOB = load_job("tiny-gpt")


def changed(**values: object) -> JobSpec:
    """The job with dotted keys (written with two underscores) changed."""
    table = JOB.as_written()
    for key, value in values.items():
        *path, last = key.split("__")
        inner = table
        for name in path:
            inner = inner[name]
        inner[last] = value
    return JobSpec.model_validate(table)


def line(step: int, loss: float = 2.5) -> StepLine:
    return StepLine(step, loss, 0.5, 1e-3, 100, {"compute": 0.25, "idle": 0.25})


def with_steps(root: Path, steps: int) -> Path:
    with RunDir.start(root, JOB) as run:
        for step in range(1, steps + 1):
            run.step(line(step))
        run.evaluation(2, {"held_out_loss": 3.0})
        return run.folder


def test_runs_are_numbered_by_job(tmp_path: Path):
    names = [with_steps(tmp_path, 1).name for _ in range(3)]
    assert names == ["tiny-gpt-1", "tiny-gpt-2", "tiny-gpt-3"]
    (tmp_path / "tiny-gpt-11").mkdir()
    assert with_steps(tmp_path, 1).name == "tiny-gpt-12"
    assert [record.name for record in records(tmp_path)] == [*names, "tiny-gpt-12"]
    newest = latest(tmp_path, JOB)
    assert newest is not None
    assert newest.name == "tiny-gpt-12"
    assert latest(tmp_path, changed(name="other")) is None
    assert latest(tmp_path / "none", JOB) is None


def test_the_job_is_kept_as_it_was_run(tmp_path: Path):
    record = RunRecord(with_steps(tmp_path, 1))
    assert record.job() == begun(JOB)
    assert record.provenance()["seed"] == JOB.seed


@given(st.floats())
def test_floats_are_kept_by_their_bits(value: float):
    assert bits(from_bits(bits(value))) == bits(value)
    written = json.dumps(line(1, loss=value).as_json(), allow_nan=False)
    assert bits(from_bits(json.loads(written)["loss_bits"])) == bits(value)


def test_a_loss_that_is_no_number_is_still_json(tmp_path: Path):
    with RunDir.start(tmp_path, JOB) as run:
        run.step(line(1, loss=math.nan))
        run.evaluation(1, {"held_out_loss": math.inf})
    record = RunRecord(run.folder)
    assert record.steps()[0]["loss"] is None
    assert record.evaluations() == [{"step": 1, "held_out_loss": None}]


def test_the_state_is_running_then_interrupted_then_finished(tmp_path: Path):
    run = RunDir.start(tmp_path, JOB)
    record = RunRecord(run.folder)
    assert record.state() == "running"
    run.close()
    assert record.state() == "interrupted"
    with RunDir.resume(run.folder, JOB) as again:
        again.finish({"steps": 1})
    assert record.state() == "finished"
    with RunDir.resume(run.folder, JOB):
        assert not (run.folder / RESULT).exists()


def test_a_run_that_says_it_was_interrupted_is(tmp_path: Path):
    with RunDir.start(tmp_path, JOB) as run:
        run.finish({"state": "interrupted"})
    assert RunRecord(run.folder).state() == "interrupted"


def test_two_trainings_never_write_in_one_folder(tmp_path: Path):
    with RunDir.start(tmp_path, JOB) as run, pytest.raises(UsageError, match="another training is writing"):
        RunDir.resume(run.folder, JOB)


def test_a_killed_training_lets_go_of_its_folder(tmp_path: Path):
    text = (
        "import os, signal, sys; from pathlib import Path; from weft.specs import load_job;"
        "from weft.training.run_dir import RunDir; RunDir.start(Path(sys.argv[1]), load_job('tiny-gpt'));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=False)
    assert RunRecord(tmp_path / "tiny-gpt-1").state() == "interrupted"
    RunDir.resume(tmp_path / "tiny-gpt-1", JOB).close()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"not a run folder: there is no job\.toml"):
        RunDir.resume(tmp_path, JOB)


@given(st.integers(0, 5), st.integers(0, 200))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_torn_file_keeps_its_whole_lines_and_goes_on(tmp_path: Path, step: int, torn: int):
    folder = with_steps(tmp_path, 5)
    path = folder / METRICS
    whole = path.read_bytes()
    os.truncate(path, max(0, len(whole) - torn))
    left = path.read_bytes().count(b"\n")
    assert [one["step"] for one in RunRecord(folder).steps()] == list(range(1, left + 1))
    with RunDir.resume(folder, JOB) as run:
        lost = run.cut_after(step)
        kept = min(step, left)
        assert sum(lost.values()) == pytest.approx(0.5 * (left - kept))
        for again in range(kept + 1, 6):
            run.step(line(again))
    assert path.read_bytes() == whole


def test_a_torn_line_of_a_session_is_cut_away(tmp_path: Path):
    with RunDir.start(tmp_path, JOB) as run:
        run.session({"ranks": 4})
        run.session({"ranks": 3})
    os.truncate(run.folder / SESSIONS, (run.folder / SESSIONS).stat().st_size - 3)
    with RunDir.resume(run.folder, JOB) as again:
        again.session({"ranks": 2})
    assert RunRecord(run.folder).sessions() == [{"ranks": 4}, {"ranks": 2}]


def test_evaluations_of_later_steps_are_cut_too(tmp_path: Path):
    folder = with_steps(tmp_path, 3)
    with RunDir.resume(folder, JOB) as run:
        run.cut_after(1)
    assert RunRecord(folder).evaluations() == []
    assert [one["step"] for one in RunRecord(folder).steps()] == [1]


def test_without_sessions_the_seconds_are_the_results_or_those_of_the_steps(tmp_path: Path):
    folder = with_steps(tmp_path, 4)
    assert RunRecord(folder).seconds() == {"compute": 1.0, "idle": 1.0}
    with RunDir.resume(folder, JOB) as run:
        run.finish({"seconds": {"compute": 1.0, "idle": 9.0}})
    assert RunRecord(folder).seconds() == {"compute": 1.0, "idle": 9.0}


def test_seconds_of_all_sessions_add_up_and_lost_steps_are_redone(tmp_path: Path):
    with RunDir.start(tmp_path, JOB) as run:
        run.session({"begins_at": 0, "ranks": 4})
        for step in range(1, 6):
            run.step(line(step))
    record = RunRecord(run.folder)
    assert record.seconds() == {"compute": 1.25, "idle": 1.25}
    with RunDir.resume(run.folder, JOB) as again:
        again.cut_after(3)
        again.session({"begins_at": 3, "ranks": 2})
        again.step(line(4))
    # Three steps of the killed session, two that were lost, one of the new session.
    assert record.seconds() == {"compute": 1.0, "idle": 1.0, "redo": 1.0}
    with RunDir.resume(run.folder, JOB) as last:
        last.cut_after(4)
        last.session({"begins_at": 4})
        last.step(line(5))
        last.session({"ends_at": 5, "seconds": {"compute": 0.25, "idle": 0.75}})
        last.finish({"steps": 5})
    assert record.seconds() == {"compute": 1.25, "idle": 1.75, "redo": 1.0}


def test_an_unknown_run_gets_the_nearest_name(tmp_path: Path):
    folder = with_steps(tmp_path, 1)
    assert find(tmp_path, "tiny-gpt-1").folder == folder
    assert find(tmp_path / "elsewhere", str(folder)).folder == folder
    with pytest.raises(UsageError, match="did you mean 'tiny-gpt-1'"):
        find(tmp_path, "tiny-gtp-1")
    with pytest.raises(UsageError, match="there is no folder"):
        find(tmp_path / "none", "tiny-gpt-1")


def test_a_damaged_result_is_a_clear_failure(tmp_path: Path):
    folder = with_steps(tmp_path, 1)
    (folder / RESULT).write_text("{")
    with pytest.raises(FailedError, match=r"result\.json cannot be read"):
        RunRecord(folder).result()


def test_a_place_where_nothing_can_be_made_is_a_clear_failure(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedError, match="no run folder can be made in"):
        RunDir.start(tmp_path / "file" / "runs", JOB)


def test_reading_runs_does_not_load_torch():
    text = "import sys; import weft.cli.training.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


def test_a_run_goes_on_with_the_model_that_it_was_begun_with(tmp_path: Path):
    for model in (None, "mine:build"):
        with RunDir.start(tmp_path / str(model), JOB, None, model) as run:
            record = RunRecord(run.folder)
        assert resumed_model(record, None) == model
        assert resumed_model(record, model) == model
        with pytest.raises(UsageError, match=r"was begun with .*, not with other:build; resume it without --model"):
            resumed_model(record, "other:build")
    assert resumed_model(None, "mine:build") == "mine:build"
