import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.training.sdc.abft import check_products, suspicious


def matrices(seed: int, rows: int, inner: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, inner, generator=draw), torch.randn(inner, columns, generator=draw)


@given(st.integers(0, 2**30), st.integers(1, 60), st.integers(1, 300), st.integers(1, 60))
def test_a_right_product_is_never_suspicious(seed: int, rows: int, inner: int, columns: int) -> None:
    left, right = matrices(seed, rows, inner, columns)
    assert not suspicious(left, right, left @ right)
    low = [tensor.bfloat16() for tensor in (left, right)]
    assert not suspicious(low[0], low[1], low[0] @ low[1])


@given(st.integers(0, 2**30), st.integers(2, 40), st.integers(1, 100), st.integers(2, 40), st.data())
def test_an_element_that_is_off_by_its_own_size_is_suspicious(
    seed: int, rows: int, inner: int, columns: int, data: st.DataObject
) -> None:
    left, right = matrices(seed, rows, inner, columns)
    product = left @ right
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    product[row, column] += 1 + product[row, column].abs()
    assert suspicious(left, right, product)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_suspicious(wrong: float) -> None:
    left, right = matrices(0, 3, 4, 5)
    product = left @ right
    product[1, 1] = wrong
    assert suspicious(left, right, product)
    assert not suspicious(left[:0], right, product[:0])


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_tell_which_of_them_is_wrong(bias: bool) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=bias), torch.nn.Linear(16, 4, bias=bias))
    failed: list[str] = []
    check_products(model.modules(), failed.append)
    model(torch.randn(2, 3, 8))
    assert failed == []

    def disturb(module: torch.nn.Module, given: object, output: torch.Tensor) -> torch.Tensor:
        return output + 10.0

    model[1].register_forward_hook(disturb, prepend=True)
    model(torch.randn(2, 3, 8))
    assert failed == ["linear layer 2, 16 to 4"]
