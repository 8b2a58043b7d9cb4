"""A NIC port that goes down takes its plane with it: the one exception to replacement within the plane.

The rotation passes over the plane's EVs while it is down here or at the peer, and takes them back at once when it comes
up. A change takes effect after a remap delay. The peer is told by a port status operation until it answers (the
specification's way; the paper speaks of a bitmap in SACKs, facts section 4.3). Losses on a plane that is known to be
down blame no EV; those blamed before the peer had told are good again with their plane, whose port explains it.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import ASSUMED_BAD, NEVER, Sender
from weft.mrc.rules.evs import ARRIVED, ev_event

_ID_MASK = 0x7FFF


@rule
def port_changed(sender: Sender, pair: int, plane: int, up: int, now_ps: int) -> None:
    """Note that our port of `plane` went up (1) or down (0); it takes effect after the remap delay."""
    qp = sender.qp[pair]
    row = sender.planes[pair, plane]
    row["up"] = up
    row["due_ps"] = now_ps + sender.params[0]["remap_ps"]
    qp["ports_due_ps"] = min(qp["ports_due_ps"], row["due_ps"])


@rule
def apply_ports(sender: Sender, pair: int, now_ps: int) -> None:
    """Put every port change into effect whose remap delay is over."""
    qp = sender.qp[pair]
    mask = qp["local_up"]
    qp["ports_due_ps"] = NEVER
    for plane in range(sender.params[0]["planes"]):
        row = sender.planes[pair, plane]
        if row["due_ps"] <= now_ps:
            row["due_ps"] = NEVER
            mask = mask | (1 << plane) if row["up"] else mask & ~(1 << plane)
        qp["ports_due_ps"] = min(qp["ports_due_ps"], row["due_ps"])
    if mask != qp["local_up"]:
        _take_back(sender, pair, mask & ~qp["local_up"])
        qp["local_up"] = mask
        qp["tell_id"] = (qp["tell_id"] + 1) & _ID_MASK
        qp["tell_sent_ps"] = -NEVER
        qp["stalled_ps"] = NEVER


@rule
def on_port_answer(sender: Sender, pair: int, number: int) -> None:
    """Take in the peer's answer to a port status operation."""
    qp = sender.qp[pair]
    if number == qp["tell_id"]:
        qp["told"] = qp["local_up"]


@rule
def on_port_status(sender: Sender, pair: int, mask: int) -> None:
    """Take in the peer's port status: planes that are down there are passed over."""
    qp = sender.qp[pair]
    known = mask & ((1 << sender.params[0]["planes"]) - 1)
    _take_back(sender, pair, known & ~qp["peer_up"])
    qp["peer_up"] = known
    qp["stalled_ps"] = NEVER


@rule
def _take_back(sender: Sender, pair: int, planes: int) -> None:
    """Take back the EVs that were blamed for silence on `planes`, bits, which have just come up."""
    if planes == 0:
        return
    for ev_index in range(sender.params[0]["evs"]):
        ev = sender.evs[pair, ev_index]
        if ev["state"] == ASSUMED_BAD and planes >> ev["plane"] & 1:
            ev_event(sender, pair, ev_index, ARRIVED)
