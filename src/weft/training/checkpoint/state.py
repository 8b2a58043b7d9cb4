"""What a training is at one instant, by names that no mesh changes: for checkpoints, snapshots, and as one digest.

Parameters and what their optimizers keep about them go under the parameter's name in the whole model; buffers and
whatever else has a `state_dict` go under names of their own. Every entry of every optimizer is in it, or an error is
raised. To restore, the state is made to measure for what was stored, filled in place, and installed; no optimizer is
stepped for that. The digest is a sum over elements (`tensor_digests`), so any split of a tensor gives the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer
from typing_extensions import TypeIs

from weft.core.errors import FailedError, UsageError
from weft.training.checkpoint import tensor_digests
from weft.training.checkpoint.nested_values import flatten, rebuild

Named = Callable[[], Iterable[tuple[str, nn.Parameter]]]
_GROUP, _LOCAL = ".(group)", "#local"
_RESERVED = ".[]{}():#@"


class StoredTensor(Protocol):
    """One tensor of a stored state, as manifests and pieces describe it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the whole tensor's shape."""
        ...

    @property
    def dtype(self) -> str:
        """Return its element type, as torch names it."""
        ...


class HasState(Protocol):
    """Anything that says what it is and can be set back."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return its state."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Take a state back."""
        ...


def by_parameter(optimizer: object) -> TypeIs[Optimizer]:
    """Return whether an optimizer keeps its state by parameter, as torch's own do."""
    return isinstance(optimizer, Optimizer) and type(optimizer).state_dict is Optimizer.state_dict


def options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of what a group of an optimizer is set to, apart from its parameters."""
    return {
        key: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


@dataclass
class TrainingState:
    """Everything that goes on changing in a training, wherever it is kept."""

    named: Sequence[tuple[str, nn.Parameter]]
    """This rank's parameters under their names in the whole model."""
    buffers: Callable[[], Mapping[str, torch.Tensor]] = dict
    """Tensors that are kept besides, by name."""
    optimizers: Sequence[Optimizer] = ()
    """Optimizers that keep their state by parameter."""
    others: Mapping[str, HasState] = field(default_factory=dict)
    """Whatever else has a state, equal on all ranks: schedulers, other kinds of optimizers."""
    scaled: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether a group's learning rate is a function of the step, and need not be kept."""

    def __post_init__(self) -> None:
        """Remember what the groups were set to: only what has changed since is part of the state."""
        self._set_to = {id(group): options(group) for optimizer in self.optimizers for group in optimizer.param_groups}
        self._names: dict[nn.Parameter, str] = {parameter: name for name, parameter in self.named}

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the state as tensors; those of parameters, buffers and optimizers share memory with the training."""
        state: dict[str, dict[str, torch.Tensor]] = {"model": {name: one.detach() for name, one in self.named}}
        kept: dict[str, torch.Tensor] = {}
        for optimizer in self.optimizers:
            kept |= self._kept(optimizer)
        besides = self.besides()
        kept |= besides.pop("optimizer", {})
        if kept:
            state["optimizer"] = kept
        return state | besides

    def besides(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the part of `tensors` that is neither parameters nor what optimizers keep about them."""
        options: dict[str, torch.Tensor] = {}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                changed = self._changed(group)
                for parameter in group["params"] if changed else ():
                    options |= flatten(self._names[parameter] + _GROUP, changed)
        others: dict[str, torch.Tensor] = {}
        for name, other in self.others.items():
            others |= flatten(name, dict(other.state_dict()))
        found = {"buffers": dict(self.buffers()), "optimizer": options, "other": others}
        return {kind: held for kind, held in found.items() if held}

    def _kept(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        """Return what an optimizer keeps, by parameter; raises where something of it would be left out."""
        found: dict[str, torch.Tensor] = {}
        for parameter, values in optimizer.state.items():
            if parameter not in self._names:
                raise UsageError(
                    f"{type(optimizer).__name__} keeps a state for something that is no parameter of the attached"
                    " model; give the optimizer the model's own parameters"
                )
            for key, value in values.items():
                if not isinstance(key, str) or any(mark in key for mark in _RESERVED):
                    raise UsageError(f"{type(optimizer).__name__} keeps {key!r} for a parameter; use a plain name")
                for name, tensor in flatten(f"{self._names[parameter]}.{key}", value):
                    found |= _whole(name, tensor, parameter)
        return found

    def _changed(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a group that are no longer what they were at the start."""
        first = self._set_to.get(id(group), {})
        skipped = {"params", *(("lr",) if self.scaled(group) else ())}
        return {key: one for key, one in group.items() if key not in skipped and not _same(one, first.get(key, self))}

    def reset_options(self) -> None:
        """Set the optimizers' groups to what they were at the start, apart from learning rates that follow the step."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                kept = {"lr"} if self.scaled(group) else set()
                first = self._set_to.get(id(group), {})
                group.update({key: one for key, one in options(first).items() if key not in kept})

    def target(self, stored: Mapping[str, StoredTensor]) -> "RestoreTarget":
        """Return the state made to measure for what is `stored`, to be filled; raises where the two do not fit."""
        # The first of several copies of one name is filled; `install` gives the others what it has.
        weights = {name: one.detach() for name, one in reversed(self.named)}
        live = {"model": weights, "buffers": dict(self.buffers())}
        for kind, tensors in live.items():
            for name, tensor in tensors.items():
                _check(f"{kind}.{name}", tensor, stored)
        for name in self.others:
            if not any(_begins(whole, f"other.{name}") for whole in stored):
                raise FailedError(f"the state of {name} is not in it")
        made: dict[str, torch.Tensor] = {}
        parameters: dict[str, nn.Parameter] = {}
        for name, parameter in self.named:
            parameters.setdefault(name, parameter)
        for whole, entry in stored.items():
            kind, _, name = whole.partition(".")
            if kind == "optimizer" and (owner := _owner(name)) in parameters:
                made[name] = _empty(name, entry, parameters[owner])
        others = {
            whole.partition(".")[2]: torch.empty(entry.shape, dtype=_dtype(entry))
            for whole, entry in stored.items()
            if whole.startswith("other.") and self.others
        }
        tensors = {"model": live["model"], "buffers": live["buffers"], "optimizer": made, "other": others}
        return RestoreTarget(self, {kind: held for kind, held in tensors.items() if held})


@dataclass
class RestoreTarget:
    """A state that waits to be filled."""

    training: TrainingState
    """What it is of."""
    tensors: dict[str, dict[str, torch.Tensor]]
    """Tensors to fill: parameters and buffers themselves, and memory for everything else."""

    def names(self) -> set[str]:
        """Return the stored tensors that this rank takes something of."""
        return {f"{kind}.{name}" for kind, held in self.tensors.items() for name in held}

    def install(self) -> None:
        """Give what was filled to optimizers and everything else; call it when all of it is proved."""
        first: dict[str, nn.Parameter] = {}
        kept: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in self.tensors.get("optimizer", {}).items():
            kept.setdefault(_owner(name), {})[name] = tensor
        optimizers = {
            parameter: (optimizer, group)
            for optimizer in self.training.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for optimizer in self.training.optimizers:
            optimizer.state.clear()
        self.training.reset_options()
        with torch.no_grad():
            for name, parameter in self.training.named:
                # A matrix that two stages of this rank share has two copies of one name.
                twin = first.setdefault(name, parameter)
                if twin is not parameter:
                    parameter.copy_(twin)
                if parameter in optimizers:
                    _give(name, kept.get(name, {}), parameter, *optimizers[parameter], copied=twin is not parameter)
        for name, other in self.training.others.items():
            held = self.tensors.get("other", {})
            parts = {one.removeprefix(name): tensor for one, tensor in held.items() if _begins(one, name)}
            if parts:
                other.load_state_dict(rebuild(parts))


def _begins(name: str, start: str) -> bool:
    return name.startswith(start) and name[len(start) : len(start) + 1] in ("", ":", "{")


def _give(
    name: str, kept: Mapping[str, torch.Tensor], parameter: nn.Parameter, optimizer: Optimizer, group: dict[str, Any],
    *, copied: bool,
) -> None:  # fmt: skip
    """Give one parameter's part of a state to its optimizer."""
    values: dict[str, dict[str, torch.Tensor]] = {}
    changed: dict[str, torch.Tensor] = {}
    for whole, tensor in kept.items():
        rest = whole.removeprefix(name)
        memory = tensor.clone() if copied else tensor
        if rest.startswith(_GROUP):
            changed[rest.removeprefix(_GROUP)] = memory
            continue
        key = _key(rest)
        path = rest.removeprefix(f".{key}")
        if path.endswith(_LOCAL):
            path, memory = path.removesuffix(_LOCAL), memory.to_local() if isinstance(memory, DTensor) else memory
        values.setdefault(key, {})[path] = memory
    if values:
        state = {key: rebuild(parts) for key, parts in values.items()}
        optimizer.state[parameter] = {key: _placed(key, value, parameter, group) for key, value in state.items()}
    for key, value in rebuild(changed).items() if changed else ():
        if isinstance(group.get(key), torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = value


def _placed(key: str, value: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    """Return a value on the device on which its optimizer keeps it: torch's own keep the count of steps on the host."""
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
        return value
    on_host = key == "step" and not group.get("capturable") and not group.get("fused")
    return value.to("cpu" if on_host else parameter.device)


def _key(rest: str) -> str:
    """Return the key in the optimizer's state of a name without its parameter: ".exp_avg", ".parts[0]"."""
    ends = [place for mark in "[({:#" if (place := rest.find(mark)) >= 0]
    return rest[1 : min(ends, default=len(rest))]


def _owner(name: str) -> str:
    """Return the parameter that an entry of an optimizer belongs to."""
    if _GROUP in name:
        return name.partition(_GROUP)[0]
    ends = [place for mark in "[({:#" if (place := name.find(mark)) >= 0]
    return name[: min(ends, default=len(name))].rpartition(".")[0]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and one.shape == other.shape and bool(torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)


def _whole(name: str, tensor: torch.Tensor, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
    """Return an optimizer's tensor as a part of the whole one, where its parameter is only a shard."""
    data = parameter.data
    if not isinstance(data, DTensor) or isinstance(tensor, DTensor) or tensor.dim() == 0 or ":" in name:
        return {name: tensor}
    if tensor.shape == data.to_local().shape:
        made = DTensor.from_local(
            tensor, data.device_mesh, data.placements, run_check=False, shape=data.shape, stride=data.stride()
        )
        return {name + _LOCAL: made}
    raise UsageError(
        f"the optimizer keeps {name} of shape {tuple(tensor.shape)} for a shard of shape"
        f" {tuple(data.to_local().shape)}: no other number of ranks could take it over; write shard = 1 and tp = 1 in"
        " the plan, or use an optimizer that keeps one value for each weight"
    )


def _dtype(entry: StoredTensor) -> torch.dtype:
    return getattr(torch, entry.dtype)


def _empty(name: str, entry: StoredTensor, parameter: nn.Parameter) -> torch.Tensor:
    """Return memory for a stored tensor: cut like its parameter where it has the parameter's shape."""
    data = parameter.data
    if ":" not in name and tuple(entry.shape) == tuple(data.shape):
        return torch.zeros_like(data, dtype=_dtype(entry))
    return torch.zeros(tuple(entry.shape), dtype=_dtype(entry))


def _check(name: str, tensor: torch.Tensor, stored: Mapping[str, StoredTensor]) -> None:
    entry = stored.get(name)
    if entry is None:
        raise FailedError(f"{name} is not in it")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tuple(entry.shape) != tuple(tensor.shape) or entry.dtype != dtype:
        raise FailedError(
            f"{name} is {entry.dtype} {tuple(entry.shape)} in it and {dtype} {tuple(tensor.shape)} in the training"
        )


def by_rank(value: Any) -> list[Any]:
    """Return every rank's `value`; all ranks call it together."""
    everybody: list[Any] = [value]
    if dist.is_initialized() and dist.get_world_size() > 1:
        everybody = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, value)
    return everybody


def _shard_digest(parameter: torch.Tensor) -> int:
    data = parameter.detach()
    if not isinstance(data, DTensor):
        return tensor_digests.shard_digest(data, (0,) * data.dim(), data.shape)
    _, offsets = compute_local_shape_and_global_offset(data.shape, data.device_mesh, data.placements)
    return tensor_digests.shard_digest(data.to_local(), offsets, data.shape)


def weight_digests(named: Named, first_copy: Callable[[nn.Parameter], bool]) -> dict[str, str]:
    """Return the digest of every parameter of the whole model, the same on every rank and under every plan.

    `first_copy` says which rank stands for equal shards. All ranks call it together.
    """
    mine = tensor_digests.added(
        {name: _shard_digest(parameter)} for name, parameter in named() if first_copy(parameter)
    )
    everybody = by_rank(mine)
    return {name: tensor_digests.written(total) for name, total in sorted(tensor_digests.added(everybody).items())}
