"""Which rank never entered which collective, and who waits for whom: from what every rank says it called last.

Ranks count the collectives of each process group. The rank with the lowest count of a group is the one that the others
wait for; where it waits itself, in another group, those are to blame that it waits for in turn. Ranks that call another
operation, or the same with other sizes, under one number are distinguished from those that are late. Where everybody
waits for somebody, the order of calls tells who left one out: ranks run the same program. Pure.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.diagnosis.finding import Diagnosis, DiagnosisFinding

_Form: TypeAlias = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]
"""Operation, sizes and types of a call."""
_LISTED = 8
_EVEN = 0.5
"""Confidence in one of two, of which either may be wrong."""


@dataclass(frozen=True)
class EnteredCollective:
    """One collective that one rank entered."""

    rank: int
    group: str
    """Name of the process group, the same on all its ranks."""
    sequence: int
    """Which collective of the group, counted by each of its ranks alike."""
    operation: str
    """What was called; empty where it is only known how many were."""
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
    order: dict[int, list[EnteredCollective]] = defaultdict(list)
    for call in calls:
        by_group[call.group][call.rank][call.sequence] = call
        # Of one that is only counted it is not known when it was called; ranks send and receive each in its own order.
        if call.operation and not call.operation.startswith("send "):
            order[call.rank].append(call)
    forms = Counter((call.operation, call.sizes, call.dtypes) for own in order.values() for call in own)
    waiting = {rank for groups in by_group.values() for rank, own in groups.items() if not own[max(own)].done}
    found = Diagnosis(figures={"groups": len(by_group), "ranks_heard": len(heard)})
    stands: list[_Stand] = []
    held: set[int] = set()
    for group, ranks in sorted(by_group.items()):
        everybody = tuple(sorted(members.get(group) or ranks))
        mismatches, concerned = _mismatches(group, ranks, forms)
        found.findings += mismatches
        held |= concerned
        stand = _stand(group, _known(everybody, ranks, waiting), ranks)
        if stand is not None:
            stands.append(stand)
    mismatched = {rank for finding in found.findings for rank in finding.ranks}
    sure = [one for one in found.findings if one.confidence > _EVEN]
    skipped = _left_out(order) if (stands or held) and not sure else None
    roots = _roots(stands, held)
    if skipped is not None and found.findings:
        # Two ranks called different things, and the order of their calls says which of them is out of step.
        found.findings = [_skip(*skipped, stands)]
        roots.clear()
    elif skipped is not None and (not roots or roots[0][0] != (skipped[0],)):
        found.findings.append(_skip(*skipped, stands))
        roots.clear()
    for ranks_blamed, stand in roots:
        if not mismatched & set(ranks_blamed):
            found.findings.append(_stuck(ranks_blamed, stand, stands, set(heard)))
    return found


def _known(
    members: tuple[int, ...], ranks: Mapping[int, Mapping[int, EnteredCollective]], waiting: set[int]
) -> tuple[int, ...]:
    """Return the members to compare: those alone of which there is a record, where one of them is behind for certain.

    It is where it waits for nothing itself; what the others did is then not asked.
    """
    known = tuple(rank for rank in members if rank in ranks)
    last = {rank: max(ranks[rank]) for rank in known}
    behind = [rank for rank in known if last[rank] < max(last.values())]
    return known if behind and not waiting & set(behind) else members


def _stand(group: str, members: tuple[int, ...], ranks: Mapping[int, Mapping[int, EnteredCollective]]) -> _Stand | None:
    if not members:
        return None
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
    return _Stand(
        group,
        members,
        last,
        waiting,
        behind,
        sequence,
        call.operation if call is not None and call.operation else "a collective",
    )


def _roots(stands: Sequence[_Stand], mismatched: set[int]) -> list[tuple[tuple[int, ...], _Stand]]:
    """Return the ranks that hold others up and wait for nobody themselves, with the group in which they are missing."""
    held = {rank for stand in stands for rank in stand.waiting} | mismatched
    found: list[tuple[tuple[int, ...], _Stand]] = []
    for stand in stands:
        roots = tuple(rank for rank in stand.missing if rank not in held)
        if roots:
            found.append((roots, stand))
    if stands and not found and not mismatched:
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
    evidence += _chain(chain)
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


def _mismatches(
    group: str, ranks: Mapping[int, Mapping[int, EnteredCollective]], usual_forms: Mapping[_Form, int]
) -> tuple[list[DiagnosisFinding], set[int]]:
    """Return the first number under which ranks of a group called different things, and the ranks that wait there."""
    for number in sorted({number for calls in ranks.values() for number in calls}):
        forms: dict[tuple[object, ...], list[int]] = defaultdict(list)
        seen: dict[tuple[object, ...], int] = {}
        for rank, calls in sorted(ranks.items()):
            if number in calls and calls[number].operation:
                call = calls[number]
                form = call.operation, () if _may_differ(call.operation) else (call.sizes, call.dtypes)
                forms[form].append(rank)
                seen[form] = usual_forms[call.operation, call.sizes, call.dtypes]
        if len(forms) > 1:
            # Of two, the one who called what was called most often elsewhere is right.
            usual = max(forms, key=lambda form: (len(forms[form]), seen[form]))
            odd = tuple(rank for form, own in forms.items() if form != usual for rank in own)
            form = next(form for form in forms if form != usual)
            sure = 0.95 if len(forms[usual]) > len(odd) else 0.7 if seen[usual] > seen[form] else _EVEN
            return [DiagnosisFinding(
                "wrong", "collective-mismatch", listed(odd),
                f"{listed(odd).capitalize()} called {_form(form)} as number {number} of group {group}, the others"
                f" {_form(usual)}.",
                (f"{listed(forms[usual])} called {_form(usual)}",), sure, None, 1.0, "", None, odd,
            )], {rank for own in forms.values() for rank in own}  # fmt: skip
    return [], set()


_DIFFERS = re.compile(
    r"all_?to_?all|coalesced|broadcast|(?:^|[:_ ])(?:gather|scatter)(?!_tensor)|send|recv|gather_?v\b", re.IGNORECASE
)


def _may_differ(operation: str) -> bool:
    """Return whether ranks of a collective may rightly give it different sizes."""
    without = re.sub(r"all_?gather(?!_?v\b)|reduce_?scatter", "", operation, flags=re.IGNORECASE)
    return _DIFFERS.search(without) is not None


def _left_out(order: Mapping[int, Sequence[EnteredCollective]]) -> tuple[int, EnteredCollective] | None:
    """Return the one rank whose calls are those of others but for one that it left out, and that call.

    Groups are known by the order in which a rank first uses them: ranks that run the same program use them alike.
    """
    if len(order) < 2 or any(not call.entered_ns for calls in order.values() for call in calls):  # noqa: PLR2004
        return None  # nobody to compare with, or it is not known what was called before what
    in_order = {rank: sorted(calls, key=lambda call: call.entered_ns) for rank, calls in order.items()}
    programs: dict[int, list[tuple[int, str]]] = {}
    for rank, calls in in_order.items():
        roles: dict[str, int] = {}
        programs[rank] = [(roles.setdefault(call.group, len(roles)), call.operation) for call in calls]
    found: list[tuple[int, EnteredCollective]] = []
    for rank, own in programs.items():
        others = [other for other in programs if other != rank]
        if any(_goes_along(own, programs[other]) for other in others):
            continue
        # The one whose program is nearest is what it would have done.
        at, other = max((_parted(own, programs[other]), -other) for other in others)
        expected = _next_by_habit(own[:at])
        if own[at] != expected and expected in {None, programs[-other][at]}:
            found.append((rank, in_order[-other][at]))
    return found[0] if len(found) == 1 else None


def _parted(one: Sequence[object], other: Sequence[object]) -> int:
    """Return where two programs part, of which neither is the beginning of the other."""
    return next(place for place, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its)


def _next_by_habit(program: Sequence[tuple[int, str]]) -> tuple[int, str] | None:
    """Return what followed the last time that a program stood as it stands at its end: steps repeat themselves."""
    best: tuple[int, tuple[int, str] | None] = (0, None)
    for end in range(len(program) - 1, 0, -1):
        alike = 0
        while alike < end and program[end - 1 - alike] == program[-1 - alike]:
            alike += 1
        if alike > best[0]:
            best = (alike, program[end])
    return best[1]


def _goes_along(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether one of two programs is the beginning of the other."""
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _chain(stands: Sequence[_Stand]) -> tuple[str, ...]:
    """Return who waits for whom, a sentence for each group."""
    return tuple(
        f"in group {one.group}, {listed(one.waiting)} wait for {listed(one.missing)}" for one in stands[:_LISTED]
    )


def _skip(rank: int, call: EnteredCollective, stands: Sequence[_Stand]) -> DiagnosisFinding:
    waits = sorted({call.rank, *(one for stand in stands for one in (*stand.waiting, *stand.missing))} - {rank})
    return DiagnosisFinding(
        "stuck", "hang", f"rank {rank}",
        f"Rank {rank} left out {call.operation}, which rank {call.rank} called as number {call.sequence} of group"
        f" {call.group}, and went on; {listed(waits)} {'waits' if len(waits) == 1 else 'wait'} for it or for ranks that"
        " do.",
        _chain(stands), 0.8, None, 1.0, "", None, (rank,),
    )  # fmt: skip


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
