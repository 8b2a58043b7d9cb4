"""The way back: on which EVs a receiver sends its SACKs and NACKs.

One EV for each plane, out of the table of the pair's own sending half. SACKs rotate over the planes that are up. An EV
is trusted because something that was sent on it was answered: data SACKs refresh the plane's reverse EV (in `acks`);
where the pair receives but sends nothing, one EV probe in a round trip on an EV drawn at random does (facts section
4.3, from P1 section 2.4); ours, only where a SACK or NACK has gone back since the last one: a NIC that receives on a
hundred queue pairs at once, a little on each, would else spend a twentieth of its link on ways that it hardly uses. So
a dead way back costs a share of the SACKs for a few round trips, never all of them. Where there are few planes that
share would be large, and both ends could wait for each other on dead ways: ours, where no probe was answered for two
round trips, or there are few EVs at all, every second answer goes back the way by which the last packet came; where
none was answered for long, the others take an EV drawn at random.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import DENIED, EV_PROBE, NOTHING
from weft.mrc.rules.evs import usable
from weft.mrc.rules.numbers import draw

REVERSE_ID = 0x8000
"""The bit that tells ids of reverse probes from those of the sending half."""
_ID_MASK = 0x7FFF
RECENT_ROUND_TRIPS = 8
"""Base round trips for which a pair that received counts as receiving: its reverse path is probed that long."""
_MOST_DRAWS = 16
_FRESH_ROUND_TRIPS = 2
_FEW_EVS = 16
"""With so few EVs each is a large share of all, and one that has died is likely the one that is trusted."""
_ENOUGH_PLANES = 4
"""From so many planes on, one EV for each is enough: a dead one costs a quarter of the SACKs at most."""


@rule
def reverse_ev(s: Any, k: int, r: Any, i: int, room: int) -> int:
    """Return the EV for the next SACK or NACK of receiver `i`, planes in turn, or -1 where no plane is up.

    The EVs are those of sender `k`, the half of the same queue pair that sends.
    """
    q = r.qp[i]
    planes = s.params[0]["planes"]
    if planes < _ENOUGH_PLANES:
        e = _other_way(s, k, r, i, room)
        if e >= 0:
            return e
    for _ in range(planes):
        plane = q["reverse_at"] + 1 if q["reverse_at"] + 1 < planes else 0
        q["reverse_at"] = plane
        if usable(s, k, plane, room) and s.planes[k, plane]["reverse"] >= 0:
            return s.planes[k, plane]["reverse"]
    return -1


@rule
def _other_way(s: Any, k: int, r: Any, i: int, room: int) -> int:
    """Return an EV for every second answer where the one that is trusted could be dead, else -1."""
    q = r.qp[i]
    rtt_ps = s.params[0]["base_rtt_ps"]
    # What the pair itself sends proves its way as a probe does, by being answered.
    old_ps = q["heard_ps"] - max(q["reverse_good_ps"], s.qp[k]["heard_ps"])
    few = s.planes[k, 0]["used"] * s.params[0]["planes"] <= _FEW_EVS
    if not few and old_ps <= _FRESH_ROUND_TRIPS * rtt_ps:
        return -1
    q["reverse_turn"] ^= 1
    e = _way_it_came(s, k, q["came_ev"], room) if q["reverse_turn"] else -1
    return _drawn(s, k, r, i, room) if e < 0 and old_ps > RECENT_ROUND_TRIPS * rtt_ps else e


@rule
def _way_it_came(s: Any, k: int, value: int, room: int) -> int:
    """Return the EV of sender `k` with the bits by which a packet came, or -1 where it has none or may not use it."""
    if value < 0:
        return -1
    for e in range(s.params[0]["evs"]):
        ev = s.evs[k, e]
        if ev["value"] == value and ev["state"] != DENIED and usable(s, k, ev["plane"], room):
            return e
    return -1


@rule
def _drawn(s: Any, k: int, r: Any, i: int, room: int) -> int:
    """Return an EV of sender `k` at random whose plane is up, or -1 where none was found."""
    q = r.qp[i]
    planes = s.params[0]["planes"]
    places = s.params[0]["evs"] // planes
    # A pair with few paths has places without an EV at the end of each plane's.
    used = s.planes[k, 0]["used"]
    for _ in range(_MOST_DRAWS):
        drawn = draw(q["word"], q["reverse_draws"], planes * used)
        drawn += drawn // used * (places - used)
        q["reverse_draws"] += 1
        if s.evs[k, drawn]["state"] != DENIED and usable(s, k, s.evs[k, drawn]["plane"], room):
            return drawn
    return -1


@rule
def next_reverse_probe(s: Any, k: int, r: Any, i: int, now_ps: int, room: int, out: Any) -> int:
    """Fill `out` with a probe of a random EV of sender `k` where one is due and return EV_PROBE, or return NOTHING."""
    params = s.params[0]
    sender = s.qp[k]
    q = r.qp[i]
    receiving = q["heard_ps"] >= 0 and now_ps - q["heard_ps"] <= RECENT_ROUND_TRIPS * params["base_rtt_ps"]
    if not receiving or now_ps < q["reverse_probe_ps"]:
        return NOTHING
    q["reverse_probe_ps"] = now_ps + params["base_rtt_ps"]
    replies = q["sacks"] + q["nacks"]
    # A pair that sends has its way back proved by the answers to its data.
    if sender["una"] < sender["end"] or replies == q["reverse_replies"]:
        return NOTHING
    q["reverse_replies"] = replies
    e = _drawn(s, k, r, i, room)
    if e < 0:
        return NOTHING
    ev = s.evs[k, e]
    q["reverse_probe_id"] = (q["reverse_probe_id"] + 1) & _ID_MASK
    q["reverse_probe_ev"] = e
    out["kind"] = EV_PROBE
    out["ev"] = e
    out["value"] = ev["value"]
    out["plane"] = ev["plane"]
    out["id"] = q["reverse_probe_id"] | REVERSE_ID
    out["port_status"] = sender["local_up"]
    return EV_PROBE


@rule
def on_reverse_answer(s: Any, k: int, r: Any, i: int, number: int) -> None:
    """Take in the answer to a reverse probe: its EV becomes the way back in its plane."""
    q = r.qp[i]
    e = q["reverse_probe_ev"]
    if e >= 0 and number == (q["reverse_probe_id"] | REVERSE_ID):
        q["reverse_probe_ev"] = -1
        q["reverse_good_ps"] = q["heard_ps"]
        s.planes[k, s.evs[k, e]["plane"]]["reverse"] = e
