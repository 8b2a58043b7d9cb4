"""Buffers on several replicas, such as the running statistics of a BatchNorm: whose values count.

"broadcast" takes the first replica's after every step, as torch's DDP does: they depend on the number of replicas.
"synchronised" takes the mean over what each micro-batch alone would have made of the step's start, added in the order
of the micro-batches: the same bits for every number of replicas. "local" leaves each replica its own, which only the
same number of replicas can resume.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from weft.core.errors import UsageError
from weft.training.metrics.exposed import waiting
from weft.training.parallel.exact_sum import ReductionTree
from weft.training.parallel.microbatches import MicroBatchSplit
from weft.training.parallel.parallel_model import ParallelModel

POLICIES = ("broadcast", "synchronised", "local")


class Buffers:
    """The buffers of one rank's model."""

    def __init__(self, model: ParallelModel, policy: str) -> None:
        """Look after the buffers of `model` by `policy`; all ranks make theirs together."""
        if policy not in POLICIES:
            raise UsageError(f"buffers = {policy!r} is no policy; choose one of {', '.join(POLICIES)}")
        plan = model.mesh.plan
        self._found = dict(model.buffers())
        if policy == "synchronised" and self._found and (plan.pp > 1 or plan.cp > 1 or plan.ep > 1):
            raise UsageError(
                "buffers = 'synchronised' needs micro-batches that one rank computes one by one; write"
                " buffers='broadcast', or pp = 1, cp = 1 and ep = 1 in the plan"
            )
        self._policy, self._mesh = policy, model.mesh
        self._starts: list[Tensor] = []
        self._ends: list[Tensor] = []
        """What each micro-batch has made of them: values of real and complex ones, growth of whole numbers."""

    @property
    def _group(self) -> dist.ProcessGroup | None:
        # Asked anew each time: the ranks may have formed other groups meanwhile.
        return self._mesh.groups["replicas"]

    @property
    def obstacle(self) -> str | None:
        """Return why a lost rank's buffers could not come from another rank inside a step, if so."""
        if not self._found or self._policy == "broadcast":
            return None
        if self._policy == "local":
            return "with buffers = 'local' no other replica holds a lost rank's buffers"
        return "with buffers = 'synchronised' the mean over a step's micro-batches is made once"

    @property
    def width_counts(self) -> bool:
        """Return whether the values depend on which replica computes which micro-batch."""
        return bool(self._found) and self._policy != "synchronised"

    def named(self) -> dict[str, Tensor]:
        """Return the buffers as a checkpoint keeps them."""
        if self._policy != "local" or self._group is None:
            return self._found
        place = self._mesh.place
        return {f"replica-{place.dp}-{place.cp}.{name}": one for name, one in self._found.items()}

    def begin(self) -> None:
        """Start a step."""
        if self._policy == "synchronised" and self._found:
            self._starts = [one.clone() for one in self._found.values()]
            self._ends.clear()

    def next_micro_batch(self) -> None:
        """Start a micro-batch: where each counts alone, from what the step began with."""
        if self._starts:
            # What is taken before the first is the start itself, and left out.
            self._take()
            for one, start in zip(self._found.values(), self._starts, strict=True):
                one.copy_(start)

    def _take(self) -> None:
        """Note what the micro-batch that has ended made of the buffers."""
        pairs = zip(self._found.values(), self._starts, strict=True)
        self._ends.append(torch.cat([_numbers(one.detach(), start) for one, start in pairs]))

    def end(self, split: MicroBatchSplit) -> None:
        """Make the buffers what the policy says, after a step's last micro-batch; all ranks call it together."""
        if not self._found:
            return
        if self._policy == "synchronised":
            self._join(split)
        elif self._policy == "broadcast" and self._group is not None:
            kinds = sorted({one.dtype for one in self._found.values()}, key=str)
            for kind in kinds:
                same = [one for one in self._found.values() if one.dtype is kind]
                flat = torch.cat([one.detach().reshape(-1) for one in same])
                with waiting():
                    dist.broadcast(flat, group=self._group, group_src=0)
                self._put(same, flat)

    def _join(self, split: MicroBatchSplit) -> None:
        self._take()
        mine = torch.stack(self._ends[1:])
        everybody = self._gathered(split, mine)
        tree = ReductionTree(frozenset(range(split.count)))
        total = tree.total({(0, index): one for index, one in everybody.items()}, lambda a, b: a + b)
        place = 0
        for one, start in zip(self._found.values(), self._starts, strict=True):
            size = one.numel() * (2 if one.is_complex() else 1)
            _join_one(one, start, total[place : place + size], split.count)
            place += size
        self._starts.clear()
        self._ends.clear()

    def _gathered(self, split: MicroBatchSplit, mine: Tensor) -> dict[int, Tensor]:
        """Return what each micro-batch of the step made, by its number."""
        if self._group is None:
            return dict(zip(split.indices(self._mesh.place), mine, strict=True))
        most = max(len(run) for run in split.runs)
        padded = torch.zeros(most, mine.shape[1], dtype=torch.float64, device=mine.device)
        padded[: len(mine)] = mine
        received = [torch.empty_like(padded) for _ in range(self._group.size())]
        with waiting():
            dist.all_gather(received, padded, group=self._group)
        layout = split.layout
        places = [layout.place(rank) for rank in layout.replica_ranks(self._mesh.place)]
        return {
            index: row for place, rows in zip(places, received, strict=True)
            for index, row in zip(split.indices(place), rows, strict=False)
        }  # fmt: skip

    @staticmethod
    def _put(tensors: list[Tensor], flat: Tensor) -> None:
        place = 0
        for one in tensors:
            one.copy_(flat[place : place + one.numel()].view(one.shape))
            place += one.numel()


def _numbers(tensor: Tensor, start: Tensor) -> Tensor:
    """Return what a micro-batch has made of a buffer, as doubles that can be added."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    elif not tensor.is_floating_point():
        # As a difference: a large number keeps its last digits.
        tensor = tensor.to(torch.int64) - start.to(torch.int64)
    return tensor.to(torch.float64).reshape(-1)


def _join_one(one: Tensor, start: Tensor, total: Tensor, count: int) -> None:
    """Give a buffer what `count` micro-batches have made of it: a mean, or for whole numbers all that was counted."""
    if one.is_complex():
        one.copy_(torch.view_as_complex((total / count).view(*one.shape, 2)))
    elif one.is_floating_point():
        one.copy_((total / count).view(one.shape))
    else:
        grown = start.to(torch.int64) + total.view(one.shape).to(torch.int64)
        one.copy_(grown > 0 if one.dtype is torch.bool else grown)
