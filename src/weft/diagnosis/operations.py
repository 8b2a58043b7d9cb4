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
OperationClass = Literal["compute", "send-receive", "collective", "input", "collector", "other"]

_CLASSES: tuple[tuple[OperationClass, str], ...] = (
    # The first that matches: "backward-recv" is no compute, "optimizer-clip-main-grad" waits for everybody's norm.
    ("send-receive", r"send|recv|receive|p2p"),
    ("collective", r"all.?reduce|reduce.?scatter|all.?gather|all.?to.?all|broadcast|barrier|clip|nccl|grad.?norm|sync"),
    ("collector", r"^gc$|garbage"),
    ("input", r"data|input|batch.?generator|loader|tokeni"),
    ("compute", r"forward|backward|compute|optimizer|loss|matmul|gemm|attention|step"),
)


def operation_class(name: str) -> OperationClass:
    """Return what sort of operation a name stands for."""
    lowered = name.lower()
    return next((found for found, pattern in _CLASSES if re.search(pattern, lowered)), "other")


def is_forward(name: str) -> bool:
    """Return whether a name stands for the computing of a forward pass."""
    return operation_class(name) == "compute" and "forward" in name.lower()


def is_backward(name: str) -> bool:
    """Return whether a name stands for the computing of a backward pass."""
    return operation_class(name) == "compute" and "backward" in name.lower()


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

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rank)


def job_dimensions(operations: Operations) -> str:
    """Return how large the job is, in words."""
    ranks, steps = len(np.unique(operations.rank)), len(np.unique(operations.step))
    replicas, stages = len(np.unique(operations.replica)), len(np.unique(operations.stage))
    return f"{ranks} ranks ({replicas} data-parallel x {stages} pipeline stages), {steps} steps"
