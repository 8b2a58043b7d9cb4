import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.ranks import job_of
from torch import nn

import weft
from weft.core.errors import FailedError, UsageError
from weft.training.run_dir import RunRecord
from weft.training.session import Session


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Session]:
    made = weft.start(job_of(tmp_path, steps=2), folder=tmp_path)
    yield made
    made.close()


def attached(run: Session) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.attach(model, optimizer)
    return model, optimizer


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def test_importing_weft_loads_no_torch():
    code = "import sys, weft; assert 'torch' not in sys.modules; assert weft.load_job"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_exists():
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        weft.__getattr__("nonsense")


def test_the_sum_is_the_mean_gradient_and_the_schedule_sets_the_rate(run: Session):
    model, optimizer = attached(run)
    for step in run.steps():
        batches = list(step.micro_batches())
        wanted = torch.autograd.grad(
            torch.stack([loss_of(model, one) for one in batches]).mean(), list(model.parameters())
        )
        for order, tokens in enumerate(batches):
            step.open_leaf(order)
            loss = loss_of(model, tokens)
            loss.backward()
            step.add(loss)
        step.reduce()
        norm = float(torch.cat([one.flatten() for one in wanted]).norm())
        assert step.gradient_norm == pytest.approx(norm, rel=1e-5)
        clipped = min(1.0, 1.0 / norm)
        for parameter, gradient in zip(model.parameters(), wanted, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, gradient * clipped, rtol=1e-4, atol=1e-7)
        # The job's schedule scales the group's own rate of 0.1; the job's is 0.01.
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * step.learning_rate / 0.01)
        optimizer.step()
        run.finish(step)


def test_a_parameter_without_a_gradient_counts_as_zero(run: Session):
    model = nn.ModuleDict({"used": nn.Embedding(256, 256), "idle": nn.Linear(3, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.attach(model, optimizer)
    step = next(run.steps())
    for tokens in step.micro_batches():
        loss = loss_of(model["used"], tokens)
        loss.backward()
        step.add(loss)
    step.reduce()
    for parameter in model["idle"].parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_a_checkpoint_that_cannot_be_written_is_told_and_ends_no_step(tmp_path: Path):
    told: list[Mapping[str, Any]] = []
    job = job_of(tmp_path, steps=2, checkpoint={"every": 1, "patience": "1 ms"})
    run = weft.start(job, folder=tmp_path, on_step=told.append)
    (run.folder / "checkpoints").write_text("in the way")
    model, optimizer = attached(run)
    for step in run.steps():
        for tokens in step.micro_batches():
            loss = loss_of(model, tokens)
            loss.backward()
            step.add(loss)
        step.reduce()
        optimizer.step()
        run.finish(step)
    with pytest.raises(FailedError, match=r"not finished: .*the checkpoint of step 2 was not written"):
        run.close()
    assert RunRecord(run.folder).state() != "finished"
    assert [line["step"] for line in told if "step" in line] == [1, 2]
    assert ["step 1 was not written" in line["problem"] for line in told if "problem" in line] == [True, False]


def test_a_finished_run_that_is_resumed_says_the_same_again(tmp_path: Path):
    results = []
    for _ in range(2):
        run = weft.start(job_of(tmp_path, steps=1), folder=tmp_path, resume=True)
        model, optimizer = attached(run)
        for step in run.steps():
            for tokens in step.micro_batches():
                loss = loss_of(model, tokens)
                loss.backward()
                step.add(loss)
            step.reduce()
            optimizer.step()
            run.finish(step)
        results.append(run.close())
    same = ("run", "state", "steps", "final_loss", "weights_digest", "tokens_per_s")
    assert [results[0][key] for key in same] == [results[1][key] for key in same]


def test_steps_need_a_model(run: Session):
    with pytest.raises(UsageError, match="attach"):
        next(run.steps())


def test_a_micro_batch_that_was_not_added_is_missed(run: Session):
    model, _ = attached(run)
    step = next(run.steps())
    tokens = next(step.micro_batches())
    loss = loss_of(model, tokens)
    loss.backward()
    step.add(loss)
    with pytest.raises(UsageError, match="8 micro-batches on this rank and 1 were added"):
        step.reduce()


def test_a_step_that_was_not_reduced_cannot_be_finished(run: Session):
    attached(run)
    step = next(run.steps())
    with pytest.raises(UsageError, match=r"step\.reduce"):
        run.finish(step)


def test_a_module_of_ones_own_is_not_cut_silently(tmp_path: Path, run: Session):
    run.mesh.layout.__dict__["plan"] = run.mesh.plan.model_copy(update={"tp": 2})
    with pytest.raises(UsageError, match="tp = 2, which only the built-in model"):
        attached(run)
    run.mesh.layout.__dict__["plan"] = run.mesh.plan.model_copy(update={"tp": 1})
    attached(run)
