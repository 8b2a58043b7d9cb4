"""What a step would take without its stragglers, and who they are: what-if replays of the program of a step.

A step is replayed with the durations that were measured, with ideal ones (what the same operation takes on average, or
in the middle for what ranks do together), and with one suspect's alone made ideal or left as it is. What a suspect's
removal saves, over what everybody's would, is its share of the slowdown. The measures are those of "Understanding
Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025, sections 3 and 4).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from weft.diagnosis.operations import Floats, Mask, is_backward, is_forward, operation_class
from weft.diagnosis.step_program import StepProgram

SuspectKind = Literal["stage", "replica", "rank", "ranks", "operation", "link", "gap"]
_SUSPECT_RANKS = 16
_TOGETHER = (2, 4)
"""So many of the slowest ranks are suspected together, besides one by one."""
_PEER_QUANTILE = 0.4
"""Below the middle: where one of two peers is slow, half of all times are."""
_ROWS_AT_ONCE = 2**22

SuspectMask: TypeAlias = tuple[SuspectKind, int | str, Mask]


@dataclass(frozen=True)
class Suspect:
    """One part of a job and what it costs."""

    kind: SuspectKind
    key: int | str
    """Number of a stage, replica or rank; name of an operation, a link or several ranks."""
    alone: float
    """Slowdown if all others were ideal and this one is as it is."""
    share: float
    """Part of the whole slowdown that goes if this one alone were ideal."""
    alone_by_step: Floats
    """The same as `alone`, in every step."""
    mask: Mask
    """Its places in the program."""

    def __str__(self) -> str:
        """Return it in words."""
        if self.kind == "gap":
            return f"rank {self.key}"
        return f"{self.kind} {self.key}" if isinstance(self.key, int) else self.key


@dataclass(frozen=True)
class SlowdownReport:
    """How much slower the steps are than they could be, and which part of the job explains how much of it."""

    measured_s: float
    """Mean step as measured."""
    replayed_s: float
    """Mean step without the gaps in which a rank had nothing to wait for."""
    ideal_s: float
    """Step if every operation took what its kind usually takes."""
    by_step: Floats
    """Slowdown of each step."""
    suspects: Mapping[SuspectKind, Sequence[Suspect]]
    """Suspects of each kind, those that cost most first."""
    sequence_correlation: float
    """Correlation of forward and backward times over micro-batches: near 1 where the work itself is uneven."""
    micro_batch_spread: float
    """Relative deviation of micro-batches on the same rank in the same step, the middle over ranks and steps."""

    @property
    def slowdown(self) -> float:
        """Return the mean step over the ideal one."""
        return self.replayed_s / self.ideal_s if self.ideal_s > 0 else 1.0

    @property
    def launch_slowdown(self) -> float:
        """Return what gaps cost in which a rank had nothing to wait for: slow launches, an input that is not traced."""
        return self.measured_s / self.replayed_s if self.replayed_s > 0 else 1.0


def slowdown_report(program: StepProgram, *, beside_peers: bool = False) -> SlowdownReport:
    """Replay a program's steps with and without each suspect.

    Ideal is what an operation takes on average in the whole job, as in the paper. `beside_peers`, it is what it takes
    on most ranks of the same stage, and what is replayed is freed of chance (`steady_durations`): then a heavy stage is
    no suspect, a slow rank does not raise what it is compared with, and jitter neither hides nor makes a culprit.
    """
    own = program.durations()
    if beside_peers:
        own = steady_durations(program, own)
    ideal = _peer_durations(program, own) if beside_peers else ideal_durations(program, own)
    real_s, ideal_s = program.replay(own), program.replay(ideal)
    suspects = _replayed(program, own, ideal, _suspect_masks(program, own, ideal))
    # What a rank was late by without a reason is added to its operations: then the replay takes what was measured.
    late = own + program.gaps()
    ranks: list[SuspectMask] = [("gap", int(rank), program.rank == rank) for rank in _worst_ranks(program, late - own)]
    suspects |= _replayed(program, late, own, ranks)
    correlation, spread = _unevenness(program, own)
    return SlowdownReport(
        float(program.step_seconds().mean()), float(real_s.mean()), float(ideal_s.mean()), real_s / ideal_s, suspects,
        correlation, spread,
    )  # fmt: skip


def _replayed(
    program: StepProgram, real: Floats, better: Floats, masks: Sequence[SuspectMask]
) -> dict[SuspectKind, list[Suspect]]:
    """Return what each suspect costs if `better` are the durations without it."""
    real_s, better_s = program.replay(real), program.replay(better)
    lost = float(real_s.mean() - better_s.mean())
    suspects: dict[SuspectKind, list[Suspect]] = {}
    at_once = max(1, _ROWS_AT_ONCE // max(1, real.size))
    for begin in range(0, len(masks), at_once):
        chunk = masks[begin : begin + at_once]
        pairs = [(np.where(mask, real, better), np.where(mask, better, real)) for _, _, mask in chunk]
        times = program.replay(np.stack([one for pair in pairs for one in pair]))
        for number, (kind, key, mask) in enumerate(chunk):
            alone, without = times[2 * number], times[2 * number + 1]
            share = float((real_s.mean() - without.mean()) / lost) if lost > 0 else 0.0
            found = Suspect(kind, key, float(alone.mean() / better_s.mean()), share, alone / better_s, mask)
            suspects.setdefault(kind, []).append(found)
    for found_suspects in suspects.values():
        found_suspects.sort(key=lambda one: (-one.share, -one.alone))
    return suspects


def steady_durations(program: StepProgram, own: Floats) -> Floats:
    """Return durations without the chance of single operations.

    Each is its place's middle over all steps, and what the operations of its kind on its rank (or between its ranks)
    took more than theirs in this step: a rank, a link or a kind that is slow in some steps stays so, jitter goes.
    """
    middle = np.median(own, axis=0)
    steady = own.copy()
    for places in _same_work(program):
        more = np.median(own[:, places] - middle[places], axis=1, keepdims=True)
        steady[:, places] = np.maximum(middle[places] + more, 0.0)
    return steady


def _same_work(program: StepProgram) -> list[list[int]]:
    """Return the places of each kind of operation by the rank, or the ranks together, that do it."""
    found: dict[tuple[str | int, ...], list[int]] = {}
    for group in program.joined:
        ranks = sorted({int(program.rank[place]) for place in group})
        for place in group:
            found.setdefault((idealised_kind(program.names[program.name[place]]), *ranks), []).append(place)
    return list(found.values())


def stage_scales(program: StepProgram, own: Floats) -> dict[int, float]:
    """Return how long the computing of each stage takes over that of the middle one of the other stages."""
    compute = np.array([kind == "compute" for kind in program.classes()])
    usual: dict[int, float] = {}
    for stage in np.unique(program.stage):
        places = compute & (program.stage == stage)
        ranks = np.unique(program.rank[places])
        each = [float(np.median(own[:, places & (program.rank == rank)].sum(axis=1))) for rank in ranks]
        if each:
            usual[int(stage)] = float(np.median(each))
    return {
        stage: mine / max(float(np.median([other for one, other in usual.items() if one != stage])), 1e-12)
        for stage, mine in usual.items()
        if len(usual) > 1
    }


def scaled_stage(program: StepProgram, own: Floats, stage: int, scale: float) -> float:
    """Return the mean step if the computing of a stage took 1/`scale` of its time."""
    compute = np.array([kind == "compute" for kind in program.classes()])
    lighter = own.copy()
    lighter[:, compute & (program.stage == stage)] /= scale
    return float(program.replay(lighter).mean())


def balanced(program: StepProgram, own: Floats) -> float:
    """Return the mean step if all micro-batches were as long as the mean one of their stage."""
    kinds = np.array([idealised_kind(program.names[index]) for index in program.name])
    even = own.copy()
    for stage in np.unique(program.stage):
        for kind in np.unique(kinds):
            places = (kinds == kind) & (program.stage == stage)
            if places.any() and operation_class(str(kind)) == "compute":
                even[:, places] = own[:, places].mean()
    return float(program.replay(even).mean())


def without(program: StepProgram, mask: Mask, *, beside_peers: bool = False) -> float:
    """Return the mean step if the places of `mask` took what their kind takes in the whole job, or on their peers."""
    own = program.durations()
    better = _peer_durations(program, steady_durations(program, own)) if beside_peers else ideal_durations(program, own)
    return float(program.replay(np.where(mask, better, own)).mean())


def _worst_ranks(program: StepProgram, excess: Floats) -> list[int]:
    """Return the ranks with most of `excess`, the worst first."""
    mean = np.maximum(excess, 0).mean(axis=0)
    total = {int(rank): float(mean[program.rank == rank].sum()) for rank in np.unique(program.rank)}
    return sorted(total, key=lambda rank: -total[rank])[:_SUSPECT_RANKS]


def idealised_kind(name: str) -> str:
    """Return what an operation is compared with: a send and its receive are one transfer, numbers do not count."""
    return (
        re.sub(r"[\W_]*\d+", "", name.lower())
        .replace("send", "transfer")
        .replace("recv", "transfer")
        .replace("receive", "transfer")
    )


def ideal_durations(program: StepProgram, own: Floats) -> Floats:
    """Return what each operation would take if no part of the job were slower than another."""
    kinds = np.array([idealised_kind(program.names[index]) for index in program.name])
    classes = np.array(program.classes())
    ideal = own.copy()
    for kind in np.unique(kinds):
        places = kinds == kind
        # Transfers wait for the slowest in ways that a mean would spread over all; computing adds up.
        usual = np.mean if (classes[places] == "compute").all() else np.median
        ideal[:, places] = usual(own[:, places])
    ideal[:, program.unpaired] = own[:, program.unpaired]
    return ideal


def _peer_durations(program: StepProgram, own: Floats) -> Floats:
    """Return what each operation takes on most ranks that do the same work; transfers are alike everywhere."""
    kinds = np.array([idealised_kind(program.names[index]) for index in program.name])
    classes = np.array(program.classes())
    ideal = own.copy()
    transfers = classes == "send-receive"
    if transfers.any():
        ideal[:, transfers] = np.quantile(own[:, transfers], _PEER_QUANTILE)
    for stage in np.unique(program.stage):
        for kind in np.unique(kinds[~transfers]):
            places = (kinds == kind) & (program.stage == stage)
            if places.any():
                ideal[:, places] = np.quantile(own[:, places], _PEER_QUANTILE)
    ideal[:, program.unpaired] = own[:, program.unpaired]
    return ideal


def _suspect_masks(program: StepProgram, own: Floats, ideal: Floats) -> list[SuspectMask]:
    """Return every suspect with the places that are its own."""
    kinds = np.array([idealised_kind(program.names[index]) for index in program.name])
    masks: list[SuspectMask] = []

    def suspect(kind: SuspectKind, key: int | str, mask: Mask) -> None:
        masks.append((kind, key, mask))

    stages, replicas = np.unique(program.stage), np.unique(program.replica)
    for stage in stages if len(stages) > 1 else ():
        suspect("stage", int(stage), program.stage == stage)
    for replica in replicas if len(replicas) > 1 else ():
        suspect("replica", int(replica), program.replica == replica)
    for kind in np.unique(kinds):
        suspect("operation", str(kind), kinds == kind)
    worst = _worst_ranks(program, own - ideal)
    for rank in worst:
        suspect("rank", rank, program.rank == rank)
    for count in _TOGETHER:
        if len(np.unique(program.rank)) >= 2 * count:
            named = "ranks " + ", ".join(map(str, sorted(worst[:count])))
            suspect("ranks", named, np.isin(program.rank, worst[:count]))
    for name, members in _links(program).items():
        mask = np.zeros(program.places, dtype=bool)
        mask[members] = True
        suspect("link", name, mask)
    return masks


def _links(program: StepProgram) -> dict[str, list[int]]:
    """Return the places of each pair of ranks that send to each other, those with the slowest transfers first."""
    found: dict[str, list[int]] = {}
    own = program.durations()
    classes = program.classes()
    for group in program.joined:
        if len(group) == 2 and all(classes[place] == "send-receive" for place in group):  # noqa: PLR2004 - a pair
            low, high = sorted(int(program.rank[place]) for place in group)
            found.setdefault(f"link rank {low} to rank {high}", []).extend(group)
    usual = {name: float(own[:, members].mean()) for name, members in found.items()}
    return {name: found[name] for name in sorted(found, key=lambda name: -usual[name])[:_SUSPECT_RANKS]}


def _unevenness(program: StepProgram, own: Floats) -> tuple[float, float]:
    """Return how forward and backward times of micro-batches go together, and how unlike those of a rank are."""
    ups: list[Floats] = []
    downs: list[Floats] = []
    spreads: list[float] = []
    for rank in np.unique(program.rank):
        mine = np.flatnonzero(program.rank == rank)
        named: dict[str, list[int]] = {}
        for place in mine:
            named.setdefault(idealised_kind(program.names[program.name[place]]), []).append(int(place))
        up = [place for kind, found in named.items() if is_forward(kind) for place in found]
        for kind, down in named.items():
            if not is_backward(kind) or len(up) < 2 or len(down) != len(up):  # noqa: PLR2004 - a spread
                continue
            first, second = (own[:, _by_batch(program, found)] for found in (up, down))
            # Relative to the rank's own middle in this step: a rank that is slow in some steps is no uneven work.
            ups.append((first / np.median(first, axis=1, keepdims=True) - 1).ravel())
            downs.append((second / np.median(second, axis=1, keepdims=True) - 1).ravel())
            spreads.append(float(np.median(first.std(axis=1) / first.mean(axis=1))))
    if not ups:
        return 0.0, 0.0
    one, other = np.concatenate(ups), np.concatenate(downs)
    if one.std() == 0 or other.std() == 0:
        return 0.0, float(np.median(spreads))
    return float(np.corrcoef(one, other)[0, 1]), float(np.median(spreads))


def _by_batch(program: StepProgram, places: Sequence[int]) -> list[int]:
    """Return places in the order of their micro-batches, or in that in which they ran where these are not known."""

    def order(place: int) -> tuple[int, int]:
        numbered = re.search(r"(\d+)\D*$", program.names[program.name[place]])
        batch = int(program.micro_batch[place])
        return int(numbered.group(1)) if batch < 0 and numbered else batch, int(program.occurrence[place])

    return sorted(places, key=order)
