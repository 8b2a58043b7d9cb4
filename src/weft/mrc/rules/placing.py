"""Paths by the places of both ends: which ones the EVs of a queue pair take where every NIC's place is known.

Published is a random subset for each pair alone (facts section 4.1). Of 256 uplinks 256 such pairs with 32 EVs in a
plane load some with 20 EVs and others with 45, and no mark can say so before a round trip, an eighth of a message of 8
MiB. Ours: half of the EVs take paths that the source's place below its T0 gives, so that all of its NICs together load
each uplink alike, and half those that the destination's place gives, which does the same for the links down to its T0.
What is left of the unevenness is that of half the EVs. Neither end asks the other: a place is a part of an address.
"""

from typing import NamedTuple

from weft.core.compile.rules import rule
from weft.mrc.columns import Sender, Words
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.numbers import next_draw

_FREE, _TAKEN = 0, 1


class Place(NamedTuple):
    """What one end's place asks for."""

    begin: Words
    """In every plane the path from which the place counts: every place below a T0 has another one."""
    add: Words
    """In every plane how far from there the paths lie, in an order that all places below the T0 share."""
    first: int
    """Where in that order the pair begins: those of one NIC that run in parallel take different ones."""


@rule
def place_evs(sender: Sender, pair: int, near: Place, far: Place, paths: Paths) -> None:
    """Give the EVs of a fresh pair new paths, in turn those that `near` and `far` ask for, none of them twice.

    Writes `value`.
    """
    params = sender.params[0]
    planes = params["planes"]
    per_plane = params["evs"] // planes
    for plane in range(planes):
        for path in range(paths.count):
            paths.scratch[path] = _FREE
        for k in range(sender.planes[pair, plane]["used"]):
            end = near if k & 1 == 0 else far
            path = (end.begin[plane] + end.add[plane, (end.first + k) % paths.count]) % paths.count
            if paths.scratch[path] == _TAKEN:
                # The places of the two ends ask for the same one: any other will do, from a random one on.
                path = next_draw(sender.qp[pair], paths.count)
            while paths.scratch[path] == _TAKEN:
                path = path + 1 if path + 1 < paths.count else 0
            paths.scratch[path] = _TAKEN
            sender.evs[pair, plane * per_plane + k]["value"] = plane * paths.stride + path
