"""The search: it finds the best valid plan, says what limits it, and what to change when nothing fits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.planning.candidates import LEVELS, MOST_PLANS, candidates, divisors, spaced
from weft.planning.cost_model.confidence import confidence_of
from weft.planning.cost_model.machine import machine_of, usual_machine
from weft.planning.cost_model.memory import memory_of
from weft.planning.cost_model.plans import Dimensions, Workload
from weft.planning.cost_model.step import step_times
from weft.planning.search import limit_of, scored, search
from weft.specs import load_site
from weft.specs.software import SoftwareSpec

SMALL = Workload(Dimensions(8, 1024, 8, 8, 128, 2816, 32000), 64, 1024)
H100 = usual_machine("H100", 64, 400 * 10**9)


def test_every_candidate_splits_evenly():
    plans, _ = candidates(SMALL, H100, 64, {})
    assert len(plans) > 500
    assert (plans.ranks <= 64).all()
    assert (np.mod(64, plans.dp * plans.micro) == 0).all()
    assert (np.mod(8, plans.tp) == 0).all()
    assert (np.mod(plans.dp * plans.cp, plans.shard) == 0).all()
    interleaved = plans.take(plans.chunks > 1)
    assert (np.mod(64 / (interleaved.dp * interleaved.micro), interleaved.pp)[interleaved.schedule == 1] == 0).all()


def test_the_first_plan_is_the_fastest_that_fits():
    found = search(SMALL, H100, SoftwareSpec())
    plans, _ = candidates(SMALL, H100, 64, {})
    fits = memory_of(SMALL, plans, SoftwareSpec()).total <= H100.memory_bytes
    step = step_times(SMALL, plans.take(fits), H100, SoftwareSpec()).step_s
    assert found.best.step_s[0] == pytest.approx(float(step.min()))
    assert (np.diff(found.best.step_s) >= 0).all()
    assert found.feasible == int(fits.sum())


@given(
    st.sampled_from(["h100-400g-16k", "gb200-4x200g-32k", "gb200-8x100g-131k"]),
    st.sampled_from([512, 1024, 4096]),
    st.sampled_from(["bf16", "fp8"]),
    st.sampled_from([1, 64]),
)
@settings(max_examples=8, deadline=None)
def test_no_unconfirmed_plan_is_recommended_where_a_confirmed_one_is_as_fast_for_certain(
    name: str, gpus: int, precision: str, experts: int
):
    model = Dimensions(48, 8192, 64, 8, 128, 28672, 128256, experts=experts, top_k=min(4, experts))
    work, machine = Workload(model, 2048, 8192), replace(machine_of(load_site(name)), gpus=gpus)
    software = SoftwareSpec.model_validate({"precision": precision})
    found = search(work, machine, software, top=200).best
    doubts = [confidence_of(work, found.plans, row, machine, software) for row in range(len(found))]
    late = [doubt.interval(float(step))[1] for doubt, step in zip(doubts, found.step_s, strict=True)]
    assert late == sorted(late)
    confirmed = [step for doubt, step in zip(doubts, found.step_s, strict=True) if doubt.unmatched is None]
    if confirmed and doubts[0].unmatched is not None:
        assert found.step_s[0] < 0.97 * min(confirmed)


@given(st.sampled_from(["tp", "pp", "dp", "cp", "zero", "micro"]), st.sampled_from(["1", "2"]))
@settings(max_examples=12, deadline=None)
def test_what_is_fixed_stays_fixed(name: str, value: str):
    found = search(SMALL, H100, SoftwareSpec(), fixed={name: value})
    assert (getattr(found.best.plans, name) == float(value)).all()


def test_fewer_choices_never_find_a_better_plan():
    free = search(SMALL, H100, SoftwareSpec())
    held = search(SMALL, H100, SoftwareSpec(), fixed={"recompute": "full", "schedule": "1f1b"})
    assert held.best.step_s[0] >= free.best.step_s[0]


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"tp": "3"}, "the nearest are 2 or 4"),
        ({"pp": "7"}, "the nearest are"),
        ({"dp": "60"}, "dp = 32 or 64"),
        ({"dp": "128"}, "more than the 64 GPUs"),
        ({"tp": "0"}, "not a whole number above 0"),
        ({"tp": "-8"}, "not a whole number above 0"),
        ({"width": "8"}, "choose among"),
        ({"schedule": "fast"}, "choose among 1f1b"),
        ({"dp": "64", "micro": "16"}, "micro = 16"),
    ],
)
def test_a_choice_without_plans_names_the_nearest(fixed: dict[str, str], words: str):
    with pytest.raises(UsageError, match=words):
        search(SMALL, H100, SoftwareSpec(), fixed=fixed)


def test_nothing_fits_says_how_far_off_and_what_would():
    large = Workload(Dimensions(96, 12288, 96, 96, 128, 32768, 51200), 64, 2048)
    found = search(large, replace(H100, gpus=8), SoftwareSpec())
    assert found.feasible == 0
    assert len(found.best) == 0
    assert "GiB on a GPU that has" in found.hint
    assert "64 GPUs instead of 8 would hold it" in found.hint or "GPUs instead of 8" in found.hint


def test_a_model_that_no_number_of_gpus_holds_is_said_so():
    tiny = replace(H100, gpus=8, memory_bytes=2.0**20)
    assert "no number of such GPUs holds it" in search(SMALL, tiny, SoftwareSpec()).hint


def test_limits_are_named_after_what_is_lost():
    machine = usual_machine("H100", 1024, 400 * 10**9)
    slow = replace(machine, nic_rate=machine.nic_rate / 200)
    work = Workload(Dimensions(32, 4096, 32, 8, 128, 14336, 32000), 1024, 4096)
    kinds: set[str] = set()
    for where in (machine, slow):
        plans, _ = candidates(work, where, 1024, {})
        found = scored(work, plans.take(np.arange(0, len(plans), 97)), where, SoftwareSpec())
        kinds |= {limit_of(found, row, where, work) for row in range(len(found))}
    assert kinds == {"memory", "bubble", "network", "batch", "compute"}


@given(st.integers(1, 5000), st.integers(1, 5000))
@settings(max_examples=50, deadline=None)
def test_divisors_divide(number: int, most: int):
    assert divisors(number, most) == [each for each in range(1, min(number, most) + 1) if number % each == 0]


def test_a_trillion_parameters_on_131072_gpus_have_plans():
    machine = machine_of(load_site("gb200-8x100g-131k"))
    work = Workload(Dimensions(128, 25600, 160, 160, 160, 68096, 51200), 16384, 4096)
    found = search(work, machine, SoftwareSpec(), top=5)
    assert found.considered > 10_000
    assert len(found.best) == 5
    assert (found.best.memory.total <= machine.memory_bytes).all()
    assert 0.3 < float(found.best.mfu[0]) < 0.61


def test_too_many_plans_are_spaced_and_said_so():
    model = Dimensions(720, 2048, 48, 16, 128, 5760, 32000, experts=60, top_k=2)
    work = Workload(model, 720_720, 8192)
    plans, every = candidates(work, machine_of(load_site("gb200-8x100g-131k")), 131_072, {})
    assert not every
    assert 10_000 < len(plans) <= 2 * MOST_PLANS
    assert candidates(SMALL, H100, 64, {})[1]
    assert len(LEVELS) == 3


@given(st.lists(st.integers(1, 10**6), min_size=1, unique=True), st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_spaced_values_keep_the_last(values: list[int], most: int):
    ordered = sorted(values)
    found = spaced(ordered, most)
    assert len(found) == min(most, len(ordered))
    assert found[-1] == ordered[-1]
    assert set(found) <= set(ordered)
