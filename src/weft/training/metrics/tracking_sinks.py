"""Weights & Biases and MLflow as places where metrics go, where a job names them in `sinks`.

Neither is a dependency: the package is imported when a run opens, and where it keeps things follows from its own
settings. A run that goes on writes to the same run there; lines of steps that are done again are written again.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.training.metrics.step_line import StepLine

_MLFLOW_RUN = "mlflow-run"


def scalars_of(line: StepLine) -> dict[str, float]:
    """Return the figures of one step by name: loss, gradient norm, learning rate, tokens per second, seconds."""
    wall = sum(line.seconds.values())
    found = {"loss": line.loss, "gradient norm": line.grad_norm, "learning rate": line.learning_rate}
    found |= {"tokens per second": line.tokens / wall} if wall > 0 else {}
    return found | {f"seconds/{kind}": seconds for kind, seconds in line.seconds.items()}


class WandbSink:
    """Writes to a run of Weights & Biases that has the name of ours."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """Open the run, or go on with it."""
        wandb: Any = importlib.import_module("wandb")
        how = "never" if resumed_at is None else "allow"
        self._run = wandb.init(id=_unique(folder), name=folder.name, dir=str(folder), resume=how)

    def step(self, line: StepLine) -> None:
        """Write one step."""
        self._run.log(scalars_of(line), step=line.step)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write one evaluation, by the number of its step."""
        self._run.log({f"evaluation/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


class MlflowSink:
    """Writes to a run of MLflow whose id stands in the run folder."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """Open the run, or go on with it."""
        self._mlflow: Any = importlib.import_module("mlflow")
        note = folder / _MLFLOW_RUN
        known = note.read_text() if resumed_at is not None and note.is_file() else None
        run = self._mlflow.start_run(run_id=known, run_name=None if known else folder.name)
        note.write_text(run.info.run_id)

    def step(self, line: StepLine) -> None:
        """Write one step."""
        self._mlflow.log_metrics(scalars_of(line), step=line.step)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write one evaluation, by the number of its step."""
        self._mlflow.log_metrics({f"evaluation/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """End the run there."""
        self._mlflow.end_run()


def _unique(folder: Path) -> str:
    """Return an id that a run folder keeps, and no other one has."""
    note = folder / "wandb-run"
    if not note.is_file():
        note.write_text(f"{folder.name}-{folder.stat().st_ino:x}-{folder.stat().st_ctime_ns:x}")
    return note.read_text()


TRACKERS = {"wandb": WandbSink, "mlflow": MlflowSink}
"""The sinks that a job has to name, since they write outside the run folder."""
