"""What can be written in a `faults` file: things that go wrong in a training on purpose, when and where.

A file names a seed and a list of faults; what a fault leaves open (rank, step, tensor, bit) is drawn from the seed, so
a file breaks a run in the same way every time. `resolved` fills the gaps and refuses what the job does not have.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from weft.core.errors import UsageError
from weft.core.seeds import Seed, mix
from weft.core.spec import Check, Duration, Spec
from weft.core.units import Picoseconds

FaultKind = Literal[
    "kill", "stop", "slow", "flip", "nan", "full-disk", "lose-store", "lose-rank", "lose-node", "return",
    "plane-down", "drop-link", "slow-input",
]  # fmt: skip
Place = Literal["weights", "optimizer", "gradients", "reduced", "activations", "checkpoint", "snapshot"]

_ON_A_RANK = ("kill", "stop", "slow", "slow-input", "nan", "lose-rank", "full-disk", "plane-down", "drop-link")
ON_THE_WIRE = ("plane-down", "drop-link")
"""Kinds that only a backend with planes can suffer."""
_NOW = Picoseconds(0)


def _when(fault: Any) -> str | None:
    return "a fault happens at a step or at a time; write one of them" if fault.step and fault.at else None


def _needs_place(fault: Any) -> str | None:
    if fault.kind == "flip" and fault.place is None:
        return 'a flip needs a place; add place = "weights", for instance'
    if fault.kind not in ("flip", "nan") and fault.place is not None:
        return f"a fault of kind {fault.kind!r} has no place; only a flip or a nan has"
    if fault.kind == "nan" and fault.place in ("checkpoint", "snapshot"):
        return 'a nan arises in a running rank; write place = "gradients", for instance'
    return None


def _target(fault: Any) -> str | None:
    if fault.kind == "lose-node" and fault.node is None:
        return "a lost node needs its number; add node = 0"
    if fault.node is not None and fault.kind not in ("lose-node", "return", "flip"):
        return f"a fault of kind {fault.kind!r} is on a rank, not on a node; write rank = {fault.node}"
    return None


def _wire(fault: Any) -> str | None:
    if fault.kind in ON_THE_WIRE or fault.plane is None:
        return None
    return f"a fault of kind {fault.kind!r} has no plane; only plane-down and drop-link have"


class RunFaultSpec(Spec):
    """Something that goes wrong in a training, once or for good."""

    kind: FaultKind
    """kill (SIGKILL), stop (SIGSTOP), slow, flip (a bit), nan, full-disk (checkpoints cannot be written), lose-store
    (all checkpoints are gone), lose-rank and lose-node (hardware with its memory), return (lost hardware is back),
    plane-down (a rank's link to one plane dies silently), drop-link (it loses a share of its packets) and slow-input (a
    rank waits for its batch); plane-down and drop-link need backend = "mrc"."""
    rank: Annotated[int, Field(ge=0)] | None = None
    """Which rank; drawn where absent."""
    node: Annotated[int, Field(ge=0)] | None = None
    """Which failure domain, for lose-node, return, and flips in snapshots."""
    step: Annotated[int, Field(ge=1)] | None = None
    """In which step, counted from 1; drawn where both this and `at` are absent."""
    at: Duration | None = None
    """When, counted from the start of the run."""
    after: Duration = _NOW
    """How long after the beginning of that step."""
    place: Place | None = None
    """Where a bit flips or a NaN arises: gradients are those before the reduction, reduced those after it."""
    tensor: str | None = None
    """Name of the tensor, as the model has it; drawn where absent."""
    bit: Annotated[int, Field(ge=0, lt=64)] | None = None
    """Which bit of an element; drawn where absent."""
    sticky: bool = False
    """Whether it comes again in every later step: a broken part instead of a stray particle."""
    factor: Annotated[float, Field(gt=1, le=1000)] = 5.0
    """How many times slower a slow rank computes, or how much longer a step is whose rank waits for its batch."""
    lasts: Annotated[int, Field(ge=1)] | None = None
    """For how many steps a rank or its input is slow, or a plane down; for good where absent."""
    plane: Annotated[int, Field(ge=0, lt=16)] | None = None
    """Which plane goes down or loses packets; drawn where absent."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Which share of its packets a bad link loses."""
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    """How many times, each drawn anew where rank and step are left open."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("step", "at"), _when),
        Check(("place", "kind"), _needs_place),
        Check(("node", "kind"), _target),
        Check(("plane", "kind"), _wire),
    )


class FaultsSpec(Spec):
    """A faults file."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Root of everything that faults leave open."""
    faults: tuple[RunFaultSpec, ...] = Field((), strict=False)
    """What goes wrong."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault with nothing left open."""

    number: int
    """Its place in the list."""
    kind: FaultKind
    """What happens."""
    rank: int | None
    """Which rank, where one is meant."""
    node: int | None
    """Which failure domain, where one is meant."""
    step: int | None
    """In which step, counted from 1."""
    at_ps: Picoseconds | None
    """When, where no step is named."""
    after_ps: Picoseconds
    """How long after the beginning of the step."""
    place: Place | None
    """Where."""
    tensor: str | None
    """Which tensor; drawn by `word` where it is not named."""
    word: int
    """64 bits that draw tensor, element and bit."""
    bit: int | None
    """Which bit, where it is named."""
    sticky: bool
    """Whether it comes again."""
    factor: float
    """How much slower."""
    lasts: int | None
    """For how many steps."""
    plane: int | None = None
    """Which plane, where it is named; drawn by `word` where it is not."""
    share: float = 0.05
    """Which share of packets is lost."""


def resolved(spec: FaultsSpec, *, ranks: int, nodes: int, steps: int) -> tuple[Fault, ...]:
    """Return every fault with its gaps filled; raises where one names what a job of this size does not have."""
    found: list[Fault] = []
    for index, fault in enumerate(spec.faults):
        _refuse(index, fault, ranks=ranks, nodes=nodes, steps=steps)
        for turn in range(fault.count):
            word = Seed(spec.seed).branch("fault", index, turn).word()
            rank, step = fault.rank, fault.step
            if rank is None and (fault.kind in _ON_A_RANK or _in_a_rank(fault)):
                rank = mix(word, 1) % ranks
            if step is None and fault.at is None:
                step = 1 + mix(word, 2) % steps
            found.append(
                Fault(
                    len(found), fault.kind, rank, fault.node, step, fault.at, fault.after, fault.place, fault.tensor,
                    mix(word, 3), fault.bit, fault.sticky, fault.factor, fault.lasts, fault.plane, fault.share,
                )
            )  # fmt: skip
    return tuple(found)


def refuse_planes(spec: FaultsSpec, backend: str) -> None:
    """Refuse faults of planes where the job's backend has none."""
    for index, fault in enumerate(spec.faults):
        if fault.kind in ON_THE_WIRE and backend != "mrc":
            raise UsageError(f'fault {index + 1} ({fault.kind}) needs planes; set backend = "mrc" in the job')


def _in_a_rank(fault: RunFaultSpec) -> bool:
    return fault.kind == "flip" and fault.place not in ("checkpoint", "snapshot")


def _refuse(index: int, fault: RunFaultSpec, *, ranks: int, nodes: int, steps: int) -> None:
    head = f"fault {index + 1} ({fault.kind})"
    if fault.rank is not None and fault.rank >= ranks:
        raise UsageError(f"{head} names rank {fault.rank}, but the job has ranks 0 to {ranks - 1}")
    if fault.node is not None and fault.node >= nodes:
        raise UsageError(f"{head} names node {fault.node}, but the job has nodes 0 to {nodes - 1}")
    if fault.step is not None and fault.step > steps:
        raise UsageError(f"{head} names step {fault.step}, but the job has steps 1 to {steps}")
