"""What comes to an endpoint: packets are received many at a time, checked, and given to the protocol's rules.

A packet changes nothing before it has shown that it is whole, that it is for an open queue pair and comes from its peer
for the first time, and, where it carries data, that its key opens a region which holds all of its bytes. What fails is
counted by its reason and dropped. Payload goes from the receive ring to its place in one copy while it is still in the
cache; where that place adds, the sum is made in the same pass.
"""

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.columns import DATA, NACK, NOTHING, PROBE, SACK
from weft.mrc.rules.endpoint import (
    AGAIN,
    NEW,
    Passage,
    next_immediate,
    next_sack,
    refuse,
    take_data,
    take_operation,
    take_probe,
    take_reply,
)
from weft.mrc.rules.receiver import placement
from weft.mrc.wire import inplace
from weft.mrc.wire import packets as opcodes
from weft.mrc.wire.icrc import ICRC_BYTES, ICRC_START
from weft.mrc.wire.inplace import get16, get32, kind_of, packet_shape, read_check, read_headers
from weft.transport.memory import layout, native
from weft.transport.memory.arithmetic import reduce_at, width_of
from weft.transport.memory.layout import EndpointState, end_of
from weft.transport.messages.transfers import take_word
from weft.transport.packets import departures
from weft.transport.packets.authentication import CHANGEABLE, HEADER_TRAILER_BYTES, is_proved, trailer_bytes
from weft.transport.packets.departures import Frame, capture, send_answer, send_reply, shim_loses
from weft.transport.packets.shared import fetch_shared, free_shared, waiting_in

_apart, _crc_at, _move, _recvmmsg = native.apart, native.crc_at, native.move, native.recvmmsg
_CONTEXT_MASK = 0xFFFF
_OVERSIZED = 0x20
"""Flag of a datagram that was cut off because it is longer than its place: it is none of ours."""


@rule
def receive_batch(state: EndpointState, now_ps: int) -> int:
    """Take in what the socket holds, one ring at most; return how many packets that were."""
    hub = state.hub[0]
    for slot in range(layout.RX_SLOTS):
        # The kernel writes how much it said into the room that it was given.
        state.rx_msg[slot, 5] = layout.CONTROL_WORDS * 8
    count = _recvmmsg(hub["socket"], state.rx_at[1], layout.RX_SLOTS, departures.DONT_WAIT, 0)
    if count <= 0:
        return 0
    hub["batches_in"] += 1
    for slot in range(count):
        # Word 7 of an `mmsghdr` is the length that came, padded; word 6 holds the flags of the message.
        size = state.rx_msg[slot, 7] & 0xFFFFFFFF
        if state.rx_msg[slot, 6] & _OVERSIZED:
            hub["wrong_length"] += 1
        else:
            hub["traffic_class"] = _traffic_class(state, slot)
            take_packet(state, slot * hub["slot_bytes"], size, now_ps)
    _acknowledge_all(state, now_ps)
    return count


@rule
def _acknowledge_all(state: EndpointState, now_ps: int) -> None:
    """Answer once for each queue pair and batch: one SACK then stands for up to a ring of packets."""
    for pair in range(state.hub[0]["queue_pairs"]):
        if state.peers[pair]["waiting"]:
            state.peers[pair]["waiting"] = 0
            acknowledge(state, pair, now_ps)


@rule
def receive_shared(state: EndpointState, now_ps: int) -> int:
    """Take in what the rings of shared memory hold, as many of each as of the socket; return how many that was."""
    hub = state.hub[0]
    if hub["rings"] == 0:
        return 0
    done = 0
    hub["traffic_class"] = 0
    for pair in range(hub["queue_pairs"]):
        count = min(waiting_in(state, pair), layout.RX_SLOTS)
        for _ in range(count):
            size = fetch_shared(state, pair)
            hub["shared_pair"] = pair
            if size < 0:
                hub["wrong_length"] += 1
            else:
                take_packet(state, layout.RX_SLOTS * hub["slot_bytes"], size, now_ps)
            free_shared(state, pair)
        hub["shared_in"] += count
        done += count
    hub["shared_pair"] = -1
    hub["payload_from"] = state.rx_at[0]
    if done > 0:
        _acknowledge_all(state, now_ps)
    return done


@rule
def _traffic_class(state: EndpointState, slot: int) -> int:
    """Return the traffic class that the kernel says a packet of the ring came with; 0 where it says none."""
    said = state.rx_control[slot]
    if state.rx_msg[slot, 5] < layout.MESSAGE_WORDS * 8 or said[1] != state.hub[0]["class_message"]:
        return 0
    return said[2] & 0xFF


@rule
def _trimmed(state: EndpointState) -> int:
    """Return whether the packet at hand was cut to its headers: 0, or the NACK's reason."""
    dscp = state.hub[0]["traffic_class"] >> 2
    if dscp == opcodes.TRIMMED_DSCP:
        return opcodes.TRIMMED
    return opcodes.TRIMMED_LASTHOP if dscp == opcodes.TRIMMED_LAST_HOP_DSCP else 0


@rule
def _count_wrong(hub: np.void, wrong: int) -> None:
    """Count what `packet_shape` or `read_headers` found wrong."""
    if wrong == inplace.TOO_SHORT:
        hub["too_short"] += 1
    elif wrong == inplace.UNKNOWN_OPCODE:
        hub["unknown_opcode"] += 1
    elif wrong == inplace.WRONG_VERSION:
        hub["wrong_version"] += 1
    elif wrong == inplace.WRONG_CHECK:
        hub["wrong_check"] += 1
    elif wrong == inplace.WRONG_LENGTH:
        hub["wrong_length"] += 1
    else:
        hub["wrong_reason"] += 1


@rule
def _wrong_check(state: EndpointState, base: int, size: int) -> bool:
    """Return whether the ICRC of the datagram of `size` bytes at `base` does not fit it."""
    data = state.rx
    # Switches may have changed this byte, so the check was made as if it were all ones; then it is put back.
    kept = data[base + CHANGEABLE]
    data[base + CHANGEABLE] = 0xFF
    found = _crc_at(state.rx_at[0] + base, size - ICRC_BYTES, ICRC_START, state.scratch)
    data[base + CHANGEABLE] = kept
    return found != read_check(data, base + size - ICRC_BYTES)


@rule
def _read(state: EndpointState, base: int, size: int, trimmed: bool) -> int:
    """Read the headers of the datagram of `size` bytes at `base`; return FINE or what is wrong."""
    hub = state.hub[0]
    data = state.rx
    start = base + layout.PREFIX
    trailer = ICRC_BYTES
    if hub["authenticate"]:
        trailer = trailer_bytes(1 if data[start] <= opcodes.ONLY_IMMEDIATE and not trimmed else 0)
    if hub["shared_pair"] >= 0:
        trailer = 0
    elif trimmed and not hub["authenticate"]:
        # The check stood behind the payload and went with it.
        trailer = 0
    body_end = base + size - trailer
    wrong = packet_shape(data, start, body_end, trimmed)
    # Only an ICRC is so long; through shared memory nothing stands behind a packet.
    if wrong == inplace.FINE and trailer == ICRC_BYTES and hub["check"] and _wrong_check(state, base, size):
        wrong = inplace.WRONG_CHECK
    return read_headers(data, start, body_end, trimmed, state.seen[0]) if wrong == inplace.FINE else wrong


@rule
def take_packet(state: EndpointState, base: int, size: int, now_ps: int) -> None:
    """Take in the datagram of `size` bytes at `base` in the receive ring."""
    _apart()
    hub = state.hub[0]
    data, view = state.rx, state.seen[0]
    hub["packets_in"] += 1
    hub["bytes_in"] += size
    cut = _trimmed(state)
    trimmed = cut > 0
    wrong = _read(state, base, size, trimmed)
    if wrong != inplace.FINE:
        _count_wrong(hub, wrong)
        return
    pair = _queue_pair(state, data, base, view)
    if pair < 0:
        hub["no_queue_pair"] += 1
        return
    if _is_strange(state, pair, base):
        hub["wrong_source"] += 1
        return
    if hub["authenticate"] and hub["shared_pair"] < 0:
        # Of a packet that was cut only the headers can be proved, and only they are used.
        length = view["length"] if view["opcode"] <= opcodes.ONLY_IMMEDIATE and not trimmed else 0
        if not is_proved(state, pair, base, view["payload_at"], length):
            return
        view["payload_at"] += HEADER_TRAILER_BYTES
    value = get32(data, base)
    stride = hub["stride"]
    if value >= stride * state.sender.params[0]["planes"]:
        hub["wrong_ev"] += 1
        return
    if hub["capture_on"]:
        capture(state, pair, Frame(departures.INWARD, value, state.rx_at[0] + base, size, size), now_ps)
    if shim_loses(state, value // stride):
        hub["shim_in"] += 1
        return
    state.heard_on[pair, value // stride] = now_ps
    marked = 1 if hub["traffic_class"] & opcodes.ECN_MARKED == opcodes.ECN_MARKED else 0
    _take(state, pair, Passage(value, value // stride, marked, cut), now_ps)


@rule
def _is_strange(state: EndpointState, pair: int, base: int) -> bool:
    """Return whether the packet at `base` does not come from where the peer of its queue pair sends."""
    hub, peer = state.hub[0], state.peers[pair]
    if hub["shared_pair"] >= 0:
        return pair != hub["shared_pair"]
    return state.rx_names[base // hub["slot_bytes"], 0] & peer["source_mask"] != peer["source"]


@rule
def _queue_pair(state: EndpointState, data: np.ndarray, base: int, view: np.void) -> int:
    """Return the queue pair that a packet is for, or -1."""
    opcode = view["opcode"]
    number = view["queue_pair"]
    mask = -1
    if opcode == opcodes.ENDPOINT_REQUEST:
        number = get16(data, base + departures.CONTEXT_REQUEST)
        mask = _CONTEXT_MASK
    elif opcode == opcodes.ENDPOINT_RESPONSE:
        number = get16(data, base + departures.CONTEXT_RESPONSE)
        mask = _CONTEXT_MASK
    # The low bits of a number are the row; the random rest proves that the packet means this opening of it.
    pair = number & layout.INDEX_MASK
    if (
        pair >= state.hub[0]["queue_pairs"]
        or state.peers[pair]["open"] == 0
        or state.peers[pair]["number"] & mask != number
    ):
        return -1
    return pair


@rule
def _take(state: EndpointState, pair: int, passage: Passage, now_ps: int) -> None:
    """Give a whole packet for queue pair `pair` to the rules."""
    _apart()
    view = state.seen[0]
    kind = kind_of(view)
    view["kind"] = kind
    end = end_of(state, pair)
    if kind == DATA:
        if not _take_data(state, pair, passage, now_ps):
            return
    elif kind in (SACK, NACK):
        window, skipping = state.sender.qp[pair]["cwnd"], state.sender.qp[pair]["skipping"]
        take_reply(end, view, now_ps)
        _count_congestion(state, pair, window, skipping)
    elif kind == PROBE:
        take_probe(end, view, passage, now_ps)
        state.peers[pair]["waiting"] = 1
    elif kind != NOTHING and take_operation(end, view, passage, now_ps, state.reply[0]) != NOTHING:
        send_answer(state, pair, passage, now_ps)
    _heard(state, pair, now_ps)
    state.peers[pair]["dirty"] = 1


@rule
def _count_congestion(state: EndpointState, pair: int, window: int, skipping: int) -> None:
    """Count what an answer did beyond acknowledging: `window` and `skipping` are those before it."""
    peer, sender = state.peers[pair], state.sender.qp[pair]
    peer["window_cuts"] += sender["cwnd"] < window
    peer["skips"] += max(sender["skipping"] - skipping, 0)


@rule
def _heard(state: EndpointState, pair: int, now_ps: int) -> None:
    """Note that the peer is there, and how long that took where it was waited for."""
    peer = state.peers[pair]
    if peer["watched"]:
        # Buckets by powers of two of 2**20 ps, about a microsecond: coarse, but one addition for each packet.
        gap = (now_ps - peer["heard_ps"]) >> 20
        bucket = 0
        while gap > 0:
            gap >>= 1
            bucket += 1
        state.gaps[pair, bucket] += 1
    peer["heard_ps"] = now_ps
    peer["asks"] = 0


@rule
def _take_data(state: EndpointState, pair: int, passage: Passage, now_ps: int) -> bool:
    """Take in one data packet; return whether it was one that may be."""
    _apart()
    hub = state.hub[0]
    view = state.seen[0]
    key, length = view["key"], view["length"]
    region = state.regions[key & layout.INDEX_MASK]
    if passage.trimmed == 0 and (region["open"] == 0 or region["key"] != key):
        hub["wrong_key"] += 1
        return False
    offset = placement(view["address"], length, region["address"], region["size"])
    adds = region["adds"]
    # Packets of a sum must hold whole elements; widths are powers of two, so one mask tests both ends.
    broken = adds > 0 and (offset | length) & (width_of(adds - 1) - 1) != 0
    if passage.trimmed == 0 and (offset < 0 or length > state.receiver.params[0]["payload"] or broken):
        hub["out_of_bounds"] += 1
        return False
    hub["marked_in"] += passage.marked
    outcome = take_data(end_of(state, pair), view, passage, now_ps)
    # Only now: a duplicate must never be added twice, nor written over what was meanwhile reused.
    if outcome == NEW and adds > 0:
        reduce_at(
            adds - 1, region["address"] + offset, hub["payload_from"] + view["payload_at"], length // width_of(adds - 1)
        )
    elif outcome == NEW:
        _move(region["address"] + offset, hub["payload_from"] + view["payload_at"], length)
    elif outcome == AGAIN:
        hub["replayed"] += 1
    else:
        hub["trimmed_in"] += 1 if passage.trimmed else 0
        hub["refused"] += 0 if passage.trimmed else 1
        if refuse(end_of(state, pair), view, passage, now_ps, state.reply[0]) != NOTHING:
            send_reply(state, pair, now_ps)
    # What came trimmed may have come whole before, and then a SACK says so.
    state.peers[pair]["waiting"] = 1
    return True


@rule
def acknowledge(state: EndpointState, pair: int, now_ps: int) -> None:
    """Send the SACKs that are due and hand on the immediates whose bytes have all landed."""
    _apart()
    end = end_of(state, pair)
    while next_sack(end, now_ps, state.reply[0]) != NOTHING:
        send_reply(state, pair, now_ps)
    hub = state.hub[0]
    # Immediates wait in the protocol while Python is behind; the room left is for ends of queue pairs and programs.
    while hub["events_head"] - hub["events_tail"] < layout.EVENTS - 256:
        immediate = next_immediate(end, now_ps)
        if immediate < 0:
            break
        if state.peers[pair]["engine"]:
            take_word(state, pair, immediate, now_ps)
        else:
            report(state, layout.IMMEDIATE, pair, immediate, 0)


@rule
def report(state: EndpointState, kind: int, pair: int, tag: int, status: int) -> None:
    """Add an event for Python to read; the caller has made sure that there is room."""
    _apart()
    hub = state.hub[0]
    row = state.events[hub["events_head"] % layout.EVENTS]
    row[0], row[1], row[2], row[3] = kind, pair, tag, status
    hub["events_head"] += 1
