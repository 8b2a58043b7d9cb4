"""The timeline of a pipeline: nothing starts before its input, each unit is done once, and it ends as the forms say."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.timeline import Bar, timeline

STAGES, GROUPS, CHUNKS = st.integers(1, 6), st.integers(1, 4), st.sampled_from((1, 2, 3))


def drawn(stages: int, groups: int, chunks: int, weights_s: float = 0.0) -> tuple[Bar, ...]:
    return timeline(stages, stages * groups, 1.0, 2.0, chunks=chunks, weights_s=weights_s)


@given(STAGES, GROUPS, CHUNKS, st.sampled_from((0.0, 1.0)))
@settings(max_examples=60)
def test_every_stage_does_every_unit_of_work_once(stages: int, groups: int, chunks: int, weights_s: float):
    bars = drawn(stages, groups, chunks, weights_s)
    done = Counter((bar.stage, bar.kind, bar.micro, bar.chunk) for bar in bars)
    kinds = ("forward", "backward", "weights") if weights_s else ("forward", "backward")
    wanted = {
        (stage, kind, micro, chunk)
        for stage in range(stages) for kind in kinds for micro in range(stages * groups) for chunk in range(chunks)
    }  # fmt: skip
    assert set(done) == wanted
    assert set(done.values()) == {1}


@given(STAGES, GROUPS, CHUNKS, st.sampled_from((0.0, 1.0)))
@settings(max_examples=60)
def test_nothing_starts_before_its_input_is_there(stages: int, groups: int, chunks: int, weights_s: float):
    at = {(bar.kind, bar.micro, bar.chunk, bar.stage): bar for bar in drawn(stages, groups, chunks, weights_s)}
    for (kind, micro, chunk, stage), bar in at.items():
        if kind == "weights":
            assert bar.start_s >= at["backward", micro, chunk, stage].end_s - 1e-9
        elif kind == "forward" and (stage or chunk):
            before = (micro, chunk, stage - 1) if stage else (micro, chunk - 1, stages - 1)
            assert bar.start_s >= at[("forward", *before)].end_s - 1e-9
        elif kind == "backward":
            assert bar.start_s >= at["forward", micro, chunk, stage].end_s - 1e-9


@given(STAGES, GROUPS, CHUNKS, st.sampled_from((0.0, 1.0)))
@settings(max_examples=60)
def test_a_stage_does_one_thing_at_a_time_and_works_as_long_as_all_do(
    stages: int, groups: int, chunks: int, weights_s: float
):
    bars = drawn(stages, groups, chunks, weights_s)
    for stage in range(stages):
        own = sorted((bar for bar in bars if bar.stage == stage), key=lambda bar: bar.start_s)
        assert all(later.start_s >= earlier.end_s - 1e-9 for earlier, later in pairwise(own))
        assert sum(bar.end_s - bar.start_s for bar in own) == pytest.approx(3.0 * stages * groups)


@given(STAGES, GROUPS)
def test_one_forward_one_backward_waits_for_the_stages_before_it(stages: int, groups: int):
    end = max(bar.end_s for bar in drawn(stages, groups, 1))
    assert end == pytest.approx(3.0 * (stages * groups + stages - 1))


@given(st.integers(2, 6), GROUPS)
def test_more_chunks_never_make_a_step_longer(stages: int, groups: int):
    ends = [max(bar.end_s for bar in drawn(stages, groups, chunks)) for chunks in (1, 2, 4)]
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] >= 3.0 * stages * groups


def test_a_schedule_that_does_not_interleave_is_refused():
    with pytest.raises(AssertionError, match="whole groups"):
        timeline(4, 6, 1.0, 2.0, chunks=2)
