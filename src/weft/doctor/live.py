"""A running job, examined again and again: a line whenever the answer changes, and one when its steps stop coming."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import UsageError
from weft.diagnosis.step_series import StepSeries
from weft.doctor.examination import Examination, examine_evidence
from weft.doctor.gather import gather
from weft.doctor.readers.evidence import Evidence
from weft.training.run_dir import RESULT

_LEAST_QUIET_S = 30.0
_QUIET_STEPS = 10.0
"""So many usual steps without one, and the job is stuck."""


@dataclass
class JobWatch:
    """What was said last, and when the newest step came."""

    steps: int = 0
    since_s: float = 0.0
    said: str = ""

    def line(self, found: Examination, now_s: float) -> str | None:
        """Return what is new at `now_s`; nothing where the answer is what it was."""
        series = max(found.evidence.series, key=lambda one: len(one.step), default=StepSeries((), ()))
        if len(series.step) != self.steps:
            self.steps, self.since_s = len(series.step), now_s
        elif not self.since_s:
            self.since_s = now_s
        usual = sorted(series.seconds)[len(series.seconds) // 2] if series.seconds else 0.0
        quiet = now_s - self.since_s
        if self.steps and quiet > max(_LEAST_QUIET_S, _QUIET_STEPS * usual):
            text = f"stuck: no step since step {series.step[-1]}; one usually takes {usual:.3g} s"
        elif not self.steps and not found.findings():
            text = "no step yet"
        else:
            text = found.verdict()
        if text == self.said:
            return None
        self.said = text
        return f"step {series.step[-1]}: {text}" if self.steps else text


def watch_job(paths: Sequence[str], every_s: float, tell: Callable[[str], None]) -> None:
    """Examine what is below `paths` every so often, until the run that they name has ended."""
    watch = JobWatch()
    while True:
        try:
            evidence = gather(paths)
        except UsageError:
            if not all(Path(path).exists() for path in paths):
                raise
            evidence = Evidence()  # a folder in which nothing stands yet
        line = watch.line(examine_evidence(evidence), time.monotonic())
        if line is not None:
            tell(line)
        if any(Path(one.path).name == RESULT for one in evidence.sources):
            tell("the run has ended")
            return
        time.sleep(every_s)
