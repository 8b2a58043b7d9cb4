"""A metrics sink: one line of CSV for each step, in the run's folder."""

import csv
from collections.abc import Mapping
from pathlib import Path

from weft.training.metrics.step_line import StepLine


class CsvSink:
    """Writes steps as they come."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """Write to `path`, behind what is there when a run goes on."""
        self._file = path.open("a" if append else "w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        if not append:
            self._writer.writerow(["step", "loss", "tokens"])

    def step(self, line: StepLine) -> None:
        """Take one step."""
        self._writer.writerow([line.step, line.loss, line.tokens])

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Leave evaluations out: they have no column here."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_sink(folder: Path, resumed_at: int | None) -> CsvSink:
    """Open the sink of the run in `folder`; `resumed_at` is the step it goes on from, if it does."""
    return CsvSink(folder / "metrics.csv", append=resumed_at is not None)
