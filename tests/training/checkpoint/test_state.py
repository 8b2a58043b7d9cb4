from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

from weft.core.errors import FailedError, UsageError
from weft.training.checkpoint.manifest import TensorEntry
from weft.training.checkpoint.state import TrainingState, weight_digests
from weft.training.checkpoint.tensor_digests import joint_digest, tensor_digest


def model_of(seed: int = 5) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Counting(torch.optim.Optimizer):
    """Keeps Python values of many types for every parameter, and options that change; each changes the weights."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1, "turns": 0, "mean": torch.zeros(())})

    @override
    def step(self, closure: Any = None) -> Any:
        del closure
        for group in self.param_groups:
            group["turns"] += 1
            group["mean"] = group["mean"] * 0.5 + 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["share"] = state.get("share", 1.0) * 0.75
                state["past"] = [*state.get("past", []), parameter.grad.clone()][-3:]
                state["pair"] = (state["count"] % 2 == 0, "even" if state["count"] % 2 == 0 else None)
                push = 2.0 if state["pair"][0] else 1.0
                size = group["lr"] * state["share"] * push / (state["count"] + group["turns"])
                with torch.no_grad():
                    parameter.sub_(size * group["mean"] * sum(state["past"]))


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam-tensor-rate": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.1)),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
    "asgd": lambda parameters: torch.optim.ASGD(parameters, lr=0.1),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.1),
    "counting": Counting,
}


def steps(model: nn.Module, optimizers: list[Any], first: int, count: int) -> None:
    for number in range(first, first + count):
        inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(number))
        model.zero_grad()
        model(inputs).square().mean().backward()
        for one in optimizers:
            one.step()


def state_of(model: nn.Module, optimizers: list[Any], others: dict[str, Any] | None = None) -> TrainingState:
    return TrainingState(
        list(model.named_parameters()), lambda: dict(model.named_buffers()), optimizers, others or {}
    )  # fmt: skip


def stored(state: TrainingState) -> dict[str, torch.Tensor]:
    return {f"{kind}.{name}": one.clone() for kind, held in state.tensors().items() for name, one in held.items()}


def entries(tensors: dict[str, torch.Tensor]) -> dict[str, TensorEntry]:
    return {
        name: TensorEntry(tuple(one.shape), str(one.dtype).removeprefix("torch."), "") for name, one in tensors.items()
    }


def restore(state: TrainingState, tensors: dict[str, torch.Tensor]) -> None:
    target = state.target(entries(tensors))
    assert target.names() == set(tensors)
    for kind, held in target.tensors.items():
        for name, one in held.items():
            one.copy_(tensors[f"{kind}.{name}"])
    target.install()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 1, 5])
def test_training_goes_on_with_the_same_bits_under_any_optimizer(kind: str, before: int) -> None:
    whole = model_of()
    optimizer = OPTIMIZERS[kind](whole.parameters())
    state = state_of(whole, [optimizer])
    steps(whole, [optimizer], 0, before)
    kept = stored(state)
    steps(whole, [optimizer], before, 4)
    again = model_of(seed=99)
    other = OPTIMIZERS[kind](again.parameters())
    state_again = state_of(again, [other])
    # What it did before it was restored must leave no trace.
    steps(again, [other], 50, 2)
    restore(state_again, kept)
    steps(again, [other], before, 4)
    end, wanted = stored(state_again), stored(state)
    assert end.keys() == wanted.keys()
    assert [name for name in end if not torch.equal(end[name], wanted[name])] == []


def test_several_optimizers_and_a_scheduler_are_one_state() -> None:
    def parts(seed: int) -> tuple[nn.Sequential, list[Any], dict[str, Any]]:
        model = model_of(seed)
        first = torch.optim.AdamW(model[0].parameters(), lr=0.1)
        second = torch.optim.SGD([*model[1].parameters(), *model[2].parameters()], lr=0.01, momentum=0.5)
        return model, [first, second], {"plan": torch.optim.lr_scheduler.ExponentialLR(first, 0.5)}

    model, optimizers, others = parts(1)
    state = state_of(model, optimizers, others)
    steps(model, [*optimizers, *others.values()], 0, 3)
    kept = stored(state)
    steps(model, [*optimizers, *others.values()], 3, 3)
    again, optimizers_again, others_again = parts(2)
    state_again = state_of(again, optimizers_again, others_again)
    restore(state_again, kept)
    assert optimizers_again[0].param_groups[0]["lr"] == pytest.approx(0.1 / 8)
    steps(again, [*optimizers_again, *others_again.values()], 3, 3)
    end, wanted = stored(state_again), stored(state)
    assert [name for name in wanted if not torch.equal(end[name], wanted[name])] == []


def test_every_copy_of_a_shared_matrix_is_restored() -> None:
    def shared(seed: int) -> tuple[TrainingState, list[nn.Parameter], torch.optim.Optimizer]:
        torch.manual_seed(seed)
        first = nn.Parameter(torch.randn(3, 2))
        ends = [first, nn.Parameter(first.detach().clone())]
        optimizer = torch.optim.AdamW(ends, lr=0.1)
        return TrainingState([("embed", ends[0]), ("embed", ends[1])], dict, [optimizer]), ends, optimizer

    state, ends, optimizer = shared(1)
    for one in ends:
        one.grad = torch.ones_like(one)
    optimizer.step()
    kept = stored(state)
    again, ends_again, optimizer_again = shared(2)
    restore(again, kept)
    for one in ends_again:
        assert torch.equal(one, ends[0])
        assert torch.equal(optimizer_again.state[one]["exp_avg"], optimizer.state[ends[0]]["exp_avg"])
    # Each has memory of its own, or one step would be counted twice.
    optimizer_again.state[ends_again[0]]["exp_avg"].fill_(7)
    assert not torch.equal(*(optimizer_again.state[one]["exp_avg"] for one in ends_again))


def test_restoring_changes_nothing_before_it_is_installed() -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    state = state_of(model, [optimizer])
    steps(model, [optimizer], 0, 2)
    kept = stored(state)
    optimizer.state.clear()
    state.target(entries(kept))
    assert stored(state).keys() == {name for name in kept if not name.startswith("optimizer.")}


def test_the_state_shares_memory_with_the_training() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps(model, [optimizer], 0, 1)
    found = state_of(model, [optimizer]).tensors()
    assert sorted(found) == ["buffers", "model", "optimizer"]
    found["optimizer"]["0.weight.momentum_buffer"].fill_(3)
    weight = next(model.parameters())
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], torch.full_like(weight, 3))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda kept: kept.pop("model.0.bias"), "model.0.bias is not in it"),
        (lambda kept: kept.pop("buffers.1.running_mean"), "running_mean is not in it"),
        (lambda kept: kept.update({"model.0.bias": torch.zeros(5)}), r"model.0.bias is float32 \(5,\) in it"),
        (lambda kept: kept.update({"model.0.bias": torch.zeros(4, dtype=torch.float64)}), "is float64"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: Callable[[dict[str, torch.Tensor]], Any], said: str) -> None:
    model = model_of()
    state = state_of(model, [])
    kept = stored(state)
    change(kept)
    with pytest.raises(FailedError, match=said):
        state.target(entries(kept))


def test_a_state_of_something_else_than_the_models_parameters_is_refused() -> None:
    model, stranger = model_of(), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*model.parameters(), stranger], lr=0.1, momentum=0.9)
    stranger.grad = torch.ones(2)
    steps(model, [optimizer], 0, 1)
    with pytest.raises(UsageError, match="no parameter of the attached model"):
        state_of(model, [optimizer]).tensors()


def test_weights_have_the_digests_of_their_tensors_by_name() -> None:
    model = model_of()
    found = weight_digests(lambda: list(model.named_parameters()), lambda _: True)
    assert found == {name: tensor_digest(one) for name, one in sorted(model.named_parameters())}
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    changed = weight_digests(lambda: list(model.named_parameters()), lambda _: True)
    assert [name for name in found if found[name] != changed[name]] == ["0.weight"]
    assert joint_digest(found) != joint_digest(changed)


def test_copies_that_do_not_stand_for_their_shard_add_nothing() -> None:
    model = model_of()
    assert weight_digests(lambda: list(model.named_parameters()), lambda _: False) == {}
    assert joint_digest({}) == joint_digest({})
    assert joint_digest({"a": "0"}) != joint_digest({"b": "0"})
