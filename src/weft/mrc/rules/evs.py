"""Entropy values: the four states as an enforced table, the shuffled rotation, replacement and readmission.

An EV names a path: a plane and a choice of uplinks. A queue pair keeps some of every plane in rotation (`ACTIVE`) and
some ready (`SPARE`); a retired or denied one is `OUT`. Only GOOD EVs carry data. Facts sections 4.1 and 4.2; what they
leave open is chosen here:

- The shuffle is lazy: at each place of the round one of the EVs not yet used is drawn, which gives every order of a
  round the same chance at the cost of a few draws for each packet.
- An EV whose port is busy keeps its turn for later in the round. Were it lost, three of five turns would be, at eight
  ports in step, and what is left is as uneven as chance: queues then grow as under random spraying.
- A SKIP EV that the cursor meets turns GOOD and the packet moves on; one packet revives at most one EV, and the others
  that it meets stay in SKIP.
- A mark skips an EV once; whether it does at all, and for how long one is passed over that is marked again and again
  or has too much under way, is decided in `skipping`.
- A retired EV whose plane has no spare leaves a gap, unless `min_active` would be undercut: then it stays, in SKIP. A
  pair with few paths has few EVs, and its floor is the same share of them.
- Where switches do not trim, an EV is blamed for as many losses in a row as chance alone would hardly bring: where one
  packet in ten is lost three are enough, where every second one is it takes ten. So a full queue retires no path.
- Where they trim, one silent loss is enough, unless one on another EV came within about 10,000 packets before it: what
  falls on one EV after another is no fault of paths (a NIC or its link drops packets), and two in a row are needed.
- A readmitted EV fills the gap of its plane, or waits as a spare.
- Where nothing at all is heard for a whole timeout, all retired EVs are taken back: those that are left may be the dead
  ones, and the probes that would show it need a way back that works, too.
"""

from typing import Any

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.columns import ACTIVE, ASSUMED_BAD, DENIED, GOOD, OUT, SKIP, SPARE
from weft.mrc.rules.numbers import next_draw
from weft.mrc.rules.skipping import is_held, mark_ages, most_held, note_mark, pace, rounds_of

MARK, TRIM, UNBLAMED, SILENCE, ALWAYS_SKIP, PASSED, PROBED_CLEAR, PROBED_MARKED, DENY, ALLOW, ARRIVED = range(11)
"""What can happen to an EV: an ECN mark, a trimmed packet, a loss that is not its fault, silence, the peer's wish never
to see it again, the cursor passing it, enough probes answered (the last one clear or marked), the controller's word,
and the arrival of a packet that had been presumed lost on it."""
INPUT_NAMES = (
    *("MARK", "TRIM", "UNBLAMED", "SILENCE", "ALWAYS_SKIP", "PASSED", "PROBED_CLEAR", "PROBED_MARKED"),
    *("DENY", "ALLOW", "ARRIVED"),
)
FORBIDDEN = -1

TRANSITIONS = np.array(
    [
        # MARK, TRIM, UNBLAMED, SILENCE, ALWAYS_SKIP, PASSED, PROBED_CLEAR, PROBED_MARKED, DENY, ALLOW, ARRIVED
        [SKIP, SKIP, GOOD, ASSUMED_BAD, ASSUMED_BAD, GOOD, GOOD, SKIP, DENIED, GOOD, GOOD],
        [SKIP, SKIP, SKIP, ASSUMED_BAD, ASSUMED_BAD, GOOD, SKIP, SKIP, DENIED, SKIP, SKIP],
        [ASSUMED_BAD] * 5 + [FORBIDDEN, GOOD, SKIP, DENIED, ASSUMED_BAD, GOOD],
        [DENIED] * 5 + [FORBIDDEN, DENIED, DENIED, DENIED, GOOD, DENIED],
    ],
    np.int64,
)
"""Next state by state (GOOD, SKIP, ASSUMED_BAD, DENIED) and input; the cursor never meets the last two states."""

_DRAWS_FOR_A_PLANE = 2
_MOST_COUNTED = 100
_ONE = 1024
_SHARE_OVER = 32
"""Transmissions over which the share of lost ones is averaged: few, so that a full queue is known before it is blamed
on paths."""
_BACKGROUND_SHIFT, _BACKGROUND_ONE = 13, 1 << 27
"""Transmissions, a power of two, over which losses that go from EV to EV are averaged, and one in that average."""
_REMEMBERED = 16384
"""Packets delivered after which a silent loss is forgotten."""
_BACKGROUND = _BACKGROUND_ONE >> 19
"""Share of such losses from which one more blames its EV no longer: one within the last 11,000."""


@rule
def fill_evs(s: Any, i: int, paths: int, stride: int, scratch: Any) -> None:
    """Give queue pair `i` its EVs: in every plane the same number of paths, drawn without order and without repeats.

    The value of an EV is `plane` x `stride` + path: the dense number that `weft.fabric` gives it, where a plane has
    `stride` paths. `paths` is less than that where both ends share a T0. Where a plane has fewer paths than EVs are
    wanted, all of them are active first and what remains is spare. `scratch` holds at least `paths` numbers.
    """
    params = s.params[0]
    q = s.qp[i]
    planes = params["planes"]
    per_plane = params["evs"] // planes
    active = min(params["active"] // planes, paths)
    used = min(per_plane, paths)
    q["active"] = 0
    q["loss_left"] = 0
    q["skipping"] = 0
    q["cursor"] = 0
    q["reach"] = (1 << planes) - 1
    for plane in range(planes):
        for path in range(paths):
            scratch[path] = path
        row = s.planes[i, plane]
        row["used"] = used
        row["target"] = active
        row["active"] = active
        row["spare"] = used - active
        for k in range(per_plane):
            e = plane * per_plane + k
            ev = s.evs[i, e]
            ev["plane"] = plane
            ev["flying"] = 0
            ev["losses"] = 0
            ev["probes"] = 0
            if k >= used:
                ev["value"] = -1
                ev["state"] = DENIED
                ev["role"] = OUT
                continue
            j = k + next_draw(q, paths - k)
            scratch[k], scratch[j] = scratch[j], scratch[k]
            ev["value"] = plane * stride + scratch[k]
            ev["state"] = GOOD
            ev["role"] = SPARE
            if k < active:
                ev["role"] = ACTIVE
                s.rotation[i, q["active"]] = e
                q["active"] += 1


@rule
def usable(s: Any, i: int, plane: int, room: int) -> bool:
    """Return whether packets may go to `plane`: up here, up at the peer, and its port in `room` can take one."""
    q = s.qp[i]
    return (q["local_up"] & q["peer_up"] & room) >> plane & 1 == 1


@rule
def reachable(s: Any, i: int) -> bool:
    """Return whether there is any EV in rotation whose plane is up."""
    q = s.qp[i]
    return q["reach"] & q["local_up"] & q["peer_up"] != 0


@rule
def _note_reach(s: Any, i: int, plane: int) -> None:
    """Keep the bit of a plane that has EVs in rotation."""
    q = s.qp[i]
    bit = 1 << plane
    q["reach"] = q["reach"] | bit if s.planes[i, plane]["active"] > 0 else q["reach"] & ~bit


@rule
def _next_in_round(s: Any, i: int, room: int) -> int:
    """Return the next EV of the rotation whose port can take a packet, or -1 where there is none.

    What stands before the cursor has had its turn in this round, what stands behind it has not. The round ends early
    where nothing that is left of it can be used.
    """
    q = s.qp[i]
    if q["cursor"] >= q["active"]:
        q["cursor"] = 0
    at = _find_usable(s, i, q["cursor"], room)
    if at < 0 and q["cursor"] > 0:
        q["cursor"] = 0
        at = _find_usable(s, i, 0, room)
    if at < 0:
        return -1
    found = s.rotation[i, at]
    if s.params[0]["shuffle"]:
        s.rotation[i, at] = s.rotation[i, q["cursor"]]
        s.rotation[i, q["cursor"]] = found
        q["cursor"] += 1
    else:
        q["cursor"] = at + 1
    return found


@rule
def _find_usable(s: Any, i: int, first: int, room: int) -> int:
    """Return the place, from `first` on, of an EV whose port can take a packet, drawn or the next one; -1 for none."""
    q = s.qp[i]
    left = q["active"] - first
    start = 0
    if s.params[0]["shuffle"]:
        # Drawing again where the port is busy gives all others the same chance; it ends in a search, for a limit.
        for _ in range(_DRAWS_FOR_A_PLANE * s.params[0]["planes"]):
            start = next_draw(q, left)
            if usable(s, i, s.evs[i, s.rotation[i, first + start]]["plane"], room):
                return first + start
    for k in range(left):
        at = first + (start + k) % left
        if usable(s, i, s.evs[i, s.rotation[i, at]]["plane"], room):
            return at
    return -1


@rule
def pick_ev(s: Any, i: int, avoid: int, room: int) -> int:
    """Return the EV for the next packet, or -1 where none can be used; never `avoid` while there is another.

    Where none can be used nothing is drawn and nothing changes.
    """
    q = s.qp[i]
    if q["reach"] & q["local_up"] & q["peer_up"] & room == 0:
        return -1
    params = s.params[0]
    most = most_held(params, q)
    revived = False
    held = 0
    fallback = -1
    passed = -1
    for _ in range(2 * q["active"]):
        e = _next_in_round(s, i, room)
        if e < 0:
            break
        ev = s.evs[i, e]
        if ev["state"] == SKIP:
            revived = _pass_over(q, ev, revived)
            passed = e if passed < 0 or passed == avoid else passed
        elif e == avoid:
            fallback = e
        elif held < most and is_held(params, q, ev):
            held += 1
            passed = e if passed < 0 or passed == avoid else passed
        else:
            pace(q, ev)
            return e
    # Every path is busy: the first that was passed over serves, or else the one to be avoided.
    chosen = passed if passed != avoid and passed >= 0 else max(passed, fallback)
    if chosen >= 0:
        q["skipping"] -= s.evs[i, chosen]["state"] == SKIP
        s.evs[i, chosen]["state"] = TRANSITIONS[SKIP, PASSED]
        q["reused_ev"] += 1 if chosen == avoid else 0
    return chosen


@rule
def _pass_over(q: Any, ev: Any, revived: bool) -> bool:
    """Pass over an EV in SKIP; it is GOOD again once that has been done often enough, one EV for each packet."""
    if ev["skips"] > 1:
        ev["skips"] -= 1
    elif not revived:
        ev["state"] = TRANSITIONS[SKIP, PASSED]
        q["skipping"] -= 1
        return True
    return revived


@rule
def ev_event(s: Any, i: int, e: int, event: int) -> int:
    """Apply one input to EV `e` and return its new state; retires, replaces and readmits as the table says."""
    q = s.qp[i]
    ev = s.evs[i, e]
    q["skipping"] -= ev["role"] == ACTIVE and ev["state"] == SKIP
    new = _event(s, i, e, event)
    q["skipping"] += ev["role"] == ACTIVE and ev["state"] == SKIP
    return new


@rule
def _event(s: Any, i: int, e: int, event: int) -> int:
    """Do what `ev_event` does, but for the count of EVs in SKIP."""
    params = s.params[0]
    ev = s.evs[i, e]
    old = ev["state"]
    if ev["value"] == -1:
        return old
    new = TRANSITIONS[old, event]
    assert new >= 0, "the cursor met an EV that is not in rotation"
    if new == SKIP and not params["skip"]:
        new = GOOD
    if new == ASSUMED_BAD and old != ASSUMED_BAD and not params["retire"]:
        return old
    if new == SKIP and event in (MARK, TRIM, PROBED_MARKED):
        note_mark(params, s.qp[i], ev)
        if old == GOOD:
            ev["skips"] = rounds_of(ev)
    if old <= SKIP and new > SKIP:
        if ev["role"] == ACTIVE and not _leave_rotation(s, i, e, event == DENY):
            s.qp[i]["refused"] += 1
            ev["state"] = SKIP
            return SKIP
        _leave(s, i, e, new)
    elif old > SKIP and new <= SKIP:
        _return(s, i, e, old)
    elif old == ASSUMED_BAD and new == DENIED:
        s.qp[i]["bad"] -= 1
    ev["state"] = new
    return new


@rule
def ev_marked(s: Any, i: int, e: int) -> None:
    """Take in a mark on EV `e`: it loses its next turn, unless the mark would be old by then."""
    ev = s.evs[i, e]
    if ev["state"] == GOOD and mark_ages(s.params[0], s.qp[i], ev):
        note_mark(s.params[0], s.qp[i], ev)
    else:
        ev_event(s, i, e, MARK)


@rule
def ev_delivers(s: Any, i: int, e: int) -> None:
    """Note that EV `e` has delivered a packet: its silent losses are no longer in a row."""
    if s.qp[i]["lossy"]:
        s.evs[i, e]["losses"] = 0


@rule
def forgive(s: Any, i: int) -> None:
    """Take every EV back that silence has retired, because nothing at all is heard any more."""
    for e in range(s.params[0]["evs"]):
        if s.evs[i, e]["state"] == ASSUMED_BAD:
            ev_event(s, i, e, PROBED_CLEAR)


@rule
def deny(s: Any, i: int, value: int, denied: int) -> int:
    """Carry out the controller's word on the EV with the bits `value`: 1 denies, 0 allows; return how many it met."""
    met = 0
    for e in range(s.params[0]["evs"]):
        if s.evs[i, e]["value"] == value:
            ev_event(s, i, e, DENY if denied else ALLOW)
            met += 1
    return met


@rule
def ev_silent(s: Any, i: int, e: int) -> int:
    """Blame EV `e` for a packet that vanished, and return its new state.

    Where switches do not trim, a loss may be a full queue: the EV is skipped once, and retired only after more losses,
    with nothing delivered between, than the share that is lost on all paths explains. Where they do, the second in a
    row is needed while losses fall on other EVs too.
    """
    params = s.params[0]
    ev = s.evs[i, e]
    ev["losses"] = min(ev["losses"] + 1, _MOST_COUNTED)
    s.qp[i]["lossy"] = 1
    needed = params["losses_to_retire"]
    if needed > 1:
        needed = max(needed, _losses_in_a_row(s.qp[i]["loss_share"]))
    elif _elsewhere(s.qp[i], e):
        needed = 2
    if ev["losses"] >= needed:
        return ev_event(s, i, e, SILENCE)
    return ev_event(s, i, e, MARK)


@rule
def _elsewhere(q: Any, e: int) -> bool:
    """Note a silent loss on EV `e`, and return whether losses have lately gone from one EV to another."""
    if q["loss_left"] > 0 and q["loss_ev"] != e:
        q["background"] += (_BACKGROUND_ONE - q["background"]) >> _BACKGROUND_SHIFT
    q["loss_ev"] = e
    q["loss_left"] = _REMEMBERED
    return q["background"] > _BACKGROUND


@rule
def note_fate(q: Any, lost: int) -> None:
    """Move the shares of transmissions that are lost, in 1/1024, by one whose fate is known now."""
    if lost | q["loss_share"] | q["loss_left"] | q["background"] == 0:
        return
    q["loss_share"] += (lost * _ONE - q["loss_share"]) // _SHARE_OVER
    if not lost:
        q["loss_left"] = max(0, q["loss_left"] - 1)
        q["background"] = max(0, q["background"] - (q["background"] >> _BACKGROUND_SHIFT) - 1)


@rule
def _losses_in_a_row(share: int) -> int:
    """Return how many losses in a row have a chance below 1/1024 where `share`/1024 of all packets are lost."""
    chance = share
    count = 1
    while chance > 1 and count < _MOST_COUNTED:
        chance = chance * share // _ONE
        count += 1
    return count


@rule
def _leave(s: Any, i: int, e: int, new: int) -> None:
    """Take an EV that is not in rotation any more out of use."""
    q = s.qp[i]
    ev = s.evs[i, e]
    if ev["role"] == SPARE:
        s.planes[i, ev["plane"]]["spare"] -= 1
    ev["role"] = OUT
    ev["probes"] = 0
    if new == ASSUMED_BAD:
        q["retired"] += 1
        q["bad"] += 1


@rule
def _leave_rotation(s: Any, i: int, e: int, forced: bool) -> bool:
    """Give the place of EV `e` to a spare, or close the gap; return whether that was possible."""
    q = s.qp[i]
    plane = s.evs[i, e]["plane"]
    at = 0
    while s.rotation[i, at] != e:
        at += 1
    spare = _find_spare(s, i, plane)
    if spare >= 0:
        s.rotation[i, at] = spare
        taken = s.evs[i, spare]
        taken["role"] = ACTIVE
        q["skipping"] += taken["state"] == SKIP
        s.planes[i, taken["plane"]]["spare"] -= 1
        s.planes[i, taken["plane"]]["active"] += 1
        _note_reach(s, i, taken["plane"])
    elif forced or q["active"] > _floor(s, i):
        _close_gap(s, i, at)
    else:
        return False
    s.planes[i, plane]["active"] -= 1
    _note_reach(s, i, plane)
    # It is neither in rotation nor a spare now; `_leave` or `_return` says what it becomes.
    s.evs[i, e]["role"] = OUT
    return True


@rule
def _floor(s: Any, i: int) -> int:
    """Return below how many EVs in rotation silence retires no more: the same share for a pair that has few paths."""
    params = s.params[0]
    began = s.planes[i, 0]["target"] * params["planes"]
    return max(1, params["min_active"] * began // params["active"])


@rule
def _close_gap(s: Any, i: int, at: int) -> None:
    """Remove place `at`, keeping those used in this round before the cursor and the others behind it."""
    q = s.qp[i]
    last = q["active"] - 1
    if at < q["cursor"]:
        q["cursor"] -= 1
        s.rotation[i, at] = s.rotation[i, q["cursor"]]
        at = q["cursor"]
    s.rotation[i, at] = s.rotation[i, last]
    q["active"] = last


@rule
def _find_spare(s: Any, i: int, plane: int) -> int:
    """Return a spare EV of `plane` (of any plane where same-plane backup is off), or -1."""
    params = s.params[0]
    q = s.qp[i]
    if params["same_plane"] and s.planes[i, plane]["spare"] == 0:
        return -1
    evs = params["evs"]
    start = next_draw(q, evs)
    for k in range(evs):
        e = (start + k) % evs
        ev = s.evs[i, e]
        if ev["role"] == SPARE and (ev["plane"] == plane or not params["same_plane"]):
            return e
    return -1


@rule
def _return(s: Any, i: int, e: int, old: int) -> None:
    """Bring an EV back: into the gap of its plane, or among the spares."""
    q = s.qp[i]
    ev = s.evs[i, e]
    plane = s.planes[i, ev["plane"]]
    ev["losses"] = 0
    ev["probes"] = 0
    if old == ASSUMED_BAD:
        q["bad"] -= 1
        q["readmitted"] += 1
    if plane["active"] < plane["target"] and q["active"] < s.params[0]["active"]:
        s.rotation[i, q["active"]] = e
        q["active"] += 1
        plane["active"] += 1
        _note_reach(s, i, ev["plane"])
        ev["role"] = ACTIVE
    else:
        plane["spare"] += 1
        ev["role"] = SPARE
