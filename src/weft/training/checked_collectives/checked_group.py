"""One process group around any other, for torch.distributed: calls are counted, compared, timed and can be disturbed.

Registered as the backend "checked"; inside it works gloo, NCCL or any other backend, which still moves every byte.
Plain calls, FSDP2, DTensor, pipelines and functional collectives all come through here. A call that differs between
ranks is refused before it is made (gloo alone aborts the process, or hangs); one that takes longer than the deadline
says who waits where for whom.

What is not seen: the split sizes of an all-to-all may differ between ranks, so only its dtype and row size are
compared.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from weft.core.seeds import Seed
from weft.training.checked_collectives.call_statistics import CallStatistics
from weft.training.checked_collectives.call_store import CallStore, HungError, MismatchError, PayloadError
from weft.training.checked_collectives.calls import Call
from weft.training.checked_collectives.payload_faults import WireFault, WireFaults
from weft.training.sdc.digest import fold_digest

BACKEND = "checked"
_SLICE_S = 0.5
_SAME_RESULT = ("all_reduce", "broadcast", "all_gather")
_P2P = ("send", "recv")
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

Tensors = Sequence[torch.Tensor]

# torch's stubs give these methods overloads and names that its own Python callers do not use.
_c10d: Any = dist.distributed_c10d
_ProcessGroup: Any = dist.ProcessGroup
_Work: Any = dist.Work


@dataclass(frozen=True)
class Checks:
    """What is checked; the same for all ranks."""

    compare: bool = True
    """Whether every call is compared with the other ranks' before it is made."""
    payloads: bool = False
    """Whether results that must be equal on all ranks are compared by digest."""
    deadline_s: float = 600.0
    """How long a call may take, until the supervisor has learned something better."""
    inner: str = "gloo"
    """Which backend moves the bytes; with gloo, NCCL does for tensors on GPUs."""
    faults: tuple[WireFault, ...] = ()
    """What goes wrong on purpose."""
    seed: int = 0
    """Root of what is random in the faults."""


@dataclass
class Watch:
    """What all checked groups of a rank share."""

    checks: Checks
    """What is checked."""
    desk: CallStore
    """Where ranks leave word."""
    wire: WireFaults
    """What this rank suffers on purpose."""
    generation: int = 0
    """Which start of the ranks this is."""
    step: int = -1
    """Step that the training is in; the trainer moves it on."""
    deadline_s: float = 600.0
    """How long a call may take; whoever learns better changes it."""
    account: CallStatistics = field(default_factory=CallStatistics)
    """What has crossed the groups."""


def _form(tensors: Tensors) -> str:
    """Return shapes and dtype as text, equal shapes in a row counted."""
    if not tensors:
        return ""
    shapes: list[tuple[str, int]] = []
    for tensor in tensors:
        shape = "x".join(str(size) for size in tensor.shape) or "scalar"
        if shapes and shapes[-1][0] == shape:
            shapes[-1] = (shape, shapes[-1][1] + 1)
        else:
            shapes.append((shape, 1))
    text = " ".join(shape if count == 1 else f"{count}*{shape}" for shape, count in shapes)
    return f"{str(tensors[0].dtype).removeprefix('torch.')}[{text}]"


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class CheckedWork(_Work):
    """The wait for one call."""

    def __init__(
        self, group: "CheckedGroup", call: Call, inner: Any, tensors: Tensors, outputs: Tensors,
        *, hits: Sequence[WireFault],
    ) -> None:  # fmt: skip
        """Wait for `inner`, which fills `outputs` from `tensors`; `hits` are the faults that the call suffers."""
        super().__init__()
        self._group, self._call, self._inner = group, call, inner
        self._tensors, self._outputs, self._hits = (*tensors, *outputs), outputs, hits
        self._begun_s = time.monotonic()
        self._ended = False

    def is_completed(self) -> bool:
        """Return whether the exchange is over."""
        return self._inner.is_completed()

    def get_future(self) -> Any:
        """Return the backend's own future; what is checked at the end is checked in `wait` alone."""
        return self._inner.get_future()

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold the result."""
        return list(self._outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the exchange is over, or explain why it is not."""
        if self._ended:
            return True
        start = time.monotonic()
        limit = self._group.watch.deadline_s
        if timeout:
            limit = min(limit, timeout.total_seconds())
        if any(tensor.is_cuda for tensor in self._tensors):
            # On a GPU a wait only puts streams in order; NCCL's own watchdog looks after the time.
            self._attempt(None, limit)
        elif self._call.kind in _P2P:
            # A wait with a limit breaks gloo's pair at its end, so there is one attempt.
            self._attempt(limit, limit)
        else:
            while not self._attempt(_SLICE_S, limit):
                pass
        self._end(start)
        return True

    def _attempt(self, slice_s: float | None, limit_s: float) -> bool:
        """Wait for a while; returns whether the exchange is over, raises where it never will be."""
        try:
            if slice_s is None:
                self._inner.wait()
            else:
                self._inner.wait(timedelta(seconds=slice_s))
        except RuntimeError as error:
            waited = time.monotonic() - self._begun_s
            self._group.raise_verdict(self._call)
            if waited >= limit_s:
                raise HungError(self._group.watch.desk.explained(self._call, waited)) from error
            if slice_s is None or "timed out" not in str(error).lower():
                raise
            return False
        return True

    def _end(self, start: float) -> None:
        group, call, watch = self._group, self._call, self._group.watch
        self._ended = True
        watch.wire.after(self._hits, call, self._outputs)
        watch.account.waited(group.purpose, call.kind, time.monotonic() - start)
        if watch.checks.payloads and call.kind in _SAME_RESULT:
            watch.desk.agree(call, fold_digest(self._outputs))
        watch.desk.leave(call)


class CheckedGroup(_ProcessGroup):
    """A process group that passes every call on to `inner` after comparing it with the other ranks' calls."""

    def __init__(self, inner: dist.ProcessGroup, name: str, members: Sequence[int], watch: Watch) -> None:
        """Wrap `inner`, the group `name` of `members` (counted over all ranks)."""
        super().__init__(inner.rank(), inner.size())
        self.inner, self.watch = inner, watch
        self.members = tuple(members)
        self.purpose = "world"
        self._name = name
        self._numbers: dict[str, int] = {}
        watch.desk.announce(name, members)

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
        return self.purpose

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self.purpose = {"default_pg": "world", "undefined": self._name}.get(desc, desc)

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to set: calls are counted here."""

    def _get_sequence_number_for_group(self) -> int:
        return self._numbers.get("", 0)

    def abort(self) -> None:
        """Give up on everything in flight, as far as the backend can."""
        self.inner.abort()

    def shutdown(self) -> None:
        """End the backend."""
        self.inner.shutdown()

    def raise_verdict(self, call: Call) -> None:
        """Raise what another rank found wrong on this group, if anything."""
        text = self.watch.desk.verdict(call.group)
        if text is not None:
            raise (PayloadError if "different results" in text else MismatchError)(text)

    def _count(self, place: str) -> int:
        number = self._numbers.get(place, 0)
        self._numbers[place] = number + 1
        return number

    def _do(
        self, kind: str, issue: Callable[[], Any], inputs: Tensors, outputs: Tensors, *, form: str | None = None,
        detail: str = "", place: str = "",
    ) -> CheckedWork:  # fmt: skip
        watch = self.watch
        call = Call(
            self.group_name, self._count(place), kind, _form(inputs) if form is None else form, detail,
            watch.generation, watch.step, watch.desk.rank, place,
        )  # fmt: skip
        hits = watch.wire.at(call)
        made = watch.wire.before(hits, call, inputs)
        watch.account.entered(self.purpose, kind, _bytes(inputs))
        if not made:
            return CheckedWork(self, call, _Dropped(watch.deadline_s), inputs, outputs, hits=hits)
        watch.desk.enter(call, compare=watch.checks.compare)
        return CheckedWork(self, call, issue(), inputs, outputs, hits=hits)

    def _global(self, rank: int) -> int:
        return self.members[rank] if self.members else rank

    def allreduce(self, tensors: Any, opts: Any = None) -> CheckedWork:
        """Sum, or otherwise reduce, a tensor over all ranks."""
        opts = opts or _c10d.AllreduceOptions()
        given = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        detail = _operation(opts)
        return self._do("all_reduce", lambda: self.inner.allreduce(given, opts), given, given, detail=detail)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> CheckedWork:
        """Reduce several tensors over all ranks."""
        opts = opts or _c10d.AllreduceCoalescedOptions()
        detail = _operation(opts)
        return self._do(
            "all_reduce", lambda: self.inner.allreduce_coalesced(tensors, opts), tensors, tensors, detail=detail
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> CheckedWork:
        """Give everybody the root's tensor."""
        opts = opts or _c10d.BroadcastOptions()
        detail = f"from rank {self._global(opts.rootRank)}"
        return self._do("broadcast", lambda: self.inner.broadcast(tensors, opts), tensors, tensors, detail=detail)

    def reduce(self, tensors: Any, opts: Any = None) -> CheckedWork:
        """Reduce a tensor on the root."""
        opts = opts or _c10d.ReduceOptions()
        detail = f"{_operation(opts)} to rank {self._global(opts.rootRank)}"
        return self._do("reduce", lambda: self.inner.reduce(tensors, opts), tensors, tensors, detail=detail)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> CheckedWork:
        """Give everybody everybody's tensor."""
        opts = opts or _c10d.AllgatherOptions()
        flat = [tensor for part in outputs for tensor in part]
        return self._do("all_gather", lambda: self.inner.allgather(outputs, inputs, opts), inputs, flat)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> CheckedWork:
        """Give everybody everybody's tensor, in one piece of memory."""
        opts = opts or _c10d.AllgatherOptions()
        return self._do("all_gather", lambda: self.inner.all_gather_single(output, given, opts), [given], [output])

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CheckedWork:
        """Gather several tensors at once."""
        opts = opts or _c10d.AllgatherOptions()
        return self._do(
            "all_gather", lambda: self.inner.all_gather_single_coalesced(outputs, inputs, opts), inputs, outputs
        )

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> CheckedWork:
        """Give the root everybody's tensor."""
        opts = opts or _c10d.GatherOptions()
        detail = f"to rank {self._global(opts.rootRank)}"
        flat = [tensor for part in outputs for tensor in part]
        return self._do("gather", lambda: self.inner.gather(outputs, inputs, opts), inputs, flat, detail=detail)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> CheckedWork:
        """Give everybody a part of what the root has."""
        opts = opts or _c10d.ScatterOptions()
        detail = f"from rank {self._global(opts.rootRank)}"
        flat = [tensor for part in inputs for tensor in part]
        return self._do(
            "scatter", lambda: self.inner.scatter(outputs, inputs, opts), flat, outputs, form=_form(outputs),
            detail=detail,
        )  # fmt: skip

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> CheckedWork:
        """Reduce, and give everybody a part."""
        opts = opts or _c10d.ReduceScatterOptions()
        flat = [tensor for part in inputs for tensor in part]
        detail = _operation(opts)
        return self._do(
            "reduce_scatter", lambda: self.inner.reduce_scatter(outputs, inputs, opts), flat, outputs, detail=detail
        )

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> CheckedWork:
        """Reduce, and give everybody a part, in one piece of memory."""
        opts = opts or _c10d.ReduceScatterOptions()
        return self._do(
            "reduce_scatter", lambda: self.inner.reduce_scatter_single(output, given, opts), [given], [output],
            detail=_operation(opts),
        )  # fmt: skip

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CheckedWork:
        """Reduce and scatter several tensors at once."""
        opts = opts or _c10d.ReduceScatterOptions()
        return self._do(
            "reduce_scatter", lambda: self.inner.reduce_scatter_single_coalesced(outputs, inputs, opts), inputs,
            outputs, detail=_operation(opts),
        )  # fmt: skip

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, output_sizes: list[int], input_sizes: list[int],
        opts: Any = None,
    ) -> CheckedWork:  # fmt: skip
        """Give every rank its part of this rank's tensor."""
        opts = opts or _c10d.AllToAllOptions()
        row = f"{str(given.dtype).removeprefix('torch.')}[*{''.join(f'x{size}' for size in given.shape[1:])}]"
        return self._do(
            "all_to_all", lambda: self.inner.all_to_all_single(output, given, output_sizes, input_sizes, opts), [given],
            [output], form=row,
        )  # fmt: skip

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> CheckedWork:
        """Give every rank one of this rank's tensors."""
        opts = opts or _c10d.AllToAllOptions()
        kind = str(inputs[0].dtype).removeprefix("torch.")
        return self._do("all_to_all", lambda: self.inner.alltoall(outputs, inputs, opts), inputs, outputs, form=kind)

    def barrier(self, opts: Any = None) -> CheckedWork:
        """Wait until everybody is here."""
        opts = opts or _c10d.BarrierOptions()
        return self._do("barrier", lambda: self.inner.barrier(opts), (), ())

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> CheckedWork:
        """Send a tensor to one rank."""
        place = f"{self.watch.desk.rank}->{self._global(peer)} tag {tag}"
        return self._do("send", lambda: self.inner.send(tensors, peer, tag), tensors, (), place=place)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> CheckedWork:
        """Receive a tensor from one rank."""
        place = f"{self._global(peer)}->{self.watch.desk.rank} tag {tag}"
        return self._do("recv", lambda: self.inner.recv(tensors, peer, tag), tensors, tensors, place=place)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        """Receive a tensor from any rank; nobody knows from whom, so nothing is compared."""
        return self.inner.recv_anysource(tensors, tag)


class _Dropped(_Work):
    """A call that was never made: its wait ends at the deadline."""

    def __init__(self, limit_s: float) -> None:
        """Wait `limit_s` at most."""
        super().__init__()
        self._until_s = time.monotonic() + limit_s

    def is_completed(self) -> bool:
        """Return that it never is."""
        return False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait in vain."""
        left = self._until_s - time.monotonic()
        time.sleep(max(0.0, left if timeout is None else min(left, timeout.total_seconds())))
        raise RuntimeError("Operation timed out: the call was dropped on purpose")


def _operation(opts: Any) -> str:
    """Return the name of the reduction that `opts` ask for."""
    return next((name.lower() for name in _REDUCTIONS if opts.reduceOp == getattr(dist.ReduceOp, name)), "other")


def _inner(name: str, options: Any) -> dist.ProcessGroup:
    """Return a plain group that moves the bytes: gloo, with NCCL beside it for GPUs, or a registered backend."""
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    if name not in ("gloo", "nccl"):
        plugin = dist.Backend._plugins[name.upper()]  # noqa: SLF001 - torch registers backends but does not give them back
        made = plugin.creator_fn(options, None) if plugin.extended_api else plugin.creator_fn(
            options.store, options.group_rank, options.group_size, options.timeout
        )  # fmt: skip
        if isinstance(made, dist.ProcessGroup):
            return made
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)  # noqa: SLF001 - as torch does it itself
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, made)  # noqa: SLF001
        return group
    gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)  # noqa: SLF001 - as torch does it itself
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)  # noqa: SLF001
    if torch.cuda.is_available():
        nccl = dist.ProcessGroupNCCL(options.store, options.group_rank, options.group_size, options.timeout)
        group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, nccl)  # noqa: SLF001
    return group


def register(checks: Checks, store: Any, rank: int, generation: int = 0) -> str:
    """Register the backend and return its name, for `init_process_group`.

    `store` is that of this generation, `rank` this rank's number over all ranks.
    """
    desk = CallStore(dist.PrefixStore("checked/", store.clone()), rank)
    wire = WireFaults(checks.faults, rank, Seed(checks.seed))
    watch = Watch(checks, desk, wire, generation, deadline_s=checks.deadline_s)

    def make(options: Any, _: Any) -> CheckedGroup:
        members = options.global_ranks_in_group or range(options.group_size)
        return CheckedGroup(_inner(checks.inner, options), str(options.group_id), list(members), watch)

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu", "cuda"])
    return BACKEND


def mark_step(step: int) -> None:
    """Say which step the calls that come next belong to, where the default group is a checked one."""
    watch = watch_of() if dist.is_initialized() else None
    if watch is not None:
        watch.step = step


def watch_of(group: dist.ProcessGroup | None = None) -> Watch | None:
    """Return what watches `group`, or the group of all ranks; none where it is not checked."""
    found: Any = group or dist.group.WORLD
    return found.watch if isinstance(found, CheckedGroup) else None
