"""One global step on one rank: its micro-batches, whose gradients come, and the sums over all ranks.

Made by `Session.steps`. Between ranks a step needs two small exchanges besides the gradients: the largest gradient
element, and one vector of sums (losses by micro-batch, the norm's grid count, the wish to stop, seconds by replica).
"""

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.core.errors import FailedError, UsageError
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.planning.legality import CHUNKS
from weft.training.checked_collectives import mark_step
from weft.training.metrics.ledger import TimeClass, bubble_ps
from weft.training.parallel import exact_sum
from weft.training.parallel.microbatches import MicroBatchSplit
from weft.training.parallel.reducer import Share
from weft.training.rank_context import RankContext
from weft.training.recovery.standing import FinishedStep
from weft.training.trained_model import TrainedModel

_HALF_WORD = 31
_NUMPY_SEEDS = 2**32


def seed_all(seed: int) -> None:
    """Seed torch, Python and numpy: what they draw is a function of the step, so no checkpoint has to keep it."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)  # noqa: NPY002 - the generator that other people's loops draw from


Survive = Callable[[Callable[[], None], "Step"], None]
"""Makes exchanges of a step, again where another rank was lost meanwhile."""


def _once(exchange: Callable[[], None], step: "Step") -> None:
    del step
    exchange()


class Step:
    """A global step on this rank."""

    def __init__(  # noqa: PLR0917 - made in one place, by the session
        self, context: RankContext, trained: TrainedModel, number: int, split: MicroBatchSplit, learning_rate: float,
        asked_to_stop: Callable[[], bool] = bool,
    ) -> None:  # fmt: skip
        """Begin step `number`, counted from 0, with its micro-batches divided as `split` says."""
        self._context, self._trained, self._asked_to_stop = context, trained, asked_to_stop
        self.survive: Survive = _once
        """How the step's last exchanges are made."""
        self.number = number
        self.split = split
        self.indices = split.indices(context.mesh.place)
        """Micro-batches that this rank takes part in."""
        self.loss = math.nan
        """Mean loss over all micro-batches, after `reduce`."""
        self.gradient_norm = math.nan
        """Norm of the whole gradient before clipping, after `reduce`."""
        self.learning_rate = learning_rate
        """What the job's schedule says for this step."""
        self.stop = False
        """Whether some rank was asked to stop, after `reduce`."""
        self.replica_seconds: list[float] = []
        """Seconds that each replica computed, after `reduce`."""
        self.reduced = False
        self._losses: list[Tensor] = []
        self._added = 0
        self._begun_s = time.monotonic()
        self._waited_s = 0.0
        trained.reducer.begin(self._shares(), 1.0 / split.count)
        trained.buffers.begin()
        seed_all(context.stream.torch_seed(number, split.count))
        if context.guard is not None:
            mark_step(number)
            context.guard.begin(number, split)

    def _shares(self) -> dict[str, Share]:
        place = self._context.mesh.place
        return {kind: Share(self.split.group_positions(kind, place)) for kind in ("dense", "experts")}

    def micro_batches(self) -> Iterator[Tensor]:
        """Yield the tokens of each of this rank's micro-batches, int64 `[micro, length + 1]`, on its device.

        Run forward and backward on each and call `add`; random numbers of torch, Python and numpy are seeded by
        (seed, step, micro-batch).
        """
        for order, index in enumerate(self.indices):
            with self._context.ledger.spending(TimeClass.INPUT):
                self._context.life.feeds()
                tokens = self._context.stream.micro_batch(self.number, index).to(self._context.device)
            seed_all(self._context.stream.torch_seed(self.number, index))
            self._trained.buffers.next_micro_batch()
            if self._context.guard is not None:
                self._context.guard.fed(index, tokens)
            self.open_leaf(order)
            yield tokens
        self._trained.reducer.at(None)

    def add(self, loss: Tensor) -> None:
        """Count a micro-batch as done; `loss` is its mean, whose backward pass has been run."""
        if len(self._losses) >= len(self.indices):
            raise UsageError(
                f"step {self.number} has {len(self.indices)} micro-batches on this rank, one more was added"
            )
        self._added += 1
        self._losses.append(loss.detach())
        self.close_leaf(self._trained.parameters)

    def open_leaf(self, order: int) -> None:
        """Say that the gradients which come next are those of this rank's micro-batch number `order`."""
        place = self._context.mesh.place
        if self._context.guard is not None:
            self._context.guard.leaf(self.indices[order])
        self._trained.reducer.at({kind: self.split.positions(kind, place)[order] for kind in ("dense", "experts")})

    def close_leaf(self, parameters: Iterable[nn.Parameter]) -> None:
        """Say that `parameters` have all the gradients that the present micro-batch gives them."""
        self._trained.reducer.pad(parameters)

    def take_losses(self, losses: list[Tensor]) -> None:
        """Take the losses of all micro-batches at once, from a pipeline; empty on ranks without the last stage."""
        self._added = len(self.indices)
        self._losses = [loss.detach() for loss in losses]

    @contextlib.contextmanager
    def piped(self) -> Iterator[list[float]]:
        """Time a pipeline's step: what is appended is the computing part of it, the rest was waiting."""
        begun = time.monotonic()
        computed: list[float] = []
        yield computed
        self._trained.reducer.at(None)
        waited = time.monotonic() - begun - sum(computed)
        self._waited_s += waited
        self._record_pipeline_wait(waited, sum(computed))

    def _record_pipeline_wait(self, waited_s: float, computed_s: float) -> None:
        """Enter what a pipeline waited: the schedule's own share as bubble, the rest as exposed communication."""
        ledger, plan = self._context.ledger, self._context.mesh.plan
        span = Picoseconds(int(waited_s * PICOSECONDS_PER_SECOND))
        moved = ledger.move(TimeClass.COMPUTE, TimeClass.EXPOSED_COMMUNICATION, span)
        computed = Picoseconds(int(computed_s * PICOSECONDS_PER_SECOND))
        empty = bubble_ps(computed, plan.pp, len(self.indices), CHUNKS[plan.schedule])
        ledger.move(TimeClass.EXPOSED_COMMUNICATION, TimeClass.BUBBLE, Picoseconds(min(moved, empty)))

    def reduce(self) -> None:
        """Sum gradients and loss over all ranks in the fixed order, and clip: parameters hold the result as `.grad`."""
        run, trained = self._context, self._trained
        if self._added < len(self.indices):
            raise UsageError(
                f"step {self.number} has {len(self.indices)} micro-batches on this rank and {self._added} were added;"
                " call step.add(loss) after the backward of each"
            )
        run.life.computed()
        computed_s = time.monotonic() - self._begun_s - self._waited_s
        self.survive(lambda: self._sum(computed_s), self)
        self._clip()
        if run.guard is not None:
            with run.ledger.spending(TimeClass.VERIFY):
                run.guard.before_update(self.number, self.split, run.stream.micro_batch)
        self.reduced = True
        # What an optimizer draws is the same on every rank, whatever the micro-batches have drawn.
        seed_all(run.stream.torch_seed(self.number, self.split.count + 1))
        run.life.reduced(trained.gradients)

    def _sum(self, computed_s: float) -> None:
        """Make every exchange of the step; it can be made again from the beginning when one was cut off."""
        run, trained = self._context, self._trained
        with run.ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
            trained.reducer.wait()
            trained.model.join_ends()
        if run.life.place is not None and trained.buffers.obstacle is None:
            # Before the last sum: whoever has that knows that every rank has these too.
            trained.buffers.end(self.split)
        owned = trained.reducer.owned()
        top = exact_sum.largest(owned).cpu()
        with run.ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
        bits = exact_sum.grid_bits(trained.elements)
        count = int(exact_sum.grid_squares(owned, float(top), bits))
        count = self._exchange(count, computed_s)
        self.gradient_norm = exact_sum.norm_from_grid(count, float(top), bits)

    def adopt(self, known: FinishedStep) -> None:
        """Take from others what the last exchange of this step gave them, whose gradients this rank has too."""
        assert known.number == self.number, "one step is adopted for itself"
        self._trained.reducer.wait()
        self.loss, self.gradient_norm, self.stop = known.loss, known.gradient_norm, known.stop
        self.replica_seconds = list(known.replica_seconds)

    def finished(self) -> FinishedStep:
        """Return what is known of this step after `reduce`."""
        return FinishedStep(
            self.number, self.loss, self.gradient_norm, self.learning_rate, self.stop, tuple(self.replica_seconds)
        )

    def _exchange(self, count: int, computed_s: float) -> int:
        """Share losses, the norm's count, the wish to stop and times; returns the count of all ranks."""
        run, plan, place = self._context, self._context.mesh.plan, self._context.mesh.place
        total, replicas = self.split.count * plan.cp, plan.dp // plan.ep
        vector = torch.zeros(total + 3 + replicas, dtype=torch.float64)
        if place.tp == 0:
            for index, loss in zip(self.indices, self._losses, strict=False):
                vector[place.cp * self.split.count + index] = float(loss)
        vector[total], vector[total + 1] = count >> _HALF_WORD, count & ((1 << _HALF_WORD) - 1)
        vector[total + 2] = float(self._asked_to_stop())
        vector[total + 3 + place.dp // plan.ep] = computed_s * replicas / run.mesh.layout.ranks
        with run.ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
            dist.all_reduce(vector)
        values = vector.tolist()
        self.loss = exact_sum.tree_sum(values[:total]) / self.split.count
        self.stop = values[total + 2] > 0
        self.replica_seconds = values[total + 3 :]
        return (int(values[total]) << _HALF_WORD) + int(values[total + 1])

    def _clip(self) -> None:
        clip = self._context.job.optimizer.clip
        if not math.isfinite(self.gradient_norm):
            raise FailedError(
                f"the gradient of step {self.number + 1} is not finite (loss {self.loss}); lower the learning rate,"
                " lengthen the warm-up, or look at the data of that step"
            )
        if clip and self.gradient_norm > clip:
            self._trained.reducer.scale(clip / self.gradient_norm)
