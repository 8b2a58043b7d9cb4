"""Faults of the transport, injected on purpose: a call that never happens, comes late, or carries a flipped bit.

A `WireFault` says at which step, on which call and where; `WireFaults` decides for each call, from a seed, and flips
the bits. Faults of processes and of memory are injected elsewhere.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from weft.core.seeds import Seed
from weft.training.checked_collectives.calls import CollectiveCall
from weft.training.sdc.bit_flips import flip_bit


@dataclass(frozen=True, slots=True)
class WireFault:
    """One thing that goes wrong between ranks."""

    action: Literal["drop", "delay", "corrupt_input", "corrupt_output"]
    """The call is never made, is made late, or its payload is changed before or after the exchange."""
    rank: int
    """Whose call."""
    step: int
    """In which step."""
    kind: str = ""
    """Which kind of call, such as all_reduce; any where empty."""
    call: int = 0
    """Which of the calls of that step and kind, counted from 0."""
    delay_s: float = 0.0
    """How late, for a delay."""
    sticky: bool = False
    """Whether it happens again in every later step."""


class WireFaults:
    """The faults injected into this rank."""

    def __init__(self, faults: Sequence[WireFault], rank: int, seed: Seed) -> None:
        """Keep those of `faults` that concern `rank`."""
        self._mine = [fault for fault in faults if fault.rank == rank]
        self._seed = seed
        self._counts: dict[tuple[int, str], int] = {}
        self._done: list[tuple[WireFault, CollectiveCall]] = []

    @property
    def done(self) -> tuple[tuple[WireFault, CollectiveCall], ...]:
        """Return what has happened so far."""
        return tuple(self._done)

    def at(self, call: CollectiveCall) -> list[WireFault]:
        """Return what happens to `call`; counts it."""
        if not self._mine:
            return []
        numbers = {}
        for kind in (call.kind, ""):
            numbers[kind] = self._counts.get((call.step, kind), 0)
            self._counts[call.step, kind] = numbers[kind] + 1
        hits = [
            fault for fault in self._mine
            if (fault.step == call.step or (fault.sticky and fault.step <= call.step))
            and fault.kind in numbers and fault.call == numbers[fault.kind]
        ]  # fmt: skip
        self._done += [(fault, call) for fault in hits]
        return hits

    def before(self, hits: Sequence[WireFault], call: CollectiveCall, inputs: Sequence[torch.Tensor]) -> bool:
        """Carry out what happens before the exchange; returns whether the call is to be made at all."""
        for fault in hits:
            if fault.action == "delay":
                time.sleep(fault.delay_s)
            elif fault.action == "corrupt_input":
                self._flip(fault, call, inputs)
        return all(fault.action != "drop" for fault in hits)

    def after(self, hits: Sequence[WireFault], call: CollectiveCall, outputs: Sequence[torch.Tensor]) -> None:
        """Carry out what happens after the exchange."""
        for fault in hits:
            if fault.action == "corrupt_output":
                self._flip(fault, call, outputs)

    def _flip(self, fault: WireFault, call: CollectiveCall, tensors: Sequence[torch.Tensor]) -> None:
        filled = [tensor for tensor in tensors if tensor.numel()]
        if filled:
            draw = self._seed.stream("wire", fault.action, call.step, call.number)
            flip_bit(filled[int(draw.integers(len(filled)))], draw)
