"""What a lost packet says of its EV: how many in a row retire one, where losses may be full queues or nobody's fault.

- Where switches do not trim, an EV is blamed for as many losses in a row as random loss alone would hardly bring: where
  one packet in ten is lost three are enough, where every second one is it takes ten. So a full queue retires no path.
- Where they have trimmed lately, as in an incast, headers find their queues full too: it takes four in a row, or more.
- Where they trim, one silent loss is enough, unless one on another EV came within about 10,000 packets before it: what
  falls on one EV after another is no fault of paths (a NIC or its link drops packets), and two in a row are needed.
- There, too, more losses in a row in one plane than chance brings, with nothing delivered in it between, are no fault
  of paths, but of the plane's port here or at the peer: all its EVs are retired, if another plane delivers. Otherwise
  each would lose its packets alone until the port's owner has said so, which takes the remap delay and longer. Four
  packets that arrive after all take them back.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import ASSUMED_BAD, OUT, Sender, SenderRow
from weft.mrc.rules.evs import ARRIVED, MARK, SILENCE, ev_event

_MOST_COUNTED = 100
_ONE = 1024
_SHARE_OVER = 32
"""Transmissions over which the share of lost ones is averaged: few, so that a full queue is known before it is blamed
on paths."""
_TRIMMED_LATELY = _ONE // 64
"""Share of packets trimmed from which a silent loss may be a header that its queue had no room for either: one trim is
remembered for 16 transmissions."""
_HEADERS_IN_A_ROW = 4
"""Least losses in a row of one EV that are no longer headers lost by chance: two or three are, now and then, where a
queue has room for every second header only, and the share of lost ones is known late."""
_BACKGROUND_SHIFT, _BACKGROUND_ONE = 13, 1 << 27
"""Transmissions, a power of two, over which losses that go from EV to EV are averaged, and one in that average."""
_REMEMBERED = 16384
"""Packets delivered after which a silent loss is forgotten."""
_BACKGROUND = _BACKGROUND_ONE >> 19
"""Share of such losses from which one more blames its EV no longer: one within the last 11,000."""
_SILENT_PLANE = 3
"""Losses in a row in a plane, besides those that chance explains, from which the plane counts as dead."""

_RETIRED_PLANE = 1 << 20
"""What stands for a plane that was retired, in place of its losses in a row; from there on arrivals are counted."""
_BACK_AFTER = 4
"""Packets of a retired plane that arrive after all before it is taken back: what was known late of it are fewer."""


@rule
def ev_delivers(sender: Sender, pair: int, ev_index: int) -> None:
    """Note that EV `ev_index` has delivered a packet: its silent losses, and its plane's, are no longer in a row.

    Writes `losses` and `silent`.
    """
    if sender.qp[pair]["lossy"]:
        ev = sender.evs[pair, ev_index]
        ev["losses"] = 0
        plane = sender.planes[pair, ev["plane"]]
        # What a retired plane delivered while it still worked may be known late, and brings nothing back.
        if plane["silent"] < _RETIRED_PLANE:
            plane["silent"] = 0


@rule
def ev_silent(sender: Sender, pair: int, ev_index: int) -> int:
    """Blame EV `ev_index` for a packet that vanished, and return its new state.

    Where switches do not trim, a loss may be a full queue: the EV is skipped once, and retired only after more losses,
    with nothing delivered between, than the share that is lost on all paths explains. Where they do, the same holds,
    and four are the least, shortly after a trim; the second in a row is needed while losses fall on other EVs too.

    Writes `losses`, `lossy` and `silent`.
    """
    params = sender.params[0]
    ev = sender.evs[pair, ev_index]
    if params["retire"] == 0:
        return ev["state"]
    ev["losses"] = min(ev["losses"] + 1, _MOST_COUNTED)
    sender.qp[pair]["lossy"] = 1
    needed = params["losses_to_retire"]
    if needed > 1:
        needed = max(needed, _losses_in_a_row(sender.qp[pair]["loss_share"]))
    elif sender.qp[pair]["trim_share"] >= _TRIMMED_LATELY:
        needed = max(_HEADERS_IN_A_ROW, _losses_in_a_row(sender.qp[pair]["loss_share"]))
    elif _elsewhere(sender.qp[pair], ev_index):
        needed = 2
    if params["losses_to_retire"] == 1 and sender.qp[pair]["trim_share"] < _TRIMMED_LATELY:
        _plane_silent(sender, pair, ev["plane"])
    return ev_event(sender, pair, ev_index, SILENCE if ev["losses"] >= needed else MARK)


@rule
def _plane_silent(sender: Sender, pair: int, plane: int) -> None:
    """Note that a packet vanished in a plane, and retire it where that is too many in a row. Writes `silent`."""
    row = sender.planes[pair, plane]
    if row["silent"] >= _RETIRED_PLANE:
        return
    row["silent"] = min(row["silent"] + 1, _RETIRED_PLANE - 1)
    long = row["silent"] >= _SILENT_PLANE + _losses_in_a_row(sender.qp[pair]["loss_share"])
    if long and _another_delivers(sender, pair, plane):
        row["silent"] = _RETIRED_PLANE
        _retire_plane(sender, pair, plane)


@rule
def _another_delivers(sender: Sender, pair: int, plane: int) -> bool:
    """Return whether a plane besides this one delivers: where none does, its own paths are the best that there are."""
    for other in range(sender.params[0]["planes"]):
        if other != plane and sender.planes[pair, other]["silent"] == 0:
            return True
    return False


@rule
def _retire_plane(sender: Sender, pair: int, plane: int) -> None:
    """Retire every EV of a plane in which nothing arrives any more, as far as the floor of EVs in use allows."""
    for ev_index in range(sender.params[0]["evs"]):
        ev = sender.evs[pair, ev_index]
        if ev["plane"] == plane and ev["role"] != OUT:
            ev_event(sender, pair, ev_index, SILENCE)


@rule
def ev_arrived(sender: Sender, pair: int, ev_index: int) -> None:
    """Note that a packet on EV `ev_index` arrived after all: the EV was blamed wrongly, and so was its plane.

    Writes `silent`.
    """
    plane = sender.evs[pair, ev_index]["plane"]
    row = sender.planes[pair, plane]
    row["silent"] = row["silent"] + 1 if row["silent"] >= _RETIRED_PLANE else 0
    if row["silent"] == _RETIRED_PLANE + _BACK_AFTER:
        for other in range(sender.params[0]["evs"]):
            if sender.evs[pair, other]["plane"] == plane and sender.evs[pair, other]["state"] == ASSUMED_BAD:
                ev_event(sender, pair, other, ARRIVED)
    elif row["silent"] == 0:
        ev_event(sender, pair, ev_index, ARRIVED)


@rule
def _elsewhere(qp: SenderRow, ev_index: int) -> bool:
    """Note a silent loss on EV `ev_index`, and return whether losses have lately gone from one EV to another."""
    if qp["loss_left"] > 0 and qp["loss_ev"] != ev_index:
        qp["background"] += (_BACKGROUND_ONE - qp["background"]) >> _BACKGROUND_SHIFT
    qp["loss_ev"] = ev_index
    qp["loss_left"] = _REMEMBERED
    return qp["background"] > _BACKGROUND


@rule
def note_fate(qp: SenderRow, lost: int) -> None:
    """Move the shares of transmissions that are lost, in 1/1024, by one whose fate is known now.

    Writes `loss_share`, `trim_share`, `loss_left` and `background`.
    """
    # Nothing lost and nothing remembered, the usual case: every average would stay 0.
    if lost | qp["loss_share"] | qp["trim_share"] | qp["loss_left"] | qp["background"] == 0:
        return
    qp["loss_share"] += (lost * _ONE - qp["loss_share"]) // _SHARE_OVER
    if not lost:
        # Rounded up, so that it comes to nothing again.
        qp["trim_share"] -= (qp["trim_share"] + _SHARE_OVER - 1) // _SHARE_OVER
        qp["loss_left"] = max(0, qp["loss_left"] - 1)
        qp["background"] = max(0, qp["background"] - (qp["background"] >> _BACKGROUND_SHIFT) - 1)


@rule
def note_trimmed(sender: Sender, pair: int, ev_index: int) -> None:
    """Note that a packet on EV `ev_index` came without its payload: a queue was full, and the path works.

    Writes `trim_share`.
    """
    qp = sender.qp[pair]
    qp["trim_share"] += (_ONE - qp["trim_share"]) // _SHARE_OVER
    ev_delivers(sender, pair, ev_index)


@rule
def _losses_in_a_row(share: int) -> int:
    """Return how many losses in a row have a probability below 1/1024 where `share`/1024 of all packets are lost."""
    probability = share
    count = 1
    while probability > 1 and count < _MOST_COUNTED:
        probability = probability * share // _ONE
        count += 1
    return count
