"""What a run keeps: bins that close in order, faults that are made good, and when invariants are sampled."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.netsim.model.faults import Effect, LinkFaultChange, Reconvergence
from weft.netsim.model.records import Counts, FaultRecord, RunRecords, Timeline

NOTHING = Counts(0, 0, 0, 0, 0)


def change(at_ps: int, links: tuple[int, ...], *, fault: int = 0, begins: bool = True, effect: Effect = "down"):
    return LinkFaultChange(at_ps, fault, links, effect, begins)


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=4, max_size=4), max_size=20))
def test_every_bin_keeps_its_own_peaks(peaks):
    records = RunRecords(4)
    for number, row in enumerate(peaks):
        records.peaks[:] = row
        records.close_bin(10 * (number + 1), np.zeros(1, np.int64), NOTHING)
    assert records.queue_peaks == peaks
    assert records.peaks == [0] * 4
    assert records.bin_ends_ps == [10 * (n + 1) for n in range(len(peaks))]


def test_invariants_are_sampled_at_powers_of_two_and_then_at_every_1024th_bin():
    records = RunRecords(1)
    sampled = []
    for number in range(1, 5000):
        records.bin_ends_ps.append(number)
        if records.is_sampled:
            sampled.append(number)
    assert sampled == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_a_fault_is_made_good_when_the_last_packet_that_it_took_arrives(losses):
    record = FaultRecord(5)
    for time_ps, (pair, sequence) in enumerate(losses):
        record.lose(pair, time_ps)
        record.open[pair, sequence] = time_ps
    assert record.data_lost == len(losses)
    for pair, first in record.first_ps.items():
        assert first == min(time for time, (other, _) in enumerate(losses) if other == pair)
    for number, (pair, sequence) in enumerate(sorted(set(losses))):
        record.arrive(pair, sequence, 1000 + number)
        assert record.recovered_ps[pair] == 1000 + number
    assert not record.open
    record.arrive(99, 0, 5)
    assert 99 not in record.recovered_ps, "what was not lost is not recovered"


def test_a_record_of_a_fault_begins_where_the_fault_first_does():
    changes = (change(30, (1,)), change(50, (1,), begins=False), change(70, (1,)), change(40, (2,), fault=2))
    found = Timeline(10, None, changes, 3).fault_records()
    assert [record.begins_ps for record in found] == [30, 0, 40]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4), st.booleans()), max_size=12), st.integers(0, 20))
def test_routing_learns_of_dead_links_late_and_of_nothing_else(events, late_ps):
    counts: dict[int, int] = {}
    changes = []
    for at_ps, link, begins in sorted(events):
        # A fault ends only where it has begun.
        if begins or counts.get(link, 0) > 0:
            counts[link] = counts.get(link, 0) + (1 if begins else -1)
            changes.append(change(at_ps, (link,), begins=begins))
    changes.append(change(60, (77,), effect="swallow"))
    routing = Reconvergence(late_ps, changes)
    known: frozenset[int] = frozenset()
    for now_ps in range(100):
        due = routing.next_ps()
        news = routing.dead(now_ps)
        assert (news is not None) == (due is not None and due <= now_ps)
        known = known if news is None else news
        balance: dict[int, int] = {}
        for each in changes[:-1]:
            if each.at_ps + late_ps <= now_ps:
                balance[each.links[0]] = balance.get(each.links[0], 0) + (1 if each.begins else -1)
        assert known == {link for link, count in balance.items() if count}
    assert Reconvergence(None, changes).next_ps() is None, "or it learns nothing, ever"
