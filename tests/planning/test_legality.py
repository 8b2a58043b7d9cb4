"""Legality: what the planner offers and what the trainer can start differ in exactly what the module says."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.planning.candidates import candidates
from weft.planning.cost_model.confidence import latest_s
from weft.planning.cost_model.machine import Machine, usual_machine
from weft.planning.cost_model.plans import SCHEDULES, Plans, Workload, dimensions_of, spec_of
from weft.planning.legality import (
    CHUNKS,
    LARGEST_CONTEXT,
    context_sizes,
    divisors,
    is_trained,
    pieces_of_sequence,
    pipeline_sizes,
    problems,
    schedules,
    tensor_sizes,
)
from weft.planning.report import plan_job
from weft.planning.search import scored, search
from weft.specs import load_site
from weft.specs.job import BatchSpec, JobSpec, ModelSpec, PlanSpec
from weft.specs.software import SoftwareSpec
from weft.training.parallel.auto_plan import planned

SPLIT_BACKWARD = ("zero-bubble", "zbv", "dualpipev")
PRACTICE = SoftwareSpec(precision="fp32")


@st.composite
def models(draw: Any) -> ModelSpec:
    """Draw a small decoder, dense or with experts, whose sizes divide well or badly."""
    heads = draw(st.sampled_from((1, 2, 4, 6, 8)))
    experts = draw(st.sampled_from((None, {"count": 4, "top_k": 2, "ffn": draw(st.sampled_from((16, 24)))})))
    return ModelSpec.model_validate({
        "layers": draw(st.integers(1, 10)), "width": 8 * heads, "heads": heads,
        "kv_heads": draw(st.sampled_from([each for each in (1, 2, 4, 8) if heads % each == 0])),
        "ffn": draw(st.sampled_from((16, 20, 32))), "vocabulary": draw(st.sampled_from((250, 256, 257))),
        "experts": experts,
    })  # fmt: skip


@st.composite
def batches(draw: Any) -> BatchSpec:
    micro = draw(st.integers(1, 3))
    sequences = micro * draw(st.integers(1, 12))
    return BatchSpec.model_validate(
        {"sequences": sequences, "micro": micro, "length": draw(st.sampled_from((8, 24, 32)))}
    )


def machine(domain: int, gpus: int) -> Machine:
    return replace(usual_machine("CPU", gpus, 10**11), domain_gpus=domain, node_gpus=domain)


def beyond_even_splits(plan: PlanSpec, model: ModelSpec, batch: BatchSpec) -> Iterator[str]:
    """Yield what weft's trainer asks for and the planner does not, written anew from the module's docstring."""
    rounds = batch.sequences // batch.micro // plan.dp
    split = plan.pp > 1 and plan.schedule in SPLIT_BACKWARD
    if (model.kv_heads or model.heads) % plan.tp or model.vocabulary % plan.tp:
        yield "key-value heads or vocabulary"
    if batch.length % (pieces_of_sequence(plan.cp) * plan.tp):
        yield "sequence over tp and cp"
    if plan.pp > 1 and plan.pp * CHUNKS[plan.schedule] > model.layers:
        yield "a stage without a layer"
    if plan.pp > 1 and plan.schedule == "1f1b" and rounds < plan.pp:
        yield "fewer micro-batches than stages"
    if plan.pp > 1 and plan.schedule == "zero-bubble" and rounds % max(rounds // plan.pp, 1):
        yield "micro-batches that make no whole rounds"
    if plan.zero or plan.chunks not in (None, CHUNKS[plan.schedule]):
        yield "an optimizer that is sharded alone, or another number of chunks"
    if split and plan.recompute != "none":
        yield "recomputation with a backward pass in two parts"
    if split and plan.exact and plan.shard > 1:
        yield "exact sums of shards with a backward pass in two parts"
    if plan.shard > 1 and plan.ep > 1:
        yield "shards with experts"


@given(models(), batches(), st.integers(1, 8), st.sampled_from((1, 2, 4, 8)))
@settings(max_examples=40)
def test_the_trainer_starts_a_candidate_unless_it_asks_for_more_than_even_splits(
    model: ModelSpec, batch: BatchSpec, gpus: int, domain: int
):
    work = Workload(dimensions_of(model), batch.sequences, batch.length)
    plans, _ = candidates(work, machine(domain, gpus), gpus, {"micro": batch.micro})
    for row in range(0, len(plans), max(1, len(plans) // 60)):
        plan = spec_of(plans, row, PRACTICE)
        assert bool(problems(plan, model, batch)) == bool(list(beyond_even_splits(plan, model, batch))), plan


@given(
    models(), batches(), st.sampled_from((1, 2, 4)), st.integers(1, 4), st.sampled_from((1, 2, 4)),
    st.integers(1, 4), st.sampled_from((1, 2, 4)),
)  # fmt: skip
@settings(max_examples=150)
def test_a_mesh_that_the_trainer_starts_is_a_candidate_where_it_splits_evenly(
    model: ModelSpec, batch: BatchSpec, dp: int, tp: int, cp: int, pp: int, ep: int
):
    if dp % ep:
        return
    plan = PlanSpec.model_validate({"dp": dp, "tp": tp, "cp": cp, "pp": pp, "ep": ep, "schedule": "1f1b"})
    work = Workload(dimensions_of(model), batch.sequences, batch.length)
    even = (
        batch.sequences % (dp * batch.micro) == 0
        and tp in tensor_sizes(work.model, 4)
        and cp in context_sizes(batch.length)
        and pp in pipeline_sizes(model.layers)
    )
    if problems(plan, model, batch) or not even:
        return
    fixed = {"dp": dp, "tp": tp, "cp": cp, "pp": pp, "ep": ep, "micro": batch.micro, "schedule": 0}
    assert len(candidates(work, machine(4, plan.ranks), plan.ranks, fixed)[0])


@st.composite
def drawn_jobs(draw: Any) -> JobSpec:
    """Draw a job that a site of several GPUs might be asked for, with parts that weft's trainer has or lacks."""
    heads = draw(st.sampled_from((4, 6, 8, 20, 32)))
    experts = {"count": draw(st.sampled_from((8, 60))), "top_k": 2, "ffn": 768, "shared": draw(st.sampled_from((0, 1)))}
    model = {
        "layers": draw(st.sampled_from((4, 6, 22, 61))), "width": 64 * heads, "heads": heads,
        "kv_heads": draw(st.sampled_from([each for each in (1, 2, 5, heads) if heads % each == 0])),
        "ffn": draw(st.sampled_from((1024, 5632))), "vocabulary": draw(st.sampled_from((256, 50257))),
        "experts": draw(st.sampled_from((None, None, experts))),
        "mtp": draw(st.sampled_from((0, 0, 0, 1))), "window": draw(st.sampled_from((0, 0, 0, 128))),
        "norm": draw(st.sampled_from(("rms", "rms", "layer"))),
    }  # fmt: skip
    batch = {"sequences": draw(st.sampled_from((8, 48, 256))), "micro": draw(st.sampled_from((1, 2))),
             "length": draw(st.sampled_from((2000, 2048)))}  # fmt: skip
    return JobSpec.model_validate({"name": "drawn", "steps": 10, "model": model, "batch": batch})


def is_started(job: JobSpec, plans: Plans, row: int, practice: SoftwareSpec) -> bool:
    """Say whether `weft train` takes the job file that somebody writes a recommended plan into."""
    batch = {**job.batch.as_written(), "micro": int(plans.micro[row])}
    plan = spec_of(plans, row, practice).as_written()
    written = JobSpec.model_validate({**job.as_written(), "batch": batch, "plan": plan})
    try:
        planned(written)
    except UsageError:
        return False
    return True


@given(drawn_jobs(), st.sampled_from(("laptop", "bed-64x400g", "h100-400g-16k")))
@settings(max_examples=12)
def test_a_recommended_plan_is_one_that_the_trainer_starts_or_is_marked_with_the_reason(job: JobSpec, site: str):
    try:
        report = plan_job(load_site(site), job, top=4)
    except UsageError:
        return  # nothing fits
    best, accepted = report.outcome.best, report.outcome.accepted
    marked = [bool(report.row(best, row)["not_trained"]) for row in range(len(best))]
    assert marked == [not is_started(job, best.plans, row, report.practice) for row in range(len(best))]
    assert all(marked) or len(accepted)
    if len(accepted):
        assert is_started(job, accepted.plans, 0, report.practice)
        assert report.as_json()["trained_plan"]["not_trained"] == []
        if not marked[0]:
            assert accepted.plans.row(0) == best.plans.row(0)


@given(models(), batches(), st.integers(1, 8))
@settings(max_examples=12)
def test_no_plan_that_the_trainer_starts_is_better_than_the_one_that_is_named(
    model: ModelSpec, batch: BatchSpec, gpus: int
):
    job = JobSpec(name="drawn", steps=1, model=model, batch=batch)
    work, here = Workload(dimensions_of(model), batch.sequences, batch.length), machine(8, gpus)
    try:
        found = search(work, here, PRACTICE, accept=lambda plans, row: is_trained(plans, row, job, PRACTICE))
    except UsageError:
        return
    plans, _ = candidates(work, here, gpus, {})
    started = [row for row in range(len(plans)) if is_started(job, plans, row, PRACTICE)]
    assert bool(started) == bool(len(found.accepted))
    if started:
        several = scored(work, plans.take(started), here, PRACTICE)
        late = latest_s(several.step_s, work, several.plans, here, PRACTICE)
        accepted = found.accepted
        named = latest_s(accepted.step_s, work, accepted.plans, here, PRACTICE)
        assert named[0] == pytest.approx(late.min())


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_divisors_are_all_that_divide_up_to_the_most(number: int, most: int):
    assert divisors(number, most) == [each for each in range(1, min(number, most) + 1) if number % each == 0]


@given(st.integers(1, 400))
def test_stages_split_the_layers_or_the_layers_with_both_ends(layers: int):
    for stages in pipeline_sizes(layers):
        assert 1 <= stages <= layers
        short_end = stages & (stages - 1) == 0 and -(-layers // stages) * (stages - 1) < layers
        assert layers % stages == 0 or (layers + 2) % stages == 0 or short_end


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_published_pipelines_of_61_layers_are_tried(stages: int):
    assert stages in pipeline_sizes(61)


@given(st.integers(1, 10_000))
def test_context_ranks_are_powers_of_two_that_cut_the_sequence_evenly(length: int):
    found = context_sizes(length)
    assert found[0] == 1
    for ranks in found[1:]:
        assert ranks & (ranks - 1) == 0
        assert length % (2 * ranks) == 0
    larger = 2 * found[-1]
    assert larger > LARGEST_CONTEXT or length % (2 * larger)


@given(st.integers(1, 100), st.integers(1, 16), st.integers(1, 64))
def test_a_schedule_is_offered_where_its_own_rule_holds(layers: int, pp: int, rounds: int):
    offered = {SCHEDULES[number]: list(chunks) for number, chunks in schedules(layers, pp, rounds)}
    assert offered["1f1b"] == [1]
    assert ("zero-bubble" in offered) == (pp > 1)
    assert ("interleaved" in offered) == (pp > 1 and rounds % pp == 0)
    each = -(-layers // pp)
    assert ("zbv" in offered) == (pp > 1 and each % 2 == 0 and rounds >= 2 * pp)
    assert all(each % chunks == 0 and chunks > 1 for chunks in offered.get("interleaved", []))


MODEL = ModelSpec.model_validate({"layers": 4, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 36, "vocabulary": 250})
BATCH = BatchSpec.model_validate({"sequences": 8, "micro": 1, "length": 24})


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"pp": 8}, "pp = 8 with schedule '1f1b' needs 8 stages but there are 4 layers; write pp = 4 or less"),
        ({"pp": 4, "schedule": "zbv"}, "needs 8 stages but there are 4 layers; write pp = 2 or less"),
        ({"tp": 3}, "tp = 3 does not divide 4 heads; the nearest that does is 2"),
        ({"tp": 4}, "tp = 4 does not divide 2 kv_heads; the nearest that does is 2"),
        ({"tp": 8}, "tp = 8 does not divide ffn = 36; the nearest that does is 9"),
        ({"tp": 4}, "tp = 4 does not divide vocabulary = 250; the nearest that does is 5"),
        ({"dp": 2, "ep": 2}, "ep = 2 but the model has no experts; write ep = 1"),
        ({"dp": 16}, "dp = 16 but a step has 8 micro-batches; write dp = 8 or less"),
        ({"dp": 3, "shard": 3}, "8 micro-batches do not divide over dp = 3, which shard > 1 needs"),
        (
            {"cp": 8},
            "does not divide by 16 (tp = 1 and cp = 8 in two halves); the nearest that do are 16 and 32",
        ),
        ({"pp": 2, "dp": 8}, "needs at least 2 micro-batches for each rank, there are 1; write dp = 4 or less"),
        ({"pp": 2, "dp": 3, "schedule": "interleaved"}, "there are 8 over dp = 3; write a multiple of 6"),
        (
            {"pp": 2, "schedule": "zbv", "recompute": "full"},
            "backward in two parts, which recompute = 'full' cannot",
        ),
        ({"pp": 2, "schedule": "zbv", "compile": True}, "which compiled blocks cannot"),
        ({"pp": 2, "dp": 2, "shard": 2, "schedule": "zbv", "exact": True}, "sums in an order of its own"),
    ],
)
def test_a_problem_says_what_would_do(plan: dict[str, Any], said: str):
    found = problems(PlanSpec.model_validate(plan), MODEL, BATCH)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("ranks", "remedy"), [(8, "write dp = 4"), (4, "write dp = 2"), (3, "start 2 ranks"), (1, "start 2 ranks")]
)
def test_another_number_of_ranks_is_refused_with_a_remedy(ranks: int, remedy: str):
    plan = PlanSpec.model_validate({"pp": 2})
    assert problems(plan, MODEL, BATCH, plan.ranks) == []
    (found,) = problems(plan, MODEL, BATCH, ranks)
    assert found.endswith(remedy)


def test_a_frozen_correction_has_no_backward_in_two_parts():
    experts = {"count": 4, "top_k": 2, "ffn": 64, "correction": True}
    model = ModelSpec.model_validate({"layers": 4, "width": 16, "heads": 2, "ffn": 8, "experts": experts})
    batch = BatchSpec(sequences=8, micro=1, length=64)
    assert not problems(PlanSpec(pp=2, schedule="interleaved"), model, batch)
    for schedule in ("zero-bubble", "zbv", "dualpipev"):
        plan = PlanSpec.model_validate({"pp": 2, "schedule": schedule})
        assert any("experts.correction" in each for each in problems(plan, model, batch))
