"""The responder: accepts packets in any order, says where their bytes go, and acknowledges.

There is no reorder buffer: each packet carries its address, and a bitmap of the window remembers what came. `receive`
answers what to do with a packet, `take_sack` gives the SACKs that are due, `take_immediate` the immediates that may be
delivered: in order, and only after everything before them has landed.

A SACK's bitmap covers 64 PSNs: what it reports, and as many before that as there is room for, so that a SACK which is
lost is made up for by the next ones. It is due when enough bytes came, and at once for a
packet that asks for it, is marked, was sent again or came twice, and for a reliability probe (facts section 4.3); and,
ours, for the one that completes everything up to a packet that asked, because the last packet of a message often comes
before others: so coalescing never leaves the end of a message unanswered.
"""

from typing import NamedTuple

from weft.core.compile.rules import rule
from weft.mrc.columns import ERROR_IMMEDIATES, LOW32, NACK, NEVER, NOTHING, SACK, Receiver, ReplyRow
from weft.mrc.rules.numbers import psn_of, seq_near
from weft.mrc.wire.packets import PSN_OOR_WINDOW, TRIMMED, TRIMMED_LASTHOP, UNEXP_EVENT, VERDICT_SKIP_ONCE

ACCEPTED, DUPLICATE, OUTSIDE, REFUSED = 0, 1, 2, 3
"""What `receive` answers: place the bytes; they came before; out of the window; the queue pair has failed."""
_WORD_BITS, _WORD_SHIFT, _WORD_MASK = 32, 5, 31
_BLOCK = 64
_UNIT_SHIFT = 8
_UNITS_MASK = 0xFFFFFF
_MOST_OOO = 0x7FFF
_HALF_OFFSET = 0x8000


@rule
def start_receiver(receiver: Receiver, pair: int, word: int, first_seq: int) -> None:
    """Make the receiver of queue pair `pair` ready for packets from `first_seq` on.

    Writes `word`, `expected`, `highest`, `asked`, `report_low`, `report_high`, `reverse_probe_ev`, `came_ev`,
    `heard_ps` and `heard`.
    """
    qp = receiver.qp[pair]
    qp["word"] = word
    qp["expected"] = first_seq
    qp["highest"] = first_seq - 1
    qp["asked"] = first_seq - 1
    qp["report_low"] = 0
    qp["report_high"] = qp["reverse_probe_ev"] = qp["came_ev"] = qp["heard_ps"] = -1
    for plane in range(receiver.heard.shape[1]):
        receiver.heard[pair, plane] = -NEVER


class DataHeader(NamedTuple):
    """What a receiver reads of a data packet."""

    psn: int
    value: int
    """The 32 bits of the EV that it came on."""
    marked: int
    """Whether a switch set ECN's mark."""
    retransmission: int
    ack_request: int
    length: int
    immediate: int
    """-1 for none."""


@rule
def receive(receiver: Receiver, pair: int, header: DataHeader, now_ps: int) -> int:
    """Take in one data packet and return ACCEPTED where its bytes are to be placed, else why not.

    Writes `heard_ps`, `came_ev`, `outside`, `error`, `asked`, `accepted`, `received_bytes`, `arrived`, `highest`,
    `duplicates`, `trigger`, `trigger_ev`, `marked` and `verdict`.
    """
    params = receiver.params[0]
    qp = receiver.qp[pair]
    if qp["error"] != 0:
        return REFUSED
    seq = seq_near(header.psn, qp["expected"])
    if seq >= qp["expected"] + params["window"]:
        qp["outside"] += 1
        return OUTSIDE
    fresh = seq >= qp["expected"] and not has_packet(receiver, pair, seq)
    if fresh and header.immediate >= 0 and not _stash(receiver, pair, seq, header.immediate):
        qp["error"] = ERROR_IMMEDIATES
        return REFUSED
    qp["heard_ps"] = now_ps
    qp["came_ev"] = header.value
    if header.ack_request:
        qp["asked"] = max(qp["asked"], seq)
    # Before the window moves: whether this packet is the one that completes what was asked for.
    unanswered = qp["asked"] >= qp["expected"]
    if fresh:
        qp["accepted"] += 1
        qp["received_bytes"] += header.length
        receiver.arrived[pair, (seq & params["slot_mask"]) >> _WORD_SHIFT] |= 1 << (seq & _WORD_MASK)
        qp["highest"] = max(qp["highest"], seq)
        _advance(receiver, pair)
    else:
        qp["duplicates"] += 1
    completed = unanswered and qp["asked"] < qp["expected"]
    now = not fresh or completed or header.marked != 0 or header.retransmission != 0 or header.ack_request != 0
    _report(receiver, pair, seq, header.length, now)
    if qp["verdict"] == 0:
        # A mark that has not been reported yet keeps its place: it must not be laid on another path.
        qp["trigger"] = seq
        qp["trigger_ev"] = header.value
    if header.marked:
        qp["marked"] += 1
        qp["verdict"] = VERDICT_SKIP_ONCE
    return ACCEPTED if fresh else DUPLICATE


@rule
def has_packet(receiver: Receiver, pair: int, seq: int) -> bool:
    """Return whether packet `seq` of the window has come."""
    return receiver.arrived[pair, (seq & receiver.params[0]["slot_mask"]) >> _WORD_SHIFT] >> (seq & _WORD_MASK) & 1 == 1


@rule
def _advance(receiver: Receiver, pair: int) -> None:
    """Move the window on over everything that has come, and forget it. Writes `arrived` and `expected`."""
    qp = receiver.qp[pair]
    while has_packet(receiver, pair, qp["expected"]):
        seq = qp["expected"]
        receiver.arrived[pair, (seq & receiver.params[0]["slot_mask"]) >> _WORD_SHIFT] &= ~(1 << (seq & _WORD_MASK))
        qp["expected"] = seq + 1


@rule
def _report(receiver: Receiver, pair: int, seq: int, length: int, now: bool) -> None:
    """Add packet `seq` to what the next SACK has to report, and decide whether that is due."""
    params = receiver.params[0]
    qp = receiver.qp[pair]
    if qp["report_high"] < qp["report_low"]:
        qp["report_low"] = seq
        qp["report_high"] = seq
    qp["report_low"] = min(qp["report_low"], seq)
    qp["report_high"] = max(qp["report_high"], seq)
    qp["unreported_bytes"] += max(length, params["ack_packet_bytes"])
    if now or qp["unreported_bytes"] >= params["ack_bytes"]:
        qp["due"] = 1


@rule
def take_sack(receiver: Receiver, pair: int, out: ReplyRow) -> int:
    """Fill `out` with a SACK that is due and return SACK, or return NOTHING; call it until it does.

    Writes `verdict`, `report_low`, `probe_due`, `due`, `unreported_bytes` and `report_high`.
    """
    qp = receiver.qp[pair]
    if qp["probe_due"]:
        qp["probe_due"] = 0
        _write_sack(receiver, pair, qp["expected"], qp["probe_id"], out)
        out["probe_response"] = 1
        return SACK
    if not qp["due"]:
        return NOTHING
    cack = qp["expected"] - 1
    # From the first packet to report on, but as far back as 64 places that end with the last one allow.
    at = min(max(qp["report_low"], qp["expected"]), max(qp["report_high"] + 1 - _BLOCK, qp["expected"]))
    offset = qp["trigger"] - cack
    known = -_HALF_OFFSET <= offset < _HALF_OFFSET
    _write_sack(receiver, pair, at, offset if known else 0, out)
    # A duplicate from too long ago to be named is acknowledged, but blames and clears no path.
    out["value"] = qp["trigger_ev"] if known else -1
    out["verdict"] = qp["verdict"] if known else 0
    qp["verdict"] = 0
    qp["report_low"] = at + _BLOCK
    if qp["report_low"] > qp["report_high"]:
        qp["due"] = 0
        qp["unreported_bytes"] = 0
        qp["report_low"] = 0
        qp["report_high"] = -1
    return SACK


@rule
def _write_sack(receiver: Receiver, pair: int, base: int, offset: int, out: ReplyRow) -> None:
    """Write a SACK whose bitmap covers the 64 packets from `base` on. Writes `sacks`."""
    params = receiver.params[0]
    qp = receiver.qp[pair]
    cack = qp["expected"] - 1
    beyond = base <= qp["highest"]
    qp["sacks"] += 1
    out["kind"] = SACK
    out["cack_psn"] = psn_of(cack)
    out["ack_psn_offset"] = offset
    out["value"] = out["verdict"] = out["probe_response"] = out["reason"] = out["penalty"] = 0
    out["mpr"] = params["mpr"]
    out["sack_offset"] = base - cack
    # Beyond the window a place in the bitmap belongs to an older packet.
    left = qp["expected"] + params["slot_mask"] + 1 - base
    out["bitmap_low"] = _first_bits(_word_from(receiver, pair, base), left) if beyond else 0
    out["bitmap_high"] = _first_bits(_word_from(receiver, pair, base + _WORD_BITS), left - _WORD_BITS) if beyond else 0
    out["received_units"] = (qp["received_bytes"] >> _UNIT_SHIFT) & _UNITS_MASK
    out["ooo_count"] = min(max(qp["highest"] - cack, 0), _MOST_OOO)
    out["stamp"] = qp["stamp"]


@rule
def _word_from(receiver: Receiver, pair: int, seq: int) -> int:
    """Return the bits of the 32 packets from `seq` on."""
    mask = receiver.params[0]["slot_mask"]
    # A word from the middle of one aligned word to the middle of the next; entries of `arrived` use 32 of 64 bits.
    shift = seq & _WORD_MASK
    low = receiver.arrived[pair, (seq & mask) >> _WORD_SHIFT] >> shift
    return low | (receiver.arrived[pair, ((seq + _WORD_BITS) & mask) >> _WORD_SHIFT] << (_WORD_BITS - shift)) & LOW32


@rule
def _first_bits(word: int, count: int) -> int:
    """Return the lowest `count` bits of a word of 32."""
    return word & ((1 << min(max(count, 0), _WORD_BITS)) - 1)


@rule
def receive_trimmed(receiver: Receiver, pair: int, psn: int, value: int, last_hop: int, out: ReplyRow) -> int:
    """Take in a packet without its payload: fill `out` with a NACK, or make a SACK due where it came before.

    Writes `trimmed`, `outside`, `duplicates`, `trigger` and `trigger_ev`.
    """
    params = receiver.params[0]
    qp = receiver.qp[pair]
    if qp["error"] != 0:
        return NOTHING
    qp["trimmed"] += 1
    seq = seq_near(psn, qp["expected"])
    if seq >= qp["expected"] + params["window"]:
        qp["outside"] += 1
        return write_nack(receiver, pair, PSN_OOR_WINDOW, psn, value, out)
    if seq < qp["expected"] or has_packet(receiver, pair, seq):
        qp["duplicates"] += 1
        if qp["verdict"] == 0:
            qp["trigger"] = seq
            # The copy that came whole took another path: naming no EV keeps this one from being judged by it.
            qp["trigger_ev"] = -1
        _report(receiver, pair, seq, 0, True)
        return NOTHING
    return write_nack(receiver, pair, TRIMMED_LASTHOP if last_hop else TRIMMED, psn, value, out)


@rule
def write_nack(receiver: Receiver, pair: int, reason: int, psn: int, value: int, out: ReplyRow) -> int:
    """Fill `out` with a NACK of one packet and return NACK. Writes `nacks`."""
    receiver.qp[pair]["nacks"] += 1
    out["kind"] = NACK
    out["reason"] = reason
    out["psn"] = psn
    out["value"] = value
    out["stamp"] = receiver.qp[pair]["stamp"]
    return NACK


@rule
def refusal(receiver: Receiver, pair: int, verdict: int, psn: int, value: int, out: ReplyRow) -> int:
    """Fill `out` with the NACK that a packet which `receive` did not take calls for, if any."""
    if verdict == OUTSIDE:
        return write_nack(receiver, pair, PSN_OOR_WINDOW, psn, value, out)
    if verdict == REFUSED:
        return write_nack(receiver, pair, UNEXP_EVENT, psn, value, out)
    return NOTHING


@rule
def on_probe(receiver: Receiver, pair: int, number: int, value: int, now_ps: int) -> None:
    """Take in a reliability probe that came on EV bits `value`: a SACK is due at once, from the first gap on.

    Writes `probe_due`, `probe_id`, `heard_ps` and `came_ev`.
    """
    qp = receiver.qp[pair]
    qp["probe_due"] = 1
    qp["probe_id"] = number
    qp["heard_ps"] = now_ps
    qp["came_ev"] = value


@rule
def _stash(receiver: Receiver, pair: int, seq: int, immediate: int) -> bool:
    """Keep an immediate in order of sequence numbers; return whether there was room."""
    qp = receiver.qp[pair]
    count = qp["immediates"]
    if count >= receiver.params[0]["immediates"]:
        return False
    # Insertion from the end: immediates mostly come in order, and there are few of them.
    at = count
    while at > 0 and receiver.stash[pair, at - 1]["seq"] > seq:
        receiver.stash[pair, at]["seq"] = receiver.stash[pair, at - 1]["seq"]
        receiver.stash[pair, at]["immediate"] = receiver.stash[pair, at - 1]["immediate"]
        at -= 1
    receiver.stash[pair, at]["seq"] = seq
    receiver.stash[pair, at]["immediate"] = immediate
    qp["immediates"] = count + 1
    return True


@rule
def take_immediate(receiver: Receiver, pair: int) -> int:
    """Return the next immediate that everything before it has landed for, or -1.

    Writes `immediates`, `seq` and `immediate`.
    """
    qp = receiver.qp[pair]
    count = qp["immediates"]
    if count == 0 or receiver.stash[pair, 0]["seq"] >= qp["expected"]:
        return -1
    found = receiver.stash[pair, 0]["immediate"]
    for at in range(1, count):
        receiver.stash[pair, at - 1]["seq"] = receiver.stash[pair, at]["seq"]
        receiver.stash[pair, at - 1]["immediate"] = receiver.stash[pair, at]["immediate"]
    qp["immediates"] = count - 1
    return found


@rule
def placement(address: int, length: int, region: int, size: int) -> int:
    """Return where in a region of `size` bytes at `region` a packet's bytes go, or -1 where they do not fit."""
    offset = address - region
    # `offset + length > size` could pass 2^63 by a forged length; the difference cannot.
    if length < 0 or offset < 0 or offset > size - length:
        return -1
    return offset
