"""A NIC port that goes down takes its plane with it: the one exception to replacement within the plane.

The rotation passes over the plane's EVs while it is down here or at the peer, and takes them back at once when it comes
up. A change takes effect after a remap delay. The peer learns it by a port status operation until it answers (the
specification's way; the paper speaks of a bitmap in SACKs, facts section 4.3). Losses on a plane that is out of
use blame no EV; those blamed before, here or at the peer, are good again with their plane, whose port explains it.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import ASSUMED_BAD, NEVER, Sender
from weft.mrc.rules.evs import ARRIVED, ev_event

_ID_MASK = 0x7FFF


@rule
def port_changed(sender: Sender, pair: int, plane: int, up: int, now_ps: int) -> None:
    """Note that our port of `plane` went up (1) or down (0); it takes effect after the remap delay.

    Writes `up`, `due_ps` and `ports_due_ps`.
    """
    qp = sender.qp[pair]
    row = sender.planes[pair, plane]
    row["up"] = up
    row["due_ps"] = now_ps + sender.params[0]["remap_ps"]
    # May be early where a later change of the same port moves its time, never late.
    qp["ports_due_ps"] = min(qp["ports_due_ps"], row["due_ps"])


@rule
def apply_ports(sender: Sender, pair: int, now_ps: int) -> None:
    """Put every port change into effect whose remap delay is over.

    Writes `ports_due_ps`, `local_up`, `announce_id`, `announced_ps`, `stalled_ps` and `due_ps`.
    """
    qp = sender.qp[pair]
    mask = qp["local_up"]
    back = 0
    qp["ports_due_ps"] = NEVER
    for plane in range(sender.params[0]["planes"]):
        row = sender.planes[pair, plane]
        if row["due_ps"] <= now_ps:
            row["due_ps"] = NEVER
            mask = mask | (1 << plane) if row["up"] else mask & ~(1 << plane)
            back |= row["up"] << plane
        qp["ports_due_ps"] = min(qp["ports_due_ps"], row["due_ps"])
    # Also of one that was down for less than the remap delay: silence may have retired its plane meanwhile.
    _take_back(sender, pair, back)
    if mask != qp["local_up"]:
        qp["local_up"] = mask
        qp["announce_id"] = (qp["announce_id"] + 1) & _ID_MASK
        qp["announced_ps"] = -NEVER  # at once, not an interval after the last announcement
        qp["stalled_ps"] = NEVER


@rule
def on_port_answer(sender: Sender, pair: int, number: int) -> None:
    """Take in the peer's answer to a port status operation. Writes `ports_announced`."""
    qp = sender.qp[pair]
    # An answer to an older announcement says nothing about the ports as they are now.
    if number == qp["announce_id"]:
        qp["ports_announced"] = qp["local_up"]


@rule
def on_port_status(sender: Sender, pair: int, mask: int) -> None:
    """Take in the peer's port status: planes that are down there are passed over. Writes `peer_up` and `stalled_ps`."""
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
