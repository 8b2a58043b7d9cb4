from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.recovery import events as words
from weft.cluster.recovery.blame import GRACE_PS, blame
from weft.cluster.recovery.events import Cause, HangEvidence, RankSlot, RecoveryPolicy
from weft.cluster.recovery.machine import RecoveryMachine
from weft.cluster.recovery.recovery_state import ACTIVE, OPEN, RecoveryState
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds

SECOND = Picoseconds(PICOSECONDS_PER_SECOND)
SLOTS = tuple(RankSlot(number, number // 2) for number in range(4))

EVENTS: dict[type[words.RecoveryEvent], words.RecoveryEvent] = {
    words.Joined: words.Joined(0, 1),
    words.StateRestored: words.StateRestored(0, 1, 0),
    words.Verified: words.Verified(0),
    words.Refused: words.Refused(0, None, "not what was agreed"),
    words.Stepped: words.Stepped(0, 1, 1),
    words.Phase: words.Phase(0, 1, "evaluation"),
    words.Committed: words.Committed(0, 1),
    words.Done: words.Done(0, 1),
    words.Died: words.Died(0, 1, "killed", "signal SIGKILL"),
    words.Raised: words.Raised(0, 1, "ValueError"),
    words.Disagreed: words.Disagreed(0, 1, "model.weight"),
    words.Examined: words.Examined(0, (HangEvidence(0, False, Picoseconds(0), (1, 1)),)),
    words.Fenced: words.Fenced(0),
    words.Released: words.Released(0),
    words.Obstacle: words.Obstacle("the guard"),
    words.Lost: words.Lost(frozenset({3}), "node 1 is gone"),
    words.Returned: words.Returned(frozenset({3})),
    words.Asked: words.Asked(),
    words.Tick: words.Tick(),
}

S = RecoveryState
NEXT: dict[type[words.RecoveryEvent], dict[RecoveryState, set[RecoveryState]]] = {
    words.Joined: {S.REFORMING: {S.REFORMING, S.RESTORING}},
    words.StateRestored: {S.REFORMING: {S.REFORMING}, S.RESTORING: {S.RESTORING, S.VERIFYING}},
    words.Verified: {S.VERIFYING: {S.RUNNING}},
    words.Refused: {S.VERIFYING: {S.FENCING}},
    words.Stepped: {state: {state} for state in ACTIVE},
    words.Phase: {S.RUNNING: {S.RUNNING}},
    words.Committed: {S.RUNNING: {S.RUNNING, S.FENCING}},
    words.Done: {**{state: {state} for state in ACTIVE}, S.REPLACING: {S.FENCING}},
    words.Died: {state: {S.FENCING} for state in ACTIVE},
    words.Raised: {**{state: {S.SUSPECT} for state in ACTIVE}, S.REPLACING: {S.FENCING}},
    words.Disagreed: {S.RUNNING: {S.FENCING}, S.SUSPECT: {S.FENCING}},
    words.Examined: {S.SUSPECT: {S.SUSPECT, S.FENCING}},
    words.Fenced: {S.FENCING: {S.REFORMING, S.WAITING}},
    words.Released: {S.REPLACING: {S.REFORMING}},
    words.Obstacle: {state: {state} for state in OPEN},
    words.Lost: {**{state: {S.FENCING} for state in ACTIVE}, S.FENCING: {S.FENCING}, S.WAITING: {S.WAITING}},
    words.Returned: {**{state: {state} for state in OPEN}, S.WAITING: {S.WAITING, S.REFORMING}},
    words.Asked: {**{state: {state} for state in ACTIVE}, S.FENCING: {S.FAILED}, S.WAITING: {S.FAILED}},
    words.Tick: {state: {state} for state in OPEN},
}


def in_state(state: RecoveryState, **policy: Any) -> RecoveryMachine:
    """Return a run that has come to `state` through events alone."""
    if state is RecoveryState.REPLACING:
        return replacing(**policy)
    return _in_other_state(state, **policy)


def _in_other_state(state: RecoveryState, **policy: Any) -> RecoveryMachine:
    options: dict[str, Any] = {"kind": "shrink", "wanted": 4, "widths": (1, 2, 3), **policy}
    run = RecoveryMachine(RecoveryPolicy(**options), SLOTS)
    run.start(Picoseconds(0))
    before = list(RecoveryState)[: list(RecoveryState).index(state)]
    if RecoveryState.REFORMING in before:
        _all(run, words.Joined)
    if RecoveryState.RESTORING in before:
        for rank in range(4):
            run.handle(words.StateRestored(0, rank, 0), SECOND)
    if RecoveryState.VERIFYING in before:
        run.handle(words.Verified(0), SECOND)
    if state is RecoveryState.SUSPECT:
        run.handle(words.Raised(0, 0, "Connection closed by peer", victim=True), SECOND)
    if state in (RecoveryState.FENCING, RecoveryState.WAITING, RecoveryState.FAILED):
        run.handle(words.Died(0, 2, "killed", "signal SIGKILL"), SECOND)
    if state is RecoveryState.WAITING:
        run.handle(words.Lost(frozenset(range(4)), "all gone"), SECOND)
        run.handle(words.Fenced(0), SECOND)
    if state is RecoveryState.FINISHED:
        _all(run, words.Done)
    if state is RecoveryState.FAILED:
        run.handle(words.Asked(), SECOND)
    assert run.state is state
    return run


def replacing(**policy: Any) -> RecoveryMachine:
    """Return a run that puts another rank in the place of rank 2."""
    run = RecoveryMachine(RecoveryPolicy("shrink", 4, widths=(1, 2, 3), restart_all=None, **policy), SLOTS)
    run.start(Picoseconds(0))
    _bring_up(run)
    run.handle(words.Died(0, 2, "killed", "signal SIGKILL"), SECOND)
    assert run.state is RecoveryState.REPLACING
    return run


def _all(
    run: RecoveryMachine, event: type[words.Joined] | type[words.Done], generation: int = 0
) -> list[words.RecoveryAction]:
    return [action for rank in range(len(run.assigned)) for action in run.handle(event(generation, rank), SECOND)]


def restarted(run: RecoveryMachine, generation: int, step: int, now: Picoseconds = SECOND) -> None:
    """Bring generation number `generation` from its fence to running, restored after `step` steps."""
    run.handle(words.Fenced(generation - 1), now)
    assert run.generation == generation
    for rank in range(len(run.assigned)):
        run.handle(words.Joined(generation, rank), now)
    for rank in range(len(run.assigned)):
        run.handle(words.StateRestored(generation, rank, step), now)
    run.handle(words.Verified(generation), now)
    assert run.state is RecoveryState.RUNNING


def step_all(run: RecoveryMachine, step: int, now: Picoseconds = SECOND) -> list[words.RecoveryAction]:
    ranks = range(len(run.assigned))
    return [action for rank in ranks for action in run.handle(words.Stepped(run.generation, rank, step), now)]


@pytest.mark.parametrize("state", list(RecoveryState))
@pytest.mark.parametrize("kind", list(EVENTS))
def test_every_event_in_every_state_leads_where_the_table_says(state: RecoveryState, kind: type[words.RecoveryEvent]):
    run = in_state(state)
    allowed = NEXT[kind].get(state)
    before = vars(in_state(state))
    actions = run.handle(EVENTS[kind], SECOND)
    if allowed is None:
        assert run.state is state
        assert actions == ()
        assert vars(run) == before
    else:
        assert run.state in allowed


def test_the_table_knows_every_event():
    assert set(RecoveryMachine.TABLE) == set(EVENTS)
    assert {kind: states for kind, (_, states) in RecoveryMachine.TABLE.items()} == {
        kind: frozenset(cells) for kind, cells in NEXT.items()
    }


@pytest.mark.parametrize("state", list(RecoveryState))
@given(generation=st.integers(-3, 9).filter(bool))
def test_an_echo_of_another_generation_changes_nothing(state: RecoveryState, generation: int):
    run = in_state(state)
    echoes = [words.Died(generation, 1, "killed", "late"), words.Stepped(generation, 0, 9), words.Fenced(generation)]
    for echo in echoes:
        before = in_state(state)
        assert run.handle(echo, SECOND) == ()
        assert vars(run) == vars(before)


def test_the_dead_rank_is_blamed_and_not_the_neighbour_that_spoke_first():
    run = in_state(RecoveryState.SUSPECT)
    (kill,) = run.handle(words.Died(0, 2, "killed", "signal SIGKILL"), SECOND)
    assert isinstance(kill, words.Kill)
    assert (kill.cause.rank, kill.cause.kind, kill.cause.slot) == (2, "killed", SLOTS[2])


def test_an_error_of_its_own_is_blamed_before_a_closed_connection():
    run = in_state(RecoveryState.SUSPECT)
    run.handle(words.Raised(0, 3, "ValueError: bad"), SECOND)
    (kill,) = run.handle(words.Tick(), Picoseconds(SECOND + GRACE_PS))
    assert isinstance(kill, words.Kill)
    assert kill.cause.rank == 3


def test_a_death_that_a_neighbour_speaks_of_is_waited_for_and_not_for_ever():
    run = in_state(RecoveryState.SUSPECT)
    assert run.handle(words.Tick(), Picoseconds(SECOND + 2 * GRACE_PS)) == ()
    deadline = run.deadline_ps()
    assert deadline is not None
    (kill,) = run.handle(words.Tick(), deadline)
    assert isinstance(kill, words.Kill)
    assert kill.cause.rank == 0


def test_a_wrong_request_is_not_tried_again():
    run = in_state(RecoveryState.RUNNING)
    run.handle(words.Raised(0, 0, "there is no such corpus", fatal=True), SECOND)
    assert run.handle(words.Fenced(0), SECOND) == (words.Conclude("there is no such corpus"),)
    assert run.state is RecoveryState.FAILED


def test_a_rank_that_dies_of_a_wish_to_stop_is_not_started_again():
    run = in_state(RecoveryState.REFORMING)
    run.handle(words.Asked(), SECOND)
    run.handle(words.Died(0, 1, "killed", "signal SIGTERM"), SECOND)
    assert run.handle(words.Fenced(0), SECOND) == (words.Conclude("it was asked to stop"),)


def test_the_same_error_twice_in_the_same_place_ends_the_run_with_it():
    run = in_state(RecoveryState.RUNNING)
    for generation in (0, 1):
        run.handle(words.Raised(generation, 0, "the gradient of step 3 is not finite"), SECOND)
        run.handle(words.Tick(), Picoseconds(SECOND + GRACE_PS))
        if generation == 0:
            restarted(run, 1, 0)
    assert run.handle(words.Fenced(1), SECOND) == (words.Conclude("the gradient of step 3 is not finite"),)


def test_a_spare_takes_over_and_the_blamed_slot_becomes_the_last_resort():
    slots = (*SLOTS, RankSlot(4, 2))
    run = RecoveryMachine(RecoveryPolicy("spare", 4), slots)
    run.start(Picoseconds(0))
    run.handle(words.Died(0, 1, "killed", "signal SIGKILL"), SECOND)
    (start,) = run.handle(words.Fenced(0), SECOND)
    assert isinstance(start, words.StartGeneration)
    assert [slot.number for slot in start.slots] == [0, 2, 3, 4]
    run.handle(words.Died(1, 0, "killed", "signal SIGKILL"), SECOND)
    (start,) = run.handle(words.Fenced(1), SECOND)
    assert isinstance(start, words.StartGeneration)
    assert [slot.number for slot in start.slots] == [1, 2, 3, 4]


def test_a_job_shrinks_by_what_was_lost_and_grows_back_after_a_snapshot():
    run = in_state(RecoveryState.RUNNING)
    run.handle(words.Lost(frozenset({3}), "node 1 lost a slot"), SECOND)
    restarted(run, 1, 0)
    assert run.width == 3
    step_all(run, 1)
    run.handle(words.Lost(frozenset({0}), "another"), SECOND)
    restarted(run, 2, 1)
    assert run.width == 2
    step_all(run, 2)
    run.handle(words.Returned(frozenset({0, 3})), SECOND)
    assert run.state is RecoveryState.RUNNING
    (kill,) = run.handle(words.Committed(2, 2), SECOND)
    assert isinstance(kill, words.Kill)
    assert kill.cause.kind == "grow"
    restarts = run.restarts
    restarted(run, 3, 2)
    assert run.width == 4
    assert run.restarts == restarts


def test_with_policy_wait_nothing_starts_before_hardware_is_back():
    run = in_state(RecoveryState.RUNNING, kind="wait")
    run.handle(words.Lost(frozenset({1}), "gone"), SECOND)
    assert run.handle(words.Fenced(0), SECOND) == ()
    assert run.state is RecoveryState.WAITING
    (start,) = run.handle(words.Returned(frozenset({1})), SECOND)
    assert isinstance(start, words.StartGeneration)
    assert start.width == 4


def test_a_wait_for_hardware_has_an_end():
    run = in_state(RecoveryState.WAITING)
    deadline = run.deadline_ps()
    assert deadline is not None
    assert run.handle(words.Tick(), Picoseconds(deadline - 1)) == ()
    (end,) = run.handle(words.Tick(), deadline)
    assert isinstance(end, words.Conclude)
    assert end.failure is not None
    assert "no hardware" in end.failure


def test_a_crash_loop_ends_with_its_name_and_last_cause():
    run = in_state(RecoveryState.RUNNING)
    for generation in range(1, 4):
        run.handle(words.Died(generation - 1, 1, "killed", "signal SIGSEGV"), SECOND)
        restarted(run, generation, 0)
    run.handle(words.Died(3, 1, "killed", "signal SIGSEGV"), SECOND)
    (end,) = run.handle(words.Fenced(3), SECOND)
    assert isinstance(end, words.Conclude)
    assert end.failure is not None
    assert "crash loop: 3 restarts" in end.failure
    assert "SIGSEGV" in end.failure


def test_progress_between_failures_is_no_crash_loop_but_the_budget_still_ends():
    run = in_state(RecoveryState.RUNNING, restarts=10)
    for generation in range(1, 11):
        step_all(run, generation)
        run.handle(words.Died(generation - 1, 1, "killed", "signal SIGKILL"), SECOND)
        restarted(run, generation, generation)
    step_all(run, 11)
    run.handle(words.Died(10, 1, "killed", "signal SIGKILL"), SECOND)
    (end,) = run.handle(words.Fenced(10), SECOND)
    assert isinstance(end, words.Conclude)
    assert end.failure is not None
    assert "budget of 10 restarts" in end.failure


def test_a_run_without_progress_is_examined_at_the_learned_limit_and_not_before():
    run = in_state(RecoveryState.RUNNING)
    now = SECOND
    for step in range(1, 9):
        now = Picoseconds(now + 2 * SECOND)
        step_all(run, step, now)
    assert run.limit_ps("step") == 10 * SECOND
    assert run.handle(words.Tick(), Picoseconds(now + 10 * SECOND - 1)) == ()
    (examine,) = run.handle(words.Tick(), Picoseconds(now + 10 * SECOND))
    assert examine == words.Examine(0)
    frozen = tuple(HangEvidence(rank, rank == 2, Picoseconds(0), (8, 1)) for rank in range(4))
    (kill,) = run.handle(words.Examined(0, frozen), Picoseconds(now + 10 * SECOND))
    assert isinstance(kill, words.Kill)
    assert (kill.cause.kind, kill.cause.rank) == ("stopped", 2)


def test_a_slow_step_that_ends_while_it_is_suspect_is_forgiven_and_remembered():
    run = in_state(RecoveryState.RUNNING)
    for step in range(1, 5):
        step_all(run, step, SECOND)
    late = Picoseconds(SECOND + run.limit_ps("step"))
    run.handle(words.Tick(), late)
    assert run.state is RecoveryState.SUSPECT
    step_all(run, 5, late)
    assert run.state is RecoveryState.RUNNING
    assert run.cause is None
    assert run.limit_ps("step") > 3 * SECOND


def test_an_evaluation_is_judged_by_evaluations():
    run = in_state(RecoveryState.RUNNING)
    for step in range(1, 5):
        step_all(run, step, SECOND)
    run.handle(words.Phase(0, 0, "evaluation"), SECOND)
    assert run.deadline_ps() == SECOND + run.policy.rule.first_ps


def test_a_recovery_is_over_when_the_run_is_as_far_as_it_was():
    run = in_state(RecoveryState.RUNNING)
    for step in range(1, 6):
        step_all(run, step)
    run.handle(words.Died(0, 1, "killed", "signal SIGKILL"), SECOND)
    restarted(run, 1, 3)
    assert step_all(run, 4) == [words.Resumed(1, 4)]
    assert step_all(run, 5) == [words.Regained(1, 5)]
    assert step_all(run, 6) == []


def test_ranks_that_finish_before_the_last_one_are_not_failures():
    run = in_state(RecoveryState.RUNNING)
    run.handle(words.Done(0, 0), SECOND)
    assert run.handle(words.Died(0, 0, "exited", "status 0"), SECOND) == ()
    for rank in (1, 2):
        run.handle(words.Done(0, rank), SECOND)
    assert run.handle(words.Done(0, 3), SECOND) == (words.Conclude(None),)


def test_a_lost_rank_is_replaced_and_everybody_else_keeps_place_and_process():
    run = RecoveryMachine(RecoveryPolicy("spare", 4, restart_all=None), (*SLOTS, RankSlot(4, 2)))
    run.start(Picoseconds(0))
    _bring_up(run)
    (order,) = run.handle(words.Died(0, 1, "killed", "signal SIGKILL"), SECOND)
    assert isinstance(order, words.LetGo)
    # Those who hear of it from a closed connection stand by; the dead one is heard of again.
    assert run.handle(words.Raised(0, 3, "Connection closed by peer", victim=True, stands_by=True), SECOND) == ()
    assert run.handle(words.Died(0, 1, "killed", "signal SIGKILL"), SECOND) == ()
    (start,) = run.handle(words.Released(0), SECOND)
    assert isinstance(start, words.StartGeneration)
    assert [slot.number for slot in start.slots] == [0, 4, 2, 3]
    assert start.kept == {0, 2, 3}
    assert (run.generation, run.restarts) == (1, 1)


def _bring_up(run: RecoveryMachine) -> None:
    for rank in range(4):
        run.handle(words.Joined(run.generation, rank), SECOND)
    run.handle(words.Obstacle(None), SECOND)
    for rank in range(4):
        run.handle(words.StateRestored(run.generation, rank, 0), SECOND)
    run.handle(words.Verified(run.generation), SECOND)


SECONDS_LOSS: list[tuple[words.RecoveryEvent, str]] = [
    (words.Died(0, 0, "killed", "signal SIGKILL"), "rank 0 was lost too"),
    (words.Raised(0, 0, "ValueError"), "rank 0 was lost too"),
    (words.Raised(0, 0, "Connection closed by peer", victim=True), "rank 0 was lost too"),
    (words.Lost(frozenset({0}), "gone"), "rank 0 was lost too"),
    (words.Done(0, 3), "rank 3 had done its work already"),
]


@pytest.mark.parametrize(("event", "because"), SECONDS_LOSS)
def test_a_second_loss_while_one_is_replaced_restarts_all_and_says_why(event: words.RecoveryEvent, because: str):
    run = in_state(RecoveryState.REPLACING)
    cause = run.cause
    (kill,) = run.handle(event, SECOND)
    assert isinstance(kill, words.Kill)
    assert kill.cause == cause
    (start,) = run.handle(words.Fenced(0), SECOND)
    assert isinstance(start, words.StartGeneration)
    assert (start.kept, start.because) == (frozenset(), because)


def test_survivors_that_do_not_let_go_are_not_waited_for_for_ever():
    run = in_state(RecoveryState.REPLACING)
    deadline = run.deadline_ps()
    assert deadline is not None
    assert run.handle(words.Tick(), Picoseconds(deadline - 1)) == ()
    (kill,) = run.handle(words.Tick(), deadline)
    assert isinstance(kill, words.Kill)
    (start,) = run.handle(words.Fenced(0), deadline)
    assert isinstance(start, words.StartGeneration)
    assert "did not let go" in (start.because or "")


WHOLE: list[tuple[words.RecoveryEvent, list[words.RecoveryEvent], str]] = [
    (words.Died(0, 1, "killed", "k"), [words.Obstacle("the ranks were ending")], "the ranks were ending"),
    (words.Died(0, 1, "killed", "k"), [words.Done(0, 0)], "other ranks had done their work already"),
    (words.Lost(frozenset({0, 1}), "node 0"), [], "more than one rank is lost"),
    (words.Lost(frozenset({0}), "slot 0"), [], "the number of ranks changes"),
    (words.Disagreed(0, 1, "norm"), [], "a rank that is diverged says nothing good about the others"),
]


@pytest.mark.parametrize(("loss", "before", "because"), WHOLE)
def test_all_ranks_are_restarted_where_survivors_cannot_be_kept_and_the_start_says_why(
    loss: words.RecoveryEvent, before: list[words.RecoveryEvent], because: str
):
    run = RecoveryMachine(RecoveryPolicy("shrink", 4, widths=(1, 2, 3), restart_all=None), SLOTS)
    run.start(Picoseconds(0))
    _bring_up(run)
    for event in before:
        run.handle(event, SECOND)
    (kill,) = run.handle(loss, SECOND)
    assert isinstance(kill, words.Kill)
    (start,) = run.handle(words.Fenced(0), SECOND)
    assert isinstance(start, words.StartGeneration)
    assert (start.kept, start.because) == (frozenset(), because)


def test_a_place_that_no_slot_is_left_for_is_not_given_away():
    run = in_state(RecoveryState.REPLACING)
    run.handle(words.Lost(frozenset({2}), "the dead rank's slot is lost too"), SECOND)
    (kill,) = run.handle(words.Released(0), SECOND)
    assert isinstance(kill, words.Kill)
    (start,) = run.handle(words.Fenced(0), SECOND)
    assert isinstance(start, words.StartGeneration)
    assert (start.width, start.because) == (3, "the number of ranks changes")


def test_ranks_that_were_never_heard_to_outlive_others_are_all_restarted():
    run = RecoveryMachine(RecoveryPolicy("spare", 4, restart_all=None), SLOTS)
    run.start(Picoseconds(0))
    for rank in range(4):
        run.handle(words.Joined(0, rank), SECOND)
        run.handle(words.StateRestored(0, rank, 0), SECOND)
    for rank in range(4):
        run.handle(words.StateRestored(0, rank, 0), SECOND)
    run.handle(words.Verified(0), SECOND)
    assert run.state is RecoveryState.RUNNING
    (kill,) = run.handle(words.Died(0, 1, "killed", "signal SIGKILL"), SECOND)
    assert isinstance(kill, words.Kill)


def _evidence(rank: int, silent_s: float = 0.0, place: tuple[int, int] = (5, 2)) -> HangEvidence:
    return HangEvidence(rank, False, Picoseconds(int(silent_s * SECOND)), place)


def test_a_silent_rank_is_blamed_and_then_the_one_behind():
    assert blame((_evidence(0), _evidence(1, 9.0)), "text").rank == 1
    assert blame((_evidence(0), _evidence(1), _evidence(2, place=(5, 1))), "text").rank == 2
    assert blame((_evidence(0), _evidence(1)), "text") == Cause("hung", None, "text")


slot_sets = st.frozensets(st.integers(0, 3), min_size=1)


@given(st.lists(st.one_of(slot_sets.map(lambda s: words.Lost(s, "gone")), slot_sets.map(words.Returned)), max_size=12),
       st.sampled_from(["spare", "shrink", "wait"]))  # fmt: skip
def test_whatever_is_lost_and_returned_no_rank_runs_in_a_lost_slot(events: list[words.RecoveryEvent], kind: Any):
    run = in_state(RecoveryState.RUNNING, kind=kind, restarts=1000, futile=1000)
    lost: set[int] = set()
    for event in events:
        if isinstance(event, words.Lost):
            lost |= event.slots
        elif isinstance(event, words.Returned):
            lost -= event.slots
        for _ in range(2):
            for action in run.handle(event, SECOND):
                if isinstance(action, words.StartGeneration):
                    assert not {slot.number for slot in action.slots} & lost
                    assert len(action.slots) == action.width
                    assert kind != "wait" or action.width == 4
            event = words.Fenced(run.generation)  # noqa: PLW2901 - the answer to a kill
    assert run.state in OPEN
