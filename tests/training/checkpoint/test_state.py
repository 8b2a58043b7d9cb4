import pytest
import torch
from torch import nn

from weft.training.checkpoint.state import make_optimizer_state, state_of, weight_digests
from weft.training.checkpoint.tensor_digests import joint_digest, tensor_digest


def model_of() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam-tensor-rate": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.1)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_making_the_optimizers_tensors_changes_no_weight_and_no_rate(kind: str):
    model = model_of()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    optimizer = OPTIMIZERS[kind](model.parameters())
    make_optimizer_state(optimizer)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
        assert optimizer.state[parameter]
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)


def test_the_state_shares_memory_with_the_training():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    make_optimizer_state(optimizer)
    state = state_of(lambda: list(model.named_parameters()), {"seen": torch.zeros(1)}, optimizer)
    assert sorted(state) == ["buffers", "model", "optimizer"]
    assert "0.weight.momentum_buffer" in state["optimizer"]
    state["model"]["0.weight"].fill_(7)
    state["optimizer"]["0.weight.momentum_buffer"].fill_(3)
    weight = next(model.parameters())
    assert torch.equal(weight, torch.full_like(weight, 7))
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], torch.full_like(weight, 3))


def test_without_optimizer_and_buffers_there_are_only_weights():
    model = model_of()
    assert sorted(state_of(lambda: list(model.named_parameters()), {}, None)) == ["model"]


def test_weights_have_the_digests_of_their_tensors_by_name():
    model = model_of()
    found = weight_digests(lambda: list(model.named_parameters()), lambda _: True)
    assert found == {name: tensor_digest(one) for name, one in sorted(model.named_parameters())}
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    changed = weight_digests(lambda: list(model.named_parameters()), lambda _: True)
    assert [name for name in found if found[name] != changed[name]] == ["0.weight"]
    assert joint_digest(found) != joint_digest(changed)


def test_copies_that_do_not_stand_for_their_shard_add_nothing():
    model = model_of()
    assert weight_digests(lambda: list(model.named_parameters()), lambda _: False) == {}
    assert joint_digest({}) == joint_digest({})
    assert joint_digest({"a": "0"}) != joint_digest({"b": "0"})
