"""The report: what it promises as JSON, where ranks sit, what failures and changes cost."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import api
from weft.core.errors import UsageError
from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.plans import Workload, dimensions_of, one_plan
from weft.planning.run.placement import axes_of, colocation_of, failure_costs
from weft.planning.what_if import changed
from weft.specs import JobSpec, load_job, load_site
from weft.specs.software import SoftwareSpec

SITE = "gb200-4x200g-32k"


@pytest.fixture(scope="module")
def report():
    return api.plan("gpt3-175b", SITE, top=3)


def test_the_promised_json(report):
    found = json.loads(json.dumps(report.as_json(), allow_nan=False))
    row = {"dp", "tp", "pp", "cp", "ep", "zero", "schedule", "micro_batch", "recompute", "step_s", "mfu",
           "tflops_per_gpu", "tokens_per_s", "memory_bytes", "limit"}  # fmt: skip
    assert len(found["plans"]) == 3
    assert all(row <= set(plan) for plan in found["plans"])
    assert {"goodput", "energy_j_per_step", "power"} <= set(found)
    assert {"mean_w", "peak_w", "swing_w"} <= set(found["power"])


def test_the_figures_hang_together(report):
    found = report.as_json()
    best = found["plans"][0]
    tokens = report.work.tokens
    assert best["tokens_per_s"] == pytest.approx(tokens / best["step_s"])
    assert best["gpus"] == best["dp"] * best["tp"] * best["pp"] * best["cp"]
    assert sum(found["step"].values()) == pytest.approx(best["step_s"])
    assert sum(found["memory"].values()) == pytest.approx(best["memory_bytes"], abs=5)
    operations = report.work.model.flops_per_token(2048, causal=True) * tokens
    assert best["tflops_per_gpu"] * 1e12 * best["gpus"] * best["step_s"] == pytest.approx(operations)
    assert found["energy_j_per_step"] == pytest.approx(found["power"]["mean_w"] * best["step_s"])
    run = found["run"]
    assert run["days_low"] < run["days"] < run["days_high"]
    assert run["days"] * 86400 == pytest.approx(report.job.steps * best["step_s"] / found["goodput"]["share"])


def test_fp8_is_faster():
    plain, fast = (api.plan("gpt3-175b", SITE, top=1, precision=p) for p in ("bf16", "fp8"))
    assert fast.chosen.step_s[0] < plain.chosen.step_s[0]


def test_tensor_groups_stay_in_their_domain_and_pipelines_cross_the_fabric():
    axes = {axis.name: axis for axis in axes_of(one_plan(tp=8, dp=128, pp=32), 0, load_site(SITE))}
    assert axes["tp"].tier == "scale-up domain"
    assert axes["pp"].tier == "fabric"
    assert axes["pp"].stride == 1024
    assert axes["cp"].tier == "none"
    assert {axis.name: axis.tier for axis in axes_of(one_plan(tp=4), 0, load_site(SITE))}["tp"] == "node"


def test_places_hold_the_ranks_that_fit():
    places = {each.place: each for each in colocation_of(one_plan(tp=8, dp=128, pp=32), 0, load_site(SITE))}
    assert places["node"].holds == {"tp": 4, "cp": 1, "dp": 1, "pp": 1}
    assert places["scale-up domain"].holds["dp"] == 9
    assert places["T0"].holds["dp"] == 128 // 8


def test_more_planes_make_a_failure_cheaper():
    job = load_job("gpt3-175b")
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)
    plan = one_plan(dp=1536, zero=3)
    costs = {}
    for planes in (2, 4):
        site, _ = changed(load_site(SITE), job, f"planes={planes}")
        found = failure_costs(work, plan, machine_of(site), SoftwareSpec(), site)
        costs[planes] = {cost.part: cost for cost in found}
    assert costs[4]["NIC link"].slower < costs[2]["NIC link"].slower
    assert costs[4]["T0-T1 link"].slower < costs[4]["whole plane"].slower
    assert costs[4]["node"].replicas_lost == 4
    single, _ = changed(load_site(SITE), job, "planes=1")
    alone = {c.part: c for c in failure_costs(work, plan, machine_of(single), SoftwareSpec(), single)}
    assert math.isinf(alone["NIC link"].slower)


@pytest.mark.parametrize(
    ("change", "get", "value"),
    [
        ("planes=2", lambda s, j: (s.fabric.planes, s.fabric.port_rate), (2, 400 * 10**9)),
        ("nodes=-8", lambda s, j: s.fabric.gpus, 32_768 - 32),
        ("nodes=100", lambda s, j: s.fabric.gpus, 400),
        ("link_rate=400 Gb/s", lambda s, j: (s.fabric.nic_rate, s.fabric.port_rate), (400 * 10**9, 100 * 10**9)),
        ("scale_up=8", lambda s, j: s.scale_up.gpus, 8),
        ("memory=80 GB", lambda s, j: s.gpu.memory, 80 * 10**9),
        ("batch=3072", lambda s, j: j.batch.sequences, 3072),
        ("length=4096", lambda s, j: j.batch.length, 4096),
    ],
)
def test_a_change_changes_what_it_says(change: str, get, value):
    assert get(*changed(load_site(SITE), load_job("gpt3-175b"), change)) == value


IMPOSSIBLE = [
    "planes",
    "planes=x",
    "planes=3",
    "wings=2",
    "nodes=-99999",
    "link_rate=fast",
    "link_rate=7 b/s",
    "memory=big",
]


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_an_impossible_change_is_refused(change: str):
    with pytest.raises(UsageError):
        changed(load_site(SITE), load_job("gpt3-175b"), change)


def job_with(**plan: int) -> JobSpec:
    job = load_job("gpt3-175b").as_written()
    return JobSpec.model_validate({**job, "plan": {"precision": "bf16", **plan}})


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"dp": 8192, "tp": 8}, "the site has 32,768 GPUs; write dp = 4096 or less"),
        ({"dp": 100, "tp": 8, "pp": 8}, "batch.sequences = 1500 or 1600, or dp = 96"),
        ({"dp": 8, "tp": 1}, "GiB on a GPU that has"),
        ({"tp": 128}, "tp = 128 is more than the 96 heads"),
        ({"pp": 128}, "pp = 128 is more than the 96 layers"),
    ],
)
def test_a_plan_that_cannot_run_names_the_nearest(plan: dict[str, int], words: str):
    with pytest.raises(UsageError, match=words):
        api.plan(job_with(**plan), SITE)


def test_a_plan_in_the_job_is_the_one_reported():
    found = api.plan(job_with(dp=96, tp=8, pp=8), SITE, top=2)
    assert found.own is not None
    assert found.as_json()["own_plan"]["dp"] == 96
    assert found.chosen is found.own
    assert float(found.outcome.best.step_s[0]) < float(found.own.step_s[0])


def test_an_unknown_gpu_names_the_nearest(tmp_path: Path):
    site = tmp_path / "site.toml"
    site.write_text(f'extends = "{SITE}"\n[gpu]\nkind = "H10O"\n')
    with pytest.raises(UsageError, match="did you mean 'H100'"):
        api.plan("gpt3-175b", str(site))
    site.write_text(f'extends = "{SITE}"\n[gpu]\nkind = "Mine"\nlike = "H100"\n')
    assert api.plan("gpt3-175b", str(site), top=1).machine.kind == "Mine"


def test_nothing_fits_is_a_sentence():
    with pytest.raises(UsageError, match="nothing fits"):
        api.plan("gpt-1t", "laptop")


def test_the_chosen_plan_can_be_written_into_the_job(report):
    spec = report.plan_spec
    assert spec.ranks == int(report.chosen.plans.ranks[0])
    job = load_job("gpt3-175b").model_copy(update={"plan": spec})
    again = api.plan(job, SITE, top=1)
    assert again.own is not None
    assert again.own.plans.row(0)["dp"] == spec.dp


def test_experts_are_spread_where_that_pays(tmp_path: Path):
    job = tmp_path / "job.toml"
    job.write_text(
        'extends = "gpt3-175b"\nname = "sparse"\n[model]\nlayers = 60\nwidth = 6144\nheads = 48\nkv_heads = 8\n'
        "[model.experts]\ncount = 64\ntop_k = 4\nffn = 4096\n"
    )
    found = api.plan(str(job), SITE, top=5)
    best = found.as_json()["plans"][0]
    assert best["ep"] > 1
    assert found.as_json()["step"]["expert_s"] > 0


@st.composite
def any_job(draw: st.DrawFn) -> JobSpec:
    heads = draw(st.sampled_from([1, 3, 8, 12, 96]))
    table = load_job("gpt3-175b").as_written()
    table["model"] |= {
        "layers": draw(st.sampled_from([1, 7, 61, 1000])),
        "width": draw(st.sampled_from([1, 1000, 8192])),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([each for each in range(1, heads + 1) if heads % each == 0])),
        "head_width": draw(st.sampled_from([2, 128])),
        "ffn": draw(st.sampled_from([1, 100, 53248])),
        "vocabulary": draw(st.sampled_from([2, 128256])),
    }
    if draw(st.booleans()):
        table["model"]["experts"] = {"count": draw(st.sampled_from([2, 60])), "top_k": 2, "ffn": 2048}
    sequences = draw(st.sampled_from([1, 7, 1000, 10_007, 720_720]))
    table["batch"] = {"sequences": sequences, "micro": 1, "length": draw(st.sampled_from([1, 100, 131_072]))}
    return JobSpec.model_validate(table)


@given(any_job(), st.sampled_from(["laptop", "h100-400g-16k"]))
@settings(max_examples=12, deadline=None)
def test_any_job_gets_an_answer_or_a_sentence(job: JobSpec, site: str):
    try:
        found = api.plan(job, site, top=2)
    except UsageError:
        return
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert all(0 < plan["mfu"] < 1 for plan in document["plans"])
    assert all(plan["memory_bytes"] <= found.machine.memory_bytes for plan in document["plans"])
