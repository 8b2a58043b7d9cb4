"""Step times out of logs that trainings write: MLPerf, torchtitan, Megatron-LM, NeMo, and weft's own metrics.

Text in, times out; which format it is shows in the lines themselves. What is kept are ordinary steps: neither the
first ones, in which kernels are chosen and compiled, nor those with an evaluation or a checkpoint in them. What the
times mean for a site is `run_calibration`'s matter.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from weft.core.errors import UsageError

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MEGATRON = re.compile(r"elapsed time per iteration \((ms|s)\): *([0-9.]+(?:[eE][-+]?\d+)?)")
_BRIDGE = re.compile(r"\bStep Time *: *([0-9.]+(?:[eE][-+]?\d+)?) *(ms|s)\b")
_MEGATRON_BATCH = re.compile(r"global batch size: *(\d+)")
_NEMO = re.compile(r"train_step_timing in s *[:=] *([0-9.]+(?:[eE][-+]?\d+)?)")
_TITAN = re.compile(r"\bstep: *(\d+)\b.*\b(?:tps|wps): *([0-9.,]+(?:[eE][-+]?\d+)?)")
_MLPERF = ":::MLLOG"
_UNITS = {"ms": 1e-3, "s": 1.0}
_NOT_STEPS = ("checkpoint", "evaluation", "start_up", "detect", "reform", "restore", "redo", "verify", "idle")
"""Classes of weft's own time that are no part of a step."""
_FEWEST = 3
_ORDINARY = 0.15
"""How far from the core of the steps, as a share, one may be and still be ordinary: of 16 published runs the 95th
percentile is 1.004 to 1.085 times the 5th (MLPerf v3.1 to v4.0)."""
_SPREADS = 2.0
_UNLIKE = 1.4
"""Longest over shortest of the core from which it is none: noise takes a tenth; half of a log may be another run."""
_CALM = 3
"""Ordinary steps in a row that end the warm-up."""
_ANOTHER_RUN = 0.25
"""Share of a log's steps from which steps in a row that are alike, and unlike the ordinary ones, are another run."""

Timed: TypeAlias = tuple[float, int | None]
"""Seconds of a step, and the sequences of its batch where the line says so."""


@dataclass(frozen=True)
class StepLog:
    """What a log says."""

    source: str
    """Which software wrote it."""
    seconds: tuple[float, ...]
    """Times of ordinary steps."""
    warm_up: int = 0
    """Steps at the start that do not count."""
    odd: int = 0
    """Later steps that do not: evaluations, checkpoints, hiccups."""

    @property
    def median_s(self) -> float:
        """Return the middle one."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Return the middle half's width as a share of the median."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median_s


def read_log(text: str, shown: str, *, tokens: int, gpus: int, sequences: int | None = None) -> StepLog:
    """Return the step times in `text`; `tokens` of a step and `gpus` turn torchtitan's tokens a second into time.

    Where the log says how large its batch is, steps of another one than `sequences` do not count.
    """
    lines = _COLOURS.sub("", text).splitlines()
    for source, times in _FORMATS.items():
        found = list(times(lines, tokens / gpus))
        if found:
            return _settled(source, _of_batch(found, sequences, shown), shown)
    raise UsageError(
        f"{shown} holds no step times; known are logs of {', '.join(_FORMATS)}: lines with ':::MLLOG', "
        "'tps:', 'elapsed time per iteration (ms):', 'Step Time :', 'train_step_timing in s:' or '\"seconds\":'"
    )


def _of_batch(found: list[Timed], sequences: int | None, shown: str) -> list[float]:
    """Return the times of steps with a batch of `sequences`, or refuse a log of another job."""
    seen = {batch for _, batch in found if batch is not None}
    if sequences is None or not seen:
        return [seconds for seconds, _ in found]
    kept = [seconds for seconds, batch in found if batch in (None, sequences)]
    if sequences not in seen:
        others = " and ".join(f"{batch:,}" for batch in sorted(seen)[:3])
        raise UsageError(
            f"{shown} is of steps with {others} sequences, and the job's batch.sequences is {sequences:,}; write the "
            "batch of the run into the job file"
        )
    return kept


def _settled(source: str, found: list[float], shown: str) -> StepLog:
    """Return the ordinary steps, or refuse too few.

    The core are the closest half of all steps: it is found wherever more than half of them are ordinary, whatever the
    others are. Ordinary is what lies as far from it as its own spread allows.
    """
    times = [each for each in found if 0 < each < float("inf")]
    if len(times) <= _FEWEST:
        raise UsageError(f"{shown} holds {len(found)} step times; at least {_FEWEST + 1} are needed, one to warm up")
    # Of a short log the first step is no part of the core, as it is the one that compiles.
    low, high = _closest_half(times[1:])
    if high > low * _UNLIKE:
        raise UsageError(
            f"{shown} holds {len(times)} step times, and no more than half of them are alike "
            f"({low:.3g} to {high:.3g} s); leave the steps of one run in it"
        )
    margin = max(_ORDINARY * (low + high) / 2, _SPREADS * (high - low))
    ordinary = [low - margin <= each <= high + margin for each in times]
    if other := _another_run(times, ordinary):
        raise UsageError(
            f"{shown} holds steps of two kinds, {len(other)} of about {statistics.median(other):.3g} s and "
            f"{sum(ordinary)} of about {(low + high) / 2:.3g} s; leave the steps of one run in it"
        )
    calm = min(_CALM, len(times) - 1)
    start = next((n for n in range(1, len(times) - calm + 1) if all(ordinary[n : n + calm])), 1)
    kept = [each for each, fits in zip(times[start:], ordinary[start:], strict=True) if fits]
    if len(kept) < _FEWEST:
        raise UsageError(
            f"{shown} holds {len(times)} step times, and no {_FEWEST} of them are alike; a longer run is needed"
        )
    return StepLog(source, tuple(kept), warm_up=start, odd=len(times) - start - len(kept))


def _another_run(times: Sequence[float], ordinary: Sequence[bool]) -> list[float]:
    """Return steps in a row that are alike, many, and not ordinary; nothing where there are none."""
    for fits, steps in groupby(zip(times, ordinary, strict=True), key=lambda each: each[1]):
        row = [seconds for seconds, _ in steps]
        middle = statistics.median(row)
        alike = [each for each in row if abs(each - middle) <= _ORDINARY * middle]
        if not fits and len(alike) > max(_FEWEST, _ANOTHER_RUN * len(times)):
            return alike
    return []


def _closest_half(times: Sequence[float]) -> tuple[float, float]:
    """Return the shortest interval that holds more than half of the times."""
    ranked = sorted(times)
    half = len(ranked) // 2 + 1
    first = min(range(len(ranked) - half + 1), key=lambda n: ranked[n + half - 1] / ranked[n])
    return ranked[first], ranked[first + half - 1]


def _mlperf(lines: Sequence[str], _each: float) -> Iterator[Timed]:
    batch: int | None = None
    for line in lines:
        _, mark, rest = line.partition(_MLPERF)
        if not mark:
            continue
        record = _object(rest)
        value = record.get("value")
        if record.get("key") == "global_batch_size" and isinstance(value, int):
            batch = value
        if record.get("key") == "tracked_stats" and isinstance(value, dict):
            seconds = value.get("train_step_time")
            rate = value.get("throughput")
            if isinstance(seconds, int | float):
                yield float(seconds), batch
            elif isinstance(rate, int | float) and rate > 0 and batch:
                # Sequences that the whole job takes a second.
                yield batch / rate, batch


def _titan(lines: Sequence[str], each: float) -> Iterator[Timed]:
    for line in lines:
        if match := _TITAN.search(line):
            rate = _number(match[2].replace(",", ""))
            yield (each / rate if rate else 0.0), None


def _megatron(lines: Sequence[str], _each: float) -> Iterator[Timed]:
    for line in lines:
        if match := _MEGATRON.search(line):
            batch = _MEGATRON_BATCH.search(line)
            yield _number(match[2]) * _UNITS[match[1]], int(batch[1]) if batch else None


def _bridge(lines: Sequence[str], _each: float) -> Iterator[Timed]:
    for line in lines:
        if match := _BRIDGE.search(line):
            yield _number(match[1]) * _UNITS[match[2]], None


def _mlperf_blocks(lines: Sequence[str], _each: float) -> Iterator[Timed]:
    """Yield the average step between the start and the stop of each block of steps; evaluations lie between blocks."""
    batch: int | None = None
    start: tuple[float, float] | None = None
    for line in lines:
        record = _object(line.partition(_MLPERF)[2])
        value, key, more = record.get("value"), record.get("key"), record.get("metadata")
        if key == "global_batch_size" and isinstance(value, int):
            batch = value
        at, count = record.get("time_ms"), more.get("samples_count") if isinstance(more, dict) else None
        if key not in ("block_start", "block_stop") or not isinstance(at, int | float):
            continue
        samples = float(count) if isinstance(count, int | float) else 0.0
        if key == "block_start":
            start = (float(at), samples)
        elif start is not None and batch and samples > start[1]:
            yield 1e-3 * (at - start[0]) * batch / (samples - start[1]), batch
            start = None


def _nemo(lines: Sequence[str], _each: float) -> Iterator[Timed]:
    for line in lines:
        if match := _NEMO.search(line):
            yield _number(match[1]), None


def _ours(lines: Sequence[str], _each: float) -> Iterator[Timed]:
    for line in lines:
        value = _object(line).get("seconds") if line.startswith("{") else None
        if isinstance(value, dict):
            # Seconds by class of the average rank; together they are the step's, and what came between two steps.
            parts = [each for name, each in value.items() if name not in _NOT_STEPS and isinstance(each, int | float)]
            yield float(sum(parts)), None


def _number(text: str) -> float:
    """Return what a number says; a line that was cut in the middle of one has none."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_FORMATS: dict[str, Callable[[Sequence[str], float], Iterator[Timed]]] = {
    "MLPerf": _mlperf,
    "MLPerf's blocks": _mlperf_blocks,
    "Megatron-LM": _megatron,
    "Megatron-Bridge": _bridge,
    "NeMo": _nemo,
    "torchtitan": _titan,
    "weft": _ours,
}
