"""Candidates: every one splits evenly and fits the machine, none stands twice, and what is fixed stays so."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.planning.candidates import FIXABLE, LARGEST_MICRO, MOST_PLANS, candidates, read_fixed, spaced
from weft.planning.cost_model.machine import usual_machine
from weft.planning.cost_model.plans import RECOMPUTES, SCHEDULES, Dimensions, Plans, Workload

MACHINE = usual_machine("H100", 64, 400 * 10**9)
WORKS = st.builds(
    Workload,
    st.builds(
        Dimensions, st.integers(1, 24), st.just(512), st.sampled_from((4, 8, 12)), st.just(4), st.just(64),
        st.sampled_from((1024, 1536)), st.just(32000), experts=st.sampled_from((1, 8)), top_k=st.just(1),
    ),
    st.sampled_from((1, 6, 32, 48)), st.sampled_from((128, 192, 1024)),
)  # fmt: skip


def rows(plans: Plans) -> list[tuple[float, ...]]:
    return list(zip(*(getattr(plans, each.name).tolist() for each in fields(plans)), strict=True))


@given(WORKS, st.integers(1, 32))
@settings(max_examples=25)
def test_every_candidate_splits_evenly_and_fits(work: Workload, gpus: int):
    plans, every = candidates(work, MACHINE, gpus, {})
    assert every
    assert len(plans)
    assert (plans.ranks <= gpus).all()
    assert (np.mod(work.sequences, plans.dp * plans.micro) == 0).all()
    assert (np.mod(work.model.heads, plans.tp) == 0).all()
    assert (np.mod(work.model.ffn, plans.tp) == 0).all()
    assert (np.mod(MACHINE.domain_gpus, plans.tp) == 0).all()
    assert ((np.mod(work.length, 2 * plans.cp) == 0) | (plans.cp == 1)).all()
    assert (np.mod(plans.dp, plans.ep) == 0).all()
    assert (np.mod(work.model.experts, plans.ep) == 0).all()
    assert (np.mod(plans.dp * plans.cp, plans.shard) == 0).all()
    assert (plans.micro <= LARGEST_MICRO).all()
    assert (plans.pp <= work.model.layers).all()


@given(WORKS, st.integers(1, 32))
@settings(max_examples=20)
def test_no_candidate_stands_twice(work: Workload, gpus: int):
    found = rows(candidates(work, MACHINE, gpus, {})[0])
    assert len(set(found)) == len(found)


@given(WORKS, st.sampled_from(FIXABLE), st.integers(0, 2))
@settings(max_examples=25)
def test_what_is_fixed_leaves_exactly_the_candidates_that_have_it(work: Workload, name: str, value: int):
    # A number of replicas is taken as it is asked for, also where more than half of the GPUs would be left over.
    if name == "dp":
        return
    free, held = (set(rows(candidates(work, MACHINE, 8, fixed)[0])) for fixed in ({}, {name: value}))
    place = [each.name for each in fields(Plans)].index(name)
    if name in ("tp", "pp", "cp"):
        assert {row for row in free if row[place] == value} <= held
        assert all(row[place] == value for row in held)
    else:
        assert held == {row for row in free if row[place] == value}


def test_too_many_candidates_are_thinned_out_and_said_to_be():
    large = Workload(Dimensions(120, 20160, 180, 180, 112, 80640, 51200), 55440, 4096)
    machine = replace(usual_machine("GB200", 131072, 800 * 10**9), gpus=131072)
    plans, every = candidates(large, machine, machine.gpus, {})
    assert not every
    assert 0 < len(plans) <= MOST_PLANS


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True), st.integers(1, 40))
def test_spaced_choices_keep_order_and_the_last(values: list[int], most: int):
    ordered = sorted(values)
    found = spaced(ordered, most)
    assert len(found) == min(len(ordered), most)
    assert found == sorted(set(found))
    assert found[-1] == ordered[-1]
    assert set(found) <= set(ordered)


@pytest.mark.parametrize("name", FIXABLE)
def test_a_choice_is_read_as_its_number(name: str):
    words = {"schedule": SCHEDULES, "recompute": RECOMPUTES}.get(name)
    for number in range(len(words)) if words else (1, 2, 64):
        assert read_fixed({name: words[number] if words else str(number)}) == {name: number}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("width", "8", "cannot be fixed; choose among dp, tp"), ("tp", "0", "not a whole number above 0"),
        ("tp", "two", "write it as tp=8"), ("schedule", "fast", "choose among 1f1b"),
        ("recompute", "all", "choose among none, selective, full"), ("zero", "-1", "not a whole number"),
    ],
)  # fmt: skip
def test_a_choice_that_means_nothing_is_refused(name: str, value: str, said: str):
    with pytest.raises(UsageError) as caught:
        read_fixed({name: value})
    assert said in str(caught.value)


def test_zero_is_a_stage_of_zero():
    assert read_fixed({"zero": "0"}) == {"zero": 0}
