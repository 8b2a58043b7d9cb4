"""What one rank asks of a group of ranks, in words that ranks can compare, and who waits for whom when they hang.

A `CollectiveCall` is everything that must be equal on all ranks of a collective: generation, step, number in the group,
kind, shapes, dtype, root. It travels as one short line of text. From the last known calls of all ranks, `hang` finds
which ranks wait where for whom, and which ranks everybody else is waiting for. Pure: no torch, no store, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_SEPARATOR = "|"
_FIELDS = 9


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One call of a collective, as one rank makes it."""

    group: str
    """Name of the group."""
    number: int
    """Counts the calls of this rank on the group, from 0; sends and receives are counted for each pair."""
    kind: str
    """What is asked for, such as all_reduce."""
    form: str = ""
    """Shapes and dtype that must be equal on all ranks."""
    detail: str = ""
    """Root, peer or reduction, where the kind has one."""
    generation: int = 0
    """Which start of the ranks this is."""
    step: int = -1
    """Step of the training, -1 before the first."""
    rank: int = 0
    """Who makes the call, counted over all ranks."""
    place: str = ""
    """What the calls of one sequence share: empty for collectives, the pair and tag for sends and receives."""

    def written(self) -> str:
        """Return the call as one line."""
        parts = (
            self.group, self.number, self.kind, self.form, self.detail,
            self.generation, self.step, self.rank, self.place,
        )  # fmt: skip
        return _SEPARATOR.join(str(part) for part in parts)

    @classmethod
    def read(cls, line: str) -> "CollectiveCall":
        """Return the call that `written` made `line` of."""
        parts = line.split(_SEPARATOR)
        if len(parts) != _FIELDS:
            raise ValueError(f"a call has {_FIELDS} parts, not {len(parts)}: {line!r}")
        group, number, kind, form, detail, generation, step, rank, place = parts
        return cls(group, int(number), kind, form, detail, int(generation), int(step), int(rank), place)

    def matches(self, other: "CollectiveCall") -> bool:
        """Return whether two ranks ask for the same thing; a send matches the receive at its other end."""
        ends = {"send": "transfer", "recv": "transfer"}
        mine, theirs = (replace(one, kind=ends.get(one.kind, one.kind), rank=0) for one in (self, other))
        return mine == theirs and (self.kind not in ends or self.kind != other.kind)

    def __str__(self) -> str:
        """Return the call in words."""
        what = " ".join(part for part in (self.kind, self.form, self.detail) if part)
        when = f"step {self.step}" if self.step >= 0 else "before the first step"
        where = f"group {self.group}" + (f", {self.place}" if self.place else "")
        return f"{what} (call {self.number} of {where}; generation {self.generation}, {when})"


def mismatch(mine: CollectiveCall, theirs: CollectiveCall) -> str:
    """Return one sentence that names two ranks and what each of them called."""
    first, second = sorted((mine, theirs), key=lambda call: call.rank)
    return (
        f"ranks {first.rank} and {second.rank} do not agree: rank {first.rank} calls {first},"
        f" rank {second.rank} calls {second}"
    )


@dataclass(frozen=True, slots=True)
class CallStatus:
    """Where a rank was last seen on one group."""

    call: CollectiveCall
    """Its newest call there."""
    inside: bool
    """Whether it still waits in that call."""
    since_s: float
    """When it was entered or left, in seconds of that rank's clock."""

    def written(self) -> str:
        """Return the standing as one line."""
        return f"{int(self.inside)}{_SEPARATOR}{self.since_s:.3f}{_SEPARATOR}{self.call.written()}"

    @classmethod
    def read(cls, line: str) -> "CallStatus":
        """Return the standing that `written` made `line` of."""
        inside, since, call = line.split(_SEPARATOR, 2)
        return cls(CollectiveCall.read(call), inside == "1", float(since))


@dataclass(frozen=True)
class Hang:
    """What the standings of all ranks say about a hang."""

    waits: Mapping[int, tuple[CallStatus, tuple[int, ...]]]
    """For every rank that waits: where, and for which ranks."""
    roots: tuple[int, ...]
    """Ranks that others wait for and that wait for nobody: dead, stopped, busy, or gone another way."""
    cycle: tuple[int, ...]
    """Ranks that wait for each other in a ring, where no rank is at the root."""

    def sentence(self, standings: Sequence[CallStatus], now_s: float) -> str:
        """Return the hang as lines for a person."""
        lines = []
        for rank, (standing, missing) in sorted(self.waits.items()):
            whom = ", ".join(str(one) for one in missing) or "nobody that is known"
            lines.append(f"  rank {rank} waits {now_s - standing.since_s:.1f} s in {standing.call} for rank {whom}")
        for rank in self.roots:
            last = max((one for one in standings if one.call.rank == rank), key=lambda one: one.since_s, default=None)
            seen = f"was last seen {now_s - last.since_s:.1f} s ago after {last.call}" if last else "was never seen"
            lines.append(f"  rank {rank} {seen}")
        if self.roots:
            named = ", ".join(str(rank) for rank in self.roots)
            lines.insert(0, f"everybody waits for rank {named}")
        elif self.cycle:
            lines.insert(0, f"ranks {', '.join(str(rank) for rank in self.cycle)} wait for each other in a ring")
        return "\n".join(lines)


def _missing(
    standing: CallStatus, members: Sequence[int], newest: Mapping[tuple[int, str, str], CallStatus]
) -> list[int]:
    """Return the members of a group that have not reached `standing`'s call."""
    call = standing.call
    late = []
    for rank in members:
        other = newest.get((rank, call.group, call.place))
        if rank != call.rank and (other is None or other.call.number < call.number):
            late.append(rank)
    return late


def _peer(call: CollectiveCall, members: Sequence[int]) -> list[int]:
    """Return both ends of a transfer, or all members for a collective."""
    if not call.place:
        return list(members)
    ends, _, _ = call.place.partition(" tag ")
    return [int(end) for end in ends.split("->")]


def hang(standings: Iterable[CallStatus], members: Mapping[str, Sequence[int]]) -> Hang:
    """Return who waits for whom; `members` are the ranks of each group, counted over all ranks."""
    newest: dict[tuple[int, str, str], CallStatus] = {}
    for standing in standings:
        key = (standing.call.rank, standing.call.group, standing.call.place)
        if key not in newest or newest[key].call.number <= standing.call.number:
            newest[key] = standing
    waits: dict[int, tuple[CallStatus, tuple[int, ...]]] = {}
    for standing in newest.values():
        call = standing.call
        if not standing.inside:
            continue
        late = _missing(standing, _peer(call, members.get(call.group, ())), newest)
        known = waits.get(call.rank)
        # A rank may wait in several threads; the oldest wait with somebody missing explains the rest.
        if known is None or (bool(late), -standing.since_s) > (bool(known[1]), -known[0].since_s):
            waits[call.rank] = (standing, tuple(sorted(late)))
    wanted = {rank for _, missing in waits.values() for rank in missing}
    stuck = {rank for rank, (_, missing) in waits.items() if missing}
    roots = tuple(sorted(wanted - stuck))
    return Hang(waits, roots, () if roots else _cycle({rank: waits[rank][1] for rank in stuck}))


def _cycle(waits_for: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Return one ring in a graph, starting at its least rank, or nothing."""
    for start in sorted(waits_for):
        path = [start]
        while waits_for.get(path[-1]):
            following = waits_for[path[-1]][0]
            if following in path:
                ring = path[path.index(following) :]
                least = ring.index(min(ring))
                return tuple(ring[least:] + ring[:least])
            path.append(following)
    return ()
