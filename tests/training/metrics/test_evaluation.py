import pytest
import torch
from torch import nn

from weft.core.errors import UsageError
from weft.training.metrics.evaluation import Evaluations, held_out_loss
from weft.training.metrics.peak import measure_peak


def squared(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - targets).square().mean()


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((2, 3), float(n)), torch.zeros(2, 1)) for n in range(4)]


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5))


def test_the_held_out_loss_is_the_mean_without_dropout():
    model = small()
    evaluations = Evaluations(every=10)
    evaluations.add("held_out_loss", held_out_loss(batches, squared))
    found = evaluations.run(model, 10)
    model.eval()
    wanted = [squared(model, *batch).item() for batch in batches()]
    assert found == {"held_out_loss": sum(wanted) / 4}


def test_evaluating_leaves_no_trace_in_the_training():
    model = small()
    model[0].eval()
    evaluations = Evaluations(every=1)

    def rude(model: nn.Module, step: int) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        return {"mean": torch.rand(5).mean().item(), "step": step}

    evaluations.add("mine", rude)
    torch.manual_seed(5)
    found = evaluations.run(model, 3)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), after)
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    assert found.keys() == {"mine.mean", "mine.step"}
    assert found["mine.step"] == 3.0


def test_the_modes_come_back_when_an_evaluation_fails():
    model = small()
    evaluations = Evaluations(every=1)
    evaluations.add("held_out_loss", held_out_loss(list, squared))
    with pytest.raises(UsageError, match="no held-out data"):
        evaluations.run(model, 1)
    assert model.training


def test_when_it_is_due():
    assert [step for step in range(7) if Evaluations(every=3).due(step)] == [3, 6]
    assert not any(Evaluations(every=0).due(step) for step in range(7))


def test_a_name_is_taken_once():
    evaluations = Evaluations()
    evaluations.add("a", held_out_loss(batches, squared))
    with pytest.raises(UsageError, match="already an evaluation called 'a'"):
        evaluations.add("a", held_out_loss(batches, squared))


def test_the_peak_of_this_machine_is_a_speed():
    speed = measure_peak(torch.device("cpu"), torch.float32, size=128, round_ns=1_000_000)
    assert 10**7 < speed < 10**14
