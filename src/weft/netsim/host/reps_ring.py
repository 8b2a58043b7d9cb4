"""REPS: entropies that came back unmarked are used again, oldest first; after a silent loss nothing new is tried.

Bonato et al., arXiv 2407.21625, sections 3.1 (recycling) and 3.2 (freezing). A ring of a few entropies: an unmarked
acknowledgement writes its own into it, over the oldest; a packet takes the oldest that is still valid out, and where
there is none an entropy at random. Frozen, used entropies of the ring are taken again, in a circle, instead of random
ones, because random ones may hit what has failed. Rules over the columns of `weft.netsim.host.mrc_host`.
"""

from weft.core.compile.rules import rule
from weft.netsim.host.host_state import FREEZE, HostState

HEAD, VALID = 0, 1
"""Columns of `ring_at`: where the next entropy is written, and how many of the last ones are valid."""
UNTIL, FILLED = 0, 1
"""Columns of `frozen`: until when nothing new is tried, and how much of the ring has ever been written."""


@rule
def remember(hosts: HostState, pair: int, ev: int) -> None:
    """Write an entropy that worked into the ring."""
    room = hosts.ring.shape[1]
    at = hosts.ring_at[pair, HEAD]
    hosts.ring[pair, at] = ev
    hosts.ring_at[pair, HEAD] = at + 1 if at + 1 < room else 0
    hosts.ring_at[pair, VALID] = min(room, hosts.ring_at[pair, VALID] + 1)
    hosts.frozen[pair, FILLED] = min(room, hosts.frozen[pair, FILLED] + 1)


@rule
def wished(hosts: HostState, pair: int, now_ps: int) -> int:
    """Return the entropy for the next packet, or -1 for any."""
    room = hosts.ring.shape[1]
    # The oldest valid entry stands `VALID` places behind the head, in a circle.
    if hosts.ring_at[pair, VALID] > 0:
        at = hosts.ring_at[pair, HEAD] - hosts.ring_at[pair, VALID]
        return hosts.ring[pair, at if at >= 0 else at + room]
    if now_ps < hosts.frozen[pair, UNTIL] and hosts.frozen[pair, FILLED] > 0:
        return hosts.ring[pair, hosts.ring_at[pair, HEAD] % hosts.frozen[pair, FILLED]]
    return -1


@rule
def used(hosts: HostState, pair: int) -> None:
    """Take what `wished` returned out of the ring, or, frozen, go on to the next."""
    if hosts.ring_at[pair, VALID] > 0:
        hosts.ring_at[pair, VALID] -= 1
        return
    at = hosts.ring_at[pair, HEAD] + 1
    hosts.ring_at[pair, HEAD] = at if at < hosts.ring.shape[1] else 0


@rule
def freeze(hosts: HostState, pair: int, now_ps: int) -> None:
    """Try nothing new for a while."""
    hosts.frozen[pair, UNTIL] = now_ps + hosts.spray[FREEZE]
