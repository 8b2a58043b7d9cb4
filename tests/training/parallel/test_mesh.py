from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.ranks import MIXTURE, job_of

from weft.core.errors import UsageError
from weft.specs.job import PlanSpec
from weft.training.launch.ranks import Ranks
from weft.training.parallel.mesh import Layout, check
from weft.training.parallel.microbatches import MicroBatchSplit

few = st.integers(1, 3)
_SHORT = {"sequences": 4, "micro": 1, "length": 32}


@st.composite
def plans(draw: st.DrawFn) -> PlanSpec:
    ep = draw(few)
    return PlanSpec(dp=ep * draw(few), tp=draw(few), pp=draw(few), cp=draw(few), ep=ep)


@given(plans())
def test_every_rank_has_one_place_and_one_group_of_each_kind(plan: PlanSpec):
    layout = Layout(plan)
    places = [layout.place(rank) for rank in range(layout.ranks)]
    assert [layout.rank(place) for place in places] == list(range(layout.ranks))
    for find, size in (
        (layout.stage_ranks, plan.pp),
        (layout.context_ranks, plan.cp),
        (layout.tensor_ranks, plan.tp),
        (layout.replica_ranks, plan.dp * plan.cp),
        (layout.expert_ranks, plan.ep),
        (layout.expert_replica_ranks, plan.dp // plan.ep * plan.cp),
    ):
        groups = {tuple(find(place)) for place in places}
        assert all(len(group) == size for group in groups)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.ranks))
        assert all(layout.rank(place) in find(place) for place in places)


@given(plans(), st.integers(1, 4), st.data())
def test_every_micro_batch_is_computed_once_and_stands_at_one_position(
    plan: PlanSpec, rounds: int, data: st.DataObject
):
    layout = Layout(plan)
    count = plan.dp * rounds
    sharing = MicroBatchSplit.even(layout, count)
    if plan.ep == 1 and plan.pp == 1:
        sharing = sharing.balanced([data.draw(st.floats(0.1, 9)) for _ in range(plan.dp)])
    place = layout.place(0)
    seen = [
        (layout.place(rank).cp, index)
        for rank in layout.replica_ranks(place)
        for index in sharing.indices(layout.place(rank))
    ]
    assert sorted(seen) == [(cp, index) for cp in range(plan.cp) for index in range(count)]
    for kind in ("dense", "experts"):
        positions = [position for held in sharing.group_positions(kind, place) for position in held]
        assert len(set(positions)) == len(positions)


def test_positions_do_not_depend_on_the_number_of_replicas():
    whole = {
        position
        for rank in Layout(PlanSpec(dp=6, ep=2)).replica_ranks(Layout(PlanSpec()).place(0))
        for position in MicroBatchSplit.even(Layout(PlanSpec(dp=6, ep=2)), 12).positions(
            "dense", Layout(PlanSpec(dp=6, ep=2)).place(rank)
        )
    }
    fewer = Layout(PlanSpec(dp=2, ep=2))
    assert whole == {
        position
        for rank in range(2)
        for position in MicroBatchSplit.even(fewer, 12).positions("dense", fewer.place(rank))
    }


@pytest.mark.parametrize(
    ("plan", "changes", "message"),
    [
        ({"pp": 5}, {}, "write pp = 4 or less"),
        ({"pp": 4, "schedule": "interleaved"}, {}, "write pp = 2 or less"),
        ({"tp": 3}, {}, "does not divide 4 heads; the nearest that does is 2"),
        ({"tp": 4}, {}, "does not divide 2 kv_heads; the nearest that does is 2"),
        ({"dp": 9}, {}, "write dp = 8 or less"),
        ({"dp": 3, "shard": 3}, {}, "the nearest that does is dp = 2"),
        ({"dp": 2, "shard": 2, "pp": 2, "schedule": "zbv"}, {}, "or exact = false"),
        ({"dp": 2, "ep": 2}, {}, "no experts"),
        ({"dp": 3, "ep": 3}, {"model": MIXTURE}, "does not divide 4 experts; the nearest that does is 2"),
        ({"cp": 3}, {}, "the nearest that do are 30 and 36"),
        ({"dp": 8, "pp": 2}, {}, "'1f1b' needs at least 2"),
        ({"dp": 2, "pp": 2, "schedule": "dualpipev"}, {"batch": _SHORT}, "dualpipev"),
        ({"pp": 2, "schedule": "zbv", "recompute": "full"}, {}, "recompute"),
        ({"pp": 2, "schedule": "dualpipev", "compile": True}, {}, "compile = false"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_is_told_what_would(
    tmp_path: Path, plan: dict[str, Any], changes: dict[str, Any], message: str
):
    job = job_of(tmp_path, plan, **changes)
    assert job.plan != "auto"
    with pytest.raises(UsageError) as caught:
        check(job, job.plan)
    assert message in str(caught.value)


def test_every_problem_is_named_at_once(tmp_path: Path):
    job = job_of(tmp_path, {"tp": 3, "pp": 5, "dp": 9})
    assert job.plan != "auto"
    with pytest.raises(UsageError) as caught:
        check(job, job.plan, ranks=2)
    for word in ("tp = 3", "pp = 5", "dp = 9", "135 ranks but 2 are there"):
        assert word in str(caught.value)


def test_the_wrong_number_of_ranks_names_the_dp_that_fits(tmp_path: Path):
    job = job_of(tmp_path, {"dp": 2, "pp": 2})
    assert job.plan != "auto"
    with pytest.raises(UsageError, match="write dp = 3"):
        check(job, job.plan, ranks=6)


def test_no_rank_takes_what_was_compiled_for_another_one_or_for_other_groups():
    plans = [PlanSpec(tp=2), PlanSpec(cp=2), PlanSpec(dp=2, shard=2), PlanSpec(dp=2)]
    tags = Ranks("tests.training.ranks:compile_tags", 2, {"plans": plans}).run()
    assert len({tag for rank in tags for tag in rank}) == 2 * len(tags[0]) == 16
