"""Where two runs part: the first step, and in it the first tensor, whose bits differ.

Reads the files of runs, the metrics line by line and the tensor digests of their checkpoints; free of torch.
Digests do not depend on how a tensor was sharded, so runs on different numbers of ranks can be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weft.training.run_dir import RunRecord

_FIELDS = ("loss_bits", "grad_norm_bits", "weights_digest")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs have in common."""

    equal: bool
    """Whether every step is in both, with the same bits, and every digest that both took is the same."""
    steps_compared: int
    """Steps that are in both."""
    tensors_compared: int
    """Tensor digests that are in both."""
    step: int | None = None
    """The first step that differs or that only one has."""
    differs: str | None = None
    """What differs there: "loss", "grad_norm", "weights_digest", "tensor" or "missing"."""
    values: tuple[Any, Any] | None = None
    """The two values."""
    tensor: str | None = None
    """The first tensor that is known to differ."""
    tensor_step: int | None = None
    """The step at which that was seen: the first one at or after `step` of which both have digests."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def compare(left: RunRecord, right: RunRecord) -> Comparison:
    """Return where the runs part, or that they do not."""
    lines = ({line["step"]: line for line in left.steps()}, {line["step"]: line for line in right.steps()})
    tensors = (_tensors(left, lines[0]), _tensors(right, lines[1]))
    common = lines[0].keys() & lines[1].keys()
    shared = sorted(tensors[0].keys() & tensors[1].keys())
    compared = sum(len(tensors[0][step].keys() & tensors[1][step].keys()) for step in shared)
    tensor = next(
        ((step, name) for step in shared if (name := _first_tensor(tensors[0][step], tensors[1][step]))), None
    )
    found = _first_line(lines[0], lines[1])
    if found is None and tensor is None:
        return Comparison(equal=True, steps_compared=len(common), tensors_compared=compared)
    if found is None or (tensor is not None and tensor[0] < found[0]):
        assert tensor is not None
        values = (tensors[0][tensor[0]].get(tensor[1]), tensors[1][tensor[0]].get(tensor[1]))
        found = (tensor[0], "tensor", values)
    return Comparison(
        equal=False,
        steps_compared=len(common),
        tensors_compared=compared,
        step=found[0],
        differs=found[1],
        values=found[2],
        tensor=None if tensor is None else tensor[1],
        tensor_step=None if tensor is None else tensor[0],
    )


def _first_line(
    left: Mapping[int, Mapping[str, Any]], right: Mapping[int, Mapping[str, Any]]
) -> tuple[int, str, tuple[Any, Any]] | None:
    for step in sorted(left.keys() | right.keys()):
        if step not in left or step not in right:
            return step, "missing", (step in left, step in right)
        for name in _FIELDS:
            values = (left[step].get(name), right[step].get(name))
            if None not in values and values[0] != values[1]:
                shown = name.removesuffix("_bits")
                return step, shown, (left[step].get(shown), right[step].get(shown))
    return None


def _tensors(record: RunRecord, lines: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, str]]:
    """Return the digests that a run has, by step and tensor, from its lines and its checkpoints."""
    found = {step: dict(line["tensors"]) for step, line in lines.items() if line.get("tensors")}
    for _, manifest in record.checkpoints():
        known = found.setdefault(manifest.step, {})
        for name, entry in manifest.tensors.items():
            known.setdefault(name, entry.digest)
    return found


def _first_tensor(left: Mapping[str, str], right: Mapping[str, str]) -> str | None:
    """Return the first tensor of both, in the order in which the left run names them, whose digests differ."""
    return next((name for name in left if name in right and left[name] != right[name]), None)


@dataclass(frozen=True, slots=True)
class EqualPrefix:
    """How far two runs are the same training, bit for bit."""

    step: int
    """The last step up to which nothing differs; 0 where already the first one does."""
    weights: int
    """Steps up to there at which both took a digest of the weights; the others are equal in loss and gradient norm."""
    parts: bool
    """Whether a step that both have differs after it; otherwise one of them just ends there."""


def equal_prefix(left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> EqualPrefix:
    """Return up to which step two runs are equal, from their lines; digests count where both have one."""
    lines = ({line["step"]: line for line in left}, {line["step"]: line for line in right})
    last = weights = 0
    for step in sorted(lines[0].keys() | lines[1].keys()):
        if step not in lines[0] or step not in lines[1]:
            return EqualPrefix(last, weights, parts=False)
        pairs = [(lines[0][step].get(name), lines[1][step].get(name)) for name in _FIELDS]
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            return EqualPrefix(last, weights, parts=True)
        last, weights = step, weights + (None not in pairs[-1])
    return EqualPrefix(last, weights, parts=False)
