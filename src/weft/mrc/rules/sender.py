"""The requester: takes writes, cuts them into packets and says which one goes next and on which EV.

`post` takes a message, `next_data` gives the next packet, lost ones first; acknowledgements come back through `acks`,
time through `control.on_timer`. Nothing is sent here: the caller puts what stands in the `SEND` row on the wire.
"""

from weft.core.compile.rules import replaceable, rule
from weft.mrc.columns import (
    ACTIVE,
    DATA,
    FREE,
    GOOD,
    KEPT,
    NEVER,
    NOTHING,
    MessageRow,
    PacketRow,
    Sender,
    SendRow,
    SettingsRow,
)
from weft.mrc.rules.congestion import cc_allows, cc_start
from weft.mrc.rules.evs import Paths, fill_evs, pick_ev, reachable, usable
from weft.mrc.rules.numbers import mix32, psn_of
from weft.mrc.rules.recovery import link_in_flight, seq_of, unlink_lost
from weft.mrc.wire.packets import FIRST, LAST, LAST_IMMEDIATE, MIDDLE, ONLY, ONLY_IMMEDIATE

POSTED, POST_EMPTY, POST_TOO_LONG, POST_QUEUE_FULL, POST_IMMEDIATES_FULL, POST_CLOSED = 0, 1, 2, 3, 4, 5
"""What `post` answers."""
LONGEST_MESSAGE = 2**32 - 1
"""Bytes of the longest message (facts section 1)."""
_MOST_TRIES = 100
_MSN_MASK = 0xFFFF
_PER_MPR = 128


@rule
def start_sender(sender: Sender, pair: int, word: int, first_seq: int, paths: Paths) -> None:
    """Make queue pair `pair` ready: its random stream, its first sequence number, its EVs (see `fill_evs`).

    Writes `word`, `draws`, `drawn`, `una`, `next`, `end`, `granted`, `oldest`, `newest`, `lost_first`, `lost_last`,
    `passed_order`, `ev_probe_ev`, `heard_ps`, `active_ps`, `probe_sent_ps`, `passed_ps`, `spread_at_ps`,
    `announced_ps`, `stalled_ps`, `ports_due_ps`, `spread_ps`, `local_up`, `peer_up`, `ports_announced`, `state`, `ev`,
    `before`, `due_ps`, `up` and `reverse`.
    """
    params = sender.params[0]
    qp = sender.qp[pair]
    qp["word"] = word
    qp["draws"] = 0
    qp["drawn"] = mix32(word, 0)
    qp["una"] = qp["next"] = qp["end"] = first_seq
    qp["granted"] = params["window"]
    # No EV yet in any slot: `transmission` must not take row 0 for an answer to what was never sent.
    for slot in range(params["slot_mask"] + 1):
        packet = sender.packets[pair, slot]
        packet["state"] = FREE
        packet["ev"] = packet["before"] = -1
    qp["oldest"] = qp["newest"] = qp["lost_first"] = qp["lost_last"] = -1
    qp["passed_order"] = qp["ev_probe_ev"] = -1
    qp["heard_ps"] = qp["active_ps"] = qp["probe_sent_ps"] = -1
    qp["passed_ps"] = qp["spread_at_ps"] = qp["announced_ps"] = -NEVER
    qp["stalled_ps"] = qp["ports_due_ps"] = NEVER
    qp["spread_ps"] = params["spread_ps"]
    qp["local_up"] = qp["peer_up"] = qp["ports_announced"] = (1 << params["planes"]) - 1
    for plane in range(params["planes"]):
        row = sender.planes[pair, plane]
        row["due_ps"] = NEVER
        row["up"] = 1
        row["reverse"] = -1
    fill_evs(sender, pair, paths)
    # The first EV of each plane serves answers until something that was sent proves another one.
    for ev_index in range(params["evs"]):
        ev = sender.evs[pair, ev_index]
        if sender.planes[pair, ev["plane"]]["reverse"] < 0 and ev["value"] >= 0:
            sender.planes[pair, ev["plane"]]["reverse"] = ev_index
    cc_start(params, qp)


@rule
def post(sender: Sender, pair: int, address: int, key: int, length: int, immediate: int) -> int:
    """Take one write of `length` bytes to `address`, with an immediate where that is not -1; return its fate.

    Writes `first`, `packets`, `address`, `key`, `length`, `immediate`, `msn`, `msg_end`, `end` and `immediates`.
    """
    params = sender.params[0]
    qp = sender.qp[pair]
    if qp["error"] != 0:
        return POST_CLOSED
    if length <= 0:
        return POST_EMPTY
    if length > LONGEST_MESSAGE:
        return POST_TOO_LONG
    if qp["msg_end"] - qp["msg_first"] >= params["messages"]:
        return POST_QUEUE_FULL
    # The receiver keeps an immediate until all before it has landed: no more may be open than it has room for.
    if immediate >= 0:
        if qp["immediates"] >= params["immediates"]:
            return POST_IMMEDIATES_FULL
        qp["immediates"] += 1
    message = sender.messages[pair, qp["msg_end"] & params["message_mask"]]
    packets = (length + params["payload"] - 1) // params["payload"]
    message["first"] = qp["end"]
    message["packets"] = packets
    message["address"] = address
    message["key"] = key
    message["length"] = length
    message["immediate"] = immediate
    message["msn"] = qp["msn"]
    qp["msn"] = (qp["msn"] + 1) & _MSN_MASK
    qp["msg_end"] += 1
    qp["end"] += packets
    return POSTED


@rule
def packet_length(params: SettingsRow, message: MessageRow, seq: int) -> int:
    """Return the payload of packet `seq` of message `message`."""
    return min(params["payload"], message["length"] - (seq - message["first"]) * params["payload"])


@rule
def window_open(sender: Sender, pair: int) -> bool:
    """Return whether a new packet fits the receiver's window."""
    qp = sender.qp[pair]
    return qp["next"] < qp["end"] and qp["next"] < qp["una"] + qp["granted"]


@rule
def unfinished(sender: Sender, pair: int) -> bool:
    """Return whether anything is left to send, or to send again, whether it may go now or not."""
    qp = sender.qp[pair]
    return qp["next"] < qp["end"] or qp["lost_first"] >= 0


@rule
def next_data(sender: Sender, pair: int, now_ps: int, room: int, out: SendRow) -> int:
    """Fill `out` with the next data packet and return DATA, or return NOTHING.

    `room` has a bit for each plane whose port can take a packet now.
    """
    return next_data_on(sender, pair, -1, now_ps, room, out)


@rule
def sendable(sender: Sender, pair: int) -> bool:
    """Return whether `next_data` would give a packet if every port had room; changes nothing."""
    qp = sender.qp[pair]
    if qp["error"] != 0 or (qp["reach"] & qp["local_up"] & qp["peer_up"] == 0 and qp["stalled_ps"] < NEVER):
        return False
    if qp["lost_first"] >= 0:
        return cc_allows(qp, sender.packets[pair, qp["lost_first"]]["bytes"])
    if not window_open(sender, pair):
        return False
    params = sender.params[0]
    message = sender.messages[pair, qp["msg_next"] & params["message_mask"]]
    return cc_allows(qp, packet_length(params, message, qp["next"]) + params["overhead"])


@rule
def next_data_on(sender: Sender, pair: int, wish: int, now_ps: int, room: int, out: SendRow) -> int:
    """Do what `next_data` does, on EV `wish` where that is not -1, is GOOD and has not just lost the same packet.

    Writes `message`, `bytes`, `tries`, `before`, `gone`, `next` and `msg_next`.
    """
    qp = sender.qp[pair]
    if qp["error"] != 0:
        return NOTHING
    # Lost packets go first: the receiver's window does not move before them.
    if qp["lost_first"] >= 0:
        return _send_again(sender, pair, wish, now_ps, room, out)
    if not window_open(sender, pair):
        return NOTHING
    params = sender.params[0]
    index = qp["msg_next"] & params["message_mask"]
    message = sender.messages[pair, index]
    seq = qp["next"]
    size = packet_length(params, message, seq) + params["overhead"]
    if not cc_allows(qp, size):
        return NOTHING
    # Chosen last: it draws from the random stream and moves the rotation, which nothing may do in vain.
    ev_index = _choose_ev(sender, pair, wish, -1, room)
    if ev_index < 0:
        return _no_path(sender, pair, now_ps)
    slot = seq & params["slot_mask"]
    packet = sender.packets[pair, slot]
    packet["message"] = index
    packet["bytes"] = size
    packet["tries"] = 0
    packet["before"] = -1
    packet["gone"] = KEPT
    qp["next"] += 1
    if qp["next"] == message["first"] + message["packets"]:
        qp["msg_next"] += 1
    _transmit(sender, pair, slot, ev_index, now_ps)
    _describe(sender, pair, slot, out)
    return DATA


@rule
def _choose_ev(sender: Sender, pair: int, wish: int, avoid: int, room: int) -> int:
    """Return the EV that was wished for where it may be used, or else the next of the rotation."""
    if wish >= 0 and wish != avoid:
        ev = sender.evs[pair, wish]
        if ev["state"] == GOOD and ev["role"] == ACTIVE and usable(sender, pair, ev["plane"], room):
            return wish
    return pick_ev(sender, pair, avoid, room)


@rule
def _send_again(sender: Sender, pair: int, wish: int, now_ps: int, room: int, out: SendRow) -> int:
    """Send a lost packet again on a fresh EV, on the one that it was lost on only where there is no other.

    Writes `resent` and `reused_ev`.
    """
    qp = sender.qp[pair]
    slot = qp["lost_first"]
    packet = sender.packets[pair, slot]
    if not cc_allows(qp, packet["bytes"]):
        return NOTHING
    ev_index = _choose_ev(sender, pair, wish, packet["before"], room)
    if ev_index < 0:
        return _no_path(sender, pair, now_ps)
    unlink_lost(sender, pair, slot)
    qp["resent"] += 1
    qp["reused_ev"] += ev_index == packet["before"]
    _transmit(sender, pair, slot, ev_index, now_ps)
    _describe(sender, pair, slot, out)
    return DATA


@rule
def _no_path(sender: Sender, pair: int, now_ps: int) -> int:
    """Note since when no path at all can be used; a port that is merely busy is no such case. Writes `stalled_ps`."""
    qp = sender.qp[pair]
    if qp["stalled_ps"] == NEVER and not reachable(sender, pair):
        qp["stalled_ps"] = now_ps
    return NOTHING


@rule
def _transmit(sender: Sender, pair: int, slot: int, ev_index: int, now_ps: int) -> None:
    """Note one transmission of the packet in `slot` on EV `ev_index`."""
    qp = sender.qp[pair]
    packet = sender.packets[pair, slot]
    packet["ev"] = ev_index
    packet["sent_ps"] = now_ps
    packet["order"] = qp["order"]
    packet["tries"] = min(packet["tries"] + 1, _MOST_TRIES)  # a column of 8 bits
    qp["order"] += 1
    qp["sent"] += 1
    qp["active_ps"] = now_ps
    qp["stalled_ps"] = NEVER
    link_in_flight(sender, pair, slot)


@rule
def _describe(sender: Sender, pair: int, slot: int, out: SendRow) -> None:
    """Write what goes on the wire for the packet in `slot` into `out`."""
    params = sender.params[0]
    packet = sender.packets[pair, slot]
    message = sender.messages[pair, packet["message"]]
    ev = sender.evs[pair, packet["ev"]]
    seq = seq_of(sender, pair, slot)
    last = seq == message["first"] + message["packets"] - 1
    out["kind"] = DATA
    out["psn"] = psn_of(seq)
    out["value"] = ev["value"]
    out["plane"] = ev["plane"]
    out["length"] = packet["bytes"] - params["overhead"]
    out["retransmission"] = 1 if packet["tries"] > 1 else 0
    # The end of a message is waited for; a retransmission is to be answered before it is doubted again.
    # So is what opens a full window, where too little is in flight to make an answer due by itself.
    qp = sender.qp[pair]
    full = qp["inflight_bytes"] <= params["ack_bytes"] and not cc_allows(qp, params["mtu"])
    out["ack_request"] = 1 if last or full or packet["tries"] > 1 else 0
    describe_write(params, packet, message, seq, last, out)


@replaceable("describe_no_write in simulations, where packets carry no bytes")
@rule
def describe_write(
    params: SettingsRow, packet: PacketRow, message: MessageRow, seq: int, last: bool, out: SendRow
) -> None:
    """Write what places the bytes of a packet into `out`, and what the sender knows it by."""
    with_immediate = last and message["immediate"] >= 0
    out["seq"] = seq
    out["ev"] = packet["ev"]
    out["opcode"] = _opcode(seq == message["first"], last, with_immediate)
    out["address"] = message["address"] + (seq - message["first"]) * params["payload"]
    out["key"] = message["key"]
    out["immediate"] = message["immediate"] if with_immediate else -1
    out["msn"] = message["msn"]
    out["bytes"] = packet["bytes"]


@rule
def describe_no_write(
    params: SettingsRow, packet: PacketRow, message: MessageRow, seq: int, last: bool, out: SendRow
) -> None:
    """Take the place of `describe_write` where packets carry no bytes."""


@rule
def _opcode(first: bool, last: bool, with_immediate: bool) -> int:
    """Return the opcode for a packet's place in its message."""
    if first and last:
        return ONLY_IMMEDIATE if with_immediate else ONLY
    if last:
        return LAST_IMMEDIATE if with_immediate else LAST
    return FIRST if first else MIDDLE


@rule
def idle(sender: Sender, pair: int) -> bool:
    """Return whether everything that was posted has been acknowledged."""
    return sender.qp[pair]["una"] == sender.qp[pair]["end"]


@rule
def grant(sender: Sender, pair: int, mpr: int) -> None:
    """Take the receive window of `mpr` x 128 packets that the peer announces, within what the columns hold.

    Writes `granted`.
    """
    if mpr > 0:  # 0 in a SACK means that nothing is said of it
        sender.qp[pair]["granted"] = min(mpr * _PER_MPR, sender.params[0]["window"])
