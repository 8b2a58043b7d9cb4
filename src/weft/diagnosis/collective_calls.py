"""Which rank never entered which collective, and who waits for whom: from what every rank says it called last.

Ranks count the collectives of each process group. The rank with the lowest count of a group is the one that the others
wait for; where it waits itself, in another group, those are to blame that it waits for in turn. Ranks that call another
operation, or the same with other sizes, under one number are distinguished from those that are late. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.diagnosis.finding import Diagnosis, DiagnosisFinding

_LISTED = 8


@dataclass(frozen=True)
class EnteredCollective:
    """One collective that one rank entered."""

    rank: int
    group: str
    """Name of the process group, the same on all its ranks."""
    sequence: int
    """Which collective of the group, counted by each of its ranks alike."""
    operation: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    done: bool = False
    """Whether it is known to have ended on this rank."""
    entered_ns: int = 0
    """When it was entered, 0 where that is not known."""


@dataclass(frozen=True)
class _Stand:
    """Where one group stands."""

    group: str
    members: tuple[int, ...]
    last: Mapping[int, int]
    """The highest number that each rank entered, 0 for none."""
    waiting: tuple[int, ...]
    """Ranks that entered the number in question and have not left it."""
    missing: tuple[int, ...]
    """Ranks that never entered it."""
    sequence: int
    operation: str


def find_hangs(
    calls: Iterable[EnteredCollective], members: Mapping[str, Sequence[int]], heard: Sequence[int]
) -> Diagnosis:
    """Return who holds a job up; `members` are the ranks of each group, `heard` those that said anything at all."""
    by_group: dict[str, dict[int, dict[int, EnteredCollective]]] = defaultdict(lambda: defaultdict(dict))
    for call in calls:
        by_group[call.group][call.rank][call.sequence] = call
    found = Diagnosis(figures={"groups": len(by_group), "ranks_heard": len(heard)})
    stands: list[_Stand] = []
    for group, ranks in sorted(by_group.items()):
        everybody = tuple(sorted(members.get(group) or ranks))
        found.findings += _mismatches(group, ranks)
        stand = _stand(group, everybody, ranks)
        if stand is not None:
            stands.append(stand)
    mismatched = {rank for finding in found.findings for rank in finding.ranks}
    for ranks_blamed, stand in _roots(stands):
        if not mismatched & set(ranks_blamed):
            found.findings.append(_stuck(ranks_blamed, stand, stands, set(heard)))
    return found


def _stand(group: str, members: tuple[int, ...], ranks: Mapping[int, Mapping[int, EnteredCollective]]) -> _Stand | None:
    last = {rank: max(ranks.get(rank, {0: None})) for rank in members}
    highest = max(last.values())
    lowest = min(last.values())
    if lowest == highest:
        return None
    behind = tuple(rank for rank in members if last[rank] == lowest)
    entered = [rank for rank in members if last[rank] > lowest]
    sequence = lowest + 1
    call = next((ranks[rank][sequence] for rank in entered if sequence in ranks.get(rank, {})), None)
    waiting = tuple(rank for rank in entered if not (found := ranks[rank].get(sequence)) or not found.done)
    if not waiting:
        return None  # They have left it without the others: a group that does not wait, or a count of its own.
    return _Stand(group, members, last, waiting, behind, sequence, "a collective" if call is None else call.operation)


def _roots(stands: Sequence[_Stand]) -> list[tuple[tuple[int, ...], _Stand]]:
    """Return the ranks that hold others up and wait for nobody themselves, with the group in which they are missing."""
    held: dict[int, list[_Stand]] = defaultdict(list)
    for stand in stands:
        for rank in stand.waiting:
            held[rank].append(stand)
    found: list[tuple[tuple[int, ...], _Stand]] = []
    for stand in stands:
        roots = tuple(rank for rank in stand.missing if rank not in held)
        if roots:
            found.append((roots, stand))
    if stands and not found:
        # Everybody waits for somebody: a circle. The group that stands still longest is as good a beginning as any.
        found.append((stands[0].missing, stands[0]))
    # A rank that is missing in several groups is named once, where most ranks wait for it.
    found.sort(key=lambda item: -len(item[1].waiting))
    named: set[int] = set()
    once = []
    for ranks, stand in found:
        fresh = tuple(rank for rank in ranks if rank not in named)
        if fresh:
            once.append((fresh, stand))
            named |= set(fresh)
    return once


def _stuck(blamed: tuple[int, ...], stand: _Stand, stands: Sequence[_Stand], heard: set[int]) -> DiagnosisFinding:
    waits = sorted({rank for one in stands for rank in one.waiting} - set(blamed))
    silent = [rank for rank in blamed if rank not in heard]
    circle = any(rank in one.waiting for rank in blamed for one in stands)
    evidence = [
        f"{listed(stand.waiting)} entered {stand.operation} number {stand.sequence} of group {stand.group};"
        f" {listed(blamed)} stopped after number {stand.last[blamed[0]]}"
    ]
    chain = [one for one in stands if one is not stand]
    evidence += [
        f"in group {one.group}, {listed(one.waiting)} wait for {listed(one.missing)}" for one in chain[:_LISTED]
    ]
    if silent:
        evidence.append(f"{listed(silent)} left no record at all: ended, or stuck before it could write one")
    if circle:
        evidence.append("every rank waits for another: groups were entered in different orders")
    return DiagnosisFinding(
        "stuck", "hang", listed(blamed),
        f"{listed(blamed).capitalize()} never entered {stand.operation} number {stand.sequence} of group"
        f" {stand.group}; {listed(waits)} {'waits' if len(waits) == 1 else 'wait'} for it.",
        tuple(evidence), 0.6 if circle else 0.95, None, 1.0, "", None, blamed,
    )  # fmt: skip


def _mismatches(group: str, ranks: Mapping[int, Mapping[int, EnteredCollective]]) -> list[DiagnosisFinding]:
    """Return the first number under which ranks of a group called different things."""
    numbers = sorted({number for calls in ranks.values() for number in calls})
    for number in numbers:
        forms: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for rank, calls in sorted(ranks.items()):
            if number in calls:
                call = calls[number]
                forms[call.operation, () if _may_differ(call.operation) else (call.sizes, call.dtypes)].append(rank)
        if len(forms) > 1:
            usual = max(forms, key=lambda form: len(forms[form]))
            odd = tuple(rank for form, own in forms.items() if form != usual for rank in own)
            form = next(form for form in forms if form != usual)
            return [DiagnosisFinding(
                "wrong", "collective-mismatch", listed(odd),
                f"{listed(odd).capitalize()} called {_form(form)} as number {number} of group {group}, the others"
                f" {_form(usual)}.",
                (f"{listed(forms[usual])} called {_form(usual)}",),
                0.95 if len(forms[usual]) > len(odd) else 0.5, None, 1.0, "", None, odd,
            )]  # fmt: skip
    return []


def _may_differ(operation: str) -> bool:
    """Return whether ranks of a collective may rightly give it different sizes."""
    return any(word in operation for word in ("all_to_all", "alltoall", "gather", "scatter", "broadcast", "coalesced"))


def _form(form: tuple[object, ...]) -> str:
    operation, rest = form
    return str(operation) if not rest else f"{operation} of {rest[0]} {rest[1]}"  # type: ignore[index]


def listed(ranks: Sequence[int]) -> str:
    """Return ranks in words: "rank 3", "ranks 0, 1 and 6 more"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:_LISTED]))
    more = len(ranks) - _LISTED
    return f"ranks {shown}" + (f" and {more} more" if more > 0 else "")
