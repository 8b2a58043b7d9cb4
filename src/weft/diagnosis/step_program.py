"""The program of a step: which operations every rank runs in what order, and who waits for whom, found from times.

What an operation waits for is not in a trace of times, but it can be read off many steps of the same program: of two
operations of a rank, the later waits for the earlier if it begins after the other's end in (nearly) every step; ranks
are joined by a collective if they leave it together however differently they enter it; a send and a receive are joined
by their order. The method of replaying such a graph is that of "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025, section 3), which takes the graph from the framework's names; here only the direction of
sends is taken from names.
"""

import heapq
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.diagnosis.operations import Floats, Ints, Mask, OperationClass, Operations, operation_class
from weft.diagnosis.program_places import ProgramPlaces, clock_offsets, program_places, unwritten_transfers

_Key: TypeAlias = tuple[str | int | bool, ...]

_ALWAYS = 0.9
"""Share of the steps in which one operation has to follow another to depend on it."""
_CLOCK_S = 20e-6
_CLOCK_SHARE = 5e-5
"""Ends and starts that are this near to each other count as one: clocks and tracers are no better."""
_TOGETHER_SHARE, _TOGETHER_OF_START = 1e-3, 0.02
"""Ranks leave a collective together if their ends spread by less than this share of a step or of their starts."""
_WAYS = ("all", "replica", "stage", "ends", "cell")
"""How the ranks of a collective may be grouped, the coarsest first."""
_SEND_AND_RECEIVE = re.compile(r"(forward|fwd|backward|bwd)[-_. ]?send.*(?:forward|fwd|backward|bwd)[-_. ]?recv")
_MOST_UNPAIRED = 0.5
_WINDOW = 512
"""Operations of a rank before another that are looked at; what came before those is waited for through them."""


@dataclass(frozen=True)
class StepProgram:
    """One column for each place in the program, one row for each step."""

    rank: Ints
    replica: Ints
    stage: Ints
    name: Ints
    occurrence: Ints
    """Which of the operations of its name on its rank, counted from 0."""
    micro_batch: Ints
    """Its micro-batch, -1 where that is not known or not always the same."""
    steps: Ints
    start_s: Floats
    end_s: Floats
    names: tuple[str, ...]
    before: tuple[tuple[int, ...], ...]
    """What each place waits for: on its own rank and, where no transfers were written down, on others."""
    joined: tuple[tuple[int, ...], ...]
    """Places that end together (a collective, a send and its receive), each in one tuple, in an order to replay in."""
    left_out: int
    """Steps that have another program, and are not looked at."""
    unknown_start: Mask
    """Places of which it is not known what they wait for: nobody's idling can be read off them."""
    unpaired: Mask
    """Sends and receives whose other side was not written down: they last as long as somebody unknown lets them."""
    clock_offsets_s: Mapping[int, float]
    """How far the clocks of ranks were ahead of the others'; what is here has been put right."""

    @property
    def places(self) -> int:
        """Return the number of places."""
        return len(self.rank)

    @property
    def blind(self) -> bool:
        """Return whether nothing is known of who waits for whom among several ranks, or there is one rank alone."""
        return bool(self.unknown_start.all())

    def classes(self) -> list[OperationClass]:
        """Return the class of each place's operation."""
        known = [operation_class(name) for name in self.names]
        return [known[index] for index in self.name]

    def durations(self) -> Floats:
        """Return what each operation takes by itself: of what ranks do together, the time after the last came."""
        found = self.end_s - self.start_s
        for group in self.joined:
            if len(group) > 1:
                members = list(group)
                found[:, members] = self.end_s[:, members] - self.start_s[:, members].max(axis=1, keepdims=True)
        if self.blind:
            found[:, self.unpaired] = 0.0  # waiting, and nobody knows for whom: what remains is each rank's own work
        return np.maximum(found, 0.0)

    def gaps(self) -> Floats:
        """Return how long each place had nothing more to wait for and still did not begin."""
        found = np.zeros_like(self.start_s)
        for place, earlier in enumerate(self.before):
            ready = self.end_s[:, list(earlier)].max(axis=1) if earlier else 0.0
            found[:, place] = self.start_s[:, place] - ready
        found[:, self.unknown_start] = 0.0
        return np.maximum(found, 0.0)

    def step_seconds(self) -> Floats:
        """Return how long each step took as it was measured."""
        return self.end_s.max(axis=1) - self.start_s.min(axis=1)

    def replay(self, durations: Floats) -> Floats:
        """Return the time of a step for each row of `durations`, if nothing waits but for what it has to wait for."""
        return self.replay_ends(durations).max(axis=-1)

    def replay_ends(self, durations: Floats) -> Floats:
        """Return when each place ends in a replay with these durations, from the beginning of the step."""
        # Places lie in the last axis of what is asked, and in the first while it is worked out: rows are contiguous.
        asked = np.ascontiguousarray(np.moveaxis(durations, -1, 0))
        ends = np.zeros_like(asked)
        for group in self.joined:
            begin = np.zeros(asked.shape[1:])
            for place in group:
                for earlier in self.before[place]:
                    np.maximum(begin, ends[earlier], out=begin)
            for place in group:
                np.add(begin, asked[place], out=ends[place])
        return np.moveaxis(ends, 0, -1)


def step_program(operations: Operations) -> StepProgram | None:
    """Return the program of the steps of a job; none where no two ranks or steps have operations in common."""
    found = program_places(operations)
    if found is None:
        return None
    offsets = clock_offsets(found, operations.names)
    if offsets:
        found = found.on_one_clock(offsets)
    start, end = found.start_s, found.end_s
    step_s = float(np.median(end.max(axis=1)))
    groups = _GroupFinder(found, operations.names, step_s).found()
    transfers = np.array([operation_class(operations.names[index]) == "send-receive" for index in found.name])
    unpaired = _unpaired(found, operations.names, groups)
    blind = False
    if (unpaired & transfers).sum() > _MOST_UNPAIRED * transfers.sum():
        # Receives alone, or ranks without their stages: what waits for what is looked for among the passes instead.
        kept = np.array([operation_class(name) != "send-receive" for name in operations.names])[operations.name]
        without = program_places(operations.chosen(kept))
        if without is not None:
            found = without.on_one_clock(offsets) if offsets else without
            start, end = found.start_s, found.end_s
            groups = _GroupFinder(found, operations.names, step_s).found()
            unpaired, blind = _unpaired(found, operations.names, groups), True
    clock_s = max(_CLOCK_S, _CLOCK_SHARE * step_s)
    before, unknown = _dependencies(found, operations.names, clock_s)
    several = len(np.unique(found.rank)) > 1
    if not several or (blind and not _crosses_ranks(found.rank, before)):
        unknown[:] = True
    joined = _replay_order(groups, before, np.median(start, axis=0))
    return StepProgram(
        found.rank, found.replica, found.stage, found.name, found.occurrence, found.micro_batch, found.steps,
        start, end, operations.names, before, joined, found.left_out, unknown, unpaired, offsets,
    )  # fmt: skip


def _unpaired(found: ProgramPlaces, names: Sequence[str], groups: Sequence[Sequence[int]]) -> Mask:
    """Return the places that wait for somebody whose side of it was not written down."""
    joint = np.array([operation_class(names[index]) in {"send-receive", "collective"} for index in found.name])
    alone = np.zeros(len(found.rank), dtype=bool)
    alone[[group[0] for group in groups if len(group) == 1]] = True
    # Alone of its stage and without other stages, there is nobody whom a rank could wait for.
    return alone & joint


def _dependencies(
    found: ProgramPlaces, names: Sequence[str], clock_s: float
) -> tuple[tuple[tuple[int, ...], ...], Mask]:
    """Return what each place waits for, and of which it is not known."""
    start, end = found.start_s, found.end_s
    order = np.argsort(np.median(start, axis=0), kind="stable")
    before: list[tuple[int, ...]] = [()] * len(found.rank)
    unknown = np.zeros(len(found.rank), dtype=bool)
    for rank in np.unique(found.rank):
        mine = order[found.rank[order] == rank]
        for place, earlier in _waits(mine, start, end, clock_s):
            before[place] = earlier
    for place, other in unwritten_transfers(found, names, clock_s):
        if other is None:
            unknown[place] = True
        else:
            before[place] = (*before[place], other)
    return tuple(before), unknown


def _crosses_ranks(rank: Ints, before: Sequence[Sequence[int]]) -> bool:
    return any(rank[one] != rank[place] for place, earlier in enumerate(before) for one in earlier)


def _waits(mine: Ints, start: Floats, end: Floats, clock_s: float) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield for each place of one rank, in order of starts, the places of that rank that it waits for."""
    for number, place in enumerate(mine):
        window = mine[max(0, number - _WINDOW) : number]
        if not len(window):
            continue
        follows = (end[:, window] <= start[:, [place]] + clock_s).mean(axis=0) >= _ALWAYS
        candidates = window[follows]
        if not len(candidates):
            continue
        # Those that a later candidate always waited for itself are waited for through it.
        latest_start = np.maximum.accumulate(np.median(start[:, candidates], axis=0)[::-1])[::-1]
        needed = np.median(end[:, candidates], axis=0) > np.r_[latest_start[1:], -np.inf] + clock_s
        yield int(place), tuple(int(one) for one in candidates[needed])


class _GroupFinder:
    """Finds which places end together."""

    def __init__(self, places: ProgramPlaces, names: Sequence[str], step_s: float) -> None:
        self.places, self.names, self.step_s = places, names, step_s

    def found(self) -> list[list[int]]:
        """Return groups of places, each place in exactly one."""
        by_key: dict[_Key, list[int]] = defaultdict(list)
        for index, text in enumerate(self.names):
            members = [int(place) for place in np.flatnonzero(self.places.name == index)]
            kind = operation_class(text)
            if kind == "collective":
                way = self._partition(members)
                for place in members:
                    by_key[("together", index, *self._key(place, way))].append(place)
            else:
                for place in members:
                    key = self._pair(place, text) if kind == "send-receive" else ("alone", place)
                    by_key[key].append(place)
        return list(by_key.values())

    def _pair(self, place: int, text: str) -> _Key:
        """Return what a send and its receive have in common: the direction, the sender's stage, and their order."""
        own = self.places
        lowered = text.lower()
        both = _SEND_AND_RECEIVE.search(lowered)
        if int(own.stage.max()) == int(own.stage.min()):
            return "alone", place  # where it sits in a pipeline is not known
        if both is not None:
            # It sends to one neighbour and receives from the same: forward to the next stage, backward to the last.
            forward = both.group(1).startswith(("forward", "fwd"))
            sender = self._stage_before(place, not forward)
            return "both", int(own.replica[place]), sender, int(own.occurrence[place])
        towards = -1 if re.search(r"backward|bwd|grad", lowered) else 1
        receives = "recv" in lowered or "receive" in lowered
        if not receives and "send" not in lowered:
            return "alone", place
        sender = self._stage_before(place, towards * receives)
        return "pair", towards, int(own.replica[place]), sender, int(own.occurrence[place])

    def _stage_before(self, place: int, count: int) -> int:
        """Return the stage so many before a place's; stages may be counted from any number."""
        first, last = int(self.places.stage.min()), int(self.places.stage.max())
        return first + (int(self.places.stage[place]) - first - count) % (last - first + 1)

    def _partition(self, members: list[int]) -> str:
        """Return the coarsest way to group the ranks of a collective in which they leave it together."""
        return next((way for way in _WAYS if self._leave_together(members, way)), "alone")

    def _key(self, place: int, way: str) -> _Key:
        own = self.places
        occurrence, replica, stage = (int(column[place]) for column in (own.occurrence, own.replica, own.stage))
        if way == "all":
            return (occurrence,)
        if way == "replica":
            return occurrence, replica
        if way == "stage":
            return occurrence, stage
        if way == "cell":
            return occurrence, replica, stage
        # The first and the last stage of a replica share the embedding.
        return (
            (occurrence, replica, stage in {int(own.stage.min()), int(own.stage.max())})
            if way == "ends"
            else (occurrence, place)
        )

    def _leave_together(self, members: list[int], way: str) -> bool:
        groups: dict[_Key, list[int]] = defaultdict(list)
        for place in members:
            groups[self._key(place, way)].append(place)
        several = [group for group in groups.values() if len(group) > 1]
        for group in several:
            ends, starts = self.places.end_s[:, group], self.places.start_s[:, group]
            spread = np.median(ends.max(axis=1) - ends.min(axis=1))
            entered = np.median(starts.max(axis=1) - starts.min(axis=1))
            if spread > max(_TOGETHER_SHARE * self.step_s, _TOGETHER_OF_START * entered):
                return False
        return bool(several)


def _replay_order(
    groups: list[list[int]], before: Sequence[Sequence[int]], usual_start: Floats
) -> tuple[tuple[int, ...], ...]:
    """Return the groups so that what is waited for comes first; a circle, which no program has, is cut at its start."""
    group_of = {place: number for number, group in enumerate(groups) for place in group}
    waits = [
        {group_of[one] for place in group for one in before[place]} - {number} for number, group in enumerate(groups)
    ]
    followers: dict[int, list[int]] = defaultdict(list)
    for number, needed in enumerate(waits):
        for one in needed:
            followers[one].append(number)
    missing = [len(needed) for needed in waits]
    starts = [float(max(usual_start[place] for place in group)) for group in groups]
    ready = [(starts[number], number) for number, count in enumerate(missing) if count == 0]
    rest = sorted(range(len(groups)), key=lambda number: -starts[number])
    heapq.heapify(ready)
    done: list[int] = []
    taken = [False] * len(groups)
    while len(done) < len(groups):
        if not ready:
            while taken[rest[-1]]:
                rest.pop()
            ready.append((0.0, rest[-1]))
        _, number = heapq.heappop(ready)
        if taken[number]:
            continue
        taken[number] = True
        done.append(number)
        for follower in followers[number]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, (starts[follower], follower))
    return tuple(tuple(groups[number]) for number in done)
