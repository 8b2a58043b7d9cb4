import pytest
import torch
from torch import nn

from weft.training.parallel.recompute import recompute_in


def block() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


@pytest.mark.parametrize("kind", ["none", "selective", "full"])
def test_recomputing_changes_no_bit_of_result_and_gradient(kind: str):
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    plain, other = block(), block()
    recompute_in(other, kind)
    for module in (plain, other):
        module(inputs).square().sum().backward()
    assert torch.equal(plain(inputs), other(inputs))
    for left, right in zip(plain.parameters(), other.parameters(), strict=True):
        assert left.grad is not None
        assert right.grad is not None
        assert torch.equal(left.grad, right.grad)


@pytest.mark.parametrize(("kind", "calls"), [("none", 1), ("full", 2)])
def test_full_recompute_runs_forward_twice(kind: str, calls: int):
    counted: list[int] = []
    module = block()
    module[1].register_forward_hook(lambda *_: counted.append(1))
    recompute_in(module, kind)
    module(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert len(counted) == calls


def test_names_of_parameters_stay():
    module = block()
    before = [name for name, _ in module.named_parameters()]
    recompute_in(module, "full")
    assert [name for name, _ in module.named_parameters()] == before
