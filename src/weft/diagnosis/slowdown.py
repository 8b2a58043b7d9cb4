"""What a step would take without its stragglers, and who they are: what-if replays of the program of a step.

A step is replayed with the durations that were measured, with ideal ones (what the same operation takes on average, or
in the middle for what ranks do together), and with one suspect's alone made ideal or left as it is. What a suspect's
removal saves, over what everybody's would, is its share of the slowdown. The measures are those of "Understanding
Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025, sections 3 and 4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.diagnosis.operations import Floats, is_backward, is_forward
from weft.diagnosis.step_program import StepProgram

SuspectKind = Literal["stage", "replica", "rank", "ranks", "operation", "link", "gap"]
_SUSPECT_RANKS = 16
_TOGETHER = (2, 4)
"""So many of the slowest ranks are suspected together, besides one by one."""
_PEER_QUANTILE = 0.4
"""Below the middle: where one of two peers is slow, half of all times are."""
_ROWS_AT_ONCE = 2**22

Mask: TypeAlias = NDArray[np.bool_]
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

    Ideal is what an operation takes on average in the whole job, or, `beside_peers`, what it takes on most ranks of the
    same stage: then a heavy stage is no suspect, and a slow rank does not raise what it is compared with.
    """
    own = program.durations()
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
        for number, (kind, key, _) in enumerate(chunk):
            alone, without = times[2 * number], times[2 * number + 1]
            share = float((real_s.mean() - without.mean()) / lost) if lost > 0 else 0.0
            found = Suspect(kind, key, float(alone.mean() / better_s.mean()), share, alone / better_s)
            suspects.setdefault(kind, []).append(found)
    for found_suspects in suspects.values():
        found_suspects.sort(key=lambda one: (-one.share, -one.alone))
    return suspects


def _worst_ranks(program: StepProgram, excess: Floats) -> list[int]:
    """Return the ranks with most of `excess`, the worst first."""
    mean = np.maximum(excess, 0).mean(axis=0)
    total = {int(rank): float(mean[program.rank == rank].sum()) for rank in np.unique(program.rank)}
    return sorted(total, key=lambda rank: -total[rank])[:_SUSPECT_RANKS]


def idealised_kind(name: str) -> str:
    """Return what an operation is compared with: a send and its receive are one transfer."""
    return name.lower().replace("send", "transfer").replace("recv", "transfer").replace("receive", "transfer")


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
    forward = np.array([is_forward(program.names[index]) for index in program.name])
    backward = np.array([is_backward(program.names[index]) for index in program.name])
    ups: list[Floats] = []
    downs: list[Floats] = []
    spreads: list[float] = []
    for rank in np.unique(program.rank):
        up = np.flatnonzero(forward & (program.rank == rank))
        down = np.flatnonzero(backward & (program.rank == rank))
        if len(up) < 2 or len(up) != len(down):  # noqa: PLR2004 - a deviation needs two
            continue
        up, down = up[np.argsort(program.occurrence[up])], down[np.argsort(program.occurrence[down])]
        # Relative to the rank's own middle: a slow rank is no uneven work.
        first, second = own[:, up], own[:, down]
        ups.append((first / np.median(first) - 1).ravel())
        downs.append((second / np.median(second) - 1).ravel())
        spreads.append(float(np.median(first.std(axis=1) / first.mean(axis=1))))
    if not ups:
        return 0.0, 0.0
    one, other = np.concatenate(ups), np.concatenate(downs)
    if one.std() == 0 or other.std() == 0:
        return 0.0, float(np.median(spreads))
    return float(np.corrcoef(one, other)[0, 1]), float(np.median(spreads))
