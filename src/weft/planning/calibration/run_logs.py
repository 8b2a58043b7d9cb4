"""Step times out of logs that trainings write: MLPerf, torchtitan, Megatron-LM, NeMo, and weft's own metrics.

Text in, times out; which format it is shows in the lines themselves. The first steps of a run, in which kernels are
chosen and compiled, do not count. What the times mean for a site is `run_calibration`'s matter.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from weft.core.errors import UsageError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MEGATRON = re.compile(r"elapsed time per iteration \(ms\): *([0-9.]+)")
_NEMO = re.compile(r"train_step_timing in s: *([0-9.]+)")
_TITAN = re.compile(r"\bstep: *(\d+)\b.*\btps: *([0-9,.]+)")
_MLPERF = ":::MLLOG"
_FEWEST = 3
_WARM_UP = 0.1
_MOST_WARM_UP = 10


@dataclass(frozen=True)
class StepLog:
    """What a log says."""

    source: str
    """Which software wrote it."""
    seconds: tuple[float, ...]
    """Times of steps, warm-up left out."""

    @property
    def median_s(self) -> float:
        """Return the middle one."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Return the middle half's width as a share of the median."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median_s


def read_log(text: str, shown: str, *, tokens: int, gpus: int) -> StepLog:
    """Return the step times in `text`; `tokens` of a step and `gpus` turn torchtitan's tokens a second into time."""
    lines = _COLOURS.sub("", text).splitlines()
    for source, times in _FORMATS.items():
        found = list(times(lines, tokens / gpus))
        if found:
            return _settled(source, found, shown)
    raise UsageError(
        f"{shown} holds no step times; known are logs of {', '.join(_FORMATS)}: lines with ':::MLLOG', "
        "'tps:', 'elapsed time per iteration (ms):', 'train_step_timing in s:' or '\"seconds\":'"
    )


def _settled(source: str, found: list[float], shown: str) -> StepLog:
    """Return the times without the first ones, or refuse too few."""
    skipped = min(_MOST_WARM_UP, max(1, round(_WARM_UP * len(found)))) if len(found) > _FEWEST else 0
    kept = [each for each in found[skipped:] if each > 0]
    if len(kept) < _FEWEST:
        raise UsageError(f"{shown} holds {len(found)} step times; at least {_FEWEST + 1} are needed, one to warm up")
    return StepLog(source, tuple(kept))


def _mlperf(lines: Sequence[str], _each: float) -> Iterator[float]:
    for line in lines:
        _, mark, rest = line.partition(_MLPERF)
        if not mark:
            continue
        record = _object(rest)
        value = record.get("value")
        if record.get("key") == "tracked_stats" and isinstance(value, dict) and "train_step_time" in value:
            yield float(value["train_step_time"])


def _titan(lines: Sequence[str], each: float) -> Iterator[float]:
    for line in lines:
        if match := _TITAN.search(line):
            rate = float(match[2].replace(",", ""))
            yield each / rate if rate else 0.0


def _numbers(pattern: re.Pattern[str], scale: float) -> Callable[[Sequence[str], float], Iterator[float]]:
    def times(lines: Sequence[str], _each: float) -> Iterator[float]:
        for line in lines:
            if match := pattern.search(line):
                yield float(match[1]) * scale

    return times


def _ours(lines: Sequence[str], _each: float) -> Iterator[float]:
    for line in lines:
        value = _object(line).get("seconds") if line.startswith("{") else None
        if isinstance(value, dict):
            # Seconds by class of the average rank; together they are the step's.
            yield float(sum(each for each in value.values() if isinstance(each, int | float)))


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_FORMATS: dict[str, Callable[[Sequence[str], float], Iterator[float]]] = {
    "MLPerf": _mlperf,
    "Megatron-LM": _numbers(_MEGATRON, 1e-3),
    "NeMo": _numbers(_NEMO, 1.0),
    "torchtitan": _titan,
    "weft": _ours,
}
