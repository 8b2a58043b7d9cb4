"""From the bits of an EV to a path of the fabric: named by the EV itself (SRv6), or hashed by the switches (ECMP).

One rule, so that every engine asks the same question. A pair that is held to a few uplinks has them in a list.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.core.compile.rules import rule
from weft.core.seeds import Seed
from weft.fabric.graph.shape import Shape
from weft.mrc.rules.numbers import mix32
from weft.netsim.host.host_state import Column, Places
from weft.netsim.model.queue_pairs import Pair

AS_GIVEN, HASHED = 0, 1
"""How an EV becomes a path: it is the path's number, or switches hash it together with the queue pair."""
POLICY, STRIDE, PATHS, WORD, SHIFT, HOLDS = range(6)
"""Entries of `Routing.figures`."""
_HASH_BITS = 32
_HALF_SHIFT = 16
_SIGN = 2**63


class Routing(NamedTuple):
    """How all pairs of a run find their paths."""

    figures: Column
    """The policy, the EVs of a plane (an EV is plane x stride + number), the paths of a plane, the word to hash,
    the stride as a power of two (-1 where it is none), and whether any pair is held to some uplinks."""
    first: Column
    """Where the uplinks of a pair begin in `uplinks`; one more entry than pairs."""
    uplinks: Column
    """Paths that pairs are held to."""


def places_of(shape: Shape, seed: Seed) -> Places:
    """Return what every place asks for: below a T0 each path equally often at each place of the order."""
    t0s, paths = -(-shape.hosts // shape.down), shape.paths
    stream = seed.stream("places")
    # Where a T0 has more paths than NICs they begin as far apart as they can.
    begin = stream.random((t0s, shape.planes, shape.down)).argsort(axis=2) * max(1, paths // shape.down) % paths
    add = stream.random((t0s, shape.planes, paths)).argsort(axis=2)
    return Places(begin.transpose(0, 2, 1).reshape(-1, shape.planes), add)


def seen_as(pairs: Sequence[Pair]) -> np.ndarray:
    """Return what switches see of every half besides EVs: `SEEN_AS` of `weft.netsim.host.host_state`."""
    number = {(pair.source, pair.destination, pair.lane, pair.uplinks): i for i, pair in enumerate(pairs)}
    same = [number.get((p.destination, p.source, p.lane, p.uplinks), -1) for p in pairs]
    return np.array([half for i, k in enumerate(same) for half in (2 * i, 2 * k if k >= 0 else 2 * i + 1)], np.int64)


def routing(pairs: Sequence[Pair], policy: int, stride: int, paths: int, word: int = 0) -> Routing:
    """Return the routing of `pairs`."""
    counts = [len(pair.uplinks) for pair in pairs]
    shift = stride.bit_length() - 1 if stride & (stride - 1) == 0 else -1
    signed = (word + _SIGN) % (2 * _SIGN) - _SIGN
    return Routing(
        np.array([policy, stride, paths, signed, shift, any(counts)], np.int64),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        np.array([uplink for pair in pairs for uplink in pair.uplinks] or [0], np.int64),
    )


@rule
def plane_of(routes: Routing, value: int) -> int:
    """Return the plane of an EV; divisions are dear."""
    shift = routes.figures[SHIFT]
    return value >> shift if shift >= 0 else value // routes.figures[STRIDE]


@rule
def way_of(routes: Routing, half: int, seen_as: int, ev: int) -> int:
    """Return the path number, within its plane, that EV number `ev` names for a half; switches see it as `seen_as`."""
    as_given = routes.figures[POLICY] == AS_GIVEN
    # 32 bits of hash times a count, shifted back, is a number below the count without a division.
    drawn = 0 if as_given else mix32(routes.figures[WORD], (seen_as << _HALF_SHIFT) + ev)
    # Most runs hold no pair to any uplinks: then the lists are not even looked at.
    if routes.figures[HOLDS]:
        first = routes.first[half >> 1]
        held = routes.first[(half >> 1) + 1] - first
        if held:
            return routes.uplinks[first + (ev if as_given else (drawn * held) >> _HASH_BITS)]
    return ev if as_given else (drawn * routes.figures[PATHS]) >> _HASH_BITS
