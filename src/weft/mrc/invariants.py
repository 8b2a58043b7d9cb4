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


def check_sender(s: Sender, i: int) -> None:
    """Assert that the window, the two lists and the bytes under way of sender `i` agree."""
    params, q = s.params[0], s.qp[i]
    window, mask = int(params["window"]), int(params["slot_mask"])
    una, after, end = int(q["una"]), int(q["next"]), int(q["end"])
    assert una <= after <= end, "the window runs backwards"
    assert after - una <= window, "more packets under way than the window holds"
    slots = np.arange(una, after) & mask
    states = s.packets[i]["state"]
    outside = np.ones(mask + 1, bool)
    outside[slots] = False
    assert (states[outside] == FREE).all(), "a packet outside the window is kept"
    assert not np.isin(states[slots], [FREE]).any(), "a packet of the window is missing"
    assert after == una or states[una & mask] != ACKED, "the window should have moved on"
    flying, lost = slots[states[slots] == IN_FLIGHT], slots[states[slots] == LOST]
    assert _walk(s, i, int(q["oldest"]), int(q["newest"])) == set(flying.tolist()), "the list of packets under way"
    assert _walk(s, i, int(q["lost_first"]), int(q["lost_last"])) == set(lost.tolist()), "the list of lost packets"
    assert (q["inflight"], q["waiting"]) == (len(flying), len(lost)), "packets are counted wrongly"
    assert q["inflight_bytes"] == s.packets[i]["bytes"][flying].sum(), "bytes under way are counted wrongly"
    on_ev = np.bincount(s.packets[i]["ev"][flying], minlength=s.evs.shape[1])
    if s.params[0]["even"]:
        assert (s.evs[i]["flying"] == on_ev).all(), "packets under way on an EV are counted wrongly"
    assert params["mtu"] <= q["cwnd"] <= params["window_max"], "the congestion window is out of bounds"
    bits = (s.arrived[i][:, None] >> np.arange(32) & 1).reshape(-1)
    assert (bits == (states == ACKED)).all(), "the bitmap of what arrived is wrong"
    assert 0 <= q["msg_first"] <= q["msg_next"] <= q["msg_end"] <= q["msg_first"] + params["messages"], "messages"
    check_evs(s, i)


def _walk(s: Sender, i: int, first: int, last: int) -> set[int]:
    """Return the slots of a list, which must be in order of transmission for those under way."""
    found: list[int] = []
    before = -1
    slot = first
    while slot >= 0:
        assert len(found) <= s.packets.shape[1], "a list runs in a circle"
        row: Any = s.packets[i, slot]
        assert row["older"] == before, "a list is torn"
        found.append(slot)
        before, slot = slot, int(row["newer"])
    assert before == last, "a list has lost its end"
    orders = [(int(s.packets[i, slot]["sent_ps"]), int(s.packets[i, slot]["order"])) for slot in found]
    assert s.packets[i, first]["state"] != IN_FLIGHT or orders == sorted(orders), "transmissions are out of order"
    return set(found)


def check_evs(s: Sender, i: int) -> None:
    """Assert that every EV of sender `i` is in one place only and that planes are as full as they can be."""
    params, q = s.params[0], s.qp[i]
    states, roles, planes = s.evs[i]["state"], s.evs[i]["role"], s.evs[i]["plane"]
    exists = s.evs[i]["value"] >= 0
    rotation = s.rotation[i][: int(q["active"])]
    assert len(set(rotation.tolist())) == len(rotation), "an EV is twice in the rotation"
    assert set(np.flatnonzero(roles == ACTIVE).tolist()) == set(rotation.tolist()), "the rotation and the roles differ"
    assert 0 <= q["cursor"] <= max(int(q["active"]), int(params["active"])), "the cursor is outside the rotation"
    assert ((states <= SKIP) == (roles != OUT)).all(), "an EV in use is neither GOOD nor SKIP, or the other way round"
    assert (states[~exists] == DENIED).all(), "an EV that does not exist is used"
    assert q["skipping"] == (states[rotation] == SKIP).sum(), "EVs in SKIP are counted wrongly"
    assert q["bad"] == (states == ASSUMED_BAD).sum(), "retired EVs are counted wrongly"
    for plane in range(int(params["planes"])):
        row = s.planes[i, plane]
        here = planes == plane
        assert row["active"] == (here & (roles == ACTIVE)).sum(), "active EVs of a plane are counted wrongly"
        assert row["spare"] == (here & (roles == SPARE)).sum(), "spare EVs of a plane are counted wrongly"
        if params["same_plane"]:
            assert row["active"] <= row["target"], "a plane carries more than its share"
            assert row["active"] == row["target"] or row["spare"] == 0, "a spare waits while its plane has a gap"


def check_receiver(r: Receiver, i: int) -> None:
    """Assert that the window and the stashed immediates of receiver `i` agree."""
    params, q = r.params[0], r.qp[i]
    window, mask = int(params["window"]), int(params["slot_mask"])
    expected, highest = int(q["expected"]), int(q["highest"])
    assert highest < expected + window, "a packet beyond the window was taken"
    bits = (r.arrived[i][:, None] >> np.arange(32) & 1).reshape(-1)
    assert bits[expected & mask] == 0, "the window should have moved on"
    came = [seq for seq in range(expected, expected + min(window, mask + 1)) if bits[seq & mask]]
    assert not came or came[-1] == highest, "the highest packet is not the highest"
    count = int(q["immediates"])
    seqs = r.stash[i]["seq"][:count].tolist()
    assert seqs == sorted(set(seqs)), "immediates are out of order"
    assert count <= params["immediates"], "more immediates than there is room for"
