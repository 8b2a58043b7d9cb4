"""A chosen plan in the words of the tool that will run it: torchtitan, Megatron-LM, NeMo, Slurm, JobSet. Pure.

Options are those of torchtitan 0.2 (`torchtitan.config`), Megatron-LM core 0.14 and NeMo 2.x. What a tool cannot do is
refused with the reason, not left out.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from weft.core.errors import UsageError
from weft.specs.job import JobSpec, PlanSpec
from weft.specs.site import SiteSpec

ToolName: TypeAlias = Literal["torchtitan", "megatron", "nemo", "sbatch", "jobset", "kueue"]
_LABEL = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 40
"""Of a JobSet: pods add the names of its parts and their numbers, and a host name has 63 characters."""
_RACK = "cloud.provider.com/topology-rack"
_SCHEDULES: Mapping[str, str] = MappingProxyType({
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "zero-bubble": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
})  # fmt: skip
"""Names of torch's own schedules, which torchtitan takes."""


@dataclass(frozen=True)
class ChosenRun:
    """A job with the plan that it is to run by, and where."""

    job: JobSpec
    plan: PlanSpec
    site: SiteSpec

    @property
    def nodes(self) -> int:
        """Return how many nodes it takes."""
        return -(-self.plan.ranks // self.site.node.gpus)

    @property
    def ranks_per_node(self) -> int:
        """Return how many ranks run on each of them."""
        return min(self.plan.ranks, self.site.node.gpus)

    @property
    def warmup(self) -> int:
        """Return the steps over which the learning rate rises."""
        return self.job.optimizer.warmup


def run_file(tool: ToolName, run: ChosenRun) -> str:
    """Return what `tool` is configured with."""
    return _MAKERS[tool](run)


def torchtitan(run: ChosenRun) -> str:
    """Return a torchtitan job file; the model is a flavor that has to be registered with these dimensions."""
    job, plan = run.job, run.plan
    model, optimizer = job.model, job.optimizer
    clip = optimizer.clip or 1e9  # torchtitan always clips; this norm is never reached
    lines = [
        f"# {job.name} on {run.site.name}: {plan.ranks:,} ranks, {run.nodes:,} nodes of {run.ranks_per_node}.",
        f"# Dimensions: layers {model.layers}, dim {model.width}, heads {model.heads}, kv heads"
        f" {model.kv_heads or model.heads}, ffn {model.ffn}, vocabulary {model.vocabulary}.",
        "[model]", 'name = "llama3"', f'flavor = "{job.name}"',
        "[training]", f"local_batch_size = {_local_batch(run)}", f"global_batch_size = {job.batch.sequences}",
        f"seq_len = {job.batch.length}", f"steps = {job.steps}", f"max_norm = {clip:g}", f"seed = {job.seed}",
        f"compile = {str(plan.compile).lower()}",
        "[optimizer]", 'name = "AdamW"', f"lr = {optimizer.learning_rate!r}", f"beta1 = {optimizer.betas[0]!r}",
        f"beta2 = {optimizer.betas[1]!r}", f"eps = {optimizer.epsilon!r}", f"weight_decay = {optimizer.weight_decay!r}",
        "[lr_scheduler]", f"warmup_steps = {run.warmup}", f"decay_ratio = {_decay_ratio(run)!r}",
        f'decay_type = "{"linear" if optimizer.schedule != "cosine" else "cosine"}"',
        f"min_lr_factor = {optimizer.final_share if optimizer.schedule != 'constant' else 1.0!r}",
        "[parallelism]", f"data_parallel_replicate_degree = {plan.dp // plan.shard}",
        f"data_parallel_shard_degree = {plan.shard}", f"tensor_parallel_degree = {plan.tp}",
        f"pipeline_parallel_degree = {plan.pp}", f"context_parallel_degree = {plan.cp}",
        f"expert_parallel_degree = {plan.ep}",
    ]  # fmt: skip
    if plan.pp > 1:
        lines += [
            f'pipeline_parallel_schedule = "{_SCHEDULES[plan.schedule]}"',
            f"pipeline_parallel_microbatch_size = {job.batch.micro}",
        ]
    lines += [
        "[activation_checkpoint]", f'mode = "{plan.recompute}"',
        "[checkpoint]", f"enable = {str(job.checkpoint.every > 0).lower()}",
        f"interval = {job.checkpoint.every or job.steps}",
        f"keep_latest_k = {max(2, job.checkpoint.keep)}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def megatron(run: ChosenRun) -> str:
    """Return the options of Megatron-LM's `pretrain_gpt.py`, one a line, for a shell."""
    job, plan = run.job, run.plan
    model, optimizer = job.model, job.optimizer
    if plan.schedule not in {"1f1b", "interleaved"} and plan.pp > 1:
        raise UsageError(f"Megatron-LM has no schedule {plan.schedule!r}; plan again with --fix schedule=1f1b")
    if plan.shard > 1 and plan.shard != plan.dp:
        raise UsageError(f"Megatron-LM shards over all {plan.dp} data-parallel ranks or none, not over {plan.shard}")
    options: dict[str, str | int | float] = {
        "tensor-model-parallel-size": plan.tp, "pipeline-model-parallel-size": plan.pp,
        "context-parallel-size": plan.cp,
        "micro-batch-size": job.batch.micro, "global-batch-size": job.batch.sequences, "seq-length": job.batch.length,
        "max-position-embeddings": job.batch.length, "num-layers": model.layers, "hidden-size": model.width,
        "ffn-hidden-size": model.ffn, "num-attention-heads": model.heads,
        "kv-channels": model.head_width or model.width // model.heads,
        "normalization": "RMSNorm", "norm-epsilon": model.norm_epsilon, "position-embedding-type": "rope",
        "rotary-base": int(model.rope_base), "vocab-size": model.vocabulary, "make-vocab-size-divisible-by": 1,
        "init-method-std": model.deviation, "train-iters": job.steps, "lr": optimizer.learning_rate,
        "min-lr": optimizer.learning_rate * optimizer.final_share, "lr-decay-style": optimizer.schedule,
        "lr-warmup-iters": run.warmup, "adam-beta1": optimizer.betas[0], "adam-beta2": optimizer.betas[1],
        "adam-eps": optimizer.epsilon, "weight-decay": optimizer.weight_decay, "clip-grad": optimizer.clip,
        "save-interval": job.checkpoint.every or job.steps, "seed": job.seed,
    }  # fmt: skip
    flags = ["--disable-bias-linear", *(["--bf16"] if plan.precision == "bf16" else [])]
    flags += [] if model.tied else ["--untie-embeddings-and-output-weights"]
    if optimizer.horizon is not None:
        options["lr-decay-iters"] = optimizer.horizon
    if model.kv_heads is not None and model.kv_heads != model.heads:
        flags.append("--group-query-attention")
        options["num-query-groups"] = model.kv_heads
    if model.experts is not None:
        options |= {
            "num-experts": model.experts.count, "moe-router-topk": model.experts.top_k,
            "moe-ffn-hidden-size": model.experts.ffn, "expert-model-parallel-size": plan.ep,
        }  # fmt: skip
    if plan.tp > 1:
        flags.append("--sequence-parallel")
    counted = _layers_counted(run, "Megatron-LM")
    if counted != model.layers:
        flags += ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    if plan.schedule == "interleaved" and plan.pp > 1:
        options["num-layers-per-virtual-pipeline-stage"] = counted // (plan.pp * (plan.chunks or 2))
    options |= _megatron_recompute(plan)
    if plan.shard > 1:
        flags += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params"]
    flags.append("--use-distributed-optimizer")
    return "\n".join([*(f"--{name} {value}" for name, value in options.items()), *flags]) + "\n"


def _megatron_recompute(plan: PlanSpec) -> dict[str, str | int]:
    if plan.recompute == "full":
        return {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    return {} if plan.recompute == "none" else {"recompute-granularity": "selective"}


def nemo(run: ChosenRun) -> str:
    """Return overrides of a NeMo 2 pretraining recipe, one a line, as `nemo llm pretrain` takes them."""
    job, plan = run.job, run.plan
    if plan.pp > 1 and plan.schedule not in {"1f1b", "interleaved"}:
        raise UsageError(f"NeMo has no schedule {plan.schedule!r}; plan again with --fix schedule=1f1b")
    lines = [
        f"trainer.num_nodes={run.nodes}", f"trainer.devices={run.ranks_per_node}", f"trainer.max_steps={job.steps}",
        f"trainer.strategy.tensor_model_parallel_size={plan.tp}",
        f"trainer.strategy.pipeline_model_parallel_size={plan.pp}",
        f"trainer.strategy.context_parallel_size={plan.cp}",
        f"trainer.strategy.expert_model_parallel_size={plan.ep}",
        f"trainer.strategy.sequence_parallel={plan.tp > 1}",
        f"data.global_batch_size={job.batch.sequences}", f"data.micro_batch_size={job.batch.micro}",
        f"data.seq_length={job.batch.length}", f"optim.config.lr={job.optimizer.learning_rate!r}",
        f"optim.config.weight_decay={job.optimizer.weight_decay!r}",
    ]  # fmt: skip
    if _layers_counted(run, "NeMo") != job.model.layers:
        lines += [f"model.config.account_for_{part}_in_pipeline_split=True" for part in ("embedding", "loss")]
    if plan.schedule == "interleaved" and plan.pp > 1:
        lines.append(f"trainer.strategy.virtual_pipeline_model_parallel_size={plan.chunks or 2}")
    if plan.recompute == "full":
        lines += ["model.config.recompute_granularity=full", "model.config.recompute_method=uniform",
                  "model.config.recompute_num_layers=1"]  # fmt: skip
    return "\n".join(lines) + "\n"


def sbatch(run: ChosenRun) -> str:
    """Return a Slurm script that starts torchrun on every node; the command to run is its arguments."""
    return "\n".join([
        "#!/bin/bash",
        f"#SBATCH --job-name={run.job.name}", f"#SBATCH --nodes={run.nodes}", "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={run.ranks_per_node}", "#SBATCH --exclusive", "#SBATCH --requeue",
        f"# {run.job.name} on {run.site.name}: dp {run.plan.dp}, tp {run.plan.tp}, pp {run.plan.pp},"
        f" cp {run.plan.cp}, ep {run.plan.ep}.",
        'if [ "$#" -eq 0 ]; then echo "usage: sbatch $0 PROGRAM [ARGUMENT...]" >&2; exit 2; fi',
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun torchrun --nnodes={run.nodes} --nproc-per-node={run.ranks_per_node} --rdzv-backend=c10d \\",
        '    --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" "$@"',
    ]) + "\n"  # fmt: skip


def jobset(run: ChosenRun, queue: str | None = None) -> str:
    """Return a JobSet (jobset.x-k8s.io/v1alpha2) as JSON, which is YAML: a pod for each node, torchrun in each.

    Image and program are the user's own: both stand in one place each, and are marked.
    """
    name = _LABEL.sub("-", run.job.name.lower()).strip("-")[:_LONGEST_NAME].rstrip("-") or "job"
    command = [
        "torchrun", f"--nnodes={run.nodes}", f"--nproc-per-node={run.ranks_per_node}", "--rdzv-backend=c10d",
        f"--rdzv-id={name}", f"--rdzv-endpoint={name}-workers-0-0.{name}:29500", "PROGRAM",
    ]  # fmt: skip
    container = {
        "name": "trainer", "image": "IMAGE", "command": command,
        "resources": {"limits": {"nvidia.com/gpu": str(run.ranks_per_node)}},
    }  # fmt: skip
    template: dict[str, Any] = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    labels = {} if queue is None else {"labels": {"kueue.x-k8s.io/queue-name": queue}}
    if queue is not None:
        template["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-preferred-topology": _RACK}}
    job = {
        "parallelism": run.nodes, "completions": run.nodes, "completionMode": "Indexed", "backoffLimit": 0,
        "template": template,
    }  # fmt: skip
    plan = run.plan
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": name, **labels, "annotations": {
            "weft/plan": f"dp {plan.dp}, tp {plan.tp}, pp {plan.pp}, cp {plan.cp}, ep {plan.ep}",
        }},
        "spec": {
            **({} if queue is None else {"suspend": True}),
            "failurePolicy": {"maxRestarts": 100},
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}],
        },
    }  # fmt: skip
    return json.dumps(document, indent=2) + "\n"


def kueue(run: ChosenRun) -> str:
    """Return the same JobSet, suspended until Kueue admits it from the local queue `training`."""
    return jobset(run, "training")


def _layers_counted(run: ChosenRun, tool: str) -> int:
    """Return the layers that are split evenly: the model's, or with embedding and loss as one layer each."""
    plan, layers = run.plan, run.job.model.layers
    parts = plan.pp * ((plan.chunks or 2) if plan.schedule == "interleaved" and plan.pp > 1 else 1)
    for counted in (layers, layers + 2):
        if counted % parts == 0:
            return counted
    raise UsageError(
        f"{tool} splits layers evenly, and neither {layers} nor {layers + 2} (with embedding and loss) are a multiple"
        f" of {parts} model chunks; fix another pp with --fix"
    )


def _local_batch(run: ChosenRun) -> int:
    """Return the sequences of one data-parallel rank at a time: with a pipeline, all its micro-batches."""
    each = run.job.batch.sequences // run.plan.dp
    return max(run.job.batch.micro, each) if run.plan.pp > 1 else run.job.batch.micro


def _decay_ratio(run: ChosenRun) -> float:
    """Return the share of the steps over which the learning rate falls."""
    if run.job.optimizer.schedule == "constant":
        return 0.0
    if run.job.optimizer.horizon not in (None, run.job.steps):
        raise UsageError(
            f"torchtitan's learning rate falls to its last step, and optimizer.horizon is {run.job.optimizer.horizon}"
            f" of {run.job.steps} steps; leave it out"
        )
    return round(1 - run.warmup / run.job.steps, 6)


_MAKERS: Mapping[ToolName, Callable[[ChosenRun], str]] = MappingProxyType({
    "torchtitan": torchtitan, "megatron": megatron, "nemo": nemo, "sbatch": sbatch, "jobset": jobset, "kueue": kueue,
})  # fmt: skip
