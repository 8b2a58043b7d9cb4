"""What is done to queue pairs before anything is sent: every half gets its chance and its EVs, and some are denied."""

from weft.core.compile.rules import rule
from weft.mrc.rules.evs import Paths, deny_one
from weft.mrc.rules.placing import Place, place_evs
from weft.mrc.rules.receiver import start_receiver
from weft.mrc.rules.sender import start_sender
from weft.netsim.host.host_state import Column, HostState, Places


@rule
def start_pairs(hosts: HostState, words: Column, paths: Column, stride: int, scratch: Column) -> None:
    """Make the halves of every pair ready; a row of `words` seeds the random streams of its three halves."""
    for pair in range(len(paths)):
        start_sender(hosts.s, pair, words[pair, 0], 0, Paths(paths[pair], stride, scratch))
        start_sender(hosts.b, pair, words[pair, 1], 0, Paths(paths[pair], stride, scratch))
        start_receiver(hosts.r, pair, words[pair, 2], 0)


@rule
def place_pairs(hosts: HostState, ends: Column, places: Places, down: int, stride: int, scratch: Column) -> None:
    """Give the sending half of every pair the paths that the places of its two ends ask for.

    A row of `ends` has the source (-1 for none), the destination and the number of the pair among those of the two.
    """
    for pair in range(len(ends)):
        source, destination = ends[pair, 0], ends[pair, 1]
        if source >= 0:
            first = ends[pair, 2] * hosts.s.params[0]["evs"] // hosts.s.params[0]["planes"]
            near = Place(places.begin[source], places.add[source // down], first)
            far = Place(places.begin[destination], places.add[destination // down], first)
            place_evs(hosts.s, pair, near, far, Paths(stride, stride, scratch))


@rule
def deny(hosts: HostState, pair: int, half: int, ev: int) -> None:
    """Deny EV `e` of a half, as an operator's denylist does; no answer takes it either."""
    if half:
        deny_one(hosts.b, pair, ev, 1)
    else:
        deny_one(hosts.s, pair, ev, 1)
