from collections.abc import Mapping
from pathlib import Path

import pytest

from weft.core import plugins
from weft.training.metrics import sinks
from weft.training.metrics.sinks import GROUP, Sinks, tensorboard
from weft.training.metrics.step_line import StepLine


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_every_number(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = tensorboard(tmp_path)
    assert sink is not None
    for step in (1, 2):
        sink.step(StepLine(step, 3.0 / step, 1.0, 1e-3, 100, {"compute": 1.5, "idle": 0.5}))
    sink.evaluation(2, {"held_out_loss": 2.0})
    sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(1, 3.0), (2, 1.5)]
    assert events.Scalars("tokens per second")[0].value == 50.0
    assert events.Scalars("seconds/compute")[0].value == 1.5
    assert events.Scalars("evaluation/held_out_loss")[0].value == 2.0


LINE = StepLine(1, 2.0, 1.0, 1e-3, 100, {"compute": 1.0})


class Collecting:
    """A sink that keeps what it gets, and fails where it is asked to."""

    def __init__(self, fails_at: str = "") -> None:
        self.got: list[object] = []
        self._fails_at = fails_at

    def _take(self, what: str, value: object) -> None:
        if what == self._fails_at:
            raise OSError("the sink is gone")
        self.got.append(value)

    def step(self, line: StepLine) -> None:
        self._take("step", line.step)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        self._take("evaluation", (step, dict(values)))

    def close(self) -> None:
        self._take("close", "closed")


def fed(made: Sinks) -> None:
    made.step(LINE)
    made.evaluation(1, {"loss": 2.0})
    made.step(LINE)
    made.close()


def test_every_sink_gets_everything_in_order():
    one, two = Collecting(), Collecting()
    fed(Sinks({"one": one, "two": two}, pytest.fail))
    assert one.got == two.got == [1, (1, {"loss": 2.0}), 1, "closed"]


@pytest.mark.parametrize(("fails_at", "before"), [("step", 0), ("evaluation", 1), ("close", 3)])
def test_a_sink_that_fails_is_reported_once_and_left_out_and_the_others_go_on(fails_at: str, before: int):
    bad, good = Collecting(fails_at), Collecting()
    told: list[str] = []
    fed(Sinks({"bad": bad, "good": good}, told.append))
    assert told == ["metrics no longer go to bad: OSError('the sink is gone')"]
    assert len(bad.got) == before
    assert good.got == [1, (1, {"loss": 2.0}), 1, "closed"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Stand in for distributions that provide sinks, and leave TensorBoard out."""
    found: dict[str, object] = {}
    monkeypatch.setattr(plugins, "names", lambda group: tuple(found) if group == GROUP else ())
    monkeypatch.setattr(plugins, "entry_point", lambda group, name: found[name] if group == GROUP else None)
    monkeypatch.setattr(sinks, "tensorboard", lambda folder, resumed_at: None)
    return found


def test_installed_sinks_are_opened_for_the_run(installed: dict[str, object], tmp_path: Path):
    asked: list[object] = []
    mine = Collecting()

    def opened(folder: Path, resumed_at: int | None) -> Collecting:
        asked.append((folder, resumed_at))
        return mine

    installed.update(mine=opened, nothing=lambda folder, resumed_at: None)
    fed(Sinks.open(tmp_path, 7, pytest.fail))
    assert asked == [(tmp_path, 7)]
    assert mine.got[0] == 1


def test_a_sink_that_cannot_be_opened_stops_nothing(installed: dict[str, object], tmp_path: Path):
    def opened(folder: Path, resumed_at: int | None) -> Collecting:
        raise PermissionError("no key")

    good = Collecting()
    installed.update(bad=opened, good=lambda folder, resumed_at: good)
    told: list[str] = []
    fed(Sinks.open(tmp_path, None, told.append))
    assert told == ["metrics no longer go to bad: PermissionError('no key')"]
    assert good.got[-1] == "closed"
