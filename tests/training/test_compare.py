from collections.abc import Mapping
from pathlib import Path

import torch

from weft.specs import load_job
from weft.training.checkpoint.store import CheckpointStore
from weft.training.compare import compare
from weft.training.metrics.step_line import StepLine
from weft.training.run_dir import RunDir, RunRecord

JOB = load_job("tiny-gpt")


def made(root: Path, losses: Mapping[int, float], tensors: Mapping[int, Mapping[str, str]] | None = None) -> RunRecord:
    with RunDir.start(root, JOB) as run:
        for step, loss in losses.items():
            run.step(StepLine(step, loss, 1.0, 1e-3, 10, {"compute": 1.0}, tensors=(tensors or {}).get(step, {})))
    return RunRecord(run.folder)


def test_a_run_equals_its_repetition_whatever_time_it_took(tmp_path: Path):
    found = compare(made(tmp_path, {1: 2.0, 2: float("nan")}), made(tmp_path, {1: 2.0, 2: float("nan")}))
    assert found.equal
    assert found.steps_compared == 2


def test_the_last_bit_of_a_loss_counts(tmp_path: Path):
    found = compare(made(tmp_path, {1: 2.0, 2: 0.3, 3: 9.0}), made(tmp_path, {1: 2.0, 2: 0.1 + 0.2, 3: 8.0}))
    assert not found.equal
    assert (found.step, found.differs) == (2, "loss")
    assert found.values == (0.3, 0.1 + 0.2)
    assert found.tensor is None


def test_a_missing_step_is_a_difference(tmp_path: Path):
    found = compare(made(tmp_path, {1: 2.0, 2: 1.0}), made(tmp_path, {1: 2.0}))
    assert (found.equal, found.step, found.differs, found.values) == (False, 2, "missing", (True, False))


def test_the_first_tensor_is_named_in_the_order_of_the_model(tmp_path: Path):
    digests = {"layers.2": "aa", "layers.10": "bb"}
    left = made(tmp_path, {1: 1.0}, {1: digests})
    right = made(tmp_path, {1: 1.0}, {1: {"layers.2": "ab", "layers.10": "bc"}})
    found = compare(left, right)
    assert (found.step, found.differs, found.tensor, found.values) == (1, "tensor", "layers.2", ("aa", "ab"))
    assert found.tensors_compared == 2


def test_checkpoints_name_the_tensor_too(tmp_path: Path):
    left, right = made(tmp_path, {1: 1.0, 2: 1.0}), made(tmp_path, {1: 1.0, 2: 1.0})
    for record, value in ((left, 1.0), (right, 2.0)):
        state = {"model": {"b": torch.ones(2), "a": torch.full((2,), value)}}
        CheckpointStore(record.folder / "checkpoints").save(2, state, {}).wait()
    found = compare(left, right)
    assert (found.equal, found.step, found.tensor, found.tensor_step) == (False, 2, "model.a", 2)
    assert found.tensors_compared == 2
    assert compare(left, left).equal
