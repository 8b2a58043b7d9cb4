"""The seam for scheduling policies: in which order jobs are considered, and which nodes a gang gets.

A `SchedulingPolicy` names its rules; the callables are looked up by that name where decisions are made, so that what
goes to logs and databases stays data. Another distribution adds rules by an entry point of the group `weft.policies`
that holds a `SchedulingRules`. Rules must be pure (same columns in, same answer out), or logs cannot be replayed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.cluster.scheduling.fair_share import Shares
from weft.cluster.scheduling.placement import Column, apart, compact, tightest
from weft.cluster.scheduling.pool import Pool
from weft.cluster.scheduling.queue import Queue
from weft.core.errors import UsageError
from weft.core.plugins import entry_point, names

Order = Callable[[Queue, Shares, int], tuple[Column, int]]
"""From the queue, the teams' shares and the time to rows of the queue, first to last, and how many of them are aged.

Aged jobs have waited so long that others make room for them whatever their size; a policy without ageing returns 0.
`Queue.promised` names the job that was promised a start."""


@dataclass(frozen=True, slots=True)
class Placing:
    """What a gang needs of the nodes that could serve it."""

    candidates: Column
    """Numbers of the nodes that have enough GPUs, ascending."""
    count: int
    """How many of them it gets; at most as many as there are."""
    spread: bool = False
    """Whether it is a service, which should outlive the loss of a switch."""


Place = Callable[[Placing, Pool], Column]
"""From what a gang needs and the pool to `count` of the candidates."""


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """The parts of a policy that are code."""

    order: Order
    """In which order jobs are considered."""
    place: Place
    """Which nodes a gang gets."""


def _order(queue: Queue, shares: Shares, now_ms: int) -> tuple[Column, int]:
    return queue.order(now_ms, shares, queue.promised)


def _place(placing: Placing, pool: Pool) -> Column:
    if placing.spread:
        return apart(placing.candidates, placing.count, pool.t0)
    return compact(tightest(placing.candidates, placing.count, pool.usable - pool.taken), placing.count, pool.levels)


BUILT_IN = "weft"
_RULES = {BUILT_IN: SchedulingRules(_order, _place)}


def rule_names() -> tuple[str, ...]:
    """Return the names of all rules that there are."""
    return (*_RULES, *(name for name in names("weft.policies") if name not in _RULES))


def rules_of(name: str) -> SchedulingRules:
    """Return the rules called `name`."""
    found = _RULES.get(name) or entry_point("weft.policies", name)
    if found is None:
        raise UsageError(f"there are no scheduling rules {name!r}; there are: {', '.join(rule_names())}")
    if not isinstance(found, SchedulingRules):
        raise UsageError(f"the plugin {name!r} of weft.policies is no SchedulingRules")
    return found
