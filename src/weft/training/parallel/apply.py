"""The built-in decoder spread over the mesh of a plan: every axis applied, in the one order in which they compose.

Cut into stages, then matrices over the tensor axis, experts over theirs, attention over the context axis,
recomputation, and last the shards of the data axis. What comes out runs a step's micro-batches, with or without a
pipeline, and says which ranks hold the same parameters. Each axis is written in a file of its own; this one only puts
them together.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional
from typing_extensions import override

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.specs.job import JobSpec
from weft.training.metrics.exposed import waiting
from weft.training.model import Decoder, ExpertBalance, Load, canonical, carry_loss, initialise
from weft.training.parallel import context_parallel, load_balance, pipeline
from weft.training.parallel.expert_parallel import dispatch_over, spread_experts
from weft.training.parallel.mesh import Mesh
from weft.training.parallel.recompute import recompute_in
from weft.training.parallel.reducer import Family, Reducer, local
from weft.training.parallel.sharding import ShardReducer, spread_shards
from weft.training.parallel.tensor_parallel import cut_loss, own_words, spread_tensors

if TYPE_CHECKING:
    from weft.training.session import Session, Step


class _Total(Function):
    """Sums a tensor over ranks, forward and backward."""

    @staticmethod
    @override
    def forward(*args: Any, **_: Any) -> Tensor:
        ctx, tensor, group = args
        ctx.group = group
        total = tensor.clone()
        with waiting():
            dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        total = grad_outputs[0].clone()
        with waiting():
            dist.all_reduce(total, group=ctx.group)
        return total, None


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

    @property
    def low(self) -> torch.dtype | None:
        """Return the precision of matrices where it is not full."""
        return torch.bfloat16 if self.mesh.plan.precision == "bf16" else None

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
            loads = [Load(_Total.apply(load.counts, group), _Total.apply(load.probability, group)) for load in loads]
        return ExpertBalance(weight / self.mesh.plan.cp, loads).loss()


def _run_stage(parts: _RankShare, plain: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    """Run a stage on one micro-batch's part, in the plan's precision, the balance of its experts carried along."""
    experts = parts.job.model.experts
    low = parts.low
    with torch.autocast(parts.device.type, dtype=low or torch.bfloat16, enabled=low is not None):
        collected = ExpertBalance(experts.balance) if experts is not None else None
        outputs = plain(inputs, parts.positions(), collected)
    if experts is not None and collected is not None and collected.loads:
        outputs = carry_loss(outputs, parts.balanced(collected.loads, experts.balance))
    # FSDP2 hangs its hook on what comes out, which a view may lose.
    return outputs.clone() if parts.mesh.plan.shard > 1 and outputs._is_view() else outputs  # noqa: SLF001 - torch's name


@dataclass
class ParallelDecoder:
    """The part of the decoder that this rank holds, ready to run steps."""

    job: JobSpec
    """What is trained."""
    mesh: Mesh
    """Where it is spread."""
    device: torch.device
    """Where this rank computes."""
    stages: list[Decoder]
    """This rank's stages of the model, in order; one where there is no pipeline."""
    numbers: tuple[int, ...]
    """Their numbers in the pipeline."""
    _schedules: dict[int, Any] = field(default_factory=dict)
    _piped: list[pipeline.ScheduledStage] = field(default_factory=list)
    _step: "Step | None" = None

    @property
    def _parts(self) -> _RankShare:
        return _RankShare(self.job, self.mesh, self.device)

    def modules(self) -> Iterator[nn.Module]:
        """Yield every module of every stage."""
        for stage in self.stages:
            yield from stage.modules()

    def eval(self) -> None:
        """Put every stage into evaluation mode."""
        for stage in self.stages:
            stage.eval()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters under the names that they have in the whole model."""
        for stage in self.stages:
            for name, parameter in stage.named_parameters():
                yield canonical(name, self.job.model), parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters."""
        for _, parameter in self.named_parameters():
            yield parameter

    def _tied(self) -> list[Tensor]:
        """Return this rank's copies of a matrix that the first and the last stage share, the first stage's first."""
        if not self.job.model.tied or self.mesh.plan.pp == 1:
            return []
        first = [stage.embed.weight for stage in self.stages if stage.embed is not None]
        return first + [stage.head.weight for stage in self.stages if stage.head is not None]

    def first_copy(self, parameter: nn.Parameter) -> bool:
        """Return whether, of all ranks with equal shards of `parameter`, this one stands for them."""
        plan, place = self.mesh.plan, self.mesh.place
        if not self._one_of_tensor_ranks(parameter) or self._is_second_tie(parameter):
            return False
        if plan.shard > 1:
            return place.dp < plan.shard
        limit = plan.ep if self._is_expert(parameter) else 1
        return place.cp == 0 and place.dp < limit

    def experts(self) -> list[nn.Parameter]:
        """Return the parameters that are spread over the expert axis."""
        return [parameter for parameter in self.parameters() if self._is_expert(parameter)]

    def _is_expert(self, parameter: nn.Parameter) -> bool:
        mesh = self.mesh.experts
        data = parameter.data
        return mesh is not None and isinstance(data, DTensor) and "ep" in (data.device_mesh.mesh_dim_names or ())

    def _one_of_tensor_ranks(self, parameter: nn.Parameter) -> bool:
        """Return whether this rank's tensor coordinate counts: parameters that are whole on all count on the first."""
        if self.mesh.place.tp == 0:
            return True
        data = parameter.data
        if not isinstance(data, DTensor):
            return False
        names = data.device_mesh.mesh_dim_names or ()
        return "tp" in names and not isinstance(data.placements[names.index("tp")], Replicate)

    def _is_second_tie(self, parameter: nn.Parameter) -> bool:
        return any(parameter is tied for tied in self._tied()) and not any(
            stage.embed is not None and parameter is stage.embed.weight for stage in self.stages
        )

    def families(self) -> list[Family]:
        """Return the parameters by the ranks that they are summed over, tied ones apart."""
        tied = {id(parameter) for parameter in self._tied()}
        groups: dict[tuple[str, bool, int], list[nn.Parameter]] = {}
        for parameter in self.parameters():
            kind = "experts" if self._is_expert(parameter) else "dense"
            counted = self._one_of_tensor_ranks(parameter) and not self._is_second_tie(parameter)
            alone = id(parameter) if id(parameter) in tied else 0
            groups.setdefault((kind, counted, alone), []).append(parameter)
        over = {"dense": self.mesh.groups["replicas"], "experts": self.mesh.groups["expert_replicas"]}
        return [
            Family(kind, tuple(parameters), over[kind], counted=counted)
            for (kind, counted, _), parameters in groups.items()
        ]

    def reducer(self, bucket_bytes: int, *, overlap: bool = True) -> "Reducer | ShardReducer":
        """Return what sums this model's gradients over ranks."""
        plan, place = self.mesh.plan, self.mesh.place
        if plan.shard > 1:
            counted = [
                parameter for parameter in self.parameters()
                if self._one_of_tensor_ranks(parameter) and not self._is_second_tie(parameter) and place.dp < plan.shard
            ]  # fmt: skip
            rank = place.dp * plan.cp + place.cp
            return ShardReducer(self.stages, counted, rank, exact=plan.exact, piped=plan.pp > 1)
        return Reducer(self.families(), bucket_bytes=bucket_bytes, exact=plan.exact, overlap=overlap)

    def join_ends(self) -> None:
        """Add the gradients of the two copies of a tied matrix, embedding first, on both stages that hold one."""
        mine = [local(parameter.grad) for parameter in self._tied() if parameter.grad is not None]
        if len(mine) == 1:
            group = self.mesh.groups["ends"]
            assert group is not None, "the other end is elsewhere"
            both = torch.empty(2, *mine[0].shape, dtype=mine[0].dtype, device=self.device)
            with waiting():
                dist.all_gather_single(both, mine[0].contiguous().unsqueeze(0), group=group)
            mine[0].copy_(both[0] + both[1])
        elif mine:
            mine[0].add_(mine[1])
            mine[1].copy_(mine[0])

    def forward_backward(self, step: "Step") -> None:
        """Run all of this rank's micro-batches of `step`, forward and backward."""
        if self.mesh.plan.pp > 1:
            self._run_pipeline(step)
            return
        for tokens in step.micro_batches():
            loss = self.loss(tokens)
            loss.backward()
            step.add(loss)

    def loss(self, tokens: Tensor) -> Tensor:
        """Return this rank's part of the mean loss of one micro-batch, where there is no pipeline."""
        parts = self._parts
        inputs, targets = parts.cut(tokens)
        return parts.loss(self.stages[0](inputs), targets)

    def _run_pipeline(self, step: "Step") -> None:
        parts = self._parts
        cuts = [parts.cut(tokens) for tokens in step.micro_batches()]
        schedule = self._schedule(len(cuts))
        self._step = step
        for stage in self._piped:
            stage.compute_s = 0.0
        inputs, targets = (torch.cat(pieces) for pieces in zip(*cuts, strict=True))
        losses: list[Tensor] = []
        with step.piped() as waited:
            first, target = self._ends(inputs, targets)
            schedule.step(*first, target=target, losses=losses, return_outputs=False)
            waited.append(sum(stage.compute_s for stage in self._piped))
        step.take_losses(losses)

    def _announce(self, stage: pipeline.ScheduledStage, chunk: int | None) -> None:
        """Tell the step whose gradients come next; after a backward, collect those that came without a hook."""
        assert self._step is not None, "a pipeline runs inside a step"
        if chunk is None:
            self._step.close_leaf(stage.submod.parameters())
        else:
            self._step.open_leaf(chunk)

    def _schedule(self, micro_batches: int) -> Any:
        if micro_batches not in self._schedules:
            plan, group = self.mesh.plan, self.mesh.groups["pp"]
            assert group is not None, "a pipeline has several ranks"
            count = pipeline.stages_of(plan)
            self._piped = [
                pipeline.ScheduledStage(
                    stage, number, count, self.device, self._examples(stage), group, self._announce, exact=plan.exact
                )
                for stage, number in zip(self.stages, self.numbers, strict=True)
            ]
            self._schedules = {micro_batches: pipeline.schedule_for(plan, self._piped, micro_batches, self._parts.loss)}
        return self._schedules[micro_batches]

    def _examples(self, stage: Decoder) -> tuple[Tensor, Tensor]:
        """Return what enters and leaves a stage, as tensors without content."""
        job, plan = self.job, self.mesh.plan
        length = job.batch.length // plan.cp
        narrow = torch.bfloat16 if plan.precision == "bf16" and plan.shard > 1 and not plan.exact else torch.float32
        hidden = torch.empty(job.batch.micro, length // plan.tp, job.model.width, dtype=narrow, device="meta")
        tokens = torch.empty(job.batch.micro, length, dtype=torch.int64, device="meta")
        logits = torch.empty(job.batch.micro, length, len(self._parts.words), device="meta")
        entering = tokens if stage.embed is not None else hidden.requires_grad_()
        return entering, logits if stage.head is not None else hidden.clone().requires_grad_()

    def held_out(self, batches: Sequence[Tensor]) -> list[float]:
        """Return this rank's part of the loss of each held-out micro-batch; zeros where another rank has it."""
        parts = self._parts
        cuts = [parts.cut(tokens.to(self.device)) for tokens in batches]
        if self.mesh.plan.pp == 1:
            return [float(parts.loss(self.stages[0](inputs), targets)) for inputs, targets in cuts]
        # Schedules ask for whole rounds of micro-batches: some are seen again, and not counted.
        least = pipeline.stages_of(self.mesh.plan)
        padded = [cuts[number % len(cuts)] for number in range(-(-len(cuts) // least) * least)]
        losses: list[Tensor] = []
        inputs, targets = (torch.cat(pieces) for pieces in zip(*padded, strict=True))
        first, target = self._ends(inputs, targets)
        self._schedule(len(padded)).eval(*first, target=target, losses=losses)
        self._schedules.clear()
        return [float(loss) for loss in losses[: len(cuts)]] if target is not None else [0.0] * len(cuts)

    def _ends(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return what a pipeline's step is given on this rank: inputs at the first stage, targets at the last."""
        last = self.numbers[-1] == pipeline.stages_of(self.mesh.plan) - 1
        return ([inputs] if 0 in self.numbers else []), (targets if last else None)


def parallelize(run: "Session") -> ParallelDecoder:
    """Return the job's decoder, spread over the run's mesh and set to its starting weights."""
    job, mesh, device = run.job, run.mesh, run.device
    plan = mesh.plan
    if plan.compile:
        check_compiler(device)
    cuts = load_balance.cut(_layer_costs(job, mesh, device), pipeline.stages_of(plan))
    numbers = pipeline.stage_numbers(plan, mesh.place.pp)
    stages = [_stage(job, mesh, device, cuts, number) for number in numbers]
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


def _stage(job: JobSpec, mesh: Mesh, device: torch.device, cuts: tuple[range, ...], number: int) -> Decoder:
    plan = mesh.plan
    ends = {"embed": number == 0, "head": number == len(cuts) - 1}
    stage = Decoder(job.model, layers=cuts[number], **ends).to(device)
    if plan.tp > 1 or plan.ep > 1:
        _spread_model(stage, mesh)
    group = mesh.groups["cp"]
    if group is not None:
        stage.attend_by(context_parallel.attend_over(group))
    initialise(stage, Seed(job.seed))
    for block in stage.layers.values():
        recompute_in(block, plan.recompute)
        if plan.compile:
            block.compile()
    parts = _RankShare(job, mesh, device)
    if plan.shard > 1:
        _shard(stage, parts)
    setattr(stage, "forward", partial(_run_stage, parts, stage.forward))  # noqa: B010 - a method is replaced on purpose
    return stage


def _shard(stage: Decoder, parts: _RankShare) -> None:
    """Shard a stage over the data axis, and the context axis with it."""
    plan, devices = parts.mesh.plan, parts.mesh.devices
    assert devices is not None
    hybrid = plan.shard < plan.dp
    mesh = devices["replicate", "shard"] if hybrid and not plan.exact else devices["shard"]
    replicas = devices.get_group("replicate") if hybrid and plan.exact else None
    spread_shards(stage, mesh, exact=plan.exact, low=parts.low, replicas=replicas)


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
