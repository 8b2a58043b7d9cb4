"""A run that changes its coordinator goes on within the same limits, with what was lost still lost."""

from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.recovery import succession
from weft.cluster.recovery.events import (
    Conclude,
    Fenced,
    Kill,
    Lost,
    RankSlot,
    RecoveryPolicy,
    StartGeneration,
)
from weft.cluster.recovery.machine import RecoveryMachine, RecoveryState
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds

SLOTS = tuple(RankSlot(number, number // 2) for number in range(6))
NOW = Picoseconds(PICOSECONDS_PER_SECOND)


def machine(futile: int = 3) -> RecoveryMachine:
    return RecoveryMachine(RecoveryPolicy("shrink", 6, widths=(1, 2, 3, 4, 5), futile=futile), SLOTS)


@given(st.sets(st.integers(0, 2), max_size=2), st.integers(0, 10))
def test_the_next_coordinator_starts_the_next_generation_on_what_is_left(nodes: set[int], reached: int):
    before = machine()
    before.start(NOW)
    before.reached = reached
    lost = frozenset(slot.number for slot in SLOTS if slot.node in nodes)
    before.handle(Lost(lost, "gone"), NOW)
    after = machine()
    (kill,) = succession.taken_over(after, succession.kept(before), "it has died", NOW)
    assert isinstance(kill, Kill)
    assert (kill.cause.kind, kill.cause.rank, kill.cause.text) == ("coordinator", None, "it has died")
    assert kill.generation == before.generation
    (started,) = after.handle(Fenced(kill.generation), NOW)
    assert isinstance(started, StartGeneration)
    assert started.generation == before.generation + 1
    assert {slot.number for slot in started.slots} == {slot.number for slot in SLOTS} - lost
    assert (after.reached, after.restarts) == (reached, before.restarts + 1)


@given(st.integers(0, 4))
def test_coordinators_that_die_in_a_row_reach_the_limit_of_restarts_without_progress(futile: int):
    one = machine(futile)
    one.start(NOW)
    for turn in range(futile + 1):
        after = machine(futile)
        succession.taken_over(after, succession.kept(one), "it has died", NOW)
        (action,) = after.handle(Fenced(after.generation), NOW)
        one = after
        if turn < futile:
            assert isinstance(action, StartGeneration)
        else:
            assert isinstance(action, Conclude)
            assert one.state is RecoveryState.FAILED
