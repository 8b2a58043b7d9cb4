"""From what-if replays to an accusation: the smallest part of a job that explains most of its slowdown, or nobody.

One rank is blamed before several, a stage or a link before an operation, and the work itself (sequences of uneven
length) only where no part of the job is slower than its peers. Nobody is blamed for noise.
"""

from dataclasses import dataclass
from statistics import median

import numpy as np

from weft.diagnosis.finding import Diagnosis, DiagnosisFinding, Persistence
from weft.diagnosis.operations import Floats
from weft.diagnosis.slowdown import Mask, SlowdownReport, Suspect, slowdown_report
from weft.diagnosis.step_program import StepProgram

LEAST_SLOWDOWN = 1.03
"""What is less is noise of any machine, and nobody is blamed for it."""
_SLOW_STEP = 1.05
"""A tenth of the steps has to be slower than this where the mean is not."""
_LEAST_SHARE = 0.5
_LEAST_CORRELATION, _LEAST_SPREAD = 0.8, 0.05
_NEARLY_ALWAYS, _SELDOM = 0.8, 0.05
_LEAST_STEPS_AFTER = 3


@dataclass(frozen=True)
class _Pattern:
    persistence: Persistence
    since: int | None
    sentence: str


def accuse(program: StepProgram) -> Diagnosis:
    """Return what slows the steps of a program down, with the evidence."""
    report = slowdown_report(program)
    found = Diagnosis(figures=_figures(program, report))
    gap = _gap_finding(program, report)
    if gap is not None:
        found.findings.append(gap)
    slow = _slow(program, report)
    if slow is not None:
        found.findings.append(slow)
    return found


def _figures(program: StepProgram, report: SlowdownReport) -> dict[str, float | int | str]:
    seconds = program.step_seconds()
    return {
        "steps": len(program.steps),
        "steps_left_out": program.left_out,
        "step_s": report.measured_s,
        "step_ideal_s": report.ideal_s,
        "slowdown": report.slowdown,
        "launch_slowdown": report.launch_slowdown,
        "jitter_p95_over_p5": float(np.percentile(seconds, 95) / max(np.percentile(seconds, 5), 1e-12)),
    }


def _is_slow(mean: float, by_step: Floats) -> bool:
    """Return whether steps are slower than noise makes them: on the whole, or some of them by more."""
    return mean >= LEAST_SLOWDOWN or float(np.percentile(by_step, 90)) >= _SLOW_STEP


def _slow(program: StepProgram, report: SlowdownReport) -> DiagnosisFinding | None:
    """Return who or what makes operations take longer than they have to; None where that is noise."""
    peers = slowdown_report(program, beside_peers=True)
    uneven = report.sequence_correlation >= _LEAST_CORRELATION and report.micro_batch_spread >= _LEAST_SPREAD
    if _is_slow(peers.slowdown, peers.by_step):
        for kind in ("link", "rank", "ranks"):
            for suspect in peers.suspects.get(kind, ())[:1]:
                if _guilty(suspect) and _stands_out(program, suspect, uneven=uneven):
                    return _blame(program, peers, suspect)
    if not _is_slow(report.slowdown, report.by_step):
        return _uneven(peers) if uneven and _is_slow(peers.slowdown, peers.by_step) else None
    for suspect in report.suspects.get("stage", ())[:1]:
        if _guilty(suspect) and _heavier(program, int(suspect.key)):
            return _blame(program, report, suspect)
    if uneven:
        return _uneven(report)
    operation = report.suspects["operation"][0]
    return DiagnosisFinding(
        "slow", "slow-operation", str(operation),
        f"{operation} takes longer on some ranks or in some steps than in the middle, and no rank, stage or link"
        f" explains it: the steps take {report.slowdown:.2f} x what they could.",
        (f"{operation}: {operation.share:.0%} of the slowdown goes if it always took its usual time",),
        min(1.0, max(0.2, operation.share)), report.slowdown, 1 - 1 / report.slowdown,
    )  # fmt: skip


def _guilty(suspect: Suspect) -> bool:
    return suspect.share >= _LEAST_SHARE and _is_slow(suspect.alone, suspect.alone_by_step)


def _stands_out(program: StepProgram, suspect: Suspect, *, uneven: bool) -> bool:
    """Return whether ranks are slower than their peers in their own computing and not only unlucky in their work."""
    if suspect.kind == "link":
        return True
    # Now and then is enough where micro-batches are alike; where they are not, chance gives each rank slow steps.
    quartile = 25 if uneven else 75
    ratios = [_peer_ratio(program, rank) for rank in _ranks_of(program, suspect)]
    return all(float(np.percentile(ratio, quartile)) >= LEAST_SLOWDOWN for ratio in ratios)


def _heavier(program: StepProgram, stage: int) -> bool:
    """Return whether a stage's computing takes longer than that of the others in the middle, and not by chance."""
    own = program.durations()
    compute = np.array([kind == "compute" for kind in program.classes()])

    def usual(places: Mask) -> float:
        each = [
            float(np.median(own[:, places & (program.rank == rank)].sum(axis=1)))
            for rank in np.unique(program.rank[places])
        ]
        return median(each)

    mine = compute & (program.stage == stage)
    others = compute & (program.stage != stage)
    return not mine.any() or not others.any() or usual(mine) >= LEAST_SLOWDOWN * usual(others)


def _peer_ratio(program: StepProgram, rank: int) -> Floats:
    """Return a rank's time of its own in each step over that of the middle one of its peers (the same stage)."""
    own = program.durations()
    alone = np.array([kind in {"compute", "collector", "input"} for kind in program.classes()])
    stage = int(program.stage[program.rank == rank][0])
    peers = [int(one) for one in np.unique(program.rank[program.stage == stage]) if one != rank]

    def total(one: int) -> Floats:
        return own[:, alone & (program.rank == one)].sum(axis=1)

    usual = np.median([total(one) for one in peers], axis=0) if peers else np.median(total(rank))
    return total(rank) / np.maximum(usual, 1e-12)


def _ranks_of(program: StepProgram, suspect: Suspect) -> tuple[int, ...]:
    if suspect.kind == "stage":
        return tuple(int(rank) for rank in np.unique(program.rank[program.stage == suspect.key]))
    if suspect.kind in {"rank", "gap"}:
        return (int(suspect.key),)
    words = str(suspect.key).replace(",", " ").split()
    return tuple(int(word) for word in words if word.isdecimal())


def _blame(program: StepProgram, report: SlowdownReport, suspect: Suspect) -> DiagnosisFinding:
    ranks = _ranks_of(program, suspect)
    subject, why = str(suspect), ""
    cause = {"rank": "slow-rank", "ranks": "slow-rank", "stage": "slow-stage", "link": "slow-link"}[suspect.kind]
    evidence = [
        f"with {subject} as fast as the others a step takes"
        f" {report.replayed_s - suspect.share * (report.replayed_s - report.ideal_s):.4g} s instead of"
        f" {report.replayed_s:.4g} s: {_of_it(suspect)} of the slowdown",
        f"with all others ideal and {subject} as it is, a step takes {suspect.alone:.3f} x the ideal one",
    ]
    pattern = _pattern(program, suspect)
    if suspect.kind == "stage":
        last, first = int(program.stage.max()), int(program.stage.min())
        if len(ranks) == 1:
            subject = f"{subject} (rank {ranks[0]})"
            why = " One rank holds this stage, so that a slow device and a heavy stage look the same here."
        elif suspect.key in {first, last}:
            layer = "the loss layer" if suspect.key == last else "the embedding"
            why = f" All its ranks are alike, so it is the work: it has {layer}; give it fewer layers."
        else:
            why = " All its ranks are alike, so it is the work: give it fewer layers."
        if pattern.persistence == "persistent":
            pattern = _Pattern("property of the work", None, pattern.sentence)
    if suspect.kind in {"rank", "ranks"}:
        ratio = max(float(np.median(_peer_ratio(program, rank))) for rank in ranks)
        evidence.append(f"its own computing takes {ratio:.2f} x that of its peers, the middle of the steps")
    evidence.append(pattern.sentence)
    saved = suspect.share * (1 - report.ideal_s / report.replayed_s)
    return DiagnosisFinding(
        "slow", cause, subject,
        f"{subject[:1].upper()}{subject[1:]} slows every step: {report.slowdown:.3f} x the ideal step,"
        f" {_of_it(suspect)} of it by this.{why}",
        tuple(evidence), min(1.0, max(0.5, suspect.share)), suspect.alone, min(1.0, max(0.0, saved)),
        pattern.persistence, pattern.since, ranks,
    )  # fmt: skip


def _of_it(suspect: Suspect) -> str:
    """Return a share in words; what is more than all of it makes up for parts that are faster than the mean."""
    return "all" if suspect.share >= 1 else f"{suspect.share:.0%}"


def _pattern(program: StepProgram, suspect: Suspect) -> _Pattern:
    """Return in which steps a suspect is slow: always, from one step on, or now and then."""
    slow = suspect.alone_by_step >= 1 + (suspect.alone - 1) / 2
    share = float(slow.mean())
    if share >= _NEARLY_ALWAYS:
        return _Pattern("persistent", None, "it is slow in all steps that were read")
    first = int(np.argmax(slow))
    after = slow[first:]
    step = int(program.steps[first])
    # A whole tail that is slow after a head that is not: it began there.
    if len(after) >= _LEAST_STEPS_AFTER and after.mean() >= _NEARLY_ALWAYS and first > 0:
        return _Pattern("since", step, f"it is slow since step {step}")
    return _Pattern("intermittent", None, f"it is slow in {share:.0%} of the steps")


def _uneven(report: SlowdownReport) -> DiagnosisFinding:
    return DiagnosisFinding(
        "slow", "uneven-sequences", "the batch",
        f"Micro-batches are unlike each other, and the steps wait for the longest: {report.slowdown:.2f} x the ideal"
        " step. No rank is slower than its peers; balance micro-batches by their work (sequence lengths).",
        (
            f"forward and backward times of a micro-batch go together (correlation {report.sequence_correlation:.2f})",
            f"micro-batches of one rank in one step deviate by {report.micro_batch_spread:.0%}",
        ),
        min(1.0, report.sequence_correlation), report.slowdown, 1 - 1 / report.slowdown, "property of the work",
    )  # fmt: skip


def _gap_finding(program: StepProgram, report: SlowdownReport) -> DiagnosisFinding | None:
    """Return who begins late though it has nothing to wait for: an input that stalls, a host that launches slowly."""
    if report.launch_slowdown < LEAST_SLOWDOWN or "gap" not in report.suspects:
        return None
    worst = report.suspects["gap"][0]
    gaps = program.gaps()
    cost = 1 - 1 / report.launch_slowdown
    if worst.share >= _LEAST_SHARE:
        mine = np.flatnonzero(program.rank == worst.key)
        place = int(mine[gaps[:, mine].mean(axis=0).argmax()])
        before = program.names[program.name[place]]
        pattern = _pattern(program, worst)
        others = np.unique(program.rank)
        usual = median(float(gaps[:, program.rank == rank].sum(axis=1).mean()) for rank in others)
        own = float(gaps[:, mine].sum(axis=1).mean())
        return DiagnosisFinding(
            "slow", "input-stall", str(worst),
            f"{str(worst).capitalize()} begins late though nothing keeps it, most before {before}: it waits for its"
            f" input or its host. Steps take {report.launch_slowdown:.3f} x what they would.",
            (f"it is idle for {own:.4g} s of a step without a reason in the trace, the middle rank for {usual:.4g} s",
             pattern.sentence),
            min(1.0, max(0.5, worst.share)), report.launch_slowdown, cost * min(1.0, worst.share), pattern.persistence,
            pattern.since, (int(worst.key),),
        )  # fmt: skip
    names = {int(index) for index in program.name}
    by_name = {index: float(gaps[:, program.name == index].sum(axis=1).mean()) for index in names}
    before = program.names[max(by_name, key=lambda index: by_name[index])]
    return DiagnosisFinding(
        "slow", "launch-gaps", "all ranks",
        f"Ranks begin late though nothing keeps them, most before {before}, and no rank stands out: the input or slow"
        f" launches. Steps take {report.launch_slowdown:.3f} x what they would.",
        (f"the worst rank explains {worst.share:.0%} of it",),
        0.7, report.launch_slowdown, cost, "persistent",
    )  # fmt: skip
