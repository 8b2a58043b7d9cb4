"""Who holds a run up, from what each rank spent in each step: computing, waiting for its batch, lost planes.

A run's own lines hold no operations, but seconds by rank and step. A rank is compared with those that hold the same
stage, by micro-batch: it is to blame where it is slower than the slowest of them for long enough that chance, which
hits another one in every step, does not explain it. What it costs is what a step would save if it were as fast as the
next one. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.diagnosis.finding import Diagnosis, DiagnosisFinding, Persistence
from weft.diagnosis.operations import Floats, Ints

_LEAST_SLOWDOWN = 1.03
_LEAST_WINDOW = 6
"""Steps in which a rank has to be slow."""
_LEAST_BEHIND = 0.04
"""How much slower it is than the next one, as the logarithm of the ratio."""
_POSITIVE = 0.75
"""Share of these steps in which it is the slowest."""
_DEVIATIONS = 5.0
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class RankSteps:
    """One row for each step, one column for each rank."""

    steps: Ints
    step_s: Floats
    """Seconds of each step, without evaluations and checkpoints."""
    compute_s: Floats
    """Seconds that each rank computed, for one micro-batch."""
    batches: Floats
    """Micro-batches of each rank."""
    input_s: Floats
    """Seconds that each rank waited for its batch."""
    stage: Ints
    """The pipeline stage of each rank."""
    planes_out: Sequence[tuple[int, int, int]] = field(default_factory=tuple)
    """Step, rank and plane, where a plane carried nothing."""


@dataclass(frozen=True)
class _Window:
    first: int
    last: int
    """One behind."""
    score: float

    def pattern(self, steps: Ints) -> tuple[Persistence, int | None]:
        count = len(steps)
        if self.last - self.first >= _NEARLY_ALL * count:
            return "persistent", None
        since = int(steps[self.first])
        return ("since", since) if count - self.last <= max(1, (1 - _NEARLY_ALL) * count) else ("intermittent", since)


def examine_ranks(found: RankSteps) -> Diagnosis:
    """Return which rank, input or link holds the run up; nobody where it is noise."""
    result = Diagnosis()
    if len(found.steps) < _LEAST_WINDOW:
        return result
    result.findings += [*_slow_rank(found), *_stalled_input(found), *_slow_links(found)]
    return result


def _slow_rank(found: RankSteps) -> Iterator[DiagnosisFinding]:
    best: tuple[_Window, int, Floats] | None = None
    for stage in np.unique(found.stage):
        group = np.flatnonzero(found.stage == stage)
        if len(group) < 2:  # noqa: PLR2004 - nobody to compare with
            continue
        own = np.maximum(found.compute_s[:, group], 1e-9)
        for place, rank in enumerate(group):
            next_one = np.delete(own, place, axis=1).max(axis=1)
            window = _best_window(np.log(own[:, place] / next_one))
            if window is not None and (best is None or window.score > best[0].score):
                best = window, int(rank), (own[:, place] - next_one) * found.batches[:, rank]
    if best is None:
        return
    window, rank, excess = best
    rows = slice(window.first, window.last)
    # In a pipeline every micro-batch waits for the slow stage; without one the others wait at the end of the step.
    saved = float(excess[rows].mean() / found.step_s[rows].mean())
    slowdown = 1 / max(1 - saved, 1e-3)
    if slowdown < _LEAST_SLOWDOWN:
        return
    persistence, since = window.pattern(found.steps)
    peers = np.flatnonzero((found.stage == found.stage[rank]) & (np.arange(len(found.stage)) != rank))
    usual = np.median(found.compute_s[rows][:, peers], axis=1)
    ratio = float(np.median(found.compute_s[rows, rank] / np.maximum(usual, 1e-9)))
    when = {"persistent": "every step", "since": f"every step since step {since}"}.get(
        persistence, f"{window.last - window.first} steps from step {since} on"
    )
    yield DiagnosisFinding(
        "slow", "slow-rank", f"rank {rank}",
        f"Rank {rank} slows {when}: it computes {ratio:.2f} x as long as its peers, and they wait for it.",
        (f"as fast as the next one, a step would take {(1 - saved) * found.step_s[rows].mean():.4g} s instead of"
         f" {found.step_s[rows].mean():.4g} s",
         f"it is the slowest by more than chance in {window.last - window.first} of {len(found.steps)} steps"),
        min(1.0, 0.5 + window.score / (4 * _DEVIATIONS)), slowdown,
        saved * (window.last - window.first) / len(found.steps), persistence, since, (rank,),
    )  # fmt: skip


def _best_window(behind: Floats) -> _Window | None:
    """Return the steps in a row in which a rank is behind the next one by most deviations; none where it is chance."""
    count = len(behind)
    noise = 1.4826 * float(np.median(np.abs(behind - np.median(behind)))) + 0.01
    total = np.concatenate([[0.0], np.cumsum(behind)])
    positive = np.concatenate([[0], np.cumsum(behind > 0)])
    best: _Window | None = None
    for first in range(count - _LEAST_WINDOW + 1):
        lasts = np.arange(first + _LEAST_WINDOW, count + 1)
        size = lasts - first
        mean = (total[lasts] - total[first]) / size
        good = (mean >= _LEAST_BEHIND) & (positive[lasts] - positive[first] >= _POSITIVE * size)
        score = np.where(good, mean * np.sqrt(size) / noise, 0.0)
        at = int(score.argmax())
        if score[at] >= _DEVIATIONS and (best is None or score[at] > best.score):
            best = _Window(first, int(lasts[at]), float(score[at]))
    return best


def _stalled_input(found: RankSteps) -> Iterator[DiagnosisFinding]:
    waited = found.input_s.mean(axis=0)
    step_s = float(found.step_s.mean())
    worst = int(waited.argmax())
    others = np.delete(waited, worst)
    usual = float(np.median(others)) if len(others) else 0.0
    # Only one that stalls again and again: a first read, or a file that is opened, is no stall.
    often = float((found.input_s[:, worst] > (_LEAST_SLOWDOWN - 1) * step_s).mean())
    alone = waited[worst] - usual > (_LEAST_SLOWDOWN - 1) * step_s and usual < waited[worst] / 2
    everybody = float(np.median(waited)) > (_LEAST_SLOWDOWN - 1) * step_s
    if not (alone or everybody) or often * len(found.steps) < _LEAST_WINDOW / 2:
        return
    share = float(waited[worst] - usual if alone else np.median(waited)) / step_s
    subject, ranks = (f"rank {worst}", (worst,)) if alone else ("the input", ())
    yield DiagnosisFinding(
        "slow", "input-stall", subject,
        f"{subject[:1].upper()}{subject[1:]} {'waits for its' if alone else 'keeps all ranks waiting for their'} batch:"
        f" {share:.1%} of a step.",
        (f"it waits {waited[worst]:.4g} s of a step of {step_s:.4g} s, the middle rank {usual:.4g} s",
         f"in {often:.0%} of the steps"), 0.9, 1 / max(1 - share, 1e-3), min(1.0, share),
        "persistent" if often > _POSITIVE else "intermittent", None, ranks,
    )  # fmt: skip


def _slow_links(found: RankSteps) -> Iterator[DiagnosisFinding]:
    """Yield the links that carry nothing."""
    out: dict[tuple[int, int], list[int]] = {}
    for step, rank, plane in found.planes_out:
        out.setdefault((rank, plane), []).append(step)
    for (rank, plane), steps in sorted(out.items()):
        yield DiagnosisFinding(
            "slow", "slow-link", f"rank {rank}, plane {plane}",
            f"The link of rank {rank} to plane {plane} carries nothing since step {min(steps)}.",
            (f"in {len(steps)} of {len(found.steps)} steps; its other planes carry what it would",), 0.9, None,
            None, "since", min(steps), (rank,),
        )  # fmt: skip
