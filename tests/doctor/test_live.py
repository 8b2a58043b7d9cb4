"""A running job is followed: a line when the answer changes, one when its steps stop, and an end when it ends."""

import json
import threading
import time
from pathlib import Path

from weft.diagnosis.step_series import StepSeries
from weft.doctor.examination import examine_evidence
from weft.doctor.live import JobWatch, watch_job
from weft.doctor.readers.evidence import Evidence, SourceFile


def seen(steps: int, seconds: float = 2.0):
    source = SourceFile("metrics.jsonl", "weft run", f"{steps} steps")
    return examine_evidence(Evidence(sources=[source], series=[StepSeries(list(range(steps)), [seconds] * steps)]))


def test_a_line_is_printed_when_the_answer_changes_and_when_steps_stop_coming() -> None:
    watch = JobWatch()
    assert watch.line(seen(0), 1.0) == "no step yet"
    assert watch.line(seen(0), 2.0) is None
    assert watch.line(seen(4), 9.0) == "step 3: nothing is slow, stuck or wrong in what was read"
    assert watch.line(seen(5), 11.0) is None
    assert watch.line(seen(5), 40.0) is None, "ten steps or half a minute, whichever is longer"
    stuck = watch.line(seen(5), 42.0)
    assert stuck is not None
    assert stuck.startswith("step 4: stuck: no step since step 4")
    assert watch.line(seen(6), 44.0) == "step 5: nothing is slow, stuck or wrong in what was read"


def test_a_run_is_followed_until_its_result_is_there(tmp_path: Path) -> None:
    lines: list[str] = []
    step = {"seconds": {"compute": 0.1}, "loss": 3.0, "loss_bits": "x", "tokens": 9}
    follower = threading.Thread(target=watch_job, args=([str(tmp_path)], 0.01, lines.append), daemon=True)
    follower.start()
    deadline = time.monotonic() + 60
    while not lines and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": one, **step}) + "\n" for one in range(4)))
    while len(lines) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "result.json").write_text("{}")
    follower.join(60)
    assert lines == ["no step yet", "step 3: nothing is slow, stuck or wrong in what was read", "the run has ended"]
