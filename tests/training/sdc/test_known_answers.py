import pytest
import torch

from weft.core.seeds import Seed
from weft.training.sdc.known_answers import known_answer_test

CPU = torch.device("cpu")


def test_a_good_device_passes_every_test() -> None:
    assert all(known_answer_test(Seed(1), number, CPU) is None for number in range(30))


@pytest.mark.parametrize(
    ("name", "told"), [("mm", "matrix product in float32"), ("sum", "sum in float32"), ("mul", "element-wise")]
)
def test_a_device_with_a_broken_operation_is_told(name: str, told: str) -> None:
    class Broken(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if function.__name__.startswith(f"{name}.") and result.dtype is torch.float32:
                result = result + 1
            return result

    with Broken():
        found = known_answer_test(Seed(1), 0, CPU)
    assert found is not None
    assert told in found
