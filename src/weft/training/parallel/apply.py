"""The built-in decoder spread over the mesh of a plan: every axis applied, in the one order in which they compose.

Cut into stages, then matrices over the tensor axis, experts over theirs, attention over the context axis,
recomputation, and last the shards of the data axis. What comes out runs a step's micro-batches, with or without a
pipeline, and says which ranks hold the same parameters. Each axis is written in a file of its own; this one only puts
them together.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.planning.cost_model.arithmetic import flops_per_token
from weft.specs.job import JobSpec
from weft.training.model import Decoder, ExpertBalance, Load, Start, canonical, carry_loss, initialise
from weft.training.model.huggingface import StoredWeights
from weft.training.parallel import context_parallel, load_balance, pipeline
from weft.training.parallel.collective_autograd import passed, total_over
from weft.training.parallel.expert_parallel import dispatch_over, spread_experts
from weft.training.parallel.mesh import Mesh
from weft.training.parallel.parallel_model import OnMesh, ParallelModel, finish_stage, keep_hooked, low_precision
from weft.training.parallel.tensor_parallel import cut_loss, own_words, spread_tensors


def _summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")


@cache
def _compiled_loss() -> Callable[[Tensor, Tensor], Tensor]:
    return torch.compile(_summed_loss)


@dataclass(frozen=True)
class _RankShare:
    """What this rank computes of every sequence."""

    job: JobSpec
    mesh: Mesh
    device: torch.device

    def cut(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of this rank's part of a micro-batch `[micro, length + 1]`."""
        ranks, rank = self.mesh.plan.cp, self.mesh.place.cp
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if ranks == 1:
            return inputs.contiguous(), targets.contiguous()
        return context_parallel.part(inputs, ranks, rank), context_parallel.part(targets, ranks, rank)

    def positions(self) -> Tensor | None:
        """Return where this rank's tokens stand in their sequence, or none where it has all of them."""
        ranks, rank = self.mesh.plan.cp, self.mesh.place.cp
        return None if ranks == 1 else context_parallel.positions(self.job.batch.length, ranks, rank).to(self.device)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return this rank's part of the mean loss of a micro-batch."""
        tokens = targets.shape[0] * self.job.batch.length
        group = self.mesh.groups["tp"]
        if group is not None:
            return cut_loss(logits, targets, self.words, group) / tokens
        summed = _compiled_loss() if self.mesh.plan.compile else _summed_loss
        return summed(logits, targets) / tokens

    @property
    def words(self) -> range:
        """Return the part of the vocabulary whose logits this rank has."""
        return own_words(self.job.model.vocabulary, self.mesh.plan.tp, self.mesh.place.tp)

    def balanced(self, loads: list[Load], weight: float) -> Tensor:
        """Return the balance loss of a micro-batch whose loads may lie on several context-parallel ranks."""
        group = self.mesh.groups["cp"]
        if group is not None:
            total = total_over(group)
            loads = [Load(*(passed(part, total, total) for part in load)) for load in loads]
        return ExpertBalance(weight / self.mesh.plan.cp, loads).loss()


def _run_stage(parts: _RankShare, plain: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    """Run a stage on one micro-batch's part, in the plan's precision, the balance of its experts carried along."""
    experts = parts.job.model.experts
    low = low_precision(parts.mesh)
    with torch.autocast(parts.device.type, dtype=low or torch.bfloat16, enabled=low is not None):
        collected = ExpertBalance(experts.balance) if experts is not None else None
        outputs = plain(inputs, parts.positions(), collected)
    if experts is not None and collected is not None and collected.loads:
        outputs = carry_loss(outputs, parts.balanced(collected.loads, experts.balance))
    return keep_hooked(outputs, parts.mesh)


@dataclass
class ParallelDecoder(ParallelModel):
    """The part of the built-in decoder that this rank holds, ready to run steps."""

    def _decoders(self) -> list[Decoder]:
        return [stage for stage in self.stages if isinstance(stage, Decoder)]

    @property
    def _share(self) -> _RankShare:
        return _RankShare(self.job, self.mesh, self.device)

    @override
    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self._share.cut(tokens)

    @override
    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._share.loss(outputs, targets)

    @override
    def full_name(self, name: str) -> str:
        return canonical(name, self.job.model)

    @override
    def tied(self) -> list[Tensor]:
        if not self.job.model.tied or self.mesh.plan.pp == 1:
            return []
        first = [stage.embed.weight for stage in self._decoders() if stage.embed is not None]
        return first + [stage.head.weight for stage in self._decoders() if stage.head is not None]

    @override
    def flops_per_token(self) -> float | None:
        return flops_per_token(self.job.model, self.job.batch.length, causal=True).total

    @override
    def examples(self, order: int) -> tuple[Tensor, Tensor]:
        job, plan, stage = self.job, self.mesh.plan, self._decoders()[order]
        length = job.batch.length // plan.cp
        narrow = torch.bfloat16 if plan.precision == "bf16" and plan.shard > 1 and not plan.exact else torch.float32
        hidden = torch.empty(job.batch.micro, length // plan.tp, job.model.width, dtype=narrow, device="meta")
        tokens = torch.empty(job.batch.micro, length, dtype=torch.int64, device="meta")
        logits = torch.empty(job.batch.micro, length, len(self._share.words), device="meta")
        entering = tokens if stage.embed is not None else hidden.requires_grad_()
        return entering, logits if stage.head is not None else hidden.clone().requires_grad_()


def parallelize(run: OnMesh) -> ParallelDecoder:
    """Return the job's decoder, spread over the run's mesh and set to its starting weights."""
    job, mesh, device = run.job, run.mesh, run.device
    plan = mesh.plan
    if plan.compile:
        check_compiler(device)
    cuts = load_balance.cut(_layer_costs(job, mesh, device), pipeline.stages_of(plan))
    numbers = pipeline.stage_numbers(plan, mesh.place.pp)
    start = StoredWeights(Path(job.model.weights), job.model).tensor if job.model.weights else None
    stages = [_stage(job, mesh, device, cuts, number, start=start) for number in numbers]
    return ParallelDecoder(job, mesh, device, stages, numbers)


def check_compiler(device: torch.device) -> None:
    """Raise where torch would find no compiler for what it makes of blocks."""
    name = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(name) is None:
        raise UsageError(f"plan.compile needs a C++ compiler here, and there is no {name}; install it, or write false")


def _layer_costs(job: JobSpec, mesh: Mesh, device: torch.device) -> list[float]:
    """Return the cost of each layer, measured by rank 0 where the cut depends on it; no bit depends on it."""
    if mesh.plan.pp == 1:
        return [1.0] * job.model.layers
    costs = torch.zeros(job.model.layers, dtype=torch.float64, device=device)
    if mesh.rank == 0:
        costs += torch.tensor(pipeline.measure_layers(job, device), dtype=torch.float64)
    dist.broadcast(costs, 0)
    return costs.tolist()


def _stage(
    job: JobSpec, mesh: Mesh, device: torch.device, cuts: tuple[range, ...], number: int, *, start: Start | None
) -> Decoder:
    plan = mesh.plan
    ends = {"embed": number == 0, "head": number == len(cuts) - 1}
    stage = Decoder(job.model, layers=cuts[number], **ends).to(device)
    if plan.tp > 1 or plan.ep > 1:
        _spread_model(stage, mesh)
    group = mesh.groups["cp"]
    if group is not None:
        stage.attend_by(context_parallel.attend_over(group))
    initialise(stage, Seed(job.seed), start=start)
    finish_stage(stage, mesh, partial(_run_stage, _RankShare(job, mesh, device)))
    return stage


def _spread_model(stage: Decoder, mesh: Mesh) -> None:
    plan = mesh.plan
    if mesh.plan.tp > 1:
        assert mesh.devices is not None
        spread_tensors(stage, mesh.devices["tp"])
    if stage.spec.experts is None:
        return
    axes = tuple(axis for axis, size in (("ep", plan.ep), ("tp", plan.tp)) if size > 1)
    whole = mesh.experts if plan.ep > 1 else mesh.devices
    assert whole is not None
    spread_experts(stage, whole[axes if len(axes) > 1 else axes[0]], axes)
    stage.dispatch_by(dispatch_over(mesh.groups["ep"], mesh.groups["tp"]))
