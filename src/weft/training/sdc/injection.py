"""Things that go wrong on purpose, inside a rank: a fault comes true at a named point of a step.

Points: the beginning of a step (kill, stop, slow, planes), activations and gradients as autograd makes them, gradients
after the reduction, weights and optimizer after the update, the writing of a checkpoint. A fault is announced before it
comes true, so that whoever restarts the rank can leave it out. Which faults there are is `specs.faults`'s; faults of
nodes, stores and snapshots are carried out by the supervisor.
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from weft.core.seeds import mix
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.specs.faults import ON_THE_WIRE, Fault, FaultKind

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BYTE = 8
_ENDING = ("kill", "stop", "lose-rank")


class Injector:
    """The faults of one rank."""

    def __init__(self, faults: Sequence[Fault], say: Callable[[int], object]) -> None:
        """Carry `faults` out, and `say` the number of each just before it comes true."""
        self._faults = list(faults)
        self._say = say
        self._said: set[int] = set()
        self._armed: set[int] = set()
        self._mended: set[int] = set()
        self._step = 0
        self._begun_s = 0.0
        self._computed_s = 0.0
        self._starved_s = 0.0
        self._fed = 0

    def begin(self, done: int) -> None:
        """Begin the step after `done` steps: what ends, freezes or slows a rank comes true here, or a moment later."""
        self._step, self._begun_s = done + 1, time.monotonic()
        self._change_planes()
        for fault in self._faults:
            # One that another failure has overtaken comes true as soon as it can.
            past = fault.step is not None and self._step >= fault.step
            if fault.kind not in _ENDING or not past or fault.number in self._armed:
                continue
            self._armed.add(fault.number)
            number = signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL
            self._later(fault, lambda fault=fault, number=number: self._end(fault, number))

    def _change_planes(self) -> None:
        """Cut or spoil the planes whose time has come, and mend those whose time is over."""
        for fault in self._faults:
            if fault.kind not in ON_THE_WIRE or fault.step is None or self._step < fault.step:
                continue
            over = fault.lasts is not None and self._step >= fault.step + fault.lasts
            if fault.number not in self._armed and not over:
                self._armed.add(fault.number)
                self._later(fault, lambda fault=fault: self._spoil(fault, over=False))
            elif over and fault.number in self._armed and fault.number not in self._mended:
                self._mended.add(fault.number)
                self._spoil(fault, over=True)

    def _spoil(self, fault: Fault, *, over: bool) -> None:
        from weft.transport.torch_backend import links_of

        links = links_of()
        assert links is not None, "a fault of planes without planes was not refused"
        self._tell(fault)
        planes = links.endpoint.underlay.planes
        plane = mix(fault.word, 5) % planes if fault.plane is None else fault.plane
        if fault.kind == "plane-down":
            links.endpoint.cut(plane, cut=not over)
        else:
            links.endpoint.lose(plane, 0.0 if over else fault.share)

    def _end(self, fault: Fault, number: signal.Signals) -> None:
        self._tell(fault)
        os.kill(os.getpid(), number)

    def _later(self, fault: Fault, act: Callable[[], None]) -> None:
        if fault.after_ps == 0:
            act()
            return
        timer = threading.Timer(fault.after_ps / PICOSECONDS_PER_SECOND, act)
        timer.daemon = True
        timer.start()

    def slow_down(self) -> None:
        """Be slow: what was computed since the step began takes as many times longer as the fault says."""
        self._computed_s = time.monotonic() - self._begun_s - self._starved_s
        self._starved_s = 0.0
        for fault in self._slow("slow"):
            time.sleep((fault.factor - 1) * (time.monotonic() - self._begun_s))

    def starve(self) -> None:
        """Wait for the batch, once a step, for as many computing times of the last step as the fault says."""
        if self._fed < self._step:
            self._fed = self._step
            for fault in self._slow("slow-input"):
                self._starved_s += (fault.factor - 1) * self._computed_s
            time.sleep(self._starved_s)

    def _slow(self, kind: FaultKind) -> Iterator[Fault]:
        """Yield the faults of a kind that slow the present step down."""
        for fault in self._faults:
            first = fault.step or 1
            if fault.kind == kind and first <= self._step < first + (fault.lasts or self._step):
                self._tell(fault)
                yield fault

    def watch(self, stages: Sequence[nn.Module], named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Put hooks into `stages`, so that activations and fresh gradients can be changed where they arise."""
        parameters = dict(named)
        for fault in self._faults:
            if fault.place == "gradients":
                name = _chosen(fault, sorted(parameters))
                parameters[name].register_hook(partial(self._changed, fault))
            elif fault.place == "activations":
                modules = dict(_leaves(stages))
                name = _chosen(fault, sorted(modules))
                modules[name].register_forward_hook(partial(self._changed_output, fault))

    def _changed_output(self, fault: Fault, module: nn.Module, inputs: object, output: object) -> torch.Tensor | None:
        del module, inputs
        return self._changed(fault, output)

    def _changed(self, fault: Fault, tensor: object) -> torch.Tensor | None:
        if not isinstance(tensor, torch.Tensor) or not self._is_due(fault):
            return None
        self._tell(fault)
        changed = tensor.detach().clone() if not tensor.requires_grad else tensor.clone()
        with torch.no_grad():
            damage(fault, changed)
        return changed

    def at(self, place: str, find: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """Damage one of the tensors that `find` returns, lying at `place`, where a fault says so."""
        for fault in self._faults:
            if fault.place == place and self._is_due(fault) and (tensors := find()):
                self._tell(fault)
                with torch.no_grad():
                    damage(fault, tensors[_chosen(fault, sorted(tensors))])

    def write(self) -> None:
        """Fail as a full disk does, where a fault says so."""
        # A checkpoint is written while later steps are taken: the first one from that step on fails.
        for fault in self._faults:
            past = fault.step is not None and self._step >= fault.step
            if fault.kind != "full-disk" or not past or (fault.number in self._said and not fault.sticky):
                continue
            self._tell(fault)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_due(self, fault: Fault) -> bool:
        if fault.step is None:
            return False
        if fault.sticky:
            return self._step >= fault.step
        return self._step == fault.step and fault.number not in self._said

    def _tell(self, fault: Fault) -> None:
        if fault.number not in self._said:
            self._said.add(fault.number)
            self._say(fault.number)


def damage(fault: Fault, tensor: torch.Tensor) -> None:
    """Change one element of `tensor` in place: a NaN, a flipped bit, or a bit that is stuck at one."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    flat = local.view(-1)
    element = mix(fault.word, 1) % max(1, flat.numel())
    if fault.kind == "nan":
        flat[element] = torch.nan
        return
    kind = _BITS[flat.element_size()]
    width = flat.element_size() * _BYTE
    bit = (mix(fault.word, 2) if fault.bit is None else fault.bit) % width
    mask = torch.tensor(1 << bit if bit < width - 1 or kind is torch.uint8 else -(1 << bit), dtype=kind)
    bits = flat.view(kind)
    bits[element] = bits[element] | mask if fault.sticky else bits[element] ^ mask


def _chosen(fault: Fault, names: Sequence[str]) -> str:
    """Return the tensor that the fault names, or one drawn by its seed."""
    if fault.tensor is None:
        return names[mix(fault.word, 4) % len(names)]
    matching = [name for name in names if fault.tensor in name]
    return matching[0] if matching else names[mix(fault.word, 4) % len(names)]


def _leaves(stages: Sequence[nn.Module]) -> Iterable[tuple[str, nn.Module]]:
    """Yield the modules of all stages that have parameters and no modules inside."""
    for number, stage in enumerate(stages):
        for name, module in stage.named_modules():
            if not list(module.children()) and list(module.parameters()):
                yield f"{number}.{name}", module
