"""What must hold in the columns after every step; run by the tests after each one, and before long runs.

A broken invariant is an assertion, not an error of the user. These walk whole tables and are not meant for hot paths.
"""

from typing import Any

import numpy as np

from weft.mrc.columns import (
    ACKED,
    ACTIVE,
    ASSUMED_BAD,
    DENIED,
    FREE,
    IN_FLIGHT,
    LOST,
    OUT,
    SKIP,
    SPARE,
    Receiver,
    Sender,
)


def check_sender(sender: Sender, pair: int) -> None:
    """Assert that the window, the two lists and the bytes in flight of sender `pair` agree."""
    params, qp = sender.params[0], sender.qp[pair]
    window, mask = int(params["window"]), int(params["slot_mask"])
    una, after, end = int(qp["una"]), int(qp["next"]), int(qp["end"])
    assert una <= after <= end, "the window runs backwards"
    assert after - una <= window, "more packets in flight than the window holds"
    # From here on in slots: what lies in the window, and what must not be kept any more.
    slots = np.arange(una, after) & mask
    states = sender.packets[pair]["state"]
    outside = np.ones(mask + 1, bool)
    outside[slots] = False
    assert (states[outside] == FREE).all(), "a packet outside the window is kept"
    assert not np.isin(states[slots], [FREE]).any(), "a packet of the window is missing"
    assert after == una or states[una & mask] != ACKED, "the window should have moved on"
    in_flight, lost = slots[states[slots] == IN_FLIGHT], slots[states[slots] == LOST]
    assert _walk(sender, pair, int(qp["oldest"]), int(qp["newest"])) == set(in_flight.tolist()), (
        "the list of packets in flight"
    )
    assert _walk(sender, pair, int(qp["lost_first"]), int(qp["lost_last"])) == set(lost.tolist()), (
        "the list of lost packets"
    )
    assert (qp["inflight"], qp["waiting"]) == (len(in_flight), len(lost)), "packets are counted wrongly"
    assert qp["inflight_bytes"] == sender.packets[pair]["bytes"][in_flight].sum(), "bytes in flight are counted wrongly"
    on_ev = np.bincount(sender.packets[pair]["ev"][in_flight], minlength=sender.evs.shape[1])
    if sender.params[0]["even"]:
        assert (sender.evs[pair]["inflight"] == on_ev).all(), "packets in flight on an EV are counted wrongly"
    assert params["mtu"] <= qp["cwnd"] <= params["window_max"], "the congestion window is out of bounds"
    bits = (sender.arrived[pair][:, None] >> np.arange(32) & 1).reshape(-1)
    assert (bits == (states == ACKED)).all(), "the bitmap of what arrived is wrong"
    assert 0 <= qp["msg_first"] <= qp["msg_next"] <= qp["msg_end"] <= qp["msg_first"] + params["messages"], "messages"
    check_evs(sender, pair)


def _walk(sender: Sender, pair: int, first: int, last: int) -> set[int]:
    """Return the slots of a list, which must be in order of transmission for those in flight."""
    found: list[int] = []
    before = -1
    slot = first
    while slot >= 0:
        assert len(found) <= sender.packets.shape[1], "a list runs in a circle"
        row: Any = sender.packets[pair, slot]
        assert row["older"] == before, "a list is torn"
        found.append(slot)
        before, slot = slot, int(row["newer"])
    assert before == last, "a list has lost its end"
    orders = [(int(sender.packets[pair, slot]["sent_ps"]), int(sender.packets[pair, slot]["order"])) for slot in found]
    assert sender.packets[pair, first]["state"] != IN_FLIGHT or orders == sorted(orders), (
        "transmissions are out of order"
    )
    return set(found)


def check_evs(sender: Sender, pair: int) -> None:
    """Assert that every EV of sender `pair` is in one place only and that planes are as full as they can be."""
    params, qp = sender.params[0], sender.qp[pair]
    states, roles, planes = sender.evs[pair]["state"], sender.evs[pair]["role"], sender.evs[pair]["plane"]
    exists = sender.evs[pair]["value"] >= 0
    rotation = sender.rotation[pair][: int(qp["active"])]
    assert len(set(rotation.tolist())) == len(rotation), "an EV is twice in the rotation"
    assert set(np.flatnonzero(roles == ACTIVE).tolist()) == set(rotation.tolist()), "the rotation and the roles differ"
    assert 0 <= qp["cursor"] <= max(int(qp["active"]), int(params["active"])), "the cursor is outside the rotation"
    assert ((states <= SKIP) == (roles != OUT)).all(), "an EV in use is neither GOOD nor SKIP, or the other way round"
    assert (states[~exists] == DENIED).all(), "an EV that does not exist is used"
    assert qp["skipping"] == (states[rotation] == SKIP).sum(), "EVs in SKIP are counted wrongly"
    assert qp["bad"] == (states == ASSUMED_BAD).sum(), "retired EVs are counted wrongly"
    for plane in range(int(params["planes"])):
        row = sender.planes[pair, plane]
        here = planes == plane
        assert row["active"] == (here & (roles == ACTIVE)).sum(), "active EVs of a plane are counted wrongly"
        assert row["spare"] == (here & (roles == SPARE)).sum(), "spare EVs of a plane are counted wrongly"
        if params["same_plane"]:
            assert row["active"] <= row["target"], "a plane carries more than its share"
            assert row["active"] == row["target"] or row["spare"] == 0, "a spare waits while its plane has a gap"


def check_receiver(receiver: Receiver, pair: int) -> None:
    """Assert that the window and the stashed immediates of receiver `pair` agree."""
    params, qp = receiver.params[0], receiver.qp[pair]
    window, mask = int(params["window"]), int(params["slot_mask"])
    expected, highest = int(qp["expected"]), int(qp["highest"])
    assert highest < expected + window, "a packet beyond the window was taken"
    bits = (receiver.arrived[pair][:, None] >> np.arange(32) & 1).reshape(-1)
    assert bits[expected & mask] == 0, "the window should have moved on"
    came = [seq for seq in range(expected, expected + min(window, mask + 1)) if bits[seq & mask]]
    assert not came or came[-1] == highest, "the highest packet is not the highest"
    count = int(qp["immediates"])
    seqs = receiver.stash[pair]["seq"][:count].tolist()
    assert seqs == sorted(set(seqs)), "immediates are out of order"
    assert count <= params["immediates"], "more immediates than there is room for"
