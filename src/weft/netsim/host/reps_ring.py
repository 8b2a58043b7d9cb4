"""REPS: entropies that came back unmarked are used again, oldest first; after a silent loss nothing new is tried.

Bonato et al., arXiv 2407.21625, sections 3.1 (recycling) and 3.2 (freezing). A ring of a few entropies: an unmarked
acknowledgement writes its own into it, over the oldest; a packet takes the oldest that is still valid out, and where
there is none an entropy at random. Frozen, used entropies of the ring are taken again, in a circle, instead of random
ones, because random ones may hit what has failed. Rules over the columns of `weft.netsim.host.mrc_host`.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.netsim.host.host_state import FREEZE

HEAD, VALID = 0, 1
"""Columns of `ring_at`: where the next entropy is written, and how many of the last ones are valid."""
UNTIL, FILLED = 0, 1
"""Columns of `frozen`: until when nothing new is tried, and how much of the ring has ever been written."""


@rule
def remember(h: Any, i: int, e: int) -> None:
    """Write an entropy that worked into the ring."""
    room = h.ring.shape[1]
    at = h.ring_at[i, HEAD]
    h.ring[i, at] = e
    h.ring_at[i, HEAD] = at + 1 if at + 1 < room else 0
    h.ring_at[i, VALID] = min(room, h.ring_at[i, VALID] + 1)
    h.frozen[i, FILLED] = min(room, h.frozen[i, FILLED] + 1)


@rule
def wished(h: Any, i: int, now_ps: int) -> int:
    """Return the entropy for the next packet, or -1 for any."""
    room = h.ring.shape[1]
    if h.ring_at[i, VALID] > 0:
        at = h.ring_at[i, HEAD] - h.ring_at[i, VALID]
        return h.ring[i, at if at >= 0 else at + room]
    if now_ps < h.frozen[i, UNTIL] and h.frozen[i, FILLED] > 0:
        return h.ring[i, h.ring_at[i, HEAD] % h.frozen[i, FILLED]]
    return -1


@rule
def used(h: Any, i: int) -> None:
    """Take what `wished` returned out of the ring, or, frozen, go on to the next."""
    if h.ring_at[i, VALID] > 0:
        h.ring_at[i, VALID] -= 1
        return
    at = h.ring_at[i, HEAD] + 1
    h.ring_at[i, HEAD] = at if at < h.ring.shape[1] else 0


@rule
def freeze(h: Any, i: int, now_ps: int) -> None:
    """Try nothing new for a while."""
    h.frozen[i, UNTIL] = now_ps + h.spray[FREEZE]
