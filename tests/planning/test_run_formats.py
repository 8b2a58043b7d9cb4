"""A plan in other tools' words: the axes multiply to the ranks, batches agree, and what a tool cannot do is refused."""

import importlib
import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.planning.run_formats import ChosenRun, run_file
from weft.specs import load_job, load_site
from weft.specs.job import PlanSpec

SITE = load_site("gb200-8x100g-131k")
JOB = load_job("llama3-405b")
SIZES = st.sampled_from([1, 2, 4, 8])


@st.composite
def plans(draw: st.DrawFn) -> PlanSpec:
    dp = draw(SIZES)
    shard = draw(st.sampled_from([one for one in (1, 2, 4, 8) if dp % one == 0]))
    return PlanSpec(
        dp=dp, tp=draw(SIZES), pp=draw(SIZES), cp=draw(SIZES), shard=shard,
        schedule=draw(st.sampled_from(["1f1b", "interleaved"])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])), precision="bf16",
    )  # fmt: skip


@given(plans())
def test_torchtitan_gets_every_axis_and_the_batch(plan: PlanSpec) -> None:
    found = tomllib.loads(run_file("torchtitan", ChosenRun(JOB, plan, SITE)))
    axes = found["parallelism"]
    degrees = [axes[f"{name}_degree"] for name in (
        "data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel", "context_parallel"
    )]  # fmt: skip
    product = 1
    for degree in degrees:
        product *= degree
    assert product == plan.ranks
    assert found["training"]["global_batch_size"] == JOB.batch.sequences
    assert found["training"]["local_batch_size"] % JOB.batch.micro == 0
    assert found["activation_checkpoint"]["mode"] == plan.recompute
    assert ("pipeline_parallel_schedule" in axes) == (plan.pp > 1)


@given(plans())
def test_megatron_gets_every_axis_or_a_reason(plan: PlanSpec) -> None:
    run = ChosenRun(JOB, plan, SITE)
    if plan.shard not in (1, plan.dp):
        with pytest.raises(UsageError, match="shards over all"):
            run_file("megatron", run)
        return
    chunks = plan.pp * (2 if plan.schedule == "interleaved" and plan.pp > 1 else 1)
    if JOB.model.layers % chunks and (JOB.model.layers + 2) % chunks:
        with pytest.raises(UsageError, match="evenly"):
            run_file("megatron", run)
        return
    words = run_file("megatron", run).split()
    assert ("--account-for-loss-in-pipeline-split" in words) == (JOB.model.layers % chunks != 0)
    assert all(line.startswith("--") for line in run_file("megatron", run).splitlines())

    def value(option: str) -> str:
        return words[words.index(f"--{option}") + 1]

    sizes = [
        int(value(f"{name}-size")) for name in ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
    ]
    assert sizes == [plan.tp, plan.pp, plan.cp]
    assert ("--sequence-parallel" in words) == (plan.tp > 1)
    assert len([word for word in words if word.startswith("--")]) == len(
        {word for word in words if word.startswith("--")}
    )


@pytest.mark.parametrize("tool", ["megatron", "nemo"])
def test_a_schedule_that_a_tool_lacks_is_refused(tool: str) -> None:
    plan = PlanSpec(dp=2, pp=4, schedule="dualpipev")
    with pytest.raises(UsageError, match="dualpipev"):
        run_file(tool, ChosenRun(JOB, plan, SITE))  # type: ignore[arg-type]


@given(plans())
def test_slurm_gets_as_many_nodes_as_the_ranks_need(plan: PlanSpec) -> None:
    run = ChosenRun(JOB, plan, SITE)
    text = run_file("sbatch", run)
    assert run.nodes * run.ranks_per_node >= plan.ranks > (run.nodes - 1) * run.ranks_per_node
    assert f"#SBATCH --nodes={run.nodes}\n" in text
    assert f"--nproc-per-node={run.ranks_per_node}" in text


def test_a_slurm_script_is_a_shell_script(tmp_path: Path) -> None:
    script = tmp_path / "run.sbatch"
    script.write_text(run_file("sbatch", ChosenRun(JOB, PlanSpec(dp=8), SITE)))
    assert subprocess.run([shutil.which("bash") or "bash", "-n", script], check=False).returncode == 0


@given(plans())
def test_a_jobset_is_one_by_its_own_schema_and_has_a_pod_for_each_node(plan: PlanSpec) -> None:
    schema = importlib.import_module("kubeflow_trainer_api.models.jobset_v1alpha2_job_set").JobsetV1alpha2JobSet
    run = ChosenRun(JOB, plan, SITE)
    for tool in ("jobset", "kueue"):
        made = json.loads(run_file(tool, run))
        assert schema.from_dict(made).to_dict() == made
        job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
        gpus = job["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        assert job["parallelism"] * int(gpus) >= plan.ranks > (job["parallelism"] - 1) * int(gpus)
        assert (made["spec"].get("suspend") is True) == (tool == "kueue")
