import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.training.metrics.test_sinks import LINE

from weft.training.metrics.sinks import Sinks


class Wandb(ModuleType):
    """What a run calls of the package `wandb`."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.opened: list[dict[str, Any]] = []
        self.lines: list[tuple[dict[str, float], int]] = []

    def init(self, **options: Any) -> Any:
        self.opened.append(options)
        return SimpleNamespace(log=lambda values, step: self.lines.append((values, step)), finish=lambda: None)


class Mlflow(ModuleType):
    """What a run calls of the package `mlflow`."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.opened: list[str | None] = []
        self.lines: list[tuple[dict[str, float], int]] = []

    def start_run(self, run_id: str | None, run_name: str | None) -> Any:
        assert (run_id is None) != (run_name is None)
        self.opened.append(run_id)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "made"))

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.lines.append((values, step))

    def end_run(self) -> None:
        pass


def fill(folder: Path, name: str, resumed_at: int | None, problems: list[str]) -> None:
    sinks = Sinks.open(folder, resumed_at, problems.append, (name,))
    sinks.step(LINE)
    sinks.evaluation(LINE.step, {"held_out_loss": 2.5})
    sinks.close()


@pytest.mark.parametrize(("name", "fake"), [("wandb", Wandb), ("mlflow", Mlflow)])
def test_a_run_that_goes_on_writes_to_the_same_run(
    name: str, fake: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, problems = fake(), list[str]()
    monkeypatch.setitem(sys.modules, name, package)
    for resumed_at in (None, 3):
        fill(tmp_path, name, resumed_at, problems)
    assert problems == []
    assert [step for _, step in package.lines] == [LINE.step] * 4
    assert package.lines[0][0]["loss"] == LINE.loss
    assert package.lines[1][0] == {"evaluation/held_out_loss": 2.5}
    if name == "wandb":
        assert [one["resume"] for one in package.opened] == ["never", "allow"]
        assert package.opened[0]["id"] == package.opened[1]["id"]
    else:
        assert package.opened == [None, "made"]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "elsewhere"])
def test_a_sink_that_is_not_there_is_said_and_stops_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    problems: list[str] = []
    fill(tmp_path, name, None, problems)
    assert len(problems) == 1
    assert name in problems[0]
