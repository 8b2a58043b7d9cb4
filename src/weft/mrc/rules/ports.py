"""A NIC port that goes down takes its plane with it: the one exception to replacement within the plane.

The rotation passes over the plane's EVs while it is down here or at the peer, and takes them back at once when it comes
up. A change takes effect after a remap delay. The peer is told by a port status operation until it answers (the
specification's way; the paper speaks of a bitmap in SACKs, facts section 4.3). Losses on a plane that is known to be
down blame no EV; those blamed before the peer had told are good again with their plane, whose port explains it.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import ASSUMED_BAD, NEVER
from weft.mrc.rules.evs import ARRIVED, ev_event

_ID_MASK = 0x7FFF


@rule
def port_changed(s: Any, i: int, plane: int, up: int, now_ps: int) -> None:
    """Note that our port of `plane` went up (1) or down (0); it takes effect after the remap delay."""
    q = s.qp[i]
    row = s.planes[i, plane]
    row["up"] = up
    row["due_ps"] = now_ps + s.params[0]["remap_ps"]
    q["ports_due_ps"] = min(q["ports_due_ps"], row["due_ps"])


@rule
def apply_ports(s: Any, i: int, now_ps: int) -> None:
    """Put every port change into effect whose remap delay is over."""
    q = s.qp[i]
    mask = q["local_up"]
    q["ports_due_ps"] = NEVER
    for plane in range(s.params[0]["planes"]):
        row = s.planes[i, plane]
        if row["due_ps"] <= now_ps:
            row["due_ps"] = NEVER
            mask = mask | (1 << plane) if row["up"] else mask & ~(1 << plane)
        q["ports_due_ps"] = min(q["ports_due_ps"], row["due_ps"])
    if mask != q["local_up"]:
        _take_back(s, i, mask & ~q["local_up"])
        q["local_up"] = mask
        q["tell_id"] = (q["tell_id"] + 1) & _ID_MASK
        q["tell_sent_ps"] = -NEVER
        q["stalled_ps"] = NEVER


@rule
def on_port_answer(s: Any, i: int, number: int) -> None:
    """Take in the peer's answer to a port status operation."""
    q = s.qp[i]
    if number == q["tell_id"]:
        q["told"] = q["local_up"]


@rule
def on_port_status(s: Any, i: int, mask: int) -> None:
    """Take in the peer's port status: planes that are down there are passed over."""
    q = s.qp[i]
    known = mask & ((1 << s.params[0]["planes"]) - 1)
    _take_back(s, i, known & ~q["peer_up"])
    q["peer_up"] = known
    q["stalled_ps"] = NEVER


@rule
def _take_back(s: Any, i: int, planes: int) -> None:
    """Take back the EVs that were blamed for silence on `planes`, bits, which have just come up."""
    if planes == 0:
        return
    for e in range(s.params[0]["evs"]):
        ev = s.evs[i, e]
        if ev["state"] == ASSUMED_BAD and planes >> ev["plane"] & 1:
            ev_event(s, i, e, ARRIVED)
