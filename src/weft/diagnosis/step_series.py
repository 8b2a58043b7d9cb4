"""A run by its steps: step time, jitter, cold start, when it became slower, and losses that jump. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.diagnosis.finding import Diagnosis, DiagnosisFinding

_LEAST = 8
_CHANGE = 1.03
_MOST_SPLITS = 2000
"""Of longer runs, not every step is tried as the one from which on it was slower."""
_SPIKE_SCORE = 8.0
_LOSS_WINDOW = 16
_SLOW_STEP = 1.5


@dataclass(frozen=True)
class StepSeries:
    """What a log says of each step. Seconds may be means over several steps."""

    step: Sequence[int]
    seconds: Sequence[float]
    loss: Sequence[float] = ()
    tokens_per_step: float | None = None
    gpus: int | None = None
    flops_per_step: float | None = None
    """Of the model, as the log or its job say."""
    cold_start_s: float | None = None
    """From the first sign of life to the first step."""
    source: str = ""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step by what they went to, where the log says so: compute, exposed communication, bubble, input."""


def examine(series: StepSeries) -> Diagnosis:
    """Return the figures of a run and what is odd about them."""
    seconds = np.array(series.seconds, dtype=np.float64)
    timed = np.isfinite(seconds) & (seconds > 0)
    if not timed.all():  # a log that was cut or damaged; what it says of the other steps still counts
        kept: list[int] = np.flatnonzero(timed).tolist()
        series = replace(
            series, step=[series.step[at] for at in kept], seconds=seconds[kept].tolist(),
            loss=[series.loss[at] for at in kept if at < len(series.loss)],
        )  # fmt: skip
        seconds = seconds[kept]
    found = Diagnosis()
    if not len(seconds):
        return found
    settled = seconds[1:] if len(seconds) > _LEAST else seconds  # the first contains what happens only once
    typical = float(np.median(settled))
    low, high = np.percentile(settled, 5), np.percentile(settled, 95)
    found.figures |= {
        "step_s": typical, "step_mean_s": float(settled.mean()), "steps": len(seconds),
        "jitter_p95_over_p5": float(high / max(low, 1e-12)), "first_step_s": float(seconds[0]),
    }  # fmt: skip
    found.figures |= {f"{name}_s": spent for name, spent in series.phases_s.items() if spent > 0}
    if series.cold_start_s is not None:
        found.figures["cold_start_s"] = series.cold_start_s
    if series.gpus is not None:
        found.figures["gpus"] = series.gpus
    if series.tokens_per_step:
        found.figures["tokens_per_s"] = series.tokens_per_step / typical
        if series.gpus:
            found.figures["tokens_per_s_per_gpu"] = series.tokens_per_step / typical / series.gpus
    found.findings += _change(series, settled, len(seconds) - len(settled))
    found.findings += _slow_steps(settled, typical)
    found.findings += _losses(series)
    return found


def _change(series: StepSeries, seconds: np.ndarray, skipped: int) -> list[DiagnosisFinding]:
    """Return the step from which on all steps are slower, if there is one (the split that leaves least deviation)."""
    if len(seconds) < 2 * _LEAST:
        return []
    noise = 1.4826 * float(np.median(np.abs(np.diff(seconds)))) / np.sqrt(2) + 1e-12
    width = -(-len(seconds) // _MOST_SPLITS)
    where = min(
        range(_LEAST, len(seconds) - _LEAST + 1, width),
        key=lambda split: sum(float(np.abs(part - np.median(part)).sum()) for part in np.split(seconds, [split])),
    )
    before, after = float(np.median(seconds[:where])), float(np.median(seconds[where:]))
    # Error of a difference of medians of so many values.
    best = (after - before) / (1.2533 * noise * np.sqrt(1 / where + 1 / (len(seconds) - where)))
    if best < _SPIKE_SCORE or after < _CHANGE * before:
        return []
    step = int(series.step[where + skipped])
    share = (len(seconds) - where) * (1 - before / after) / len(seconds)
    return [DiagnosisFinding(
        "slow", "slower-since", "the run", f"Steps take {after:.4g} s since step {step}, {before:.4g} s before.",
        (f"{len(seconds) - where} steps after it, {where} before; {best:.0f} deviations apart",),
        min(1.0, best / (2 * _SPIKE_SCORE)), after / before, share, "since", step,
    )]  # fmt: skip


def _slow_steps(seconds: np.ndarray, typical: float) -> list[DiagnosisFinding]:
    slow = seconds > _SLOW_STEP * typical
    if not slow.any():
        return []
    extra = float((seconds[slow] - typical).sum())
    places = np.flatnonzero(slow)
    gaps = np.diff(places)
    regular = len(gaps) >= 2 and gaps.min() == gaps.max()  # noqa: PLR2004 - a period needs two gaps
    rhythm = f", every {gaps[0]} logged steps: evaluation, a checkpoint or a collector" if regular else ""
    return [DiagnosisFinding(
        "note", "slow-steps", "", f"{int(slow.sum())} of {len(seconds)} steps take more than {_SLOW_STEP} x the usual"
        f" {typical:.4g} s{rhythm}.", (f"{extra:.4g} s in all",), 0.9, None, extra / float(seconds.sum()),
        "intermittent",
    )]  # fmt: skip


def _losses(series: StepSeries) -> list[DiagnosisFinding]:
    losses = np.array(series.loss, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        step = int(series.step[int(bad[0])])
        return [DiagnosisFinding(
            "wrong", "loss-not-finite", "the run", f"The loss is not a number from step {step} on.", (), 1.0, None, 1.0,
            "since", step,
        )]  # fmt: skip
    found: list[DiagnosisFinding] = []
    for place in range(_LOSS_WINDOW, len(losses)):
        window = losses[place - _LOSS_WINDOW : place]
        trend = np.polyval(np.polyfit(np.arange(_LOSS_WINDOW), window, 1), _LOSS_WINDOW)
        noise = float(
            np.std(window - np.polyval(np.polyfit(np.arange(_LOSS_WINDOW), window, 1), np.arange(_LOSS_WINDOW)))
        )
        jump = float(losses[place] - trend)
        if jump > _SPIKE_SCORE * max(noise, 1e-6) and jump > 0.1 * abs(float(trend)):
            step = int(series.step[place])
            found.append(DiagnosisFinding(
                "wrong", "loss-spike", "the run", f"The loss jumps to {losses[place]:.4g} in step {step}.",
                (f"{jump:.3g} above its trend, {jump / max(noise, 1e-6):.0f} x its noise",), 0.8, None, None, "", step,
            ))  # fmt: skip
            break
    return found
