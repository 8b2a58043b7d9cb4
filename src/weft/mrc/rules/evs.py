"""Entropy values: the four states as an enforced table, the shuffled rotation, replacement and readmission.

An EV names a path: a plane and a choice of uplinks. A queue pair keeps some of every plane in rotation (`ACTIVE`) and
some ready (`SPARE`); a retired or denied one is `OUT`. Only GOOD EVs carry data. Facts sections 4.1 and 4.2; what they
leave open is chosen here:

- The shuffle is lazy: at each place of the round one of the EVs not yet used is drawn, which gives every order of a
  round the same probability at the cost of a few draws for each packet.
- An EV whose port is busy keeps its turn for later in the round. Were it lost, three of five turns would be, at eight
  ports in step, and what is left is as uneven as random draws: queues then grow as under random spraying.
- A SKIP EV that the cursor meets turns GOOD and the packet moves on; one packet revives at most one EV, and the others
  that it meets stay in SKIP.
- A mark skips an EV once; whether it does at all, and for how long one is passed over that is marked again and again
  or has too much in flight, is decided in `skipping`.
- A retired EV whose plane has no spare leaves a gap, unless `min_active` would be undercut: then it stays, in SKIP, for
  as many rounds as it has lost packets in a row, up to `most_skips`. Where most paths are dead the few that work carry
  nearly all. A pair with few paths has few EVs, and its floor is the same share of them.
- When silence retires an EV is decided in `blame`.
- A readmitted EV fills the gap of its plane, or waits as a spare.
- Where nothing at all is heard for a whole timeout, all retired EVs are taken back: those that are left may be the dead
  ones, and the probes that would show it need a reverse path that works, too.
"""

from typing import NamedTuple

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.columns import ACTIVE, ASSUMED_BAD, DENIED, GOOD, OUT, SKIP, SPARE, EvRow, Sender, SenderRow, Words
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

_OTHER, _AVOIDED, _DOUBTFUL, _ANY = range(4)
_DRAWS_FOR_A_PLANE = 2


class Paths(NamedTuple):
    """The paths that a queue pair may choose from."""

    count: int
    """Paths in each plane: fewer than the stride where both ends share a T0."""
    stride: int
    """How far apart the dense numbers of two planes are, as `weft.fabric` gives them."""
    scratch: Words
    """Room for `count` numbers, whose content does not matter."""


@rule
def fill_evs(sender: Sender, pair: int, paths: Paths) -> None:
    """Give queue pair `pair` its EVs: in every plane the same number of paths, drawn without order and without repeats.

    The value of an EV is `plane` x `stride` + path. Where a plane has fewer paths than EVs are wanted, all of them are
    active first and what remains is spare. Writes `evs`, `rotation`, `planes` and the row's counts of them.
    """
    params = sender.params[0]
    qp = sender.qp[pair]
    planes = params["planes"]
    scratch = paths.scratch
    per_plane = params["evs"] // planes
    active = min(params["active"] // planes, paths.count)
    used = min(per_plane, paths.count)
    qp["active"] = qp["loss_left"] = qp["skipping"] = qp["cursor"] = 0
    qp["reach"] = (1 << planes) - 1
    for plane in range(planes):
        for path in range(paths.count):
            scratch[path] = path
        row = sender.planes[pair, plane]
        row["used"] = used
        row["target"] = active
        row["active"] = active
        row["spare"] = used - active
        for k in range(per_plane):
            ev_index = plane * per_plane + k
            ev = sender.evs[pair, ev_index]
            ev["plane"] = plane
            ev["inflight"] = ev["losses"] = ev["probes"] = 0
            if k >= used:
                ev["value"] = -1
                ev["state"] = DENIED
                ev["role"] = OUT
                continue
            # Fisher and Yates: the first `used` places of a shuffle, without shuffling the rest.
            j = k + next_draw(qp, paths.count - k)
            scratch[k], scratch[j] = scratch[j], scratch[k]
            ev["value"] = plane * paths.stride + scratch[k]
            ev["state"] = GOOD
            ev["role"] = SPARE
            if k < active:
                ev["role"] = ACTIVE
                sender.rotation[pair, qp["active"]] = ev_index
                qp["active"] += 1


@rule
def usable(sender: Sender, pair: int, plane: int, room: int) -> bool:
    """Return whether packets may go to `plane`: up here, up at the peer, and its port in `room` can take one."""
    qp = sender.qp[pair]
    # Three masks with a bit for each plane; a room of -1 has every bit set.
    return (qp["local_up"] & qp["peer_up"] & room) >> plane & 1 == 1


@rule
def reachable(sender: Sender, pair: int) -> bool:
    """Return whether there is any EV in rotation whose plane is up."""
    qp = sender.qp[pair]
    return qp["reach"] & qp["local_up"] & qp["peer_up"] != 0


@rule
def _note_reach(sender: Sender, pair: int, plane: int) -> None:
    """Keep the bit of a plane that has EVs in rotation. Writes `reach`."""
    qp = sender.qp[pair]
    bit = 1 << plane
    qp["reach"] = qp["reach"] | bit if sender.planes[pair, plane]["active"] > 0 else qp["reach"] & ~bit


@rule
def _next_in_round(sender: Sender, pair: int, room: int) -> int:
    """Return the next EV of the rotation whose port can take a packet, or -1 where there is none.

    What stands before the cursor has had its turn in this round, what stands behind it has not. The round ends early
    where nothing that is left of it can be used.
    """
    qp = sender.qp[pair]
    if qp["cursor"] >= qp["active"]:
        qp["cursor"] = 0
    at = _find_usable(sender, pair, qp["cursor"], room)
    if at < 0 and qp["cursor"] > 0:
        qp["cursor"] = 0
        at = _find_usable(sender, pair, 0, room)
    if at < 0:
        return -1
    found = sender.rotation[pair, at]
    if sender.params[0]["shuffle"]:
        # Swapped to the cursor: places before it are used in this round, so that each EV has one turn a round.
        sender.rotation[pair, at] = sender.rotation[pair, qp["cursor"]]
        sender.rotation[pair, qp["cursor"]] = found
        qp["cursor"] += 1
    else:
        qp["cursor"] = at + 1
    return found


@rule
def _find_usable(sender: Sender, pair: int, first: int, room: int) -> int:
    """Return the place, from `first` on, of an EV whose port can take a packet, drawn or the next one; -1 for none."""
    qp = sender.qp[pair]
    left = qp["active"] - first
    start = 0
    if sender.params[0]["shuffle"]:
        # Drawing again where the port is busy gives all others the same probability; it ends in a search, for a limit.
        for _ in range(_DRAWS_FOR_A_PLANE * sender.params[0]["planes"]):
            start = next_draw(qp, left)
            if usable(sender, pair, sender.evs[pair, sender.rotation[pair, first + start]]["plane"], room):
                return first + start
    for k in range(left):
        at = first + (start + k) % left
        if usable(sender, pair, sender.evs[pair, sender.rotation[pair, at]]["plane"], room):
            return at
    return -1


@rule
def pick_ev(sender: Sender, pair: int, avoid: int, room: int) -> int:
    """Return the EV for the next packet, or -1 where none can be used; never `avoid` while there is another.

    A packet that has to avoid an EV was lost once: one whose last packets vanished is no other for it. Where none can
    be used nothing is drawn and nothing changes.

    Writes `skipping` and `state`.
    """
    qp = sender.qp[pair]
    if qp["reach"] & qp["local_up"] & qp["peer_up"] & room == 0:
        return -1
    params = sender.params[0]
    most = most_held(params, qp)
    revived = False
    held = 0
    last = _ANY
    chosen = -1
    # Twice the rotation: the round may end in the middle, and every EV is to be met once after that.
    for _ in range(2 * qp["active"]):
        ev_index = _next_in_round(sender, pair, room)
        if ev_index < 0:
            break
        ev = sender.evs[pair, ev_index]
        rank = _rank(ev, ev_index == avoid, avoid >= 0)
        if ev["state"] == SKIP:
            revived = _pass_over(qp, ev, revived)
        elif rank == _OTHER:
            if held >= most or not is_held(params, qp, ev):
                pace(params, qp, ev)
                return ev_index
            held += 1
        # Every path may be busy: the first that was passed over serves then, of the best rank that was met.
        if rank < last:
            last = rank
            chosen = ev_index
    if chosen >= 0:
        qp["skipping"] -= sender.evs[pair, chosen]["state"] == SKIP
        sender.evs[pair, chosen]["state"] = TRANSITIONS[SKIP, PASSED]
    return chosen


@rule
def _rank(ev: EvRow, avoided: bool, again: bool) -> int:
    """Return how far an EV is from what a packet wants: another EV, then the one to be avoided, then a doubtful one."""
    if avoided:
        return _AVOIDED
    return _DOUBTFUL if again and ev["losses"] > 1 else _OTHER


@rule
def _pass_over(qp: SenderRow, ev: EvRow, revived: bool) -> bool:
    """Pass over an EV in SKIP; it is GOOD again once that has been done often enough, one EV for each packet."""
    if ev["skips"] > 1:
        ev["skips"] -= 1
    elif not revived:
        ev["state"] = TRANSITIONS[SKIP, PASSED]
        qp["skipping"] -= 1
        return True
    return revived


@rule
def ev_event(sender: Sender, pair: int, ev_index: int, event: int) -> int:
    """Apply one input to EV `ev_index` and return its new state; retires, replaces and readmits as the table says.

    Writes `skipping`.
    """
    qp = sender.qp[pair]
    ev = sender.evs[pair, ev_index]
    # Taken off before and added after, whatever the table does: no transition can be forgotten.
    qp["skipping"] -= ev["role"] == ACTIVE and ev["state"] == SKIP
    new = _event(sender, pair, ev_index, event)
    qp["skipping"] += ev["role"] == ACTIVE and ev["state"] == SKIP
    return new


@rule
def _event(sender: Sender, pair: int, ev_index: int, event: int) -> int:
    """Do what `ev_event` does, but for the count of EVs in SKIP. Writes `state`, `skips`, `refused` and `bad`."""
    params = sender.params[0]
    ev = sender.evs[pair, ev_index]
    old = ev["state"]
    if ev["value"] == -1:  # a place without an EV, of a pair with few paths
        return old
    new = TRANSITIONS[old, event]
    assert new >= 0, "the cursor met an EV that is not in rotation"
    if new == SKIP and not params["skip"]:
        new = GOOD
    if new == ASSUMED_BAD and old != ASSUMED_BAD and not params["retire"]:
        return old
    if new == SKIP and event in (MARK, TRIM, PROBED_MARKED):
        note_mark(params, sender.qp[pair], ev)
        if old == GOOD:
            ev["skips"] = rounds_of(ev)
    if old <= SKIP and new > SKIP:
        if ev["role"] == ACTIVE and not _leave_rotation(sender, pair, ev_index, event == DENY):
            sender.qp[pair]["refused"] += 1
            ev["state"] = SKIP
            ev["skips"] = min(max(ev["losses"], 1), params["most_skips"])
            return SKIP
        _leave(sender, pair, ev_index, new)
    elif old > SKIP and new <= SKIP:
        _return(sender, pair, ev_index, old)
    elif old == ASSUMED_BAD and new == DENIED:
        sender.qp[pair]["bad"] -= 1
    ev["state"] = new
    return new


@rule
def ev_marked(sender: Sender, pair: int, ev_index: int) -> None:
    """Take in a mark on EV `ev_index`: it loses its next turn, unless the mark would be old by then."""
    ev = sender.evs[pair, ev_index]
    if ev["state"] == GOOD and mark_ages(sender.params[0], sender.qp[pair], ev):
        note_mark(sender.params[0], sender.qp[pair], ev)
    else:
        ev_event(sender, pair, ev_index, MARK)


@rule
def readmit_all(sender: Sender, pair: int) -> None:
    """Take every EV back that silence has retired, because nothing at all is heard any more."""
    for ev_index in range(sender.params[0]["evs"]):
        if sender.evs[pair, ev_index]["state"] == ASSUMED_BAD:
            ev_event(sender, pair, ev_index, PROBED_CLEAR)


@rule
def deny(sender: Sender, pair: int, value: int, denied: int) -> int:
    """Carry out the controller's word on the EV with the bits `value`: 1 denies, 0 allows; return how many it met."""
    met = 0
    for ev_index in range(sender.params[0]["evs"]):
        if sender.evs[pair, ev_index]["value"] == value:
            deny_one(sender, pair, ev_index, denied)
            met += 1
    return met


@rule
def deny_one(sender: Sender, pair: int, ev_index: int, denied: int) -> None:
    """Deny (1) or allow (0) an EV; answers, which leave on one EV of each plane, take no denied one. Writes `reverse`.

    So where that one is denied another has to be found, and where there was none an EV that is allowed serves.
    """
    ev_event(sender, pair, ev_index, DENY if denied else ALLOW)
    plane = sender.planes[pair, sender.evs[pair, ev_index]["plane"]]
    if denied == 0 and plane["reverse"] < 0:
        plane["reverse"] = ev_index
    if denied == 0 or plane["reverse"] != ev_index:
        return
    plane["reverse"] = -1
    for other in range(sender.params[0]["evs"]):
        row = sender.evs[pair, other]
        same = row["plane"] == sender.evs[pair, ev_index]["plane"]
        if same and row["state"] != DENIED and plane["reverse"] < 0:
            plane["reverse"] = other


@rule
def _leave(sender: Sender, pair: int, ev_index: int, new: int) -> None:
    """Take an EV that is not in rotation any more out of use. Writes `role`, `probes`, `spare`, `retired` and `bad`."""
    qp = sender.qp[pair]
    ev = sender.evs[pair, ev_index]
    if ev["role"] == SPARE:
        sender.planes[pair, ev["plane"]]["spare"] -= 1
    ev["role"] = OUT
    ev["probes"] = 0
    if new == ASSUMED_BAD:
        qp["retired"] += 1
        qp["bad"] += 1


@rule
def _leave_rotation(sender: Sender, pair: int, ev_index: int, forced: bool) -> bool:
    """Give the place of EV `ev_index` to a spare, or close the gap; return whether that was possible."""
    qp = sender.qp[pair]
    plane = sender.evs[pair, ev_index]["plane"]
    at = 0
    while sender.rotation[pair, at] != ev_index:
        at += 1
    spare = _find_spare(sender, pair, plane)
    # The spare takes the same place in the round, before or behind the cursor, as the one that leaves.
    if spare >= 0:
        sender.rotation[pair, at] = spare
        taken = sender.evs[pair, spare]
        taken["role"] = ACTIVE
        qp["skipping"] += taken["state"] == SKIP
        sender.planes[pair, taken["plane"]]["spare"] -= 1
        sender.planes[pair, taken["plane"]]["active"] += 1
        _note_reach(sender, pair, taken["plane"])
    elif forced or qp["active"] > _floor(sender, pair):
        _close_gap(sender, pair, at)
    else:
        return False
    sender.planes[pair, plane]["active"] -= 1
    _note_reach(sender, pair, plane)
    # It is neither in rotation nor a spare now; `_leave` or `_return` says what it becomes.
    sender.evs[pair, ev_index]["role"] = OUT
    return True


@rule
def _floor(sender: Sender, pair: int) -> int:
    """Return below how many EVs in rotation silence retires no more: the same share for a pair that has few paths."""
    params = sender.params[0]
    began = sender.planes[pair, 0]["target"] * params["planes"]
    return max(1, params["min_active"] * began // params["active"])


@rule
def _close_gap(sender: Sender, pair: int, at: int) -> None:
    """Remove place `at`, keeping those used in this round before the cursor and the others behind it."""
    qp = sender.qp[pair]
    last = qp["active"] - 1
    if at < qp["cursor"]:
        qp["cursor"] -= 1
        sender.rotation[pair, at] = sender.rotation[pair, qp["cursor"]]
        at = qp["cursor"]
    sender.rotation[pair, at] = sender.rotation[pair, last]
    qp["active"] = last


@rule
def _find_spare(sender: Sender, pair: int, plane: int) -> int:
    """Return a spare EV of `plane` (of any plane where same-plane backup is off), or -1."""
    params = sender.params[0]
    qp = sender.qp[pair]
    if params["same_plane"] and sender.planes[pair, plane]["spare"] == 0:
        return -1
    evs = params["evs"]
    # From a random place on: pairs that lose the same path must not all move to the same spare.
    start = next_draw(qp, evs)
    for k in range(evs):
        ev_index = (start + k) % evs
        ev = sender.evs[pair, ev_index]
        if ev["role"] == SPARE and (ev["plane"] == plane or not params["same_plane"]):
            return ev_index
    return -1


@rule
def _return(sender: Sender, pair: int, ev_index: int, old: int) -> None:
    """Bring an EV back: into the gap of its plane, or among the spares."""
    qp = sender.qp[pair]
    ev = sender.evs[pair, ev_index]
    plane = sender.planes[pair, ev["plane"]]
    ev["losses"] = 0
    ev["probes"] = 0
    plane["silent"] = 0
    if old == ASSUMED_BAD:
        qp["bad"] -= 1
        qp["readmitted"] += 1
    if plane["active"] < plane["target"] and qp["active"] < sender.params[0]["active"]:
        sender.rotation[pair, qp["active"]] = ev_index
        qp["active"] += 1
        plane["active"] += 1
        _note_reach(sender, pair, ev["plane"])
        ev["role"] = ACTIVE
    else:
        plane["spare"] += 1
        ev["role"] = SPARE
