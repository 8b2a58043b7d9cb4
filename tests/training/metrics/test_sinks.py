from pathlib import Path

import pytest

from weft.training.metrics.sinks import tensorboard
from weft.training.metrics.step_line import StepLine

pytest.importorskip("tensorboard")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_every_number(tmp_path: Path):
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
