"""The reverse path: on which EVs a receiver sends its SACKs and NACKs.

One EV for each plane, out of the table of the pair's own sender. SACKs rotate over the planes that are up. An EV
is trusted because something that was sent on it was answered: data SACKs refresh the plane's reverse EV (in `acks`);
where the pair receives but sends nothing, one EV probe in a round trip on an EV drawn at random does (facts section
4.3, from P1 section 2.4); ours, only where a SACK or NACK has gone back since the last one: a NIC that receives on a
hundred queue pairs at once, a little on each, would else spend a twentieth of its link on ways that it hardly uses. So
a dead reverse path costs a share of the SACKs for a few round trips, never all of them. Where there are few planes that
share would be large, and both ends could wait for each other on dead ways: ours, where no probe was answered for two
round trips, or there are few EVs at all, every second answer goes back the way by which the last packet came, and
every second probe takes that way, too: it works in one direction and is most likely to work in the other. Where none
was answered for long, the others take an EV drawn at random.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import DENIED, EV_PROBE, NEVER, NOTHING, Receiver, ReceiverRow, Sender, SendRow
from weft.mrc.rules.evs import usable
from weft.mrc.rules.numbers import draw

REVERSE_ID = 0x8000
"""The bit that tells ids of reverse probes from those of the sender."""
_ID_MASK = 0x7FFF
RECENT_ROUND_TRIPS = 8
"""Base round trips for which a pair that received counts as receiving: its reverse path is probed that long."""
_MOST_DRAWS = 16
_ANY_ROOM = -1
"""Answers are small and go whether the port is busy or not: bits for all of them."""
_FRESH_ROUND_TRIPS = 2
_FEW_EVS = 16
"""With so few EVs each is a large share of all, and one that has died is likely the one that is trusted."""
_ENOUGH_PLANES = 4
"""From so many planes on, one EV for each is enough: a dead one costs a quarter of the SACKs at most."""


@rule
def reverse_ev(sender: Sender, sender_pair: int, receiver: Receiver, pair: int) -> int:
    """Return the EV for the next SACK or NACK of receiver `pair`, planes in turn, or -1 where no plane is up.

    The EVs are those of sender `sender_pair`, the half of the same queue pair that sends.

    Writes `reverse_at`.
    """
    qp = receiver.qp[pair]
    planes = sender.params[0]["planes"]
    if planes < _ENOUGH_PLANES:
        ev_index = _other_way(sender, sender_pair, receiver, pair)
        if ev_index >= 0:
            return ev_index
    for _ in range(planes):
        plane = qp["reverse_at"] + 1 if qp["reverse_at"] + 1 < planes else 0
        qp["reverse_at"] = plane
        if usable(sender, sender_pair, plane, _ANY_ROOM) and sender.planes[sender_pair, plane]["reverse"] >= 0:
            return sender.planes[sender_pair, plane]["reverse"]
    return -1


@rule
def _other_way(sender: Sender, sender_pair: int, receiver: Receiver, pair: int) -> int:
    """Return an EV for every second answer where the one that is trusted could be dead, else -1."""
    qp = receiver.qp[pair]
    if not _is_in_doubt(sender, sender_pair, qp):
        return -1
    qp["reverse_turn"] ^= 1  # every second answer
    ev_index = way_it_came(sender, sender_pair, qp["came_ev"]) if qp["reverse_turn"] else -1
    long_ago = _unproved_ps(sender, sender_pair, qp) > RECENT_ROUND_TRIPS * sender.params[0]["base_rtt_ps"]
    return _drawn(sender, sender_pair, receiver, pair) if ev_index < 0 and long_ago else ev_index


@rule
def _unproved_ps(sender: Sender, sender_pair: int, qp: ReceiverRow) -> int:
    """Return for how long packets have come since any reverse path was last proved."""
    # What the pair itself sends proves its way as a probe does, by being answered.
    return qp["heard_ps"] - max(qp["reverse_good_ps"], sender.qp[sender_pair]["heard_ps"])


@rule
def _is_in_doubt(sender: Sender, sender_pair: int, qp: ReceiverRow) -> bool:
    """Return whether the EV that is trusted could be dead: few there are, or none was proved lately."""
    few = sender.planes[sender_pair, 0]["used"] * sender.params[0]["planes"] <= _FEW_EVS
    rtt_ps = sender.params[0]["base_rtt_ps"]
    return few or _unproved_ps(sender, sender_pair, qp) > _FRESH_ROUND_TRIPS * rtt_ps


@rule
def way_it_came(sender: Sender, sender_pair: int, value: int) -> int:
    """Return the EV of the sender whose bits a packet came with, or -1 where it has none or may not use it."""
    if value < 0:
        return -1
    for ev_index in range(sender.params[0]["evs"]):
        ev = sender.evs[sender_pair, ev_index]
        if ev["value"] == value and ev["state"] != DENIED and usable(sender, sender_pair, ev["plane"], _ANY_ROOM):
            return ev_index
    return -1


@rule
def _drawn(sender: Sender, sender_pair: int, receiver: Receiver, pair: int) -> int:
    """Return an EV of sender `sender_pair` at random whose plane is up, or -1 where none was found."""
    qp = receiver.qp[pair]
    planes = sender.params[0]["planes"]
    places = sender.params[0]["evs"] // planes
    # A pair with few paths has places without an EV at the end of each plane's.
    used = sender.planes[sender_pair, 0]["used"]
    for _ in range(_MOST_DRAWS):
        # Drawn over existing EVs alone, then moved past the empty places of the planes before.
        drawn = draw(qp["word"], qp["reverse_draws"], planes * used)
        drawn += drawn // used * (places - used)
        qp["reverse_draws"] += 1
        if sender.evs[sender_pair, drawn]["state"] != DENIED and usable(
            sender, sender_pair, sender.evs[sender_pair, drawn]["plane"], _ANY_ROOM
        ):
            return drawn
    return -1


@rule
def describe_control(sender: Sender, pair: int, kind: int, ev_index: int, number: int, out: SendRow) -> int:
    """Write a control packet into `out` and return its kind."""
    ev = sender.evs[pair, ev_index]
    out["kind"] = kind
    out["ev"] = ev_index
    out["value"] = ev["value"]
    out["plane"] = ev["plane"]
    out["id"] = number
    out["port_status"] = sender.qp[pair]["local_up"]
    return kind


@rule
def next_reverse_probe(
    sender: Sender, sender_pair: int, receiver: Receiver, pair: int, now_ps: int, out: SendRow
) -> int:
    """Fill `out` with a probe of a random EV of the sender where one is due and return EV_PROBE, or return NOTHING.

    Writes `reverse_probe_ps`, `reverse_replies`, `reverse_probe_id` and `reverse_probe_ev`.
    """
    params = sender.params[0]
    sending = sender.qp[sender_pair]
    qp = receiver.qp[pair]
    receiving = qp["heard_ps"] >= 0 and now_ps - qp["heard_ps"] <= RECENT_ROUND_TRIPS * params["base_rtt_ps"]
    if not receiving or now_ps < qp["reverse_probe_ps"]:
        return NOTHING
    qp["reverse_probe_ps"] = now_ps + params["probe_back_ps"]
    replies = qp["sacks"] + qp["nacks"]
    # A pair that sends has its reverse path proved by the answers to its data.
    if sending["una"] < sending["end"] or replies == qp["reverse_replies"]:
        return NOTHING
    qp["reverse_replies"] = replies
    ev_index = -1
    if _is_in_doubt(sender, sender_pair, qp) and qp["reverse_probe_id"] & 1:
        ev_index = way_it_came(sender, sender_pair, qp["came_ev"])
    if ev_index < 0:
        ev_index = _drawn(sender, sender_pair, receiver, pair)
    if ev_index < 0:
        return NOTHING
    qp["reverse_probe_id"] = (qp["reverse_probe_id"] + 1) & _ID_MASK
    qp["reverse_probe_ev"] = ev_index
    return describe_control(sender, sender_pair, EV_PROBE, ev_index, qp["reverse_probe_id"] | REVERSE_ID, out)


@rule
def on_reverse_answer(sender: Sender, sender_pair: int, receiver: Receiver, pair: int, number: int) -> None:
    """Take in the answer to a reverse probe: its EV becomes the reverse path in its plane.

    Writes `reverse_probe_ev`, `reverse_good_ps` and `reverse`.
    """
    qp = receiver.qp[pair]
    ev_index = qp["reverse_probe_ev"]
    if ev_index >= 0 and number == (qp["reverse_probe_id"] | REVERSE_ID):
        qp["reverse_probe_ev"] = -1
        qp["reverse_good_ps"] = qp["heard_ps"]
        # The controller may have spoken meanwhile: a late answer does not bring a denied EV back.
        if sender.evs[sender_pair, ev_index]["state"] != DENIED:
            sender.planes[sender_pair, sender.evs[sender_pair, ev_index]["plane"]]["reverse"] = ev_index


@rule
def reverse_due_ps(receiver: Receiver, pair: int) -> int:
    """Return when the next probe of the reverse path may be due: only where something came lately."""
    qp = receiver.qp[pair]
    recent_ps = qp["heard_ps"] + RECENT_ROUND_TRIPS * receiver.params[0]["base_rtt_ps"]
    if qp["heard_ps"] >= 0 and qp["reverse_probe_ps"] <= recent_ps:
        return qp["reverse_probe_ps"]
    return NEVER
