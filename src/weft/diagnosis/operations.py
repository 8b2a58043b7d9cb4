"""Operations of a job as columns: who did what in which step, from when on and for how long.

The form in which every timing of ranks is diagnosed, wherever it comes from. Names of operations are those of the
program that was measured; `operation_class` sorts them. This module does not read files.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
OperationClass = Literal["compute", "send-receive", "collective", "input", "collector", "other"]

_CLASSES: tuple[tuple[OperationClass, str], ...] = (
    # The first that matches: "backward-recv" is no compute, "optimizer-clip-main-grad" waits for everybody's norm.
    ("send-receive", r"send|recv|receive|p2p|pp.?comm|transfer"),
    ("collective", r"reduce|all.?gather|all.?to.?all|broadcast|barrier|clip|nccl|grad.?norm|sync"),
    ("collector", r"^gc$|garbage"),
    ("input", r"data|input(?!.?grad)|batch.?generator|next.?batch|get.?batch|load.?batch|loader|tokeni"),
    ("compute", r"forward|backward|fwd|bwd|wgrad|dgrad|compute|optimi[sz]er|loss|matmul|gemm|attention|step|kernel"),
)
# Schedules are drawn with F, B and W (also I for the half of B that the stage before waits for): "F3", "b_12".
_FORWARD = re.compile(r"^(?:f|.*(?:forward|fwd).*)(?:[\W_]*\d+)*$")
_BACKWARD = re.compile(r"^(?:b|w|i|.*(?:backward|bwd|wgrad|dgrad).*)(?:[\W_]*\d+)*$")


def operation_class(name: str) -> OperationClass:
    """Return what sort of operation a name stands for."""
    lowered = name.lower()
    found: OperationClass = next((kind for kind, pattern in _CLASSES if re.search(pattern, lowered)), "other")
    # "backward-input" is the half of a backward pass that goes on to the stage before; no other input is computed.
    if found in {"other", "input"} and (_FORWARD.match(lowered) or _BACKWARD.match(lowered)):
        return "compute"
    return found


def is_own_work(name: str) -> bool:
    """Return whether a rank does this by itself, and waits for no other: what it is compared with its peers by."""
    return operation_class(name) in {"compute", "collector", "input", "other"}


def is_forward(name: str) -> bool:
    """Return whether a name stands for the computing of a forward pass."""
    return operation_class(name) == "compute" and _FORWARD.match(name.lower()) is not None


def is_backward(name: str) -> bool:
    """Return whether a name stands for the computing of a backward pass."""
    return operation_class(name) == "compute" and _BACKWARD.match(name.lower()) is not None


@dataclass(frozen=True)
class Operations:
    """Operations, one in a row. `rank` names who measured; `replica` and `stage` say where it sits in the job."""

    rank: Ints
    replica: Ints
    stage: Ints
    step: Ints
    name: NDArray[np.int64]
    """Index into `names`."""
    start_s: Floats
    duration_s: Floats
    micro_batch: Ints
    """Micro-batch, -1 where an operation has none."""
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Hold the columns to one length."""
        lengths = {len(getattr(self, key)) for key in ("rank", "replica", "stage", "step", "name", "start_s")}
        assert len(lengths) == 1, f"columns of different lengths {lengths}"

    def chosen(self, kept: Mask) -> "Operations":
        """Return some of the rows."""
        return Operations(
            self.rank[kept], self.replica[kept], self.stage[kept], self.step[kept], self.name[kept],
            self.start_s[kept], self.duration_s[kept], self.micro_batch[kept], self.names,
        )  # fmt: skip

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rank)


def job_dimensions(operations: Operations) -> str:
    """Return how large the job is, in words."""
    ranks, steps = len(np.unique(operations.rank)), len(np.unique(operations.step))
    replicas, stages = len(np.unique(operations.replica)), len(np.unique(operations.stage))
    return f"{ranks} ranks ({replicas} data-parallel x {stages} pipeline stages), {steps} steps"
