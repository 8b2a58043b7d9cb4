"""One step as a line of `metrics.jsonl`, with floats also as their bits."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step, as a line of `metrics.jsonl`."""

    step: int
    """Steps done after it, counted from 1."""
    loss: float
    """Mean loss of the step's batch."""
    grad_norm: float
    """Norm of the gradient before it was clipped."""
    learning_rate: float
    """Learning rate that was used."""
    tokens: int
    """Tokens in the step's batch."""
    seconds: Mapping[str, float]
    """Seconds by class of the average rank; they sum to the step's wall time."""
    weights_digest: str | None = None
    """Digest of all weights after the step, where it was taken."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Digest by tensor after the step, where they were taken."""
    energy_j: float | None = None
    """Energy since the step before, in joules, measured or estimated."""
    rank_seconds: Sequence[float] = ()
    """Seconds that each rank computed; none where there are too many ranks to list."""
    rank_waits: Sequence[float] = ()
    """Seconds that each rank waited for others: exposed communication and bubble."""
    rank_input: Sequence[float] = ()
    """Seconds that each rank waited for its batch."""
    rank_batches: Sequence[int] = ()
    """Micro-batches of each rank."""
    planes_out: Sequence[int] = ()
    """For each rank the planes that carry nothing from it, as a bit mask; none where all carry."""

    def as_json(self) -> dict[str, Any]:
        """Return the line as plain values: floats also as their bits, and none where JSON has no word for them."""
        line: dict[str, Any] = {
            "step": self.step,
            "loss": finite(self.loss),
            "loss_bits": bits(self.loss),
            "grad_norm": finite(self.grad_norm),
            "grad_norm_bits": bits(self.grad_norm),
            "learning_rate": self.learning_rate,
            "tokens": self.tokens,
            "seconds": dict(self.seconds),
        }
        if self.energy_j is not None:
            line["energy_j"] = self.energy_j
        if self.weights_digest is not None:
            line["weights_digest"] = self.weights_digest
        if self.rank_seconds:
            line["rank_seconds"] = list(self.rank_seconds)
            # Microseconds are enough to find out who is slow, and half as long.
            line["rank_waits"] = [round(spent, 6) for spent in self.rank_waits]
            line["rank_input"] = [round(spent, 6) for spent in self.rank_input]
        if len(set(self.rank_batches)) > 1:
            line["rank_batches"] = list(self.rank_batches)
        if any(self.planes_out):
            line["planes_out"] = list(self.planes_out)
        if self.tensors:
            line["tensors"] = dict(self.tensors)
        return line


def bits(value: float) -> str:
    """Return the 64 bits of a float as 16 hexadecimal digits, so that equal means equal, NaN included."""
    return struct.pack(">d", value).hex()


def from_bits(digits: str) -> float:
    """Return the float whose bits are `digits`."""
    return float(struct.unpack(">d", bytes.fromhex(digits))[0])


def finite(value: float) -> float | None:
    """Return `value`, or none where JSON has no word for it."""
    return value if math.isfinite(value) else None
