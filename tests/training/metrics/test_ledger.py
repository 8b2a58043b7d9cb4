from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.clock import ManualClock, SystemClock
from weft.core.units import FlopsPerSecond, Picoseconds
from weft.training.metrics.ledger import Ledger, TimeClass, Times, bubble_ps, merged, mfu

SPANS = st.integers(0, 10**15).map(Picoseconds)
KINDS = st.sampled_from(TimeClass)
ACTIONS = st.one_of(
    st.tuples(st.just("wait"), SPANS),
    st.tuples(st.just("enter"), KINDS),
    st.tuples(st.just("leave"), st.none()),
    st.tuples(st.just("mark"), st.none()),
    st.tuples(st.just("move"), st.tuples(KINDS, KINDS, SPANS)),
)


@given(st.lists(ACTIONS, max_size=60))
def test_whatever_happens_the_classes_sum_to_the_wall_time(actions: list[tuple[str, Any]]):
    clock = ManualClock(Picoseconds(7))
    ledger, depth, waited = Ledger(clock), 0, 0
    marks: list[Times] = []
    for word, value in actions:
        match word:
            case "wait":
                clock.advance(value)
                waited += value
            case "enter":
                ledger.enter(value)
                depth += 1
            case "leave" if depth:
                ledger.leave()
                depth -= 1
            case "mark":
                marks.append(ledger.mark())
            case "move":
                ledger.move(*value)
        assert ledger.total().wall_ps == waited
    marks.append(ledger.mark())
    assert sum(mark.wall_ps for mark in marks) == waited
    assert all(span >= 0 for mark in marks for span in mark.by_class.values())
    assert ledger.mark().wall_ps == 0


def test_an_inner_class_stops_the_outer_one():
    clock = ManualClock()
    ledger = Ledger(clock)
    clock.advance(Picoseconds(1))
    with ledger.spending(TimeClass.COMPUTE):
        clock.advance(Picoseconds(10))
        with ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
            clock.advance(Picoseconds(5))
        clock.advance(Picoseconds(20))
    assert ledger.total().by_class == {
        TimeClass.IDLE: 1,
        TimeClass.COMPUTE: 30,
        TimeClass.EXPOSED_COMMUNICATION: 5,
    }


def test_a_block_that_raises_is_left():
    ledger = Ledger(ManualClock())
    with pytest.raises(KeyError), ledger.spending(TimeClass.INPUT):
        raise KeyError
    with pytest.raises(AssertionError, match="more classes"):
        ledger.leave()


def test_no_more_is_moved_than_was_spent_since_the_mark():
    clock = ManualClock()
    ledger = Ledger(clock)
    with ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
        clock.advance(Picoseconds(8))
    ledger.mark()
    with ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
        clock.advance(Picoseconds(3))
    assert ledger.move(TimeClass.EXPOSED_COMMUNICATION, TimeClass.BUBBLE, Picoseconds(9)) == 3
    assert ledger.mark().by_class == {TimeClass.BUBBLE: 3}


def test_the_machine_clock_fits():
    ledger = Ledger(SystemClock())
    with ledger.spending(TimeClass.COMPUTE):
        sum(range(1000))
    total = ledger.total()
    assert total.by_class[TimeClass.COMPUTE] > 0
    assert sum(total.seconds().values()) == pytest.approx(total.wall_ps / 1e12)


@given(st.lists(st.dictionaries(KINDS, SPANS), min_size=1, max_size=5))
def test_merging_ranks_keeps_every_second(ranks: list[dict[TimeClass, Picoseconds]]):
    times = [Times(one) for one in ranks]
    joint = merged(times)
    assert joint.total.wall_ps == sum(one.wall_ps for one in times)
    assert sum(joint.mean_seconds().values()) == pytest.approx(joint.total.wall_ps / 1e12 / len(ranks))
    assert all(joint.longest.by_class[kind] >= span for one in times for kind, span in one.by_class.items())


def test_the_bubble_is_the_schedules_share():
    # (p-1)/(m+p-1) of the step: with p = 4, m = 12 and 12 units of work, 3 units of 15.
    assert bubble_ps(Picoseconds(12), stages=4, micro_batches=12) == 3
    assert bubble_ps(Picoseconds(12), stages=1, micro_batches=12) == 0
    assert bubble_ps(Picoseconds(24), stages=4, micro_batches=12, chunks=2) == 3


def test_mfu_is_needed_over_possible():
    assert mfu(6e9, 1e5, FlopsPerSecond(10**15)) == pytest.approx(0.6)
    assert mfu(6e9, 1e5, FlopsPerSecond(10**15), ranks=2) == pytest.approx(0.3)


def test_shares_of_no_time_are_none():
    assert Times({}).share(TimeClass.COMPUTE) == 0.0
    assert Times({TimeClass.COMPUTE: Picoseconds(3), TimeClass.IDLE: Picoseconds(1)}).share(TimeClass.COMPUTE) == 0.75
