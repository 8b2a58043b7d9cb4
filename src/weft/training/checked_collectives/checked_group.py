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
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist

from weft.core.seeds import Seed
from weft.training.checked_collectives.call_statistics import CallStatistics
from weft.training.checked_collectives.call_store import CallStore, HungError, MismatchError, PayloadError
from weft.training.checked_collectives.calls import CollectiveCall
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
    calls: CallStore
    """Where ranks leave word."""
    wire: WireFaults
    """Faults injected into this rank."""
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
        self, group: "CheckedGroup", call: CollectiveCall, inner: Any, tensors: Tensors, outputs: Tensors,
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
                raise HungError(self._group.watch.calls.explained(self._call, waited)) from error
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
            watch.calls.agree(call, fold_digest(self._outputs))
        watch.calls.leave(call)


class _CallRequest(NamedTuple):
    """What a call asks for, besides its tensors."""

    kind: str
    detail: str = ""
    form: str | None = None
    place: str = ""


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
        watch.calls.announce(name, members)

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

    def raise_verdict(self, call: CollectiveCall) -> None:
        """Raise what another rank found wrong on this group, if anything."""
        text = self.watch.calls.verdict(call.group)
        if text is not None:
            raise (PayloadError if "different results" in text else MismatchError)(text)

    def _count(self, place: str) -> int:
        number = self._numbers.get(place, 0)
        self._numbers[place] = number + 1
        return number

    def run(self, asked: _CallRequest, issue: Callable[[], Any], inputs: Tensors, outputs: Tensors) -> CheckedWork:
        """Compare what is `asked` with the other ranks' calls, `issue` it, and return the wait for its end."""
        watch, kind = self.watch, asked.kind
        call = CollectiveCall(
            self.group_name, self._count(asked.place), kind, _form(inputs) if asked.form is None else asked.form,
            asked.detail, watch.generation, watch.step, watch.calls.rank, asked.place,
        )  # fmt: skip
        hits = watch.wire.at(call)
        made = watch.wire.before(hits, call, inputs)
        watch.account.entered(self.purpose, kind, _bytes(inputs))
        if not made:
            return CheckedWork(self, call, _Dropped(watch.deadline_s), inputs, outputs, hits=hits)
        watch.calls.enter(call, compare=watch.checks.compare)
        return CheckedWork(self, call, issue(), inputs, outputs, hits=hits)

    def global_rank(self, rank: int) -> int:
        """Return the number over all ranks of member `rank`."""
        return self.members[rank] if self.members else rank

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> CheckedWork:
        """Send a tensor to one rank."""
        place = f"{self.watch.calls.rank}->{self.global_rank(peer)} tag {tag}"
        return self.run(_CallRequest("send", place=place), lambda: self.inner.send(tensors, peer, tag), tensors, ())

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> CheckedWork:
        """Receive a tensor from one rank."""
        place = f"{self.global_rank(peer)}->{self.watch.calls.rank} tag {tag}"
        return self.run(
            _CallRequest("recv", place=place), lambda: self.inner.recv(tensors, peer, tag), tensors, tensors
        )

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        """Receive a tensor from any rank; nobody knows from whom, so nothing is compared."""
        return self.inner.recv_anysource(tensors, tag)


class _Collective(NamedTuple):
    """How one of torch's collective methods is called: its tensors come first, then perhaps sizes, then options."""

    kind: str
    """What ranks compare: several methods may be one kind."""
    options: str
    """Name of torch's options for it."""
    arguments: int = 2
    """Arguments before the options; the first holds the outputs, the second, where there is one, the inputs."""
    detail: str = ""
    """What ranks compare besides kind and shapes, with {reduction} and {root} filled in."""
    form: Literal["inputs", "outputs", "dtype", "row"] = "inputs"
    """Whose shapes ranks compare; of an all-to-all only dtype or row size, since its split may differ."""

    def detail_of(self, group: CheckedGroup, opts: Any) -> str:
        """Return the detail of a call with `opts`."""
        operation = getattr(opts, "reduceOp", None)
        named = (name.lower() for name in _REDUCTIONS if operation == getattr(dist.ReduceOp, name))
        root = group.global_rank(getattr(opts, "rootRank", 0))
        return self.detail.format(reduction=next(named, "other") if operation is not None else "", root=root)

    def form_of(self, inputs: Tensors, outputs: Tensors) -> str:
        """Return what ranks compare of a call's tensors."""
        if self.form in ("inputs", "outputs"):
            return _form(inputs if self.form == "inputs" else outputs)
        dtype = str(inputs[0].dtype).removeprefix("torch.")
        return dtype if self.form == "dtype" else f"{dtype}[*{''.join(f'x{size}' for size in inputs[0].shape[1:])}]"


_COLLECTIVES = {
    "allreduce": _Collective("all_reduce", "AllreduceOptions", 1, "{reduction}"),
    "allreduce_coalesced": _Collective("all_reduce", "AllreduceCoalescedOptions", 1, "{reduction}"),
    "broadcast": _Collective("broadcast", "BroadcastOptions", 1, "from rank {root}"),
    "reduce": _Collective("reduce", "ReduceOptions", 1, "{reduction} to rank {root}"),
    "allgather": _Collective("all_gather", "AllgatherOptions"),
    "all_gather_single": _Collective("all_gather", "AllgatherOptions"),
    "all_gather_single_coalesced": _Collective("all_gather", "AllgatherOptions"),
    "gather": _Collective("gather", "GatherOptions", 2, "to rank {root}"),
    "scatter": _Collective("scatter", "ScatterOptions", 2, "from rank {root}", "outputs"),
    "reduce_scatter": _Collective("reduce_scatter", "ReduceScatterOptions", 2, "{reduction}"),
    "reduce_scatter_single": _Collective("reduce_scatter", "ReduceScatterOptions", 2, "{reduction}"),
    "reduce_scatter_single_coalesced": _Collective("reduce_scatter", "ReduceScatterOptions", 2, "{reduction}"),
    "all_to_all_single": _Collective("all_to_all", "AllToAllOptions", 4, form="row"),
    "alltoall": _Collective("all_to_all", "AllToAllOptions", form="dtype"),
    "barrier": _Collective("barrier", "BarrierOptions", 0),
}
"""torch's collective methods, by name."""


def _flat(given: object) -> list[torch.Tensor]:
    """Return the tensors in `given`: one, a list of them, or lists of lists."""
    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for part in given for tensor in _flat(part)] if isinstance(given, Sequence) else []


def _checked(method: str, how: _Collective) -> Callable[..., CheckedWork]:
    """Return `method` of a group, which compares the call before it passes it on."""

    def call(group: CheckedGroup, *arguments: Any, opts: Any = None) -> CheckedWork:
        # torch gives options by place or by name, or leaves them out.
        given = list(arguments[: how.arguments])
        if len(arguments) > how.arguments:
            opts = arguments[how.arguments]
        opts = opts or getattr(_c10d, how.options)()
        outputs = _flat(given[0]) if given else []
        inputs = _flat(given[1]) if len(given) > 1 else outputs
        if len(given) == 1:
            given = [outputs]
        asked = _CallRequest(how.kind, how.detail_of(group, opts), how.form_of(inputs, outputs))
        return group.run(asked, lambda: getattr(group.inner, method)(*given, opts), inputs, outputs)

    return call


for _method, _how in _COLLECTIVES.items():
    setattr(CheckedGroup, _method, _checked(_method, _how))


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
    calls = CallStore(dist.PrefixStore("checked/", store.clone()), rank)
    wire = WireFaults(checks.faults, rank, Seed(checks.seed))
    watch = Watch(checks, calls, wire, generation, deadline_s=checks.deadline_s)

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
