"""The places of a step's program: operations that every step has, with their times, on one clock.

A place is the n-th operation of its name on its rank. Clocks of ranks are compared by collectives, which all ranks
leave together; where no transfers between stages were written down, it is found here which pass waits for which.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.diagnosis.operations import Floats, Ints, Operations, is_backward, is_forward, operation_class

_LEAST_PRESENT = 0.9
"""An operation belongs to the program if it is there in this share of the steps."""
_LEAST_TRACED = 0.5
_ALWAYS = 0.9
_STEADY_S, _STEADY_SHARE = 50e-6, 1e-4
"""Ends of ranks that leave a collective together deviate from each other by no more, but for a constant."""
_SAME_CLOCK_S = 20e-6


@dataclass(frozen=True)
class ProgramPlaces:
    """The places of a program, and when each step was there."""

    rank: Ints
    replica: Ints
    stage: Ints
    name: Ints
    occurrence: Ints
    micro_batch: Ints
    steps: Ints
    start_s: Floats
    end_s: Floats
    left_out: int

    def on_one_clock(self, offsets: Mapping[int, float]) -> "ProgramPlaces":
        """Return the places with the times that one clock would have shown."""
        shift = np.array([offsets.get(int(rank), 0.0) for rank in self.rank])
        start, end = self.start_s - shift, self.end_s - shift
        begin = start.min(axis=1, keepdims=True)
        return replace(self, start_s=start - begin, end_s=end - begin)


def program_places(operations: Operations) -> ProgramPlaces | None:
    """Return the places with their times as rows of steps; steps whose program differs are left out and counted."""
    if not len(operations):
        return None
    own = operations
    order = np.lexsort((own.start_s, own.step, own.name, own.rank))
    rank, name, step = own.rank[order], own.name[order], own.step[order]
    fresh = np.r_[True, (rank[1:] != rank[:-1]) | (name[1:] != name[:-1]) | (step[1:] != step[:-1])]
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
    occurrence = np.arange(len(order)) - first
    keys = np.stack([rank, name, occurrence], axis=1)
    places, place = np.unique(keys, axis=0, return_inverse=True)
    steps, row = np.unique(step, return_inverse=True)
    place = place.reshape(-1)
    present = np.zeros((len(steps), len(places)), dtype=bool)
    present[row, place] = True
    # A step of which a rank wrote nothing down, as the last one often is, says nothing about its program.
    ranks, owner = np.unique(places[:, 0], return_inverse=True)
    wrote = np.stack([present[:, owner == one].any(axis=1) for one in range(len(ranks))], axis=1)
    traced = wrote.all(axis=1)
    kept = present[traced if traced.mean() >= _LEAST_TRACED else slice(None)].mean(axis=0) >= _LEAST_PRESENT
    whole = present[:, kept].all(axis=1)
    if not kept.any() or not whole.any():
        return None
    start, end = np.full(present.shape, np.nan), np.full(present.shape, np.nan)
    start[row, place] = own.start_s[order]
    end[row, place] = own.start_s[order] + own.duration_s[order]
    replica, stage = np.zeros(len(places), dtype=np.int64), np.zeros(len(places), dtype=np.int64)
    replica[place], stage[place] = own.replica[order], own.stage[order]
    most, least = np.full(len(places), -1), np.full(len(places), np.iinfo(np.int64).max)
    np.maximum.at(most, place, own.micro_batch[order])
    np.minimum.at(least, place, own.micro_batch[order])
    batch = np.where(most == least, most, -1)
    places, start, end = places[kept], start[whole][:, kept], end[whole][:, kept]
    begin = start.min(axis=1, keepdims=True)
    return ProgramPlaces(
        places[:, 0], replica[kept], stage[kept], places[:, 1], places[:, 2], batch[kept], steps[whole],
        start - begin, end - begin,
        int((~whole).sum()),
    )  # fmt: skip


def clock_offsets(places: ProgramPlaces, names: Sequence[str]) -> dict[int, float]:
    """Return how far the clock of each rank is ahead of their mean; nothing where they agree, or where that is unknown.

    Ranks leave a collective of all together, however late they come: where the ends of one differ by what is the same
    in every step, that is the clocks. Where another collective of all has no such constant, it is no clock.
    """
    ranks = np.unique(places.rank)
    steps = len(places.steps)
    if len(ranks) < 2 or steps < 4:  # noqa: PLR2004 - nothing to compare
        return {}
    usual = float(np.median(places.end_s.max(axis=1)))
    found: list[tuple[float, Floats]] = []
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place in range(len(places.rank)):
        if operation_class(names[places.name[place]]) == "collective":
            groups[int(places.name[place]), int(places.occurrence[place])].append(place)
    for group in groups.values():
        if len(group) != len(ranks):
            continue
        ends = places.end_s[:, group]  # places are sorted by rank within a name
        apart = ends - ends.mean(axis=1, keepdims=True)
        constant = np.median(apart, axis=0)
        residual = float(np.median(np.ptp(apart - constant, axis=1)))
        if residual <= max(_STEADY_S, _STEADY_SHARE * usual):
            found.append((float(np.ptp(constant)), constant))
    if not found:
        return {}
    spread, constant = min(found, key=lambda one: one[0])
    if spread <= max(_SAME_CLOCK_S, 5e-5 * usual):
        return {}
    return {int(rank): float(offset) for rank, offset in zip(ranks, constant, strict=True)}


def unwritten_transfers(
    places: ProgramPlaces, names: Sequence[str], clock_s: float
) -> Iterator[tuple[int, int | None]]:
    """Yield (place, what it waits for on another rank) where passes follow each other from stage to stage.

    For tables without sends and receives: a micro-batch's forward pass waits for the one on the stage before, its
    backward pass for the one on the stage behind, if it begins after the other's end in (nearly) every step. None
    stands for a pass that was not written down: the stage that it should be on is missing.
    """
    if any(operation_class(names[index]) == "send-receive" for index in np.unique(places.name)):
        return
    by_pass = _passes(places, names)
    first = int(places.stage.min(initial=np.iinfo(np.int64).max))
    stages = int(places.stage.max(initial=0)) + 1 - first
    chunks = max((len(own) for own in by_pass.values()), default=1)
    for (kind, replica, stage, batch), own in by_pass.items():
        source = stage - first + (-1 if kind == "forward" else 1)
        wraps = not 0 <= source < stages
        others = by_pass.get((kind, replica, first + source % stages, batch), [])
        for chunk, place in enumerate(own):
            at = chunk - 1 if wraps else chunk
            if 0 <= at < len(others):
                if _follows(places, others[at], place, clock_s):
                    yield place, others[at]
            elif not wraps or (chunks > 1 and at >= 0):
                yield place, None


def _passes(places: ProgramPlaces, names: Sequence[str]) -> dict[tuple[str, int, int, int], list[int]]:
    """Return the forward and backward passes by direction, replica, stage and micro-batch."""
    found: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    for place in range(len(places.rank)):
        name = names[places.name[place]]
        kind = "forward" if is_forward(name) else "backward" if is_backward(name) else ""
        # Weights are updated from what the rank has: nobody waits for that half of a backward pass.
        if kind and not re.search(r"weight|wgrad|^w(?![a-z])", name.lower()):
            numbered = re.search(r"(\d+)\D*$", name)
            batch = int(places.micro_batch[place])
            batch = int(numbered.group(1)) if batch < 0 and numbered else batch
            key = batch if batch >= 0 else int(places.occurrence[place])
            found[kind, int(places.replica[place]), int(places.stage[place]), key].append(place)
    return found


def _follows(places: ProgramPlaces, earlier: int, later: int, clock_s: float) -> bool:
    return float((places.end_s[:, earlier] <= places.start_s[:, later] + clock_s).mean()) >= _ALWAYS
