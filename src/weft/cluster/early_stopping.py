"""Early stopping in sweeps: of the members that have come to a rung, one in so many goes on.

The stopping form of asynchronous successive halving (ASHA, arXiv 1810.05934): rungs are steps that grow by a factor,
nobody waits for anybody, and a member is compared at the highest rung it has reached with all that have reached it,
whether they run, have ended or were stopped. It is compared again when others arrive there. Pure: the same values at
the same rungs, the same members; nothing has to be remembered.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HalvingRules:
    """At which steps members are compared, and how many go on."""

    first_step: int
    """Step of the first rung."""
    factor: int = 3
    """One member in this many goes on from a rung; the next rung is at as many times the steps."""
    most: bool = False
    """Whether the largest value is the best; the least otherwise."""

    def step(self, rung: int) -> int:
        """Return the step of a rung, counted from 0."""
        return self.first_step * self.factor**rung


@dataclass(frozen=True, slots=True)
class Outpaced:
    """A member that goes no further."""

    member: str
    step: int
    """Step of the rung at which it was compared."""
    place: int
    """Its place among those that reached the rung, from 1."""
    of: int
    keep: int
    """How many of them go on."""


def at_rungs(curve: Iterable[tuple[int, float]], rules: HalvingRules) -> tuple[float, ...]:
    """Return a member's value at each rung that it has reached, by its steps and values in the order of their writing.

    That is the value of the first step at or after the rung; where steps were done again, the last one counts.
    """
    values = dict(curve)
    found: list[float] = []
    for step in sorted(values):
        while step >= rules.step(len(found)):
            found.append(values[step])
    return tuple(found)


def outpaced(members: Mapping[str, Sequence[float]], rules: HalvingRules) -> list[Outpaced]:
    """Return the members of a sweep that are stopped, given with their values at the rungs that they have reached."""
    found: list[Outpaced] = []
    for rung in range(max(map(len, members.values()), default=0)):
        there = [name for name, values in members.items() if len(values) > rung]
        keep = len(there) // rules.factor
        if not keep:
            continue
        there.sort(key=lambda name: (_cost(members[name][rung], rules), name))
        found += [
            Outpaced(name, rules.step(rung), keep + 1 + at, len(there), keep)
            for at, name in enumerate(there[keep:])
            if len(members[name]) == rung + 1
        ]
    return found


def _cost(value: float, rules: HalvingRules) -> float:
    """Return a value as one of which less is better; what is no number is the worst."""
    return math.inf if math.isnan(value) else -value if rules.most else value
