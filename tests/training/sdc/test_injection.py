from typing import Any

import pytest
import torch
from torch import nn

from weft.specs.faults import FaultsSpec, resolved
from weft.training.sdc.injection import Injector, damage


def injector(*faults: dict[str, Any]) -> tuple[Injector, list[int]]:
    said: list[int] = []
    spec = FaultsSpec.model_validate({"faults": list(faults)})
    return Injector(resolved(spec, ranks=1, nodes=1, steps=10), said.append), said


def differing(left: torch.Tensor, right: torch.Tensor) -> int:
    return int((left.view(torch.int32) != right.view(torch.int32)).sum())


@pytest.mark.parametrize("bit", [0, 22, 30, 31])
def test_a_flip_changes_one_bit_and_a_second_one_undoes_it(bit: int):
    (fault,) = resolved(
        FaultsSpec.model_validate({"faults": [{"kind": "flip", "place": "weights", "step": 1, "bit": bit}]}),
        ranks=1, nodes=1, steps=1,
    )  # fmt: skip
    tensor = torch.linspace(-1, 1, 20).reshape(4, 5)
    before = tensor.clone()
    damage(fault, tensor)
    changed = tensor.view(torch.int32) ^ before.view(torch.int32)
    assert changed.count_nonzero() == 1
    assert int(changed[changed != 0]) & 0xFFFFFFFF == 1 << bit
    damage(fault, tensor)
    assert torch.equal(tensor, before)


def test_a_stuck_bit_stays_stuck():
    (fault,) = resolved(
        FaultsSpec.model_validate(
            {"faults": [{"kind": "flip", "place": "weights", "step": 1, "bit": 31, "sticky": True}]}
        ),
        ranks=1, nodes=1, steps=1,
    )  # fmt: skip
    tensor = torch.ones(3)
    damage(fault, tensor)
    damage(fault, tensor)
    assert sorted(tensor.tolist()) == [-1.0, 1.0, 1.0]


def test_weights_are_damaged_after_the_named_step_and_once():
    faults, said = injector({"kind": "flip", "place": "weights", "step": 2, "tensor": "b"})
    tensors = {"a": torch.ones(3), "b": torch.ones(3)}
    for done in range(4):
        faults.begin(done)
        faults.at("weights", lambda: tensors)
        assert differing(tensors["b"], torch.ones(3)) == (1 if done >= 1 else 0)
    assert torch.equal(tensors["a"], torch.ones(3))
    assert said == [0]


def test_a_fresh_gradient_and_an_activation_are_damaged_where_they_arise():
    for place in ("gradients", "activations"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        faults, said = injector({"kind": "nan", "place": place, "step": 2})
        faults.watch([model], model.named_parameters())
        finite: list[bool] = []
        for done in range(3):
            faults.begin(done)
            model.zero_grad()
            model(torch.ones(3)).sum().backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            finite.append(all(bool(torch.isfinite(one).all()) for one in gradients if one is not None))
        assert finite == [True, False, True]
        assert said == [0]


def test_the_first_checkpoint_from_the_named_step_on_finds_the_disk_full():
    faults, said = injector({"kind": "full-disk", "rank": 0, "step": 2})
    faults.begin(0)
    faults.write()
    faults.begin(2)
    with pytest.raises(OSError, match="No space left"):
        faults.write()
    faults.write()
    assert said == [0]


def test_a_slow_rank_is_slow_for_as_long_as_the_fault_says():
    faults, said = injector({"kind": "slow", "rank": 0, "step": 2, "lasts": 1, "factor": 2})
    slept: list[int] = []
    for done in range(4):
        faults.begin(done)
        before = len(said)
        faults.slow_down()
        slept.append(len(said) - before)
    assert slept == [0, 1, 0, 0]
