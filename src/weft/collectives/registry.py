"""The collectives by name: what each achieves, by which algorithm, its schedule and its closed-form cost.

One registration makes a collective known to scenarios, to the simulator and to the command line. Another distribution
adds one by an entry point of the group `weft.collectives` whose name is the algorithm's and whose object is a
`CollectiveAlgorithm`, or a tuple of them where it achieves several kinds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from weft.collectives import algorithms, costs
from weft.collectives.costs import Column, Number
from weft.collectives.schedule import Kind, Schedule
from weft.core import plugins
from weft.core.errors import FailedError, UsageError

GROUP = "weft.collectives"
Cost: TypeAlias = Callable[[Column, Column, Number, Number], Column]
"""Time of a collective from ranks, bytes of the whole buffer, latency of a message and rate of a rank."""


@dataclass(frozen=True)
class CollectiveAlgorithm:
    """One way to carry out one kind of collective."""

    kind: Kind
    """What it achieves."""
    algorithm: str
    """How it is called in files and on the command line."""
    schedule: Callable[[int], Schedule]
    """Makes the sends for a number of ranks."""
    cost: Cost | None = None
    """Its time on an ideal network; none where no closed form is known."""
    powers_of_two: bool = False
    """Whether it needs a power of two of ranks."""
    rounds_alike: bool = False
    """Whether each round has every rank send one part of the same size, so that a few rounds stand for all."""


def _half_tree(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    return costs.double_tree_all_reduce(ranks, size, alpha, rate, pieces=4)


def _chain(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    return costs.ring_broadcast(ranks, size, alpha, rate, pieces=1)


_BUILT_IN = (
    CollectiveAlgorithm("all-reduce", "ring", algorithms.ring_all_reduce, costs.ring_all_reduce, rounds_alike=True),
    CollectiveAlgorithm(
        "all-reduce", "halving-doubling", algorithms.halving_doubling_all_reduce, costs.halving_all_reduce
    ),
    CollectiveAlgorithm("all-reduce", "double-tree", algorithms.double_tree_all_reduce, _half_tree),
    CollectiveAlgorithm("reduce-scatter", "ring", algorithms.ring_reduce_scatter, costs.ring_half, rounds_alike=True),
    CollectiveAlgorithm(
        "reduce-scatter", "halving-doubling", algorithms.halving_reduce_scatter, costs.halving_half, powers_of_two=True
    ),
    CollectiveAlgorithm("all-gather", "ring", algorithms.ring_all_gather, costs.ring_half, rounds_alike=True),
    CollectiveAlgorithm(
        "all-gather", "halving-doubling", algorithms.doubling_all_gather, costs.halving_half, powers_of_two=True
    ),
    CollectiveAlgorithm("all-to-all", "direct", algorithms.direct_all_to_all, costs.all_to_all),
    CollectiveAlgorithm("broadcast", "ring", algorithms.chain_broadcast, _chain),
    CollectiveAlgorithm("broadcast", "double-tree", algorithms.binomial_broadcast, costs.binomial_broadcast),
)
_USUAL = {"all-to-all": "direct"}
_USUAL_OTHERWISE = "ring"
SHORT_NAMES: dict[str, tuple[str, str]] = {
    "ring": ("all-reduce", "ring"),
    "reduce-scatter": ("reduce-scatter", "ring"),
    "all-gather": ("all-gather", "ring"),
    "all-to-all": ("all-to-all", "direct"),
}
"""Names for the command line of those that are compared most."""


def known(kind: str | None = None) -> tuple[CollectiveAlgorithm, ...]:
    """Return the built-in ways to carry out a kind of collective, or all of them."""
    return tuple(one for one in _BUILT_IN if kind in (None, one.kind))


def find(kind: str, algorithm: str | None = None) -> CollectiveAlgorithm:
    """Return one way to carry out a collective; the usual one is a ring, or direct sends for an all-to-all."""
    chosen = algorithm or _USUAL.get(kind, _USUAL_OTHERWISE)
    for one in (*known(kind), *_plugged(chosen)):
        if (one.kind, one.algorithm) == (kind, chosen):
            return one
    names = [one.algorithm for one in known(kind)] + sorted(plugins.names(GROUP))
    raise UsageError(f"there is no {kind} by {chosen}; there is one by {', '.join(names)}")


def named(name: str) -> CollectiveAlgorithm:
    """Return what the command line calls `name`: a kind, "ring" for the usual all-reduce, or KIND/ALGORITHM."""
    kind, _, algorithm = name.partition("/")
    if name in SHORT_NAMES:
        return find(*SHORT_NAMES[name])
    if algorithm and known(kind):
        return find(kind, algorithm)
    ways = ", ".join(SHORT_NAMES)
    raise UsageError(f"there is no collective called {name!r}; there are {ways}, and KIND/ALGORITHM for others")


def schedule_named(kind: str, algorithm: str | None, ranks: int) -> Schedule:
    """Return the schedule of a collective over `ranks` ranks."""
    chosen = find(kind, algorithm)
    # A number with a single bit set is a power of two: taking one from it clears that bit and sets those below.
    if chosen.powers_of_two and ranks & (ranks - 1):
        raise UsageError(f"a {kind} by {chosen.algorithm} needs a power of two of ranks, not {ranks}; use a ring")
    return chosen.schedule(ranks)


def _plugged(algorithm: str) -> tuple[CollectiveAlgorithm, ...]:
    found = plugins.entry_point(GROUP, algorithm)
    several = found if isinstance(found, tuple) else () if found is None else (found,)
    if wrong := [one for one in several if not isinstance(one, CollectiveAlgorithm)]:
        raise FailedError(f"plugin {algorithm!r} of {GROUP} gives {wrong[0]!r}, which is no CollectiveAlgorithm")
    return tuple(one for one in several if isinstance(one, CollectiveAlgorithm))
