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

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import ERROR_IMMEDIATES, LOW32, NACK, NOTHING, SACK
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
def start_receiver(r: Any, i: int, word: int, first_seq: int) -> None:
    """Make the receiving half of queue pair `i` ready for packets from `first_seq` on."""
    q = r.qp[i]
    q["word"] = word
    q["expected"] = first_seq
    q["highest"] = first_seq - 1
    q["asked"] = first_seq - 1
    q["report_low"] = 0
    q["report_high"] = -1
    q["reverse_probe_ev"] = -1
    q["came_ev"] = -1
    q["heard_ps"] = -1


@rule
def receive(
    r: Any,
    i: int,
    psn: int,
    value: int,
    marked: int,
    retransmission: int,
    ack_request: int,
    length: int,
    immediate: int,
    now_ps: int,
) -> int:
    """Take in one data packet and return ACCEPTED where its bytes are to be placed, else why not."""
    params = r.params[0]
    q = r.qp[i]
    if q["error"] != 0:
        return REFUSED
    seq = seq_near(psn, q["expected"])
    if seq >= q["expected"] + params["window"]:
        q["outside"] += 1
        return OUTSIDE
    fresh = seq >= q["expected"] and not has_packet(r, i, seq)
    if fresh and immediate >= 0 and not _stash(r, i, seq, immediate):
        q["error"] = ERROR_IMMEDIATES
        return REFUSED
    q["heard_ps"] = now_ps
    q["came_ev"] = value
    if ack_request:
        q["asked"] = max(q["asked"], seq)
    unanswered = q["asked"] >= q["expected"]
    if fresh:
        q["accepted"] += 1
        q["received_bytes"] += length
        r.arrived[i, (seq & params["slot_mask"]) >> _WORD_SHIFT] |= 1 << (seq & _WORD_MASK)
        q["highest"] = max(q["highest"], seq)
        _advance(r, i)
    else:
        q["duplicates"] += 1
    completed = unanswered and q["asked"] < q["expected"]
    _report(r, i, seq, length, not fresh or completed or marked != 0 or retransmission != 0 or ack_request != 0)
    if q["verdict"] == 0:
        # A mark that has not been told yet keeps its place: it must not be laid on another path.
        q["trigger"] = seq
        q["trigger_ev"] = value
    if marked:
        q["marked"] += 1
        q["verdict"] = VERDICT_SKIP_ONCE
    return ACCEPTED if fresh else DUPLICATE


@rule
def has_packet(r: Any, i: int, seq: int) -> bool:
    """Return whether packet `seq` of the window has come."""
    return r.arrived[i, (seq & r.params[0]["slot_mask"]) >> _WORD_SHIFT] >> (seq & _WORD_MASK) & 1 == 1


@rule
def _advance(r: Any, i: int) -> None:
    """Move the window on over everything that has come, and forget it."""
    q = r.qp[i]
    while has_packet(r, i, q["expected"]):
        seq = q["expected"]
        r.arrived[i, (seq & r.params[0]["slot_mask"]) >> _WORD_SHIFT] &= ~(1 << (seq & _WORD_MASK))
        q["expected"] = seq + 1


@rule
def _report(r: Any, i: int, seq: int, length: int, now: bool) -> None:
    """Add packet `seq` to what the next SACK has to tell, and decide whether that is due."""
    params = r.params[0]
    q = r.qp[i]
    if q["report_high"] < q["report_low"]:
        q["report_low"] = seq
        q["report_high"] = seq
    q["report_low"] = min(q["report_low"], seq)
    q["report_high"] = max(q["report_high"], seq)
    q["unreported_bytes"] += max(length, params["ack_packet_bytes"])
    if now or q["unreported_bytes"] >= params["ack_bytes"]:
        q["due"] = 1


@rule
def take_sack(r: Any, i: int, out: Any) -> int:
    """Fill `out` with a SACK that is due and return SACK, or return NOTHING; call it until it does."""
    q = r.qp[i]
    if q["probe_due"]:
        q["probe_due"] = 0
        _write_sack(r, i, q["expected"], q["probe_id"], out)
        out["probe_response"] = 1
        return SACK
    if not q["due"]:
        return NOTHING
    cack = q["expected"] - 1
    at = min(max(q["report_low"], q["expected"]), max(q["report_high"] + 1 - _BLOCK, q["expected"]))
    offset = q["trigger"] - cack
    known = -_HALF_OFFSET <= offset < _HALF_OFFSET
    _write_sack(r, i, at, offset if known else 0, out)
    # A duplicate from too long ago to be named is acknowledged, but blames and clears no path.
    out["value"] = q["trigger_ev"] if known else -1
    out["verdict"] = q["verdict"] if known else 0
    q["verdict"] = 0
    q["report_low"] = at + _BLOCK
    if q["report_low"] > q["report_high"]:
        q["due"] = 0
        q["unreported_bytes"] = 0
        q["report_low"] = 0
        q["report_high"] = -1
    return SACK


@rule
def _write_sack(r: Any, i: int, base: int, offset: int, out: Any) -> None:
    """Write a SACK whose bitmap covers the 64 packets from `base` on."""
    params = r.params[0]
    q = r.qp[i]
    cack = q["expected"] - 1
    beyond = base <= q["highest"]
    q["sacks"] += 1
    out["kind"] = SACK
    out["cack_psn"] = psn_of(cack)
    out["ack_psn_offset"] = offset
    out["value"] = 0
    out["verdict"] = 0
    out["probe_response"] = 0
    out["reason"] = 0
    out["mpr"] = params["mpr"]
    out["sack_offset"] = base - cack
    # Beyond the window a place in the bitmap belongs to an older packet.
    left = q["expected"] + params["slot_mask"] + 1 - base
    out["bitmap_low"] = _first_bits(_word_from(r, i, base), left) if beyond else 0
    out["bitmap_high"] = _first_bits(_word_from(r, i, base + _WORD_BITS), left - _WORD_BITS) if beyond else 0
    out["received_units"] = (q["received_bytes"] >> _UNIT_SHIFT) & _UNITS_MASK
    out["ooo_count"] = min(max(q["highest"] - cack, 0), _MOST_OOO)
    out["penalty"] = 0
    out["stamp"] = q["stamp"]


@rule
def _word_from(r: Any, i: int, seq: int) -> int:
    """Return the bits of the 32 packets from `seq` on."""
    mask = r.params[0]["slot_mask"]
    shift = seq & _WORD_MASK
    low = r.arrived[i, (seq & mask) >> _WORD_SHIFT] >> shift
    return low | (r.arrived[i, ((seq + _WORD_BITS) & mask) >> _WORD_SHIFT] << (_WORD_BITS - shift)) & LOW32


@rule
def _first_bits(word: int, count: int) -> int:
    """Return the lowest `count` bits of a word of 32."""
    return word & ((1 << min(max(count, 0), _WORD_BITS)) - 1)


@rule
def receive_trimmed(r: Any, i: int, psn: int, value: int, last_hop: int, out: Any) -> int:
    """Take in a packet without its payload: fill `out` with a NACK, or make a SACK due where it came before."""
    params = r.params[0]
    q = r.qp[i]
    if q["error"] != 0:
        return NOTHING
    q["trimmed"] += 1
    seq = seq_near(psn, q["expected"])
    if seq >= q["expected"] + params["window"]:
        q["outside"] += 1
        return write_nack(r, i, PSN_OOR_WINDOW, psn, value, out)
    if seq < q["expected"] or has_packet(r, i, seq):
        q["duplicates"] += 1
        if q["verdict"] == 0:
            q["trigger"] = seq
            # The copy that came whole took another path: naming no EV keeps this one from being judged by it.
            q["trigger_ev"] = -1
        _report(r, i, seq, 0, True)
        return NOTHING
    return write_nack(r, i, TRIMMED_LASTHOP if last_hop else TRIMMED, psn, value, out)


@rule
def write_nack(r: Any, i: int, reason: int, psn: int, value: int, out: Any) -> int:
    """Fill `out` with a NACK of one packet and return NACK."""
    r.qp[i]["nacks"] += 1
    out["kind"] = NACK
    out["reason"] = reason
    out["psn"] = psn
    out["value"] = value
    out["stamp"] = r.qp[i]["stamp"]
    return NACK


@rule
def refusal(r: Any, i: int, verdict: int, psn: int, value: int, out: Any) -> int:
    """Fill `out` with the NACK that a packet which `receive` did not take calls for, if any."""
    if verdict == OUTSIDE:
        return write_nack(r, i, PSN_OOR_WINDOW, psn, value, out)
    if verdict == REFUSED:
        return write_nack(r, i, UNEXP_EVENT, psn, value, out)
    return NOTHING


@rule
def on_probe(r: Any, i: int, number: int, value: int, now_ps: int) -> None:
    """Take in a reliability probe that came on EV bits `value`: a SACK is due at once, from the first gap on."""
    q = r.qp[i]
    q["probe_due"] = 1
    q["probe_id"] = number
    q["heard_ps"] = now_ps
    q["came_ev"] = value


@rule
def _stash(r: Any, i: int, seq: int, immediate: int) -> bool:
    """Keep an immediate in order of sequence numbers; return whether there was room."""
    q = r.qp[i]
    count = q["immediates"]
    if count >= r.params[0]["immediates"]:
        return False
    at = count
    while at > 0 and r.stash[i, at - 1]["seq"] > seq:
        r.stash[i, at]["seq"] = r.stash[i, at - 1]["seq"]
        r.stash[i, at]["immediate"] = r.stash[i, at - 1]["immediate"]
        at -= 1
    r.stash[i, at]["seq"] = seq
    r.stash[i, at]["immediate"] = immediate
    q["immediates"] = count + 1
    return True


@rule
def take_immediate(r: Any, i: int) -> int:
    """Return the next immediate that everything before it has landed for, or -1."""
    q = r.qp[i]
    count = q["immediates"]
    if count == 0 or r.stash[i, 0]["seq"] >= q["expected"]:
        return -1
    found = r.stash[i, 0]["immediate"]
    for at in range(1, count):
        r.stash[i, at - 1]["seq"] = r.stash[i, at]["seq"]
        r.stash[i, at - 1]["immediate"] = r.stash[i, at]["immediate"]
    q["immediates"] = count - 1
    return found


@rule
def placement(address: int, length: int, region: int, size: int) -> int:
    """Return where in a region of `size` bytes at `region` a packet's bytes go, or -1 where they do not fit."""
    offset = address - region
    if length < 0 or offset < 0 or offset > size - length:
        return -1
    return offset
