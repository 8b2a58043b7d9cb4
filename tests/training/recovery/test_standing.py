from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.training.recovery.standing import Due, FinishedStep, OnRecord, Standing, continuation, owed


def _finished(done: int) -> FinishedStep | None:
    return FinishedStep(done - 1, 1.5, 0.5, 1e-3, False, (1.0,)) if done else None


def _survivor(done: int, *, is_open: bool = False, tensors: tuple[str, ...] = ("model.w",)) -> Standing:
    return Standing(done, finished=_finished(done), open=is_open, tensors=tensors)


@st.composite
def losses(draw: Callable[..., object]) -> tuple[list[Standing], int]:
    """Standings as a lost rank can leave them, and the rank that is new."""
    step = draw(st.integers(1, 9))
    assert isinstance(step, int)
    ahead = draw(st.lists(st.booleans(), min_size=1, max_size=6).filter(any))
    assert isinstance(ahead, list)
    found = [_survivor(step if one else step - 1, is_open=bool(draw(st.booleans()))) for one in ahead]
    new = draw(st.integers(0, len(found)))
    assert isinstance(new, int)
    return [*found[:new], Standing(-1, new=True), *found[new:]], new


@given(losses())
def test_the_newest_update_counts_and_only_who_has_made_it_gives_its_state(world: tuple[list[Standing], int]):
    standings, new = world
    course = continuation(standings)
    assert course.step == max(one.done for one in standings)
    assert standings[course.source].done == course.step
    assert course.source != new
    assert course.late == {rank for rank, one in enumerate(standings) if not one.new and one.done < course.step}
    assert course.finished == _finished(course.step)


@given(losses())
def test_the_last_step_is_open_while_anybody_has_not_ended_it(world: tuple[list[Standing], int]):
    standings, _ = world
    course = continuation(standings)
    assert course.open == any(
        not one.new and (one.done < course.step or (one.open and one.done == course.step)) for one in standings
    )


def test_survivors_two_steps_apart_are_refused():
    with pytest.raises(ValueError, match="more than one step apart"):
        continuation([_survivor(5), Standing(-1, new=True), _survivor(3)])


def test_survivors_of_different_make_are_refused():
    with pytest.raises(ValueError, match="same tensors"):
        continuation([_survivor(5), Standing(-1, new=True), _survivor(5, tensors=("model.v",))])


def test_nobody_left_is_refused():
    with pytest.raises(ValueError, match="nobody is left"):
        continuation([Standing(-1, new=True), Standing(-1, new=True)])


@given(losses(), st.booleans(), st.booleans(), st.integers(0, 9), st.integers(0, 9), st.lists(st.integers(0, 9)))
def test_what_is_written_down_is_never_owed_and_what_is_due_and_missing_always_is(
    world: tuple[list[Standing], int], evaluation: bool, save: bool, line: int, evaluated: int, saved: list[int]
):
    course = continuation(world[0])
    found = owed(course, Due(evaluation, save), OnRecord(line, evaluated, tuple(saved)))
    missing = (line < course.step, evaluation and evaluated < course.step, save and course.step not in saved)
    if found is None:
        assert not any(missing)
        assert not course.open
    else:
        assert (found.line, found.evaluation, found.save) == missing
        assert found.snapshot == course.open


def test_nothing_is_owed_before_the_first_update():
    course = continuation([_survivor(0), Standing(-1, new=True)])
    assert owed(course, Due(True, True), OnRecord(0, 0, ())) is None
