"""Steps that become longer for good, and steps that never end: what limits make of them."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.recovery.test_machine import SECOND, in_state, step_all

from weft.cluster.recovery import events as words
from weft.cluster.recovery.events import HangEvidence
from weft.cluster.recovery.machine import RecoveryMachine
from weft.cluster.recovery.recovery_state import RecoveryState
from weft.core.units import Picoseconds


def _nobody() -> tuple[HangEvidence, ...]:
    """Return evidence that points at nobody."""
    return tuple(HangEvidence(rank, False, Picoseconds(0), (5, 2)) for rank in range(4))


def _paced(run: RecoveryMachine, steps_ps: list[Picoseconds], lag: int = 0) -> str | None:
    """Let a run take `steps_ps`, and where one is given up those after its snapshot again; returns why it failed."""
    step, now = 0, SECOND
    while step < len(steps_ps):
        ends, deadline = Picoseconds(now + steps_ps[step]), run.deadline_ps()
        assert deadline is not None
        if ends < deadline:
            now, step = ends, step + 1
            step_all(run, step, now)
            continue
        now = deadline
        (examine,) = run.handle(words.Tick(), now)
        assert isinstance(examine, words.Examine)
        run.handle(words.Examined(run.generation, _nobody()), now)
        (end,) = run.handle(words.Fenced(run.generation), now)
        if isinstance(end, words.Conclude):
            return end.failure
        step = max(0, step - lag)
        for event in (words.Joined(run.generation, 0), words.StateRestored(run.generation, 0, step)):
            for rank in range(4):
                run.handle(replace(event, rank=rank), now)
        run.handle(words.Verified(run.generation), now)
    return None


@given(st.floats(0.01, 10), st.integers(3, 1000), st.floats(1, 20), st.integers(1, 40), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_steps_that_become_longer_for_good_end_no_run(usual_s: float, quick: int, times: float, slow: int, other: int):
    usual, longer = Picoseconds(int(usual_s * SECOND)), Picoseconds(int(times * max(3.0, usual_s) * SECOND))
    run = in_state(RecoveryState.RUNNING)
    # Some steps between may be as quick as before, and some are done again after each restart.
    steps = [*[usual] * quick, *[longer, *[usual] * (other % 4)] * slow]
    assert _paced(run, steps, lag=other // 4) is None
    # What they take now is learned at the first of them: it costs three restarts at most, once.
    assert run.restarts <= 3


def test_a_step_that_never_ends_is_a_crash_loop_whose_waits_are_bounded():
    run = in_state(RecoveryState.RUNNING)
    failure = _paced(run, [*[SECOND] * 20, Picoseconds(10**6 * SECOND)])
    assert failure is not None
    assert "crash loop" in failure
    waited = run.deadline_ps() or run._since_ps
    assert waited < 20 * SECOND + (5 + 15 + 45 + 135 + 10) * SECOND


def test_a_stopped_rank_makes_no_limit_longer():
    run = in_state(RecoveryState.RUNNING)
    for step in range(1, 5):
        step_all(run, step, SECOND)
    before = run.limit_ps("step")
    now = Picoseconds(SECOND + before)
    run.handle(words.Tick(), now)
    frozen = tuple(HangEvidence(rank, rank == 2, Picoseconds(0), (4, 1)) for rank in range(4))
    run.handle(words.Examined(0, frozen), now)
    assert run.limit_ps("step") == before
