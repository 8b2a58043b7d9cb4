"""EV states on every (state, input), the rotation, replacement, the floor and readmission."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc import columns
from weft.mrc.columns import ACTIVE, ASSUMED_BAD, DENIED, EV_STATE_NAMES, GOOD, SKIP, SPARE
from weft.mrc.invariants import check_evs
from weft.mrc.rules import blame, evs, skipping
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.ports import on_port_status
from weft.mrc.rules.sender import start_sender
from weft.mrc.rules.settings import settings
from weft.specs.transport import MrcSpec

# What facts section 4.2 says, written out a second time by hand: input by state.
EXPECTED = {
    "GOOD": "SKIP SKIP GOOD BAD BAD GOOD GOOD SKIP DENIED GOOD GOOD",
    "SKIP": "SKIP SKIP SKIP BAD BAD GOOD SKIP SKIP DENIED SKIP SKIP",
    "ASSUMED_BAD": "BAD BAD BAD BAD BAD - GOOD SKIP DENIED BAD GOOD",
    "DENIED": "DENIED DENIED DENIED DENIED DENIED - DENIED DENIED DENIED GOOD DENIED",
}
CODES = {"GOOD": GOOD, "SKIP": SKIP, "BAD": ASSUMED_BAD, "DENIED": DENIED, "-": evs.FORBIDDEN}


def made(
    planes: int = 2, active: Any = 8, backup: Any = 4, min_active: Any = 2, paths: int = 16, seed: int = 1, **more: Any
):
    spec = MrcSpec.model_validate({"ev": {"active": active, "backup": backup, "min_active": min_active}, **more})
    s = columns.make_sender(settings(spec, planes=planes, rate_bps=10**11), 1)
    start_sender(s, 0, seed, 0, Paths(paths, 128, np.zeros(max(paths, 1), np.int64)))
    check_evs(s, 0)
    return s


@pytest.mark.parametrize("state", EV_STATE_NAMES)
@pytest.mark.parametrize("event", range(len(evs.INPUT_NAMES)), ids=lambda event: evs.INPUT_NAMES[event])
def test_every_state_answers_every_input(state: str, event: int) -> None:
    new = CODES[EXPECTED[state].split()[event]]
    assert evs.TRANSITIONS[EV_STATE_NAMES.index(state), event] == new
    s = made()
    e = int(s.rotation[0, 0])
    into = {"GOOD": (), "SKIP": (evs.MARK,), "ASSUMED_BAD": (evs.SILENCE,), "DENIED": (evs.DENY,)}[state]
    for step in into:
        evs.ev_event(s, 0, e, step)
    if new == evs.FORBIDDEN:
        with pytest.raises(AssertionError, match="not in rotation"):
            evs.ev_event(s, 0, e, event)
    else:
        assert evs.ev_event(s, 0, e, event) == new
        check_evs(s, 0)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 10)), max_size=60), st.integers(0, 2**40))
def test_any_inputs_keep_every_ev_in_one_place(steps: Any, seed: int) -> None:
    s = made(seed=seed)
    for e, event in steps:
        if event == evs.PASSED:
            evs.pick_ev(s, 0, -1, -1)
        else:
            evs.ev_event(s, 0, e, event)
        check_evs(s, 0)


@given(st.integers(1, 8), st.integers(1, 64), st.integers(0, 32), st.integers(1, 100), st.integers(0, 2**40))
def test_planes_get_the_same_number_of_distinct_paths(
    planes: int, active: Any, backup: Any, paths: int, seed: int
) -> None:
    s = made(planes=planes, active=active, backup=backup, min_active=1, paths=paths, seed=seed)
    rotation = s.evs[0][s.rotation[0, : s.qp[0]["active"]]]
    assert len(set(Counter(rotation["plane"].tolist()).values())) == 1
    values = s.evs[0]["value"][s.evs[0]["value"] >= 0].tolist()
    assert len(set(values)) == len(values)
    assert all(value % 128 < paths for value in values)


def test_every_round_uses_every_ev_once_in_another_order() -> None:
    s = made(active=64, backup=0, paths=64)
    rounds = [[int(evs.pick_ev(s, 0, -1, -1)) for _ in range(64)] for _ in range(4)]
    assert all(sorted(one) == list(range(64)) for one in rounds)
    assert len({tuple(one) for one in rounds}) == 4


def test_an_unshuffled_rotation_repeats_itself() -> None:
    s = made(active=8, backup=0, shuffle=False)
    rounds = [[int(evs.pick_ev(s, 0, -1, -1)) for _ in range(8)] for _ in range(3)]
    assert rounds[0] == rounds[1] == rounds[2]


def test_a_marked_ev_is_passed_over_once_and_marks_do_not_add_up() -> None:
    s = made(active=4, backup=0, shuffle=False)
    s.qp[0]["end"] = 1000
    for _ in range(3):
        evs.ev_event(s, 0, 0, evs.MARK)
    first = [int(evs.pick_ev(s, 0, -1, -1)) for _ in range(3)]
    assert 0 not in first
    assert int(evs.pick_ev(s, 0, -1, -1)) == 0


def test_the_end_of_a_message_leaves_out_evs_that_were_marked_last() -> None:
    s = made(active=16, backup=0, paths=64)
    s.qp[0]["end"] = 100
    marked = s.rotation[0, :4].tolist()
    for e in marked:
        evs.ev_event(s, 0, e, evs.MARK)
    assert set(marked) < {int(evs.pick_ev(s, 0, -1, -1)) for _ in range(64)}
    s.qp[0]["next"] = 95
    assert not set(marked) & {int(evs.pick_ev(s, 0, -1, -1)) for _ in range(64)}
    for e in marked:
        skipping.ev_clear(s, 0, e)
    assert set(marked) < {int(evs.pick_ev(s, 0, -1, -1)) for _ in range(64)}


def test_an_ev_with_more_than_its_share_under_way_loses_its_turn() -> None:
    s = made(active=64, backup=0, paths=64)
    s.qp[0]["end"] = 1000
    share = int(s.params[0]["bdp"]) // (64 * int(s.params[0]["mtu"]))
    slow = s.rotation[0, :8].tolist()
    for e in slow:
        s.evs[0, e]["inflight"] = share + 2
    used = Counter(int(evs.pick_ev(s, 0, -1, -1)) for _ in range(560))
    assert not set(slow) & set(used)
    assert min(used.values()) >= 9
    s.params[0]["even"] = 0
    assert set(slow) < {int(evs.pick_ev(s, 0, -1, -1)) for _ in range(64)}


def test_two_evs_are_never_held_back_by_their_share() -> None:
    s = made(planes=1, active=2, backup=0, min_active=1)
    s.qp[0]["end"] = 1000
    s.evs[0]["inflight"] = 10_000, 0
    assert {int(evs.pick_ev(s, 0, -1, -1)) for _ in range(8)} == {0, 1}


def test_losses_that_go_from_ev_to_ev_blame_none_until_the_second_in_a_row() -> None:
    s = made(active=64, backup=0, min_active=1, paths=64)
    first, second, third = s.rotation[0, :3].tolist()
    assert blame.ev_silent(s, 0, first) == ASSUMED_BAD
    # The next one may be chance, if that is what takes packets here: one more on it, and it is not.
    assert blame.ev_silent(s, 0, second) == SKIP
    assert blame.ev_silent(s, 0, second) == ASSUMED_BAD
    for _ in range(20_000):
        blame.note_fate(s.qp[0], 0)
    assert blame.ev_silent(s, 0, third) == ASSUMED_BAD


def test_while_much_is_trimmed_a_loss_may_be_a_header_that_found_no_room() -> None:
    s = made(active=64, backup=0, min_active=1, paths=64)
    for e in range(32):
        blame.note_trimmed(s, 0, e)
    # A first round trip of an incast: losses come one after the other, on all EVs.
    lossy, other = s.rotation[0, :40].tolist(), int(s.rotation[0, 50])
    for _ in range(3):
        for e in lossy:
            blame.note_fate(s.qp[0], 1)
            assert blame.ev_silent(s, 0, e) == SKIP
    blame.note_trimmed(s, 0, lossy[0])
    assert s.evs[0, lossy[0]]["losses"] == 0, "a header has come over it"
    for _ in range(200):
        blame.note_fate(s.qp[0], 0)
    assert blame.ev_silent(s, 0, other) == ASSUMED_BAD, "nothing is trimmed any more"


@pytest.mark.parametrize(("transmissions", "losses"), [(0, 4), (16, 4), (17, 1)])
def test_shortly_after_a_trim_four_losses_in_a_row_blame_a_path(transmissions: int, losses: int) -> None:
    s = made(active=64, backup=0, min_active=1, paths=64)
    path, other = s.rotation[0, :2].tolist()
    blame.note_trimmed(s, 0, other)
    for _ in range(transmissions):
        blame.note_fate(s.qp[0], 0)
    states = [blame.ev_silent(s, 0, path) for _ in range(losses)]
    assert states == [SKIP] * (losses - 1) + [ASSUMED_BAD]


@given(st.integers(0, 64), st.integers(0, 64))
def test_an_ev_that_delivers_nothing_is_left_whatever_is_trimmed_on_others(trims: int, delivered: int) -> None:
    s = made(active=64, backup=0, min_active=1, paths=64)
    state = GOOD
    for _ in range(100):
        for e in range(trims):
            blame.note_trimmed(s, 0, 1 + e % 63)
        for _ in range(delivered):
            blame.note_fate(s.qp[0], 0)
        blame.note_fate(s.qp[0], 1)
        state = blame.ev_silent(s, 0, 0)
        if state == ASSUMED_BAD:
            break
    assert state == ASSUMED_BAD


def test_one_lossy_ev_is_blamed_at_once_each_time() -> None:
    s = made(active=64, backup=0, min_active=1, paths=64)
    e = int(s.rotation[0, 0])
    for _ in range(5):
        assert blame.ev_silent(s, 0, e) == ASSUMED_BAD
        evs.ev_event(s, 0, e, evs.PROBED_CLEAR)


def test_one_packet_revives_at_most_one_ev() -> None:
    s = made(active=4, backup=0, shuffle=False)
    rotation = s.rotation[0, :4].tolist()
    for e in rotation[:3]:
        evs.ev_event(s, 0, e, evs.MARK)
    assert evs.pick_ev(s, 0, -1, -1) == rotation[3]
    assert [int(s.evs[0, e]["state"]) for e in rotation] == [GOOD, SKIP, SKIP, GOOD]


def test_all_marked_still_sends() -> None:
    s = made(active=8, backup=0)
    for e in range(8):
        evs.ev_event(s, 0, e, evs.MARK)
    assert evs.pick_ev(s, 0, -1, -1) >= 0
    assert (s.evs[0]["state"] == SKIP).sum() == 7


def test_a_retired_ev_is_replaced_in_its_own_plane() -> None:
    s = made()
    e = int(s.rotation[0, 3])
    plane = int(s.evs[0, e]["plane"])
    spares = [k for k in range(12) if s.evs[0, k]["role"] == SPARE and s.evs[0, k]["plane"] == plane]
    evs.ev_event(s, 0, e, evs.SILENCE)
    assert int(s.rotation[0, 3]) in spares
    assert s.planes[0, plane]["active"] == s.planes[0, plane]["target"]


def test_silence_never_empties_the_rotation() -> None:
    s = made(min_active=3)
    for _ in range(50):
        for e in range(12):
            blame.ev_silent(s, 0, e)
    check_evs(s, 0)
    assert s.qp[0]["active"] == 3
    assert s.qp[0]["refused"] > 0
    assert evs.pick_ev(s, 0, -1, -1) >= 0


def test_the_controller_may_deny_below_the_floor() -> None:
    s = made(min_active=3)
    for e in range(12):
        evs.ev_event(s, 0, e, evs.DENY)
    assert s.qp[0]["active"] == 0
    assert evs.pick_ev(s, 0, -1, -1) == -1
    for e in range(12):
        evs.ev_event(s, 0, e, evs.ALLOW)
    check_evs(s, 0)
    assert s.qp[0]["active"] == 8


def test_a_readmitted_ev_fills_the_gap_of_its_plane_or_waits() -> None:
    s = made(backup=0)
    evs.ev_event(s, 0, 0, evs.SILENCE)
    assert s.qp[0]["active"] == 7
    evs.ev_event(s, 0, 0, evs.PROBED_CLEAR)
    assert (s.qp[0]["active"], s.evs[0, 0]["role"]) == (8, ACTIVE)
    s = made()
    e = int(s.rotation[0, 0])
    evs.ev_event(s, 0, e, evs.SILENCE)
    evs.ev_event(s, 0, e, evs.PROBED_MARKED)
    assert (s.evs[0, e]["role"], s.evs[0, e]["state"]) == (SPARE, SKIP)


def test_without_trimming_only_losses_in_a_row_retire() -> None:
    s = made(trimming=False)
    assert [int(blame.ev_silent(s, 0, 0)) for _ in range(3)] == [SKIP, SKIP, ASSUMED_BAD]
    s = made(trimming=False)
    blame.ev_silent(s, 0, 0)
    blame.ev_silent(s, 0, 0)
    s.evs[0, 0]["losses"] = 0  # what a delivery does
    assert blame.ev_silent(s, 0, 0) == SKIP


def test_a_busy_port_is_passed_over() -> None:
    s = made()
    picked = {int(s.evs[0, evs.pick_ev(s, 0, -1, 0b10)]["plane"]) for _ in range(20)}
    assert picked == {1}


@given(st.integers(0, 7), st.integers(0, 2**40))
def test_the_avoided_ev_is_not_taken_while_there_is_another(avoid: Any, seed: int) -> None:
    s = made(backup=0, seed=seed)
    assert all(evs.pick_ev(s, 0, avoid, -1) != avoid for _ in range(30))
    assert s.qp[0]["reused_ev"] == 0


def test_switched_off_mechanisms_do_nothing() -> None:
    s = made(retire=False, skip=False)
    assert evs.ev_event(s, 0, 0, evs.SILENCE) == GOOD
    assert evs.ev_event(s, 0, 0, evs.MARK) == GOOD


def test_the_controller_names_paths_by_their_bits() -> None:
    s = made()
    value = int(s.evs[0, 5]["value"])
    assert evs.deny(s, 0, value, 1) == 1
    assert s.evs[0, 5]["state"] == DENIED
    check_evs(s, 0)
    assert evs.deny(s, 0, value, 0) == 1
    assert s.evs[0, 5]["state"] == GOOD
    assert evs.deny(s, 0, 10**6, 1) == 0


@given(st.lists(st.booleans(), min_size=20, max_size=20), st.integers(0, 2**40))
def test_a_busy_port_costs_no_ev_its_turn(swapped: list[bool], seed: int) -> None:
    s = made(seed=seed)
    used: Counter[int] = Counter()
    for swap in swapped:
        for room in (2, 1) if swap else (1, 2):
            e = evs.pick_ev(s, 0, -1, room)
            assert room >> int(s.evs[0, e]["plane"]) & 1, "the port has room"
            used[e] += 1
    # Two ports, each free every other time: five rounds over four EVs of each plane.
    assert sorted(used.values()) == [5] * 8


def test_a_plane_that_comes_back_brings_its_evs_and_no_others() -> None:
    s = made()
    blamed = {plane: next(e for e in range(12) if s.evs[0, e]["plane"] == plane) for plane in (0, 1)}
    for e in blamed.values():
        evs.ev_event(s, 0, e, evs.SILENCE)
    on_port_status(s, 0, 0b10)
    on_port_status(s, 0, 0b11)
    assert [int(s.evs[0, blamed[plane]]["state"]) for plane in (0, 1)] == [GOOD, ASSUMED_BAD]
    check_evs(s, 0)


def test_a_pair_with_few_paths_keeps_the_same_share_of_them() -> None:
    s = made(active=16, backup=0, min_active=8, paths=2)
    for e in range(16):
        evs.ev_event(s, 0, e, evs.SILENCE)
    assert s.qp[0]["active"] == 2


def test_silence_never_takes_the_last_path_of_a_pair_that_has_few() -> None:
    s = made(planes=1, active=8, backup=0, min_active=2, paths=1)
    e = int(s.rotation[0, 0])
    assert blame.ev_silent(s, 0, e) == SKIP
    assert (int(s.qp[0]["active"]), int(s.qp[0]["refused"])) == (1, 1)
    assert evs.pick_ev(s, 0, -1, -1) == e
    check_evs(s, 0)


@given(st.integers(2, 32), st.integers(1, 31), st.integers(1, 32), st.integers(0, 120), st.integers(0, 2**32))
def test_dead_paths_that_the_floor_keeps_carry_next_to_nothing(
    paths: int, dead: int, floor: int, behind: int, seed: int
) -> None:
    dead = min(dead, paths - 1)
    s = made(1, active=paths, backup=0, min_active=min(floor, paths), paths=paths, seed=seed)
    gone = set(range(dead))
    waiting: list[int] = []
    carried = []
    # What became of a packet is known only so many packets later.
    for _ in range(3000):
        e = int(evs.pick_ev(s, 0, -1, -1))
        carried.append(e in gone)
        waiting.append(e)
        if len(waiting) > behind:
            known = waiting.pop(0)
            if known in gone:
                blame.ev_silent(s, 0, known)
            else:
                blame.ev_delivers(s, 0, known)
                skipping.ev_clear(s, 0, known)
    kept = sum(1 for e in s.rotation[0, : s.qp[0]["active"]] if int(e) in gone)
    working = int(s.qp[0]["active"]) - kept
    # In a round each EV that works carries one packet, each dead one a 33rd of one; twice that for chance.
    assert sum(carried[-1000:]) / 1000 <= 2 * kept / 33 / working + 0.01
    check_evs(s, 0)


@given(st.integers(2, 8), st.integers(0, 7), st.integers(0, 2**32), st.booleans())
def test_a_lost_packet_goes_out_on_its_own_path_again_where_all_others_lose(
    paths: int, own: int, seed: int, marked: bool
) -> None:
    own %= paths
    s = made(1, active=paths, backup=0, min_active=paths, paths=paths, seed=seed)
    for other in set(range(paths)) - {own}:
        for _ in range(3):
            blame.ev_silent(s, 0, other)
    if marked:
        evs.ev_event(s, 0, own, evs.MARK)
    assert [int(evs.pick_ev(s, 0, own, -1)) for _ in range(50)] == [own] * 50
