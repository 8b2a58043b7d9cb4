"""Where metrics go besides the run folder: optional, each behind the same three words.

TensorBoard is the one that ships. A sink that is not installed is simply not there; a sink never stops a training.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from weft.training.run_dir import StepLine

TENSORBOARD = "tensorboard"


class Sink(Protocol):
    """Takes the numbers of a run as they come."""

    def step(self, line: StepLine) -> None:
        """Take one step."""
        ...

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Take one evaluation."""
        ...

    def close(self) -> None:
        """Write out what is left."""
        ...


class TensorBoard:
    """Writes event files that TensorBoard shows."""

    def __init__(self, writer: Any) -> None:
        """Write with torch's `SummaryWriter`."""
        self._writer = writer

    def step(self, line: StepLine) -> None:
        """Write loss, gradient norm, learning rate, tokens per second and the shares of time."""
        wall = sum(line.seconds.values())
        scalars = {
            "loss": line.loss,
            "gradient norm": line.grad_norm,
            "learning rate": line.learning_rate,
            **({"tokens per second": line.tokens / wall} if wall > 0 else {}),
            **{f"seconds/{kind}": seconds for kind, seconds in line.seconds.items()},
        }
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, line.step)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write the results under "evaluation"."""
        for name, value in values.items():
            self._writer.add_scalar(f"evaluation/{name}", value, step)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def tensorboard(folder: Path, resumed_at: int | None = None) -> TensorBoard | None:
    """Return a TensorBoard sink that writes below the run folder, or nothing where TensorBoard is not installed.

    `resumed_at` tells TensorBoard to forget what it showed of later steps.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    purge = None if resumed_at is None else resumed_at + 1
    return TensorBoard(SummaryWriter(str(folder / TENSORBOARD), purge_step=purge))
