"""For how long an EV is passed over: what its marks mean beside those of the others, and what it has in flight.

A mark skips an EV once (facts section 4.2). What goes beyond is chosen here; `evs` has the states and the rotation:

- From the fourth mark in a row, each further one doubles the rounds for which an EV is passed over after every packet
  that it carries, up to `most_skips`; each unmarked packet takes a quarter off. So a path that is always full is left
  to others, where skipping once would still send every other packet of its turn there. Sooner is too soon: marks come
  a round trip late, and paths that have long emptied would stay so.
- Of packets that are in flight on one EV together only the first mark counts so: the others were sent before it was
  known and tell of the same queue. A pair of few paths would else leave one of them for many rounds after a single
  round trip, fill the others, and go back and forth between them.
- That holds while few other EVs are in SKIP, a quarter of them at most (or one). Where a fabric is full, every queue
  holds a part of the windows and most paths are marked now and then: that is load, for which no path is to blame. To
  leave a path then gives its packets to others that are as full and undoes the evenness of the rotation, and queues
  that are fed unevenly mark more: it would not end by itself. All senders below a T0 would leave and return together.
- For the same reason an unmarked packet takes off twice the share of packets that are marked on all EVs, where that is
  more than a quarter: an EV is left to others only where it is marked about twice as often as they are.
- An EV with more packets in flight than its share of a bandwidth-delay product loses its turn: what is above that share
  waits in a queue, and this is known a round trip before a mark could tell. A path twice as slow then carries half as
  much. A few EVs at most are passed over so for one packet, lest a round end before everybody had a turn.
- A mark tells of a queue about a round trip ago, and what it says is old after another. An EV's turn comes again after
  about as many packets as there are EVs: where fewer than that are in flight its first two marks in a row skip nothing,
  for its queue has changed by then, and leaving it is as uneven as random draws. So it is with many queue pairs at a
  NIC.
- The last half round of what was posted leaves out EVs whose latest packet was marked: a message ends with its slowest
  packet, and no later round is left in which to even out.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import SKIP, EvRow, Sender, SenderRow, SettingsRow

_PATIENCE_SHIFT = 3
"""Marks in a row, doublings of `patience`, that only skip an EV once each; those after them double the rounds."""
_OLD_MARKS = 2
"""Patience with an EV up to which one more mark skips nothing where it would be old by the EV's turn."""
_MOST_HELD = 8
"""EVs that are not in SKIP and that one packet passes over at most, and not more than a quarter of all."""
_QUARTER_SHIFT = 2
_MOST_STALE = 127
"""Packets of one EV whose marks may say nothing new: what a column of 8 bits holds."""
_ONE = 1024
_SHARE_SHIFT = 5
"""Packets, a power of two, over which the share of marked ones is averaged: few, so that it follows the queues."""


@rule
def most_held(params: SettingsRow, qp: SenderRow) -> int:
    """Return how many EVs that are not in SKIP one packet may pass over."""
    return min(_MOST_HELD, qp["active"] >> _QUARTER_SHIFT) if params["even"] else 0


@rule
def is_held(params: SettingsRow, qp: SenderRow, ev: EvRow) -> bool:
    """Return whether a GOOD EV loses its turn: it has more than its share in flight or, near the end, was marked."""
    in_use = qp["active"] - qp["skipping"]
    # One packet is always allowed, or a path whose share is below one could never be tried.
    if ev["inflight"] > 1 and ev["inflight"] * in_use * params["mtu"] > params["bdp"]:
        return True
    return ev["patience"] > 1 and 2 * (qp["end"] - qp["next"]) < qp["active"]


@rule
def _is_alone(qp: SenderRow) -> bool:
    """Return whether few other EVs are in SKIP, so that marks tell of a path and not of load on all of them."""
    return qp["skipping"] < max(1, qp["active"] >> _QUARTER_SHIFT)


@rule
def note_mark(params: SettingsRow, qp: SenderRow, ev: EvRow) -> None:
    """Note a mark on an EV; those that fall on few EVs lengthen how long it is passed over.

    Writes `mark_share`, `patience` and `stale`.
    """
    qp["mark_share"] += (_ONE - qp["mark_share"]) >> _SHARE_SHIFT
    if ev["stale"] > 0:
        ev["stale"] -= 1
    elif _is_alone(qp):
        ev["patience"] = min(2 * max(ev["patience"], 1), params["most_skips"] << _PATIENCE_SHIFT)
        ev["stale"] = min(max(ev["inflight"] - 1, 0), _MOST_STALE)
    else:
        ev["patience"] = max(ev["patience"], 2)


@rule
def mark_ages(params: SettingsRow, qp: SenderRow, ev: EvRow) -> bool:
    """Return whether a mark will be old when the turn of its EV comes, and is not one of many."""
    paced = params["skip"] != 0 and params["paced"] != 0
    return paced and qp["inflight"] < qp["active"] and ev["patience"] <= _OLD_MARKS


@rule
def rounds_of(ev: EvRow) -> int:
    """Return for how many rounds an EV is passed over."""
    return max(ev["patience"] >> _PATIENCE_SHIFT, 1)


@rule
def pace(params: SettingsRow, qp: SenderRow, ev: EvRow) -> None:
    """Let an EV that is marked or loses again and again carry one packet, and then be passed over as long as it has to.

    Writes `state`, `skips` and `skipping`.
    """
    rounds = rounds_of(ev) if _is_alone(qp) else 1
    # One that lost its last packets and is in rotation for want of others: what this one did is known a round trip on.
    rounds = max(rounds, min(ev["losses"], params["most_skips"]))
    if rounds > 1:
        ev["state"] = SKIP
        ev["skips"] = rounds
        qp["skipping"] += 1


@rule
def ev_clear(sender: Sender, pair: int, ev_index: int) -> None:
    """Note that a packet came back from EV `ev_index` without a mark. Writes `mark_share` and `patience`."""
    if sender.params[0]["paced"]:
        qp = sender.qp[pair]
        qp["mark_share"] -= qp["mark_share"] >> _SHARE_SHIFT
        sender.evs[pair, ev_index]["stale"] -= sender.evs[pair, ev_index]["stale"] > 0
        patience = sender.evs[pair, ev_index]["patience"]
        # A quarter, or twice the share that is marked everywhere: an EV is left only where it stands out.
        off = max(patience // 4, 2 * qp["mark_share"] * patience // _ONE, 1)
        sender.evs[pair, ev_index]["patience"] = max(1, patience - off)
