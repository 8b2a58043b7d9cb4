import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from weft.training.sdc.bit_flips import flip_bit
from weft.training.sdc.digest import fold, fold_digest, folds, joined

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8]


@given(size=st.integers(1, 300_000), seed=st.integers(0, 2**32), dtype=st.sampled_from(DTYPES))
def test_any_flipped_bit_changes_the_digest(size: int, seed: int, dtype: torch.dtype) -> None:
    tensor = torch.arange(size).to(dtype)
    before = int(fold(tensor))
    flip_bit(tensor, np.random.default_rng(seed))
    assert int(fold(tensor)) != before


@given(size=st.integers(2, 6000), seed=st.integers(0, 2**32))
def test_equal_tensors_have_equal_digests_wherever_they_lie(size: int, seed: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    room = torch.zeros(size + 4)
    for start in (0, 2, 4):
        room[start : start + size] = values
        assert int(fold(room[start : start + size])) == int(fold(values.clone()))


def test_tensors_with_gaps_are_digested_by_content() -> None:
    table = torch.arange(60.0).view(6, 10)
    assert int(fold(table[:, ::2])) == int(fold(table[:, ::2].clone()))


@example([0, -1])
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=50, unique=True))
def test_tensors_that_trade_places_change_the_joint_digest(values: list[int]) -> None:
    digests = torch.tensor(values)
    swapped = digests.clone()
    swapped[0], swapped[-1] = digests[-1], digests[0]
    assert int(joined(digests)) != int(joined(swapped))


def test_many_digests_are_joined() -> None:
    digests = torch.arange(5000)
    other = digests.clone()
    other[4999] += 1
    assert int(joined(digests)) != int(joined(other))
    assert folds([], torch.device("cpu")).numel() == 0
    assert fold_digest([]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_flip_changes_exactly_one_bit_also_in_a_tensor_with_gaps(dtype: torch.dtype) -> None:
    for seed in range(40):
        whole = torch.zeros(4, 6, dtype=dtype)
        flip = flip_bit(whole[:, ::2], np.random.default_rng(seed))
        raw = whole.view(torch.uint8).flatten().tolist()
        assert sum(byte.bit_count() for byte in raw) == 1
        assert flip.before == 0.0
