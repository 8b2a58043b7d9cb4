"""The pipeline axis: stages of a decoder over ranks, driven by torch's schedules.

A stage tells the reducer which micro-batch's gradients come next, so that exact sums work under every schedule, and
times what it computes: the rest of a pipeline's step is waiting. Where stages are cut is `balance`'s decision; the
costs it needs are measured here.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from typing_extensions import override

from weft.planning.cost_model.parameter_shapes import is_sparse
from weft.planning.legality import CHUNKS
from weft.specs.job import JobSpec, ModelSpec, PlanSpec
from weft.training.model import Block, Decoder, Rotary

SCHEDULES: dict[str, type[PipelineScheduleSingle | PipelineScheduleMulti]] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "looped-bfs": pipelining.ScheduleLoopedBFS,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipev": pipelining.ScheduleDualPipeV,
}
_V_SHAPED = ("zbv", "dualpipev")


def stage_numbers(plan: PlanSpec, rank: int) -> tuple[int, ...]:
    """Return the stages that pipeline rank `rank` holds, in the order of the model."""
    if plan.pp == 1:
        return (0,)
    chunks = CHUNKS[plan.schedule]
    if plan.schedule in _V_SHAPED:
        return rank, 2 * plan.pp - 1 - rank
    return tuple(rank + plan.pp * chunk for chunk in range(chunks))


def stages_of(plan: PlanSpec) -> int:
    """Return how many stages the whole pipeline has."""
    return plan.pp * (CHUNKS[plan.schedule] if plan.pp > 1 else 1)


def _seconds(work: Callable[[], None], rounds: int = 3) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.monotonic()
        work()
        best = min(best, time.monotonic() - start)
    return best


def _one_of_each(model: ModelSpec) -> Iterator[tuple[int, bool]]:
    known = set[bool]()
    for layer in range(model.layers):
        sparse = is_sparse(model, layer)
        if sparse not in known:
            known.add(sparse)
            yield layer, sparse


def measure_layers(job: JobSpec, device: torch.device) -> list[float]:
    """Return the seconds that each layer takes for one micro-batch, both passes, the ends with their neighbour.

    One block of each kind, with experts and without, is measured and stands for all.
    """
    model, batch = job.model, job.batch
    blocks = {sparse: Block(model, layer).to(device) for layer, sparse in _one_of_each(model)}
    ends = Decoder(model, layers=[]).to(device)
    for module in (*blocks.values(), ends):
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.02, generator=torch.Generator(device).manual_seed(0))
    tokens = torch.zeros(batch.micro, batch.length, dtype=torch.int64, device=device)
    hidden = torch.zeros(batch.micro, batch.length, model.width, device=device)

    def through_block(block: Block) -> None:
        block(hidden, Rotary(model))[0].sum().backward()
        float(next(block.parameters()).detach().sum())

    def through_ends() -> None:
        ends(tokens).sum().backward()
        float(next(ends.parameters()).detach().sum())

    seconds = {sparse: _seconds(partial(through_block, block)) for sparse, block in blocks.items()}
    costs = [seconds[is_sparse(model, layer)] for layer in range(model.layers)]
    costs[-1] += _seconds(through_ends)
    return costs


class StageSlot(NamedTuple):
    """Where a stage stands in its pipeline."""

    number: int
    """Which stage it is."""
    count: int
    """Stages of the whole pipeline."""
    device: torch.device
    """Where it computes."""
    group: dist.ProcessGroup
    """Ranks of the pipeline."""


class ScheduledStage(pipelining.PipelineStage):
    """torch's pipeline stage, which also says whose gradients it makes and how long it computes."""

    def __init__(
        self, module: nn.Module, slot: StageSlot, examples: tuple[Tensor, Tensor],
        announce: Callable[["ScheduledStage", int | None], None], *, exact: bool,
    ) -> None:  # fmt: skip
        """Run `module` in `slot`; `announce(stage, chunk)` is called before and, with none, after a backward."""
        super().__init__(
            module, slot.number, slot.count, slot.device, input_args=(examples[0],), output_args=(examples[1],),
            group=slot.group,
        )  # fmt: skip
        self._announce = announce
        self._reduces_each = exact and isinstance(module, FSDPModule)
        self.compute_s = 0.0

    @override
    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """Run a backward; in exact mode FSDP2 reduces each micro-batch, not the sum of all."""
        if not self._reduces_each:
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        assert backward_type == "full", "schedules that split backward are refused with exact shards"
        return stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"]), None

    @override
    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Reduce what FSDP2 has kept back, which in exact mode is nothing."""
        if not self._reduces_each:
            super().perform_reduce_grad(grad_scale_factor)

    @override
    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Run one micro-batch forward."""
        start = time.monotonic()
        try:
            return super().forward_one_chunk(*arguments, **options)
        finally:
            self.compute_s += time.monotonic() - start

    @override
    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        """Run one micro-batch backward."""
        start = time.monotonic()
        wanted = full_backward and self.has_backward
        if wanted:
            self._announce(self, bwd_chunk_id)
        try:
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        finally:
            if wanted:
                self._announce(self, None)
            self.compute_s += time.monotonic() - start

    @override
    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> Any:
        """Run the part of one micro-batch's backward that only the weights need."""
        start = time.monotonic()
        self._announce(self, bwd_chunk_id)
        try:
            return super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        finally:
            self._announce(self, None)
            self.compute_s += time.monotonic() - start


def schedule_for(
    plan: PlanSpec, stages: Sequence[ScheduledStage], micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """Return torch's schedule of the plan for this rank's stages."""
    kind: Any = SCHEDULES[plan.schedule]
    given: Any = stages[0] if CHUNKS[plan.schedule] == 1 else list(stages)
    return kind(given, micro_batches, loss_fn=loss, scale_grads=False)


class Relay(NamedTuple):
    """A rank's place in a pipeline that only goes forward."""

    plan: PlanSpec
    """Which rank holds which stages."""
    rank: int
    """This rank in the pipeline."""
    group: dist.ProcessGroup
    """Ranks of the pipeline."""
    device: torch.device
    """Where this rank computes."""

    def owner(self, number: int) -> int:
        """Return the rank that holds stage `number`."""
        return next(rank for rank in range(self.plan.pp) if number in stage_numbers(self.plan, rank))


def passed_on(
    relay: Relay, stages: Sequence[tuple[int, Callable[[Tensor], Tensor], Tensor]], inputs: Sequence[Tensor]
) -> list[Tensor] | None:
    """Run micro-batches through a pipeline without backward passes; returns the last stage's outputs where it is.

    `stages` are this rank's: number, function, and an example of what enters. torch's schedules are made for training;
    this one goes stage by stage, so it does for every way to lay stages out.
    """
    last = stages_of(relay.plan) - 1
    held = list(inputs)
    for number, run, example in stages:
        source = relay.rank if number == 0 else relay.owner(number - 1)
        target = relay.rank if number == last else relay.owner(number + 1)
        # All arrive before any is sent on: where two ranks have stages in turns, both would wait to send otherwise.
        if source != relay.rank:
            held = [torch.empty(example.shape, dtype=example.dtype, device=relay.device) for _ in inputs]
            for arriving in held:
                dist.recv(arriving, group=relay.group, group_src=source)
        held = [run(entering) for entering in held]
        if target != relay.rank:
            for leaving in held:
                dist.send(leaving.contiguous(), group=relay.group, group_dst=target)
    return held if last in [number for number, _, _ in stages] else None
