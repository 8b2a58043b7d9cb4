"""A model on one rank of a mesh: its stages, who sums which gradients, and how a step's micro-batches run through it.

`ParallelModel` is what a session trains. Two kinds exist: the built-in decoder (`apply.ParallelDecoder`) and anybody's
own `nn.Module` (`own_model.OwnModel`). Both say how tokens become inputs and a loss; everything else is here: families
of parameters for the gradient reduction, pipelines, and which rank's copy of a parameter counts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from weft.specs.job import JobSpec
from weft.training.metrics.exposed import waiting
from weft.training.parallel import pipeline
from weft.training.parallel.mesh import Mesh
from weft.training.parallel.recompute import recompute_in
from weft.training.parallel.reducer import Family, Reducer, local
from weft.training.parallel.sharding import ShardReducer, blocks_of, spread_shards


class OnMesh(Protocol):
    """A rank of a training: what a model has to know to be split over it. A `Session` is one."""

    @property
    def job(self) -> JobSpec:
        """Return what is trained."""
        ...

    @property
    def mesh(self) -> Mesh:
        """Return where it is split."""
        ...

    @property
    def device(self) -> torch.device:
        """Return where this rank computes."""
        ...


class GradientStep(Protocol):
    """The part of a `Step` that a model's forward and backward passes use."""

    def micro_batches(self) -> Iterator[Tensor]:
        """Yield the tokens of this rank's micro-batches."""
        ...

    def add(self, loss: Tensor) -> None:
        """Count a micro-batch as done."""
        ...

    def open_leaf(self, order: int) -> None:
        """Say whose gradients come next."""
        ...

    def close_leaf(self, parameters: Iterator[nn.Parameter]) -> None:
        """Say that `parameters` have their gradients of the present micro-batch."""
        ...

    def take_losses(self, losses: list[Tensor]) -> None:
        """Take the losses of all micro-batches at once."""
        ...

    def piped(self) -> AbstractContextManager[list[float]]:
        """Time a pipeline's step."""
        ...


@dataclass
class ParallelModel(ABC):
    """The part of a model that this rank holds, ready to run steps."""

    job: JobSpec
    """What is trained."""
    mesh: Mesh
    """Where it is split."""
    device: torch.device
    """Where this rank computes."""
    stages: Sequence[nn.Module]
    """This rank's stages of the model, in order; one where there is no pipeline."""
    numbers: tuple[int, ...]
    """Their numbers in the pipeline."""
    _schedules: dict[int, Any] = field(default_factory=dict)
    _piped: list[pipeline.ScheduledStage] = field(default_factory=list)
    _step: GradientStep | None = None

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of this rank's part of a micro-batch `[micro, length + 1]`."""
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    @abstractmethod
    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return this rank's part of the mean loss of a micro-batch."""

    @abstractmethod
    def examples(self, order: int) -> tuple[Tensor, Tensor]:
        """Return what enters and leaves this rank's stage number `order`, as tensors without content."""

    def full_name(self, name: str) -> str:
        """Return the name in the whole model of a stage's parameter or buffer."""
        return name

    def tied(self) -> list[Tensor]:
        """Return this rank's copies of a matrix that the first and the last stage share, the first stage's first."""
        return []

    def buffers(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint keeps besides the parameters."""
        return {}

    def flops_per_token(self) -> float | None:
        """Return the operations for one token, both passes, where the model knows them."""
        return None

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
                yield self.full_name(name), parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters."""
        for _, parameter in self.named_parameters():
            yield parameter

    def first_copy(self, parameter: nn.Parameter) -> bool:
        """Return whether, of all ranks with equal shards of `parameter`, this one stands for them."""
        plan, place = self.mesh.plan, self.mesh.place
        if not self._counts(parameter):
            return False
        if plan.shard > 1:
            return place.dp < plan.shard
        limit = plan.ep if self._is_expert(parameter) else 1
        return place.cp == 0 and place.dp < limit

    def experts(self) -> list[nn.Parameter]:
        """Return the parameters that are split over the expert axis."""
        return [parameter for parameter in self.parameters() if self._is_expert(parameter)]

    def _is_expert(self, parameter: nn.Parameter) -> bool:
        mesh = self.mesh.experts
        data = parameter.data
        return mesh is not None and isinstance(data, DTensor) and "ep" in (data.device_mesh.mesh_dim_names or ())

    def _counts(self, parameter: nn.Parameter) -> bool:
        """Return whether this rank's copy counts: of whole parameters tensor rank 0's, of tied ones the first stage's.

        A parameter that is cut over the tensor axis counts on every rank of it, since each holds another part.
        """
        if self._is_second_tie(parameter):
            return False
        if self.mesh.place.tp == 0:
            return True
        data = parameter.data
        if not isinstance(data, DTensor):
            return False
        names = data.device_mesh.mesh_dim_names or ()
        return "tp" in names and not isinstance(data.placements[names.index("tp")], Replicate)

    def _is_second_tie(self, parameter: nn.Parameter) -> bool:
        tied = self.tied()
        first = 0 in self.numbers
        return any(parameter is copy for copy in tied[1 if first else 0 :]) and not (first and parameter is tied[0])

    def families(self) -> list[Family]:
        """Return the parameters by the ranks that they are summed over, tied ones apart."""
        tied = {id(parameter) for parameter in self.tied()}
        groups: dict[tuple[str, bool, int], list[nn.Parameter]] = {}
        for parameter in self.parameters():
            if not parameter.requires_grad:
                continue
            kind = "experts" if self._is_expert(parameter) else "dense"
            alone = id(parameter) if id(parameter) in tied else 0
            groups.setdefault((kind, self._counts(parameter), alone), []).append(parameter)
        over = {"dense": self.mesh.groups["replicas"], "experts": self.mesh.groups["expert_replicas"]}
        return [
            Family(kind, tuple(parameters), over[kind], counted=counted)
            for (kind, counted, _), parameters in groups.items()
        ]

    def reducer(self, bucket_bytes: int, *, overlap: bool = True) -> Reducer | ShardReducer:
        """Return what sums this model's gradients over ranks."""
        plan, place = self.mesh.plan, self.mesh.place
        if plan.shard > 1:
            counted = [
                parameter for parameter in self.parameters() if self._counts(parameter) and place.dp < plan.shard
            ]
            rank = place.dp * plan.cp + place.cp
            return ShardReducer(self.stages, counted, rank, exact=plan.exact, piped=plan.pp > 1)
        return Reducer(self.families(), bucket_bytes=bucket_bytes, exact=plan.exact, overlap=overlap)

    def join_ends(self) -> None:
        """Add the gradients of the two copies of a tied matrix, embedding first, on both stages that hold one."""
        mine = [local(parameter.grad) for parameter in self.tied() if parameter.grad is not None]
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

    def forward_backward(self, step: GradientStep) -> None:
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
        inputs, targets = self.split(tokens)
        return self.loss_of(self.stages[0](inputs), targets)

    def _run_pipeline(self, step: GradientStep) -> None:
        cuts = [self.split(tokens) for tokens in step.micro_batches()]
        schedule = self._schedule(len(cuts))
        self._step = step
        for stage in self._piped:
            stage.compute_s = 0.0
        inputs, targets = (torch.cat(pieces) for pieces in zip(*cuts, strict=True))
        losses: list[Tensor] = []
        with step.piped() as computed:
            first, target = self._ends(inputs, targets)
            schedule.step(*first, target=target, losses=losses, return_outputs=False)
            computed.append(sum(stage.compute_s for stage in self._piped))
        step.take_losses(losses)

    def _announce(self, stage: pipeline.ScheduledStage, chunk: int | None) -> None:
        """Tell the step whose gradients come next; after a backward, collect those that came without a hook."""
        assert self._step is not None, "a pipeline runs inside a step"
        if chunk is None:
            # Frozen ones get no gradient, and nobody waits for it.
            self._step.close_leaf(each for each in stage.submod.parameters() if each.requires_grad)
        else:
            self._step.open_leaf(chunk)

    def _schedule(self, micro_batches: int) -> Any:
        # One schedule is kept: it is rebuilt when the balance of work gives this rank another number of micro-batches.
        if micro_batches not in self._schedules:
            plan, group = self.mesh.plan, self.mesh.groups["pp"]
            assert group is not None, "a pipeline has several ranks"
            self._piped = [
                pipeline.ScheduledStage(
                    stage,
                    pipeline.StageSlot(self.numbers[order], pipeline.stages_of(plan), self.device, group),
                    self.examples(order),
                    self._announce,
                    exact=plan.exact,
                )
                for order, stage in enumerate(self.stages)
            ]
            self._schedules = {micro_batches: pipeline.schedule_for(plan, self._piped, micro_batches, self.loss_of)}
        return self._schedules[micro_batches]

    def held_out(self, batches: Sequence[Tensor]) -> list[float]:
        """Return this rank's part of the loss of each held-out micro-batch; zeros where another rank has it."""
        cuts = [self.split(tokens.to(self.device)) for tokens in batches]
        if self.mesh.plan.pp == 1:
            return [float(self.loss_of(self.stages[0](inputs), targets)) for inputs, targets in cuts]
        group = self.mesh.groups["pp"]
        assert group is not None, "a pipeline has several ranks"
        entering = [self.examples(order)[0] for order in range(len(self.stages))]
        outputs = pipeline.passed_on(
            pipeline.Relay(self.mesh.plan, self.mesh.place.pp, group, self.device),
            list(zip(self.numbers, self.stages, entering, strict=True)),
            [inputs for inputs, _ in cuts],
        )
        if outputs is None:
            return [0.0] * len(cuts)
        return [float(self.loss_of(output, targets)) for output, (_, targets) in zip(outputs, cuts, strict=True)]

    def _ends(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return what a pipeline's step is given on this rank: inputs at the first stage, targets at the last."""
        last = self.numbers[-1] == pipeline.stages_of(self.mesh.plan) - 1
        return ([inputs] if 0 in self.numbers else []), (targets if last else None)


def low_precision(mesh: Mesh) -> torch.dtype | None:
    """Return the precision of matrices where it is not full."""
    return torch.bfloat16 if mesh.plan.precision == "bf16" else None


def finish_stage(stage: nn.Module, mesh: Mesh, run: Callable[[Callable[..., Tensor], Tensor], Tensor]) -> None:
    """Apply to `stage` what every model gets alike: recompute, compilation, shards of the data axis.

    `run(forward, inputs)` becomes the stage's forward pass. The order matters: FSDP2 must see the final blocks.
    """
    plan = mesh.plan
    for block in blocks_of(stage):
        recompute_in(block, plan.recompute)
        if plan.compile:
            block.compile()
    if plan.shard > 1:
        _shard(stage, mesh)
    setattr(stage, "forward", partial(run, stage.forward))  # noqa: B010 - a method is replaced on purpose


def keep_hooked(outputs: Tensor, mesh: Mesh) -> Tensor:
    """Return `outputs` as no view where FSDP2 hangs its backward hook on them: a view may lose it."""
    return outputs.clone() if mesh.plan.shard > 1 and outputs._is_view() else outputs  # noqa: SLF001 - torch's name


def _shard(stage: nn.Module, mesh: Mesh) -> None:
    """Shard a stage over the data axis, and the context axis with it."""
    plan, devices = mesh.plan, mesh.devices
    assert devices is not None
    hybrid = plan.shard < plan.dp
    over = devices["replicate", "shard"] if hybrid and not plan.exact else devices["shard"]
    replicas = devices.get_group("replicate") if hybrid and plan.exact else None
    spread_shards(stage, over, exact=plan.exact, low=low_precision(mesh), replicas=replicas)
