"""What a NIC will look at soon, named a little before, so that memory has the time to bring it; changes nothing."""

from typing import Any

from weft.mrc.compiled import prefetch, rule


@rule
def foresee(h: Any, pair: int, psn: int) -> None:
    """Say that an acknowledgement for packet `psn` of a pair has arrived and is about to be taken in."""
    prefetch(h.s.packets, pair, psn & h.s.params[0]["slot_mask"])


@rule
def foresee_nothing(h: Any, pair: int, psn: int) -> None:
    """Do nothing: for transports that keep no packets."""
