"""The kernel's lists and rates as plain rules: chunks on wires, rows in queues, orders of arrival, grants."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.netsim.kernel import allocation, layout
from weft.netsim.kernel.fabric_columns import near_ps, per_slot, rate_row, signed
from weft.netsim.kernel.queues import append, give_queue_row, take_queue_row
from weft.netsim.kernel.switches import in_order
from weft.netsim.kernel.wires import OUT_OF_CHUNKS, OUT_OF_ROWS, arriving, clear_list, move_chunks, place_on_wire
from weft.netsim.model.network import grants

SLOT_PS = 336_000


def shard(part: int = 0) -> Any:
    """Return a shard of which only its number, counters and scratch are there."""
    return SimpleNamespace(
        part=part, count=np.zeros(layout.COUNTERS, np.int64), first=np.full(4, -1, np.int64),
        came=np.zeros(layout.CAME * 256, np.int64), order=np.zeros(256, np.int64),
    )  # fmt: skip


def wires_of(parts: int = 1, ring: int = 4, nodes: int = 3) -> layout.Wires:
    return allocation.make_wires(0, 0, parts, ring, nodes)


def read(wires: layout.Wires, node: int, slot: int) -> list[int]:
    """Return the UIDs of what arrives at a node in a slot, in any order."""
    ring = slot & (wires.heads.shape[1] - 1)
    found = []
    for source in range(wires.heads.shape[0]):
        left = int(wires.heads[source, ring, node]) & layout.LOW32
        chunk = int(wires.heads[source, ring, node]) >> layout.CHUNK_SHIFT
        while chunk >= 0:
            held = (left - 1) % layout.CHUNK + 1
            left -= held
            found += wires.rows[chunk * layout.CHUNK : chunk * layout.CHUNK + held, layout.UID].tolist()
            chunk = int(wires.after[chunk])
    return found


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)), max_size=150))
def test_whatever_is_put_on_a_wire_arrives_once_where_and_when_it_should(sends):
    wires, shards = wires_of(parts=2), [shard(0), shard(1)]
    expected: dict[tuple[int, int], list[int]] = {}
    for uid, (node, slot, part) in enumerate(sends):
        wires.rows[place_on_wire(wires, shards[part], node, slot), layout.UID] = uid
        expected.setdefault((node, slot), []).append(uid)
    for node in range(3):
        for slot in range(4):
            wanted = expected.get((node, slot), [])
            assert arriving(wires, node, slot) == len(wanted)
            assert sorted(read(wires, node, slot)) == wanted


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12))
def test_chunks_that_were_read_are_used_again(counts):
    wires, mine = wires_of(), shard()
    most = max(-(-count // layout.CHUNK) for count in counts)
    fresh = int(wires.free[0, 1])
    for slot, count in enumerate(counts):
        for _ in range(count):
            place_on_wire(wires, mine, 0, slot)
        clear_list(wires, 0, 0, slot & 3, 0)
        assert arriving(wires, 0, slot) == 0
    assert int(wires.free[0, 1]) - fresh == most, "no more than the most that were used at once"
    assert wires.free[0, 3] == most


def test_a_part_that_has_no_chunk_left_says_so():
    wires, mine = wires_of(), shard()
    wires.free[0, 1] = wires.free[0, 2]
    place_on_wire(wires, mine, 0, 0)
    assert mine.count[layout.FAULTY] == OUT_OF_CHUNKS


@given(st.integers(0, 9), st.integers(0, 9))
def test_free_chunks_move_from_one_part_to_another_and_none_is_lost(freed, moved):
    wires = wires_of(parts=2)
    for slot in range(freed):
        place_on_wire(wires, shard(0), 0, slot)
        clear_list(wires, 0, 0, slot & 3, 0)
    has = int(wires.free[0, 3])
    move_chunks(wires, 0, 1, moved)
    assert wires.free[:, 3].tolist() == [has - min(has, moved), min(has, moved)]


@given(st.lists(st.booleans() | st.integers(1, 2000), max_size=60))
def test_a_queue_is_first_in_first_out_in_each_class(steps):
    queues, mine = allocation.make_queues(0, 0, 1), shard()
    port = np.full(layout.PORT_COLUMNS, -1, np.int64)
    port[[layout.DATA_BYTES, layout.CONTROL_BYTES]] = 0
    expected: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for step in steps:
        control = step is True or (step is not False and step % 2 == 0)
        size = 100 if isinstance(step, bool) else step
        row = take_queue_row(queues, mine)
        append(queues, port, row, control, size)
        expected[control].append((row, size))
    for control, first, total in (
        (False, layout.DATA_FIRST, layout.DATA_BYTES),
        (True, layout.CONTROL_FIRST, layout.CONTROL_BYTES),
    ):
        found, at = [], int(port[first])
        while at >= 0:
            found.append((at, int(queues.rows[at, layout.BYTES])))
            at = int(queues.rows[at, layout.AFTER])
        assert found == expected[control]
        assert port[total] == sum(size for _, size in expected[control])


@given(st.lists(st.booleans(), max_size=80))
def test_no_row_of_a_queue_is_given_out_twice(takes):
    queues, mine = allocation.make_queues(0, 0, 1), shard()
    held: list[int] = []
    for take in takes:
        if take or not held:
            row = take_queue_row(queues, mine)
            assert row not in held
            held.append(row)
        else:
            give_queue_row(queues, 0, held.pop(len(held) // 2))
    queues.free[0, 0] = 0
    queues.free[0, 1] = queues.free[0, 2]
    take_queue_row(queues, mine)
    assert mine.count[layout.FAULTY] == OUT_OF_ROWS


@given(st.lists(st.booleans(), max_size=40))
def test_queues_that_have_grown_hold_what_they_held_and_have_more_room(takes):
    queues, mine = allocation.make_queues(0, 0, 1), shard()
    held: list[int] = []
    for take in takes:
        if take or not held:
            held.append(take_queue_row(queues, mine))
            queues.rows[held[-1], layout.UID] = 1000 + held[-1]
        else:
            give_queue_row(queues, 0, held.pop())
    more = allocation.grown_queues(queues)
    assert len(more.rows) > len(queues.rows)
    assert more.rows[held, layout.UID].tolist() == [1000 + row for row in held]
    taken = {take_queue_row(more, mine) for _ in range(100)}
    assert len(taken) == 100
    assert taken.isdisjoint(held)


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, SLOT_PS)), min_size=1, max_size=60),
    st.booleans(),
)
def test_arrivals_are_taken_by_key_or_by_time_first(arrivals, by_time):
    mine, wires = shard(), SimpleNamespace(rows=np.zeros((256, layout.WORDS), np.int64))
    for row, (key, time_ps) in enumerate(arrivals):
        at = layout.CAME * row
        mine.came[at], mine.came[at + layout.AT], mine.came[at + layout.NEXT] = key, row, mine.first[2]
        mine.first[2] = at
        wires.rows[row, layout.PLACE] = time_ps
    count = in_order(wires, mine, 2, by_time)  # pyrefly: ignore[bad-argument-type]
    found = [int(each) // layout.CAME for each in mine.order[:count]]
    keys = [(time_ps if by_time else 0, key % 2**64) for key, time_ps in arrivals]
    assert sorted(found) == list(range(len(arrivals)))
    assert [keys[row] for row in found] == sorted(keys), "keys are compared without a sign"
    assert mine.first[2] == -1, "and the list is empty for the next slot"


@given(st.integers(1, 10**12), st.integers(1000, 10**7), st.integers(-1, 2**31))
def test_grants_in_whole_numbers_are_those_of_exact_arithmetic(rate, slot_ps, slot):
    table = np.array([rate_row(rate, slot_ps)], np.int64)
    fabric: Any = SimpleNamespace(rates=table)
    assert layout.granted(fabric, 0, slot) == grants(rate, slot_ps, slot)


@given(st.integers(10_000, 2**24), st.integers(0, 2**24), st.integers(1, 500))
def test_times_that_are_near_are_divided_by_a_multiplication(slot_ps, time_ps, furthest):
    if time_ps < near_ps(slot_ps, furthest):
        assert time_ps * per_slot(slot_ps) >> layout.PER_SLOT_BITS == time_ps // slot_ps <= furthest


@given(st.integers(0, 2**64 - 1))
def test_words_keep_their_bits_when_they_get_a_sign(word):
    assert signed(word) % 2**64 == word
    assert -(2**63) <= signed(word) < 2**63


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_every_node_has_one_part_and_parts_are_even(parts):
    nodes = np.zeros((37, layout.NODE_COLUMNS), np.int64)
    nodes[:, layout.TIER] = [-1] * 16 + [0] * 16 + [1] * 5
    found = allocation.parts_of(nodes, parts)
    assert sorted(np.concatenate(found).tolist()) == list(range(37))
    for share in found:
        tiers = nodes[share, layout.TIER].tolist()
        assert tiers == sorted(tiers), "NICs come first"
        assert abs(len(share) - 37 / parts) <= 3
