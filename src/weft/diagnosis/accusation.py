"""From what-if replays to an accusation: the smallest part of a job that explains most of its slowdown, or nobody.

One rank is blamed before several, a stage or a link before an operation, and the work itself (sequences of uneven
length) only where no part of the job is slower than its peers. Nobody is blamed for noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from weft.diagnosis.finding import Diagnosis, DiagnosisFinding, Persistence
from weft.diagnosis.operations import Floats, Ints, Mask, is_own_work
from weft.diagnosis.slowdown import (
    SlowdownReport,
    Suspect,
    balanced,
    scaled_stage,
    slowdown_report,
    stage_scales,
    steady_durations,
    without,
)
from weft.diagnosis.step_program import StepProgram

LEAST_SLOWDOWN = 1.03
"""What is less is noise of any machine, and nobody is blamed for it."""
_SLOW_STEP = 1.05
"""A tenth of the steps has to be slower than this where the mean is not."""
_LEAST_SHARE, _LEAST_LONELY = 0.5, 0.3
_LEAST_CORRELATION, _LEAST_SPREAD = 0.6, 0.05
_LEAST_GAP = 1.01
"""Of idling there is no noise where one rank has nearly all of it."""
_NEARLY_ALWAYS, _SELDOM = 0.8, 0.05
_LEAST_STEPS_AFTER = 3
_PAUSE_FACTOR, _PAUSE_DEVIATIONS, _RARELY = 1.5, 6.0, 0.15
"""An operation that stood still takes so many times its usual time and lies so far outside its jitter; if more than a
share of them do, that is no exception."""
_DEVIATIONS = 4.0
"""Of the mean of a rank's steps from its peers', where the work itself varies."""


@dataclass(frozen=True)
class _Pattern:
    persistence: Persistence
    since: int | None
    sentence: str


def accuse(program: StepProgram) -> Diagnosis:
    """Return what slows the steps of a program down, with the evidence."""
    report = slowdown_report(program)
    found = Diagnosis(figures=_figures(program, report))
    if program.blind:
        found.figures.pop("launch_slowdown")
        found.findings.append(_blind_note(program))
    gap = _gap_finding(program, report)
    if gap is not None:
        found.findings.append(gap)
    found.findings += _slow(program, report)
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


def _blind_note(program: StepProgram) -> DiagnosisFinding:
    ranks = np.unique(program.rank)
    why = (
        f"Only rank {ranks[0]} was read: what it waits for is not known, name the files of all ranks."
        if len(ranks) == 1
        else "Who waits for whom is not known: the ranks' pipeline stages were not written down (a column stage), nor"
        " sends with their receives. Ranks are compared by their own work alone."
    )
    return DiagnosisFinding("note", "waits-unknown", "", why, (), 1.0)


def _is_slow(mean: float, by_step: Floats) -> bool:
    """Return whether steps are slower than noise makes them: on the whole, or some of them by more."""
    return mean >= LEAST_SLOWDOWN or float(np.percentile(by_step, 90)) >= _SLOW_STEP


def _slow(program: StepProgram, report: SlowdownReport) -> list[DiagnosisFinding]:
    """Return who or what makes operations take longer than they have to; nobody where that is noise."""
    uneven = report.sequence_correlation >= _LEAST_CORRELATION and report.micro_batch_spread >= _LEAST_SPREAD
    peers = slowdown_report(program, beside_peers=True)
    if _is_slow(peers.slowdown, peers.by_step):
        for kind in ("link", "rank", "ranks"):
            for suspect in peers.suspects.get(kind, ())[:1]:
                if (_guilty(suspect) or _lonely(peers.suspects[kind])) and _stands_out(program, suspect, uneven=uneven):
                    return [_blame(program, report, suspect)]
    found = [*_heavy_stage(program, report), *(_uneven(program, report) if uneven else [])]
    if found:
        return found
    own = program.durations()
    chance = float(program.replay(own).mean() - program.replay(steady_durations(program, own)).mean())
    share = max(0.0, chance) / report.replayed_s
    pauses = _pauses(program, report, own)
    if pauses:
        return pauses
    # What the middle of so few steps leaves of chance is no culprit either.
    if peers.slowdown >= LEAST_SLOWDOWN + _DEVIATIONS * share / len(program.steps) ** 0.5:
        operation = peers.suspects["operation"][0]
        if _guilty(operation):
            return [_operation(operation)]
    return [_jitter(report, share)] if share >= LEAST_SLOWDOWN - 1 else []


def _guilty(suspect: Suspect) -> bool:
    return suspect.share >= _LEAST_SHARE and _is_slow(suspect.alone, suspect.alone_by_step)


def _lonely(suspects: Sequence[Suspect]) -> bool:
    """Return whether the first suspect explains far more than any other, and the rest is nobody's: what chance left."""
    first, *others = suspects
    return (
        first.share >= _LEAST_LONELY
        and _is_slow(first.alone, first.alone_by_step)
        and all(one.share < first.share / 3 for one in others)
    )


def _stands_out(program: StepProgram, suspect: Suspect, *, uneven: bool) -> bool:
    """Return whether ranks are slower than their peers in their own computing and not only unlucky in their work."""
    if suspect.kind == "link":
        return True
    for rank in _ranks_of(program, suspect):
        ratio = _peer_ratio(program, rank)
        if uneven and _slow_now_and_then(program, rank, ratio):
            continue
        # Now and then is enough where micro-batches are alike; where they are not, chance gives each rank slow steps.
        if float(np.percentile(ratio, 25 if uneven else 75)) < (_SLOW_STEP if uneven else LEAST_SLOWDOWN):
            return False
        if uneven and ratio.mean() - 1 < _DEVIATIONS * ratio.std() / len(ratio) ** 0.5:
            return False
    return True


def _slow_now_and_then(program: StepProgram, rank: int, ratio: Floats) -> bool:
    """Return whether some steps of a rank are slower than uneven work makes those of any of its peers."""
    stage = program.stage[program.rank == rank][0]
    peers = [int(one) for one in np.unique(program.rank[program.stage == stage]) if one != rank]
    if len(peers) < 2:  # noqa: PLR2004 - of two it cannot be said whose work is uneven
        return False
    usual = np.log(np.stack([_peer_ratio(program, one) for one in peers]))
    chance = 1.4826 * float(np.median(np.abs(usual - np.median(usual))))
    slow = np.log(ratio) > max(np.log(_SLOW_STEP), _DEVIATIONS * chance)
    return int(slow.sum()) >= _LEAST_STEPS_AFTER


def _peer_ratio(program: StepProgram, rank: int) -> Floats:
    """Return a rank's time of its own in each step over that of the middle one of its peers (the same stage)."""
    own = program.durations()
    alone = np.array([is_own_work(program.names[index]) for index in program.name])
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
    ranks, subject = _ranks_of(program, suspect), str(suspect)
    cause = {"rank": "slow-rank", "ranks": "slow-rank", "link": "slow-link"}[suspect.kind]
    left_s = without(program, suspect.mask, beside_peers=True)
    # Told beside the slowdown as the paper measures it, in which a slow rank is itself part of the mean.
    excess = max(report.replayed_s - report.ideal_s, 1e-12)
    share = (report.replayed_s - left_s) / excess
    evidence = [
        f"with {subject} as fast as its peers a step takes {left_s:.4g} s instead of {report.replayed_s:.4g} s",
        f"with all others ideal and {subject} as it is, a step takes {suspect.alone:.3f} x the ideal one",
    ]
    pattern = _pattern(program, suspect)
    if suspect.kind != "link":
        ratio = max(float(np.median(_peer_ratio(program, rank))) for rank in ranks)
        evidence.append(f"its own computing takes {ratio:.2f} x that of its peers, the middle of the steps")
    evidence.append(pattern.sentence)
    saved = 1 - left_s / report.replayed_s
    slows = {"persistent": "slows every step", "since": f"slows every step since step {pattern.since}"}.get(
        pattern.persistence, "slows some steps"
    )
    return DiagnosisFinding(
        "slow", cause, subject,
        f"{subject[:1].upper()}{subject[1:]} {slows}: {report.slowdown:.3f} x the ideal step, {_of_it(share)} of it by"
        " this.", tuple(evidence), min(1.0, max(0.5, suspect.share)), report.replayed_s / left_s,
        min(1.0, max(0.0, saved)), pattern.persistence, pattern.since, ranks,
    )  # fmt: skip


def _heavy_stage(program: StepProgram, report: SlowdownReport) -> list[DiagnosisFinding]:
    """Return the stage whose computing takes longer than that of the others on all its ranks, if a step notices."""
    own = program.durations()
    # Some ranks' pauses are no weight of their stage.
    own = np.where(_stood_still(program, own), np.median(own, axis=0), own)
    scales = stage_scales(program, own)
    if not scales:
        return []
    stage = max(scales, key=lambda one: scales[one])
    scale = scales[stage]
    if scale < LEAST_SLOWDOWN:
        return []
    suspect = next((one for one in report.suspects.get("stage", ()) if one.key == stage), None)
    lighter_s = scaled_stage(program, own, stage, scale)
    saved = 1 - lighter_s / report.replayed_s
    if suspect is None or 1 / (1 - saved) < LEAST_SLOWDOWN:
        return []
    left_s = without(program, suspect.mask)
    excess = report.replayed_s - report.ideal_s
    share = (report.replayed_s - left_s) / excess if excess > 0 else 0.0
    ranks, subject = _ranks_of(program, suspect), str(suspect)
    last, first = int(program.stage.max()), int(program.stage.min())
    why = " All its ranks are alike, so it is the work: give it fewer layers."
    if len(ranks) == 1:
        subject = f"{subject} (rank {ranks[0]})"
        why = " One rank holds this stage, so that a slow device and a heavy stage look the same here."
    elif stage in {first, last}:
        layer = "the loss layer" if stage == last else "the embedding"
        why = f" All its ranks are alike, so it is the work: it has {layer}; give it fewer layers."
    # Of the mean over all stages, a heavy one is part; where others could not take over its work, it is not ideal.
    evidence = (
        [f"with {suspect} as fast as the mean of all a step takes {left_s:.4g} s instead of {report.replayed_s:.4g} s"]
        if share >= _LEAST_SHARE
        else []
    )
    evidence += [
        f"its computing takes {scale:.2f} x that of the middle one of the other stages; as light as that, a step takes"
        f" {lighter_s:.4g} s",
    ]
    part = f", {_of_it(share)} of it by this" if share >= _LEAST_SHARE else ""
    without_s = left_s if share >= _LEAST_SHARE else lighter_s
    whole = report.slowdown if report.slowdown >= LEAST_SLOWDOWN else report.replayed_s / without_s
    return [DiagnosisFinding(
        "slow", "slow-stage", subject,
        f"{subject[:1].upper()}{subject[1:]} slows every step: {whole:.3f} x the ideal"
        f" step{part}.{why}", tuple(evidence), min(1.0, max(0.5, share)),
        report.replayed_s / without_s, 1 - without_s / report.replayed_s, "property of the work", None, ranks,
    )]  # fmt: skip


def _operation(suspect: Suspect) -> DiagnosisFinding:
    return DiagnosisFinding(
        "slow", "slow-operation", str(suspect),
        f"{suspect} takes longer on some ranks than in the middle, always on the same, and no rank, stage or link"
        f" explains it alone: the steps take {suspect.alone:.2f} x what they could.",
        (f"{suspect}: {suspect.share:.0%} of what is not chance goes if it always took its usual time",),
        min(0.8, max(0.2, suspect.share)), suspect.alone, 1 - 1 / suspect.alone, "persistent",
    )  # fmt: skip


def _stood_still(program: StepProgram, own: Floats) -> Mask:
    """Return the computing that took far longer than usual in its place, where that is rare; nothing elsewhere."""
    compute = np.array([kind == "compute" for kind in program.classes()])
    longer = np.log(np.maximum(own, 1e-12) / np.maximum(np.median(own, axis=0), 1e-12))
    chance = 1.4826 * float(np.median(np.abs(longer[:, compute]))) if compute.any() else 0.0
    paused = compute & (longer > max(np.log(_PAUSE_FACTOR), _PAUSE_DEVIATIONS * chance))
    return paused if compute.any() and paused[:, compute].mean() <= _RARELY else np.zeros_like(paused)


def _pauses(program: StepProgram, report: SlowdownReport, own: Floats) -> list[DiagnosisFinding]:
    """Return that computing stops now and then on any rank, if steps wait for that rather than for usual jitter."""
    paused, middle = _stood_still(program, own), np.median(own, axis=0)
    left_s = float(program.replay(np.where(paused, middle, own)).mean())
    slowdown = report.replayed_s / max(left_s, 1e-12)
    if not paused.any() or slowdown < LEAST_SLOWDOWN:
        return []
    ranks, steps = len(np.unique(program.rank[paused.any(axis=0)])), int(paused.any(axis=1).sum())
    pause_s = float(np.median((own - middle)[paused]))
    return [DiagnosisFinding(
        "slow", "pauses", "pauses",
        f"Computing stops now and then, on one rank or another, for about {pause_s:.2g} s, and all wait:"
        f" {slowdown:.3f} x the step without that. Garbage collection of Python does this (collect on all ranks in the"
        " same step), and so do other programs on the hosts.",
        (
            f"{int(paused.sum())} operations took more than {_PAUSE_FACTOR:g} x their usual time, on {ranks} ranks, in"
            f" {steps} of {len(program.steps)} steps",
            f"without these a step takes {left_s:.4g} s instead of {report.replayed_s:.4g} s",
        ),
        0.9, slowdown, 1 - 1 / slowdown, "intermittent",
    )]  # fmt: skip


def _jitter(report: SlowdownReport, share: float) -> DiagnosisFinding:
    return DiagnosisFinding(
        "note", "jitter", "",
        f"Operations vary by chance, and steps wait for the longest: {share:.1%} of a step. No rank, stage or link is"
        " slower than its peers.",
        (f"{report.slowdown:.3f} x the step in which every operation takes its mean",), 0.8, report.slowdown, share,
        "intermittent",
    )  # fmt: skip


def _of_it(share: float) -> str:
    """Return a share in words; what is more than all of it makes up for parts that are faster than the mean."""
    return "all" if share >= 1 else f"{share:.0%}"


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


def _uneven(program: StepProgram, report: SlowdownReport) -> list[DiagnosisFinding]:
    """Return that micro-batches are unlike each other, if a step notices."""
    balanced_s = balanced(program, program.durations())
    slowdown = report.replayed_s / max(balanced_s, 1e-12)
    if slowdown < LEAST_SLOWDOWN:
        return []
    return [DiagnosisFinding(
        "slow", "uneven-sequences", "the batch",
        f"Micro-batches are unlike each other, and the steps wait for the longest: {report.slowdown:.3f} x the ideal"
        " step. No rank is slower than its peers; balance micro-batches by their work (sequence lengths).",
        (
            f"forward and backward times of a micro-batch go together (correlation {report.sequence_correlation:.2f})",
            f"micro-batches of one rank in one step deviate by {report.micro_batch_spread:.0%}",
            f"with micro-batches of equal work a step takes {balanced_s:.4g} s instead of {report.replayed_s:.4g} s",
        ),
        min(1.0, report.sequence_correlation), slowdown, 1 - 1 / slowdown, "property of the work",
    )]  # fmt: skip


def _late_sender(program: StepProgram, gaps: Floats, mine: Ints) -> int | None:
    """Return the rank after whose passes most of a rank's idling comes, where no transfers were written down."""
    behind: dict[int | None, float] = {}
    for place in mine:
        earlier = program.before[place]
        # What comes from another rank travels for longer than that one took, so that its end alone says little.
        others = [int(program.rank[one]) for one in earlier if program.rank[one] != program.rank[place]]
        rank = others[0] if others else None
        behind[rank] = behind.get(rank, 0.0) + float(gaps[:, place].mean())
    worst = max(behind, key=lambda rank: behind[rank])
    return worst if behind[worst] >= _LEAST_SHARE * sum(behind.values()) else None


def _gap_finding(program: StepProgram, report: SlowdownReport) -> DiagnosisFinding | None:
    """Return who begins late though it has nothing to wait for: an input that stalls, a host that launches slowly."""
    if program.blind or report.launch_slowdown < _LEAST_GAP or "gap" not in report.suspects:
        return None
    worst = report.suspects["gap"][0]
    if report.launch_slowdown < LEAST_SLOWDOWN and worst.share < _NEARLY_ALWAYS:
        return None
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
        sender = _late_sender(program, gaps, mine)
        if sender is not None:
            link = f"link rank {min(sender, int(worst.key))} to rank {max(sender, int(worst.key))}"
            return DiagnosisFinding(
                "slow", "slow-link", link,
                f"What rank {sender} has computed reaches rank {worst.key} late: the link between them slows steps by"
                f" {report.launch_slowdown:.3f} x.",
                (f"rank {worst.key} is idle for {own:.4g} s of a step after rank {sender} was done, the middle rank for"
                 f" {usual:.4g} s", pattern.sentence),
                min(1.0, max(0.5, worst.share)), report.launch_slowdown, cost * min(1.0, worst.share),
                pattern.persistence, pattern.since, tuple(sorted((sender, int(worst.key)))),
            )  # fmt: skip
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
