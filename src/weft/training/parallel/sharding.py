"""The data axis, sharded: each rank keeps a part of every parameter and of its optimizer state (FSDP2).

In fast mode FSDP2 reduces as it does. In exact mode its reduce-scatter is replaced: every rank sends the chunks of its
micro-batch's gradient to their owners, and an owner adds all micro-batches along the tree of `exact`. That moves the
gradient once for each micro-batch, as FSDP2 does when it does not accumulate.
"""

import time
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.nn import functional

from weft.training.metrics.exposed import waiting
from weft.training.parallel.exact_sum import Node, ReductionTree
from weft.training.parallel.reducer import ExchangeMemory, Share, exchange_tree, local, ordered


class TreeReduceScatter(ReduceScatter):
    """FSDP2's reduce-scatter, micro-batch by micro-batch into the owner's tree; zeros come out until the last one."""

    def __init__(self, replicas: dist.ProcessGroup | None = None) -> None:
        """Wait for `begin`; `replicas` are the ranks that hold the same shard, where there are several."""
        self._replicas = replicas
        self._share = Share(())
        self._tree = ReductionTree(frozenset())
        self._held: dict[Node, torch.Tensor] = {}
        self._round = 0

    def begin(self, share: Share) -> None:
        """Expect the leaves of `share`: as many for every rank."""
        self._share, self._tree = share, share.tree
        self._held.clear()
        self._round = 0

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return fresh memory."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        *_: object,
        **__: object,
    ) -> None:
        """Take this round's gradients; put the sum out after the last round."""
        received = torch.empty_like(input_tensor)
        with waiting():
            dist.all_to_all_single(received, input_tensor, group=group)
        for rank, chunk in enumerate(received.view(group.size(), -1)):
            position = self._share.positions[self._first(group) + rank][self._round]
            self._tree.climb(self._held, position, chunk, lambda a, b: a.add_(b))
        self._round += 1
        if self._round < len(self._share.positions[0]):
            output_tensor.zero_()
        elif self._replicas is None:
            output_tensor.copy_(self._tree.total(self._held, lambda a, b: a.add_(b)))
        else:
            self._join_replicas(output_tensor, self._replicas, group.size())

    def _first(self, group: dist.ProcessGroup) -> int:
        """Return which of all ranks is the first of this replica."""
        return 0 if self._replicas is None else self._replicas.rank() * group.size()

    def _join_replicas(self, output: torch.Tensor, replicas: dist.ProcessGroup, shards: int) -> None:
        """Add the subtrees that each replica has summed, in the order of the tree."""
        positions = self._share.positions
        nodes = [
            self._tree.partials(frozenset(one for held in positions[first : first + shards] for one in held))
            for first in range(0, len(positions), shards)
        ]
        whole = -(-output.numel() // replicas.size()) * replicas.size()
        mine = [functional.pad(flat, (0, whole - flat.numel())) for flat in ordered(self._held)]
        received = output.new_empty(sum(len(held) for held in nodes) * (whole // replicas.size()))
        with waiting():
            exchange_tree(self._tree, mine, nodes, replicas, ExchangeMemory(received, mine[0]), 1.0)
        output.copy_(mine[0][: output.numel()])


def spread_shards(
    stage: nn.Module, mesh: DeviceMesh, *, exact: bool, low: torch.dtype | None, replicas: dist.ProcessGroup | None
) -> None:
    """Shard `stage` block by block over `mesh` (its last axis shards, one before it replicates), in place.

    In exact mode `mesh` only shards, and the sums are joined over `replicas` here.
    """
    # In exact mode weights are gathered in full precision, so that one rank alone computes the same.
    policy = MixedPrecisionPolicy(param_dtype=None if exact else low, reduce_dtype=torch.float32)
    for block in blocks_of(stage):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(stage, mesh=mesh, mp_policy=policy)
    for module in sharded_modules(stage):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(enable=True)
        if exact:
            module.set_custom_reduce_scatter(TreeReduceScatter(replicas))


def blocks_of(stage: nn.Module) -> list[nn.Module]:
    """Return the layers of a stage: what it keeps in lists or dictionaries of modules."""
    kept = [child for child in stage.children() if isinstance(child, nn.ModuleList | nn.ModuleDict)]
    return [block for container in kept for block in container.children()]


def sharded_modules(stage: nn.Module) -> list[FSDPModule]:
    """Return the modules of `stage` that FSDP2 looks after."""
    return [module for module in stage.modules() if isinstance(module, FSDPModule)]


def _comms(module: FSDPModule) -> list[TreeReduceScatter]:
    """Return the exact reduce-scatter of a module: none where all its parameters are its children's."""
    groups = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001 - torch sets it but does not give it back
    found = [group._reduce_scatter_comm for group in groups]  # noqa: SLF001 - the same
    return [comm for comm in found if isinstance(comm, TreeReduceScatter)]


class ShardReducer:
    """What `reducer.Reducer` is for replicated parameters: here FSDP2 does the work, and this one steers it."""

    def __init__(
        self, stages: Sequence[nn.Module], counted: Sequence[nn.Parameter], rank: int, *, exact: bool, piped: bool
    ) -> None:
        """Steer the FSDP2 modules of `stages`; `counted` are the parameters that count in the norm on this rank."""
        self._modules = [module for stage in stages for module in sharded_modules(stage)]
        self._parameters = [parameter for stage in stages for parameter in stage.parameters()]
        self._counted = list(counted)
        self._rank = rank
        self._exact, self._piped = exact, piped
        self._comms = [comm for module in self._modules for comm in _comms(module)] if exact else []
        self._left, self._scale = 0, 1.0

    def begin(self, shares: dict[str, Share], scale: float) -> None:
        """Start a step."""
        share = shares["dense"]
        self._left, self._scale = len(share.positions[self._rank]), scale
        for parameter in self._parameters:
            parameter.grad = None
        for comm in self._comms:
            comm.begin(share)

    def at(self, positions: dict[str, int] | None) -> None:
        """Say that another micro-batch begins; in fast mode only the last one's backward reduces."""
        if positions is None or self._piped:
            return
        self._left -= 1
        if not self._exact:
            for module in self._modules:
                module.set_requires_gradient_sync(self._left == 0)

    def take(self, parameter: torch.Tensor) -> None:
        """Leave `parameter`'s gradient to FSDP2."""

    def pad(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leave `parameters` without a gradient to FSDP2."""

    def wait(self) -> float:
        """Scale the sums; returns the seconds waited, which FSDP2 spends inside backward instead."""
        start = time.monotonic()
        self.scale(self._scale)
        return time.monotonic() - start

    def owned(self) -> list[torch.Tensor]:
        """Return the summed gradients that this rank answers for."""
        return [local(parameter.grad) for parameter in self._counted if parameter.grad is not None]

    def scale(self, factor: float) -> None:
        """Multiply every gradient by `factor`."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                local(parameter.grad).mul_(factor)

    def close(self) -> None:
        """Nothing is held."""
