"""Gradient exchange: buckets of flat memory that fill during backward and travel while backward goes on.

Each parameter hands its gradient over as soon as autograd has it. A bucket adds what it gets along the tree of `exact`
(or plainly, in fast mode) and, when the last micro-batch of this rank has filled it, goes to a thread that exchanges
it: every rank gets one chunk of every partial sum, adds them in tree order, scales, and the chunks are gathered. With
one subtree for each rank that moves the same bytes as a ring all-reduce. Bucket boundaries never change a bit.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from weft.training.parallel.exact_sum import Node, ReductionTree

_ALIGN = 16
"""Elements; parameters start at multiples of it in a bucket, so kernels see the same alignment whatever its size."""


@dataclass(frozen=True)
class Share:
    """Who adds what for one family of parameters in one step."""

    positions: tuple[tuple[int, ...], ...]
    """Positions of the leaves that each rank of the group computes."""

    @property
    def tree(self) -> ReductionTree:
        """Return the tree over all positions."""
        return ReductionTree(frozenset(position for held in self.positions for position in held))


@dataclass(frozen=True)
class Family:
    """Parameters that are reduced over the same group of ranks."""

    kind: str
    """What they are, "dense" or "experts": how their micro-batches are counted."""
    parameters: tuple[torch.nn.Parameter, ...]
    """In the order in which the model has them."""
    group: dist.ProcessGroup | None
    """The ranks that hold the same parameters, or none where this rank is alone."""
    counted: bool = True
    """Whether this rank's copies count in the norm of the gradient: exactly one copy of each does."""

    @property
    def ranks(self) -> int:
        """Return the number of ranks in the group."""
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        """Return this rank's number in the group."""
        return 0 if self.group is None else self.group.rank()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of `tensor` that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _placed(gradient: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return this rank's part of `gradient`, spread as `parameter` is; sums over model-parallel ranks are made."""
    data = parameter.data
    if isinstance(gradient, DTensor) and isinstance(data, DTensor) and gradient.placements != data.placements:
        gradient = gradient.redistribute(placements=data.placements)
    return local(gradient)


def _like(parameter: torch.nn.Parameter, part: torch.Tensor) -> torch.Tensor:
    """Return `part` in the form in which `parameter` wants its gradient."""
    data = parameter.data
    if isinstance(data, DTensor):
        return DTensor.from_local(
            part, data.device_mesh, data.placements, run_check=False, shape=data.shape, stride=data.stride()
        )
    return part


def ordered(held: dict[Node, torch.Tensor]) -> list[torch.Tensor]:
    """Return the values of subtrees from left to right."""
    return [value for _, value in sorted(held.items(), key=lambda item: item[0][1] << item[0][0])]


@dataclass(frozen=True, slots=True)
class ExchangeMemory:
    """What an exchange writes into."""

    received: torch.Tensor
    """This rank's chunks of every subtree."""
    total: torch.Tensor
    """The whole sum."""


def exchange_tree(  # noqa: PLR0917 - what one exchange needs
    tree: ReductionTree, mine: list[torch.Tensor], nodes: list[tuple[Node, ...]], group: dist.ProcessGroup,
    memory: ExchangeMemory, scale: float,
) -> None:  # fmt: skip
    """Put the scaled sum over all ranks into `memory.total`; `mine` is left as it is unless that is part of it.

    `mine` are this rank's subtrees and `nodes` those of every rank; their length divides by the number of ranks. Each
    rank gets its chunk of every subtree, adds them along the tree, and the chunks are gathered.
    """
    ranks, length = group.size(), mine[0].numel() // group.size()
    assert len(mine) == len(nodes[group.rank()]), "a rank holds exactly its largest subtrees"
    send = mine[0] if len(mine) == 1 else torch.stack([flat.view(ranks, length) for flat in mine], dim=1).view(-1)
    sizes = [len(held) * length for held in nodes]
    received = memory.received
    dist.all_to_all_single(received, send, sizes, [len(mine) * length] * ranks, group=group)
    held = dict(zip([node for part in nodes for node in part], received.view(-1, length), strict=True))
    chunk = tree.total(held, lambda left, right: left.add_(right)).mul_(scale)
    dist.all_gather_single(memory.total, chunk, group=group)


class SumWatch(Protocol):
    """Notices a sum that changes while it waits to be sent (`sdc.checksums`)."""

    def put(self, memory: torch.Tensor) -> None:
        """Note `memory` as it is now."""
        ...

    def check(self, memory: torch.Tensor, name: str) -> None:
        """Compare `memory`, called `name`, with what was noted."""
        ...


class Bucket:
    """Some parameters of a family, side by side in flat memory."""

    def __init__(self, family: Family, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Lay out `parameters` in the order given."""
        self.family = family
        self.parameters = tuple(parameters)
        sample = local(self.parameters[0].data)
        self.device, self.dtype = sample.device, sample.dtype
        self._places: dict[torch.nn.Parameter, tuple[int, torch.Size]] = {}
        end = 0
        for parameter in self.parameters:
            part = local(parameter.data)
            self._places[parameter] = (end, part.shape)
            end += -(-part.numel() // _ALIGN) * _ALIGN
        whole = family.ranks * _ALIGN
        self.elements = -(-end // whole) * whole
        self._spare: list[torch.Tensor] = []
        self._open: dict[int, torch.Tensor] = {}
        self._missing: dict[int, set[torch.nn.Parameter]] = {}
        self._held: dict[Node, torch.Tensor] = {}
        self._tree = ReductionTree(frozenset())
        self._plain: torch.Tensor | None = None
        self._exact = True
        self._left = 0
        self._summed: torch.Tensor | None = None
        self._received: torch.Tensor | None = None
        self.chunk: torch.Tensor | None = None
        self.watch: SumWatch | None = None
        self.name = ""
        self.repeatable = False
        """Whether an exchange leaves this rank's own sums as they are, so that it can be made again."""

    def begin(self, share: Share, *, exact: bool) -> None:
        """Forget the last step and expect this rank's leaves of `share`."""
        self._exact = exact
        self._tree = share.tree
        self._spare += self._held.values()
        self._held.clear()
        self._plain = None
        self._open.clear()
        self._missing = {position: set(self.parameters) for position in share.positions[self.family.rank]}
        self._left = len(self._missing)
        for parameter in self.parameters:
            parameter.grad = None
        if self._summed is not None:
            self._spare.append(self._summed)
            self._summed = None

    def put(self, parameter: torch.nn.Parameter, position: int, gradient: torch.Tensor) -> bool:
        """Take one parameter's gradient for one leaf; return whether the bucket is now full."""
        flat = self._open.get(position)
        if flat is None:
            flat = self._open[position] = self._spare.pop() if self._spare else self._new()
        start, shape = self._places[parameter]
        flat[start : start + shape.numel()].copy_(_placed(gradient, parameter).reshape(-1))
        missing = self._missing[position]
        missing.remove(parameter)
        return not missing and self._close(position)

    def wants(self, parameter: torch.nn.Parameter, position: int) -> bool:
        """Return whether `parameter`'s gradient at `position` has not been taken yet."""
        return parameter in self._missing[position]

    def pad(self, parameter: torch.nn.Parameter, position: int) -> bool:
        """Treat `parameter` as having got zeros at `position`; return whether that fills the bucket."""
        return self.put(parameter, position, torch.zeros_like(local(parameter.data)))

    def _new(self) -> torch.Tensor:
        return torch.zeros(self.elements, device=self.device, dtype=self.dtype)

    def _close(self, position: int) -> bool:
        flat = self._open.pop(position)
        if self._exact:
            self._tree.climb(self._held, position, flat, self._add)
        else:
            self._plain = flat if self._plain is None else self._add(self._plain, flat)
        if self.watch is not None:
            self.watch.put(next(reversed(self._held.values())) if self._plain is None else self._plain)
        self._left -= 1
        return self._left == 0

    def _check(self, *parts: torch.Tensor) -> None:
        if self.watch is not None:
            for part in parts:
                self.watch.check(part, self.name)

    def _add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        self._check(left, right)
        left.add_(right)
        self._spare.append(right)
        return left

    def exchange(self, share: Share, scale: float) -> None:
        """Sum over the group's ranks, scale, and hand the sums to the parameters as their gradients."""
        if not self._exact:
            self._exchange_plain(scale)
            return
        family = self.family
        mine = ordered(self._held)
        if not self.repeatable:
            self._held.clear()
        self._check(*mine)
        if family.group is None or family.ranks == 1:
            (flat,) = mine
            self._held.clear()
            self._hand_out(flat.mul_(scale))
            return
        nodes = [self._tree.partials(frozenset(positions)) for positions in share.positions]
        needed = sum(len(held) for held in nodes) * (self.elements // family.ranks)
        if self._received is None or self._received.numel() != needed:
            self._received = torch.empty(needed, device=self.device, dtype=self.dtype)
        total = self._room() if self.repeatable else mine[0]
        exchange_tree(self._tree, mine, nodes, family.group, ExchangeMemory(self._received, total), scale)
        if not self.repeatable:
            self._spare += mine[1:]
        self._hand_out(total)

    def _room(self) -> torch.Tensor:
        """Return memory for a sum that is handed out while its parts stay."""
        if self._summed is None:
            self._summed = self._spare.pop() if self._spare else self._new()
        return self._summed

    def _exchange_plain(self, scale: float) -> None:
        family, flat = self.family, self._plain
        assert flat is not None, "the bucket is full"
        self._check(flat)
        if self.repeatable:
            flat = self._room().copy_(flat)
        if family.group is not None and family.ranks > 1:
            dist.all_reduce(flat, group=family.group)
        self._hand_out(flat.mul_(scale))

    def _hand_out(self, flat: torch.Tensor) -> None:
        length = self.elements // self.family.ranks
        self.chunk = flat[self.family.rank * length : (self.family.rank + 1) * length]
        self._summed = flat
        for parameter, (start, shape) in self._places.items():
            parameter.grad = _like(parameter, flat[start : start + shape.numel()].view(shape))

    def scale(self, factor: float) -> None:
        """Multiply every gradient of the bucket by `factor`."""
        assert self._summed is not None, "the sums are there"
        self._summed.mul_(factor)


def bucketed(family: Family, bytes_each: int) -> list[Bucket]:
    """Return `family` in buckets of about `bytes_each`, the parameters used last (first in backward) first."""
    buckets: list[Bucket] = []
    waiting: list[torch.nn.Parameter] = []
    size, dtype = 0, None
    for parameter in reversed(family.parameters):
        part = local(parameter.data)
        if waiting and (size >= bytes_each or part.dtype != dtype):
            buckets.append(Bucket(family, waiting))
            waiting.clear()
            size = 0
        waiting.append(parameter)
        size, dtype = size + part.numel() * part.element_size(), part.dtype
    if waiting:
        buckets.append(Bucket(family, waiting))
    return buckets


@dataclass
class _Progress:
    """Where one step's exchange stands."""

    shares: dict[str, Share] = field(default_factory=dict)
    scale: float = 1.0
    full: set[Bucket] = field(default_factory=set)
    sent: int = 0
    futures: list[Future[None]] = field(default_factory=list)


class Reducer:
    """Takes gradients as autograd makes them and gives every parameter the sum over all micro-batches."""

    def __init__(self, families: Sequence[Family], *, bucket_bytes: int, exact: bool, overlap: bool = True) -> None:
        """Lay out buckets and listen to every parameter's gradient."""
        self.families = tuple(families)
        self.exact, self.overlap = exact, overlap
        self.buckets = [bucket for family in families for bucket in bucketed(family, bucket_bytes)]
        self._of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self._progress = _Progress()
        self._position: Callable[[torch.nn.Parameter], int] | None = None
        self._thread = ThreadPoolExecutor(1, "weft-exchange", initializer=torch.set_num_threads, initargs=(1,))
        self._stream = self._side_stream()
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self.take) for parameter in self._of if parameter.requires_grad
        ]

    def watch(self, watch: SumWatch) -> None:
        """Have every sum that waits to be sent watched by `watch`."""
        for number, bucket in enumerate(self.buckets):
            bucket.watch, bucket.name = watch, f"gradient sums of bucket {number}"

    def _side_stream(self) -> torch.cuda.Stream | None:
        cuda = [bucket.device for bucket in self.buckets if bucket.device.type == "cuda"]
        return torch.cuda.Stream(cuda[0]) if cuda else None

    def begin(self, shares: dict[str, Share], scale: float) -> None:
        """Start a step: `shares` by kind of family, and the factor of the sum (one over all micro-batches)."""
        self._progress = _Progress(shares, scale)
        for bucket in self.buckets:
            bucket.begin(shares[bucket.family.kind], exact=self.exact)

    def at(self, positions: dict[str, int] | None) -> None:
        """Say which leaf the gradients that come next belong to, by family; none where no gradient is expected."""
        self._position = None if positions is None else (lambda parameter: positions[self._of[parameter].family.kind])

    def take(self, parameter: torch.Tensor) -> None:
        """Take `parameter`'s fresh gradient away into its bucket."""
        assert isinstance(parameter, torch.nn.Parameter)
        if self._position is None:
            return
        bucket, position = self._of[parameter], self._position(parameter)
        # What has been taken may already be back as a sum: a bucket travels while backward goes on.
        if not bucket.wants(parameter, position) or parameter.grad is None:
            return
        gradient, parameter.grad = parameter.grad, None
        if bucket.put(parameter, position, gradient):
            self._fill(bucket)

    def pad(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Close the current leaf: whichever of `parameters` had no gradient in it counts as zeros."""
        assert self._position is not None, "a leaf is open"
        for parameter in parameters:
            self.take(parameter)
            bucket, position = self._of[parameter], self._position(parameter)
            if bucket.wants(parameter, position) and bucket.pad(parameter, position):
                self._fill(bucket)

    def _fill(self, bucket: Bucket) -> None:
        progress = self._progress
        progress.full.add(bucket)
        # Ranks must exchange in one order, so a full bucket waits for those before it.
        while self.overlap and progress.sent < len(self.buckets) and self.buckets[progress.sent] in progress.full:
            self._send()

    def _send(self) -> None:
        progress = self._progress
        bucket = self.buckets[progress.sent]
        share, scale = progress.shares[bucket.family.kind], progress.scale
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event()
            ready.record()
        progress.futures.append(self._thread.submit(self._carry, bucket, share, scale, ready))
        progress.sent += 1

    def _carry(self, bucket: Bucket, share: Share, scale: float, ready: torch.cuda.Event | None) -> None:
        if self._stream is None or ready is None:
            bucket.exchange(share, scale)
            return
        torch.cuda.set_device(self._stream.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            bucket.exchange(share, scale)
            self._stream.synchronize()

    def wait(self) -> float:
        """Wait until every gradient is summed and return the seconds that this took: the exposed communication."""
        start = time.monotonic()
        self._position = None
        while self._progress.sent < len(self.buckets):
            self._send()
        for future in self._progress.futures:
            future.result()
        return time.monotonic() - start

    def keep_parts(self) -> None:
        """Keep this rank's own sums until the next step begins, so that `again` can be called; takes their memory."""
        for bucket in self.buckets:
            bucket.repeatable = True

    def settle(self) -> None:
        """Return when no exchange is in flight, whatever became of them."""
        futures.wait(self._progress.futures)

    def again(self, group: dist.ProcessGroup | None) -> None:
        """Exchange everything once more, over another group of as many ranks in the same places."""
        self.regroup(group)
        self._progress.futures.clear()
        self._progress.sent = 0

    def regroup(self, group: dist.ProcessGroup | None) -> None:
        """Exchange over `group` from now on."""
        for bucket in self.buckets:
            bucket.family = replace(bucket.family, group=group)

    def owned(self) -> list[torch.Tensor]:
        """Return the summed gradients that this rank answers for: over all ranks, every element exactly once."""
        return [bucket.chunk for bucket in self.buckets if bucket.family.counted and bucket.chunk is not None]

    def scale(self, factor: float) -> None:
        """Multiply every gradient by `factor`."""
        for bucket in self.buckets:
            bucket.scale(factor)

    def close(self) -> None:
        """Stop listening and end the thread."""
        for handle in self._handles:
            handle.remove()
        self._thread.shutdown(wait=True, cancel_futures=True)


def bucket_size(latency_s: float, bytes_per_s: float, total_bytes: int) -> int:
    """Return how large a bucket should be so that its fixed cost is a tenth of its transfer, within sensible limits."""
    wanted = 9 * latency_s * bytes_per_s
    return int(min(max(wanted, 256 * 1024), 64 * 2**20, max(total_bytes // 2, 256 * 1024)))


def measure_bucket(family: Family, device: torch.device, total_bytes: int) -> int:
    """Time small and large exchanges over the family's group and return the bucket size that suits it on every rank."""
    group = family.group
    if group is None or family.ranks == 1:
        return total_bytes + 1
    spent: list[float] = []
    for elements in (1024, 256 * 1024):
        piece = torch.zeros(elements * family.ranks, device=device)
        best = float("inf")
        for _ in range(3):
            start = time.monotonic()
            received = torch.empty_like(piece)
            dist.all_to_all_single(received, piece, group=group)
            dist.all_gather_single(received, piece[:elements].contiguous(), group=group)
            float(received[0])
            best = min(best, time.monotonic() - start)
        spent.append(best)
    figures = torch.tensor(spent, dtype=torch.float64, device=device)
    dist.all_reduce(figures, op=dist.ReduceOp.MAX, group=group)
    small, large = figures.tolist()
    rate = 2 * 4 * 255 * 1024 * family.ranks / max(large - small, 1e-6)
    return bucket_size(small, rate, total_bytes)
