"""A process group of torch whose bytes travel by MRC."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from weft.transport.memory import layout
from weft.transport.messages import programs
from weft.transport.messages.programs import CollectiveProgram, VectorShape
from weft.transport.torch_backend.forms import Form, Reduction, plain, reduction_of, refuse_others, shape_of, widened
from weft.transport.torch_backend.links import RankLinks, Wiring
from weft.transport.torch_backend.work import MrcWork, Several

BACKEND = "mrc"
_SUB_BITS = 20
_P2P = 1 << 48
_TAG_SHIFT, _TAG_MASK = 32, 0xFFFF
_KNOWN = 1024
"""All-reduces of a size and type that a group remembers."""
_LOG = logging.getLogger(__name__)

# torch's stubs give these methods overloads and names that its own Python callers do not use.
_c10d: Any = dist.distributed_c10d
_ProcessGroup: Any = dist.ProcessGroup

_roots: list[RankLinks] = []

Tensors = Sequence[torch.Tensor]
Pieces = Sequence[tuple[int, int, int]]
"""Rank, offset and bytes of pieces of a tensor."""


class MrcGroup(_ProcessGroup):
    """A group of ranks; every group of a process shares the endpoint of the first."""

    def __str__(self) -> str:
        """Return which rank of which group this is."""
        return f"rank {self._place} in group {self._name!r}"

    def __init__(
        self, links: RankLinks, members: Sequence[int], name: str, store: dist.Store, *, limit_s: float, owns: bool
    ) -> None:
        """Be the group `name` of `members`, counted as the endpoint counts ranks; `owns` where it closes them."""
        place = list(members).index(links.rank)
        super().__init__(place, len(members))
        self.links, self.members = links, tuple(members)
        self._place, self._count, self._name, self._desc = place, len(members), name, ""
        self._limit_s, self._number, self._owns = limit_s, 0, owns
        self._transfers: dict[tuple[int, int, bool], int] = defaultdict(int)
        self._row, self._base = links.take_group(members, name, store)
        self._counts = np.array([float(self._count)], np.float64), np.array([float(self._count)], np.float32)
        self._known: dict[tuple[torch.dtype, int, Reduction], tuple[CollectiveProgram, tuple[int, int]]] = {}
        self._open = True

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name under which the backend is registered."""
        return BACKEND

    @property
    def group_name(self) -> str:
        """Return torch's name of the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """Return what the group is for."""
        return self._desc

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to set: calls are counted here."""

    def _get_sequence_number_for_group(self) -> int:
        return self._number

    def shutdown(self) -> None:
        """Leave the group; the one for which the endpoint was opened closes it."""
        if not self._open:
            return
        self._open = False
        if not self._owns:
            self.links.give_group(self._row)
            return
        if self.links in _roots:
            _roots.remove(self.links)
        self.links.close()

    def abort(self) -> None:
        """Leave the group at once."""
        self.shutdown()

    def _work(self, what: str, outputs: Tensors, kept: object, finish: Callable[[], None] | None = None) -> MrcWork:
        """Return a wait for a collective that fills `outputs`, keeps `kept` alive and does `finish` at its end."""
        work = MrcWork(what, self, outputs, self._limit_s)
        work.kept, work.finish = kept, finish
        return work

    def _run(
        self, work: MrcWork, program: CollectiveProgram, memory: Sequence[tuple[int, int]], tag: int | None = None
    ) -> MrcWork:
        """Start a program and return the wait for it; `tag` names a transfer, collectives are counted."""
        if tag is None:
            tag = self._number << _SUB_BITS
            self._number += 1
        self.links.begin(program, work, row=self._row, tag=self._base | tag, memory=memory)
        return work

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: AllreduceOptions | None = None) -> Any:
        """Sum, or otherwise reduce, a tensor over all ranks."""
        opts = opts or AllreduceOptions()
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        refuse_others(given)
        operation = reduction_of(opts.reduceOp)
        works = [self._all_reduce(tensor, operation) for tensor in given]
        return works[0] if len(works) == 1 else Several(works)

    def _all_reduce(self, tensor: torch.Tensor, operation: Reduction) -> Any:
        form = widened(tensor)
        known = self._known.get((tensor.dtype, form.flat.numel(), operation))
        if known is None:
            shape = shape_of(form.flat, operation, boolean=tensor.dtype is torch.bool)
            divisor = layout.address_of(self._counts[0 if form.flat.dtype is torch.float64 else 1])
            known = programs.all_reduce(self._count, self._place, shape), (divisor, 0)
            if len(self._known) < _KNOWN:
                self._known[tensor.dtype, form.flat.numel(), operation] = known
        return self._run(self._work("all_reduce", [tensor], form, form.back), known[0], (form.memory, known[1]))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: AllreduceOptions | None = None) -> Any:
        """Reduce several tensors over all ranks."""
        return self.allreduce(tensors, opts or AllreduceCoalescedOptions())

    def reduce(self, tensors: Tensors | torch.Tensor, opts: ReduceOptions | None = None) -> Any:
        """Reduce a tensor on the root; the others keep theirs."""
        opts = opts or ReduceOptions()
        (tensor,) = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        refuse_others([tensor])
        mine = tensor if self._place == opts.rootRank else tensor.detach().clone()
        return self._all_reduce(mine, reduction_of(opts.reduceOp))

    def broadcast(self, tensors: Tensors | torch.Tensor, opts: BroadcastOptions | None = None) -> Any:
        """Give everybody the root's tensor."""
        opts = opts or BroadcastOptions()
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        refuse_others(given)
        works: list[Any] = []
        for tensor in given:
            form = plain(tensor)
            program = programs.broadcast(self._count, self._place, int(opts.rootRank), form.memory[1])
            back = form.back if self._place != opts.rootRank else None
            works.append(self._run(self._work("broadcast", [tensor], form, back), program, [form.memory]))
        return works[0] if len(works) == 1 else Several(works)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: object = None) -> Any:
        """Give everybody everybody's tensor, in one piece of memory."""
        del opts
        refuse_others([output, given])
        whole = plain(output)
        return self._gathered(whole, given, [output], whole.back)

    def _gathered(
        self, whole: Form, given: torch.Tensor, outputs: Tensors, finish: Callable[[], None] | None
    ) -> MrcWork:
        size = given.numel() * given.element_size()
        mine = whole.flat.view(-1)[self._place * given.numel() : (self._place + 1) * given.numel()]
        mine.copy_(given.detach().reshape(-1))
        program = programs.ring("all-gather", self._count, self._place, VectorShape(self._count * size, 1, 0, -1))
        return self._run(self._work("all_gather", outputs, whole, finish), program, [whole.memory])

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: object = None) -> Any:
        """Give everybody everybody's tensor."""
        del opts
        works: list[Any] = []
        for parts, given in zip(outputs, inputs, strict=True):
            refuse_others([*parts, given])
            whole = torch.empty(self._count * given.numel(), dtype=given.dtype)
            works.append(self._gathered(Form(whole, None), given, parts, partial(_hand_out, whole, parts)))
        return works[0] if len(works) == 1 else Several(works)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> Any:
        """Gather several tensors at once."""
        return Several([self.all_gather_single(*both, opts) for both in zip(outputs, inputs, strict=True)])

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: ReduceScatterOptions | None = None
    ) -> Any:
        """Reduce, and give everybody a part, in one piece of memory."""
        opts = opts or ReduceScatterOptions()
        refuse_others([output, given])
        return self._scattered(output, given, reduction_of(opts.reduceOp))

    def _scattered(self, output: torch.Tensor, given: torch.Tensor, operation: Reduction) -> Any:
        form = widened(given.detach())
        # What was given stays as it is: parts of other ranks pass through a copy.
        whole = form.flat if form.back is not None else form.flat.clone()
        form = Form(whole.view(-1), None)
        shape = shape_of(form.flat, operation, boolean=given.dtype is torch.bool)
        part = form.flat.numel() // self._count
        mine = form.flat[self._place * part : (self._place + 1) * part]
        double = form.flat.dtype is torch.float64
        divisor = layout.address_of(self._counts[0 if double else 1])

        def finish() -> None:
            target = torch.view_as_real(output.detach()) if output.is_complex() else output.detach()
            target.copy_(mine.view(target.shape))

        program = programs.ring("reduce-scatter", self._count, self._place, shape)
        work = self._work("reduce_scatter", [output], form, finish)
        return self._run(work, program, [form.memory, (divisor, 0)])

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: ReduceScatterOptions | None = None
    ) -> Any:
        """Reduce, and give everybody a part."""
        opts = opts or ReduceScatterOptions()
        works: list[Any] = []
        for output, parts in zip(outputs, inputs, strict=True):
            refuse_others([output, *parts])
            whole = torch.cat([part.detach().reshape(-1) for part in parts])
            works.append(self._scattered(output, whole, reduction_of(opts.reduceOp)))
        return works[0] if len(works) == 1 else Several(works)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: ReduceScatterOptions | None = None
    ) -> Any:
        """Reduce and scatter several tensors at once."""
        return Several([self.reduce_scatter_single(*both, opts) for both in zip(outputs, inputs, strict=True)])

    def _exchanged(self, what: str, outputs: Tensors, given: Form, taken: Form, sends: Pieces, receives: Pieces) -> Any:
        """Start an exchange of pieces of `given` for pieces of `taken`."""
        program = programs.exchange(self._place, sends, receives)
        work = self._work(what, outputs, (given, taken), taken.back)
        return self._run(work, program, [given.memory, taken.memory])

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, output_sizes: list[int], input_sizes: list[int],
        opts: object = None,
    ) -> Any:  # fmt: skip
        """Give every rank its part of this rank's tensor."""
        del opts
        refuse_others([output, given])
        source, target = plain(given), plain(output)
        sends = _places(given, input_sizes, self._count)
        receives = _places(output, output_sizes, self._count)
        return self._exchanged("all_to_all", [output], source, target, sends, receives)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: object = None) -> Any:
        """Give every rank one of this rank's tensors."""
        del opts
        refuse_others([*outputs, *inputs])
        return self._lists("all_to_all", outputs, inputs)

    def _lists(self, what: str, outputs: Tensors, inputs: Tensors) -> Any:
        """Exchange lists of tensors, one for each rank; a rank that gives or takes nothing has an empty one."""
        none = torch.empty(0, dtype=torch.uint8)
        source = torch.cat([_bytes(tensor) for tensor in inputs]) if inputs else none
        sizes = [tensor.numel() * tensor.element_size() for tensor in outputs]
        target = torch.empty(sum(sizes), dtype=torch.uint8)
        sends = _runs([tensor.numel() * tensor.element_size() for tensor in inputs])
        taken = Form(target, partial(_hand_out, target, outputs))
        return self._exchanged(what, outputs, Form(source, None), taken, sends, _runs(sizes))

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: GatherOptions | None = None) -> Any:
        """Give the root everybody's tensor."""
        opts = opts or GatherOptions()
        (given,) = inputs
        parts = list(outputs[0]) if outputs else []
        refuse_others([given, *parts])
        none = torch.empty(0, dtype=given.dtype)
        to = [given if place == opts.rootRank else none for place in range(self._count)]
        return self._lists("gather", parts or [none] * self._count, to)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: ScatterOptions | None = None) -> Any:
        """Give everybody a part of what the root has."""
        opts = opts or ScatterOptions()
        (output,) = outputs
        parts = list(inputs[0]) if inputs else []
        refuse_others([output, *parts])
        none = torch.empty(0, dtype=output.dtype)
        to = [output if place == opts.rootRank else none for place in range(self._count)]
        return self._lists("scatter", to, parts or [none] * self._count)

    def barrier(self, opts: object = None) -> Any:
        """Wait until everybody is here."""
        del opts
        return self._all_reduce(torch.zeros(1, dtype=torch.uint8), Reduction("max", average=False))

    def _transfer(self, tensor: torch.Tensor, peer: int, tag: int, *, sends: bool) -> Any:
        refuse_others([tensor])
        form = plain(tensor)
        size = form.memory[1]
        writer = programs.Writer()
        if sends:
            writer.send(peer, programs.BUFFER, 0, size, 0)
        else:
            writer.receive(peer, programs.BUFFER, 0, size, 0)
            writer.wait(peer, 0)
        turn = self._transfers[peer, tag, sends]
        self._transfers[peer, tag, sends] += 1
        name = _P2P | (tag & _TAG_MASK) << _TAG_SHIFT | turn
        work = self._work("send" if sends else "recv", [tensor], form, None if sends else form.back)
        return self._run(work, writer.program(), [form.memory], name)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        """Send a tensor to one rank."""
        return self._transfer(tensors[0], peer, tag, sends=True)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        """Receive a tensor from one rank."""
        return self._transfer(tensors[0], peer, tag, sends=False)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        """Refuse: a write needs to know where it goes."""
        del tensors, tag
        raise RuntimeError("mrc receives from a named rank only; give recv a source")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8)
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _hand_out(whole: torch.Tensor, parts: Tensors) -> None:
    """Hand out `whole`, piece after piece, to `parts`."""
    raw = whole.view(-1).view(torch.uint8) if whole.numel() else whole
    at = 0
    for part in parts:
        size = part.numel() * part.element_size()
        if size:
            part.detach().copy_(raw[at : at + size].clone().view(part.dtype).view(part.shape))
        at += size


def _runs(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (rank, offset, bytes) of pieces that follow each other."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return [(rank, int(offsets[rank]), int(size)) for rank, size in enumerate(sizes)]


def _places(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[tuple[int, int, int]]:
    """Return (rank, offset, bytes) of the rows of a tensor that go to or come from each rank."""
    rows = list(sizes) or [tensor.shape[0] // ranks] * ranks
    row = tensor.element_size() * (tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0)
    return _runs([count * row for count in rows])


def register(wiring: Wiring | None = None) -> str:
    """Register the backend with torch, wired as `wiring` says, and return its name."""
    settings = wiring or Wiring()

    def make(options: Any, _: object) -> MrcGroup:
        limit_s = options.timeout.total_seconds()
        if dist.is_initialized() and _roots:
            ranks = list(options.global_ranks_in_group or range(options.group_size))
            name = str(options.group_id)
            return MrcGroup(_roots[-1], ranks, name, options.store, limit_s=limit_s, owns=False)
        links = RankLinks(settings, options.store, options.group_rank, options.group_size)
        if not dist.is_initialized():
            # This is the group of all ranks: the groups to come are made of its queue pairs.
            _roots.append(links)
        _LOG.debug("rank %d is at UDP port %d", links.rank, links.endpoint.port)
        return MrcGroup(links, range(options.group_size), "", options.store, limit_s=limit_s, owns=True)

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu"])
    return BACKEND


def links_of(group: object = None) -> RankLinks | None:
    """Return the links that carry `group`, or the group of all ranks; none where that is not ours."""
    found: Any = group or dist.group.WORLD
    while found is not None and not isinstance(found, MrcGroup):
        found = getattr(found, "inner", None)
    return None if found is None else found.links
