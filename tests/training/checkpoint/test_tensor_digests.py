import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.training.checkpoint import tensor_digests

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, *COMPLEX])


@given(SHAPES, DTYPES, st.data())
@settings(max_examples=60, deadline=None)
def test_shards_add_up_to_the_whole_however_it_is_cut(shape: tuple[int, ...], dtype: torch.dtype, data: st.DataObject):
    chance = torch.Generator().manual_seed(data.draw(st.integers(0, 100)))
    whole = (torch.randn(shape, generator=chance) * 50).to(dtype)
    axis = data.draw(st.integers(0, len(shape) - 1))
    place = data.draw(st.integers(0, shape[axis]))
    parts = torch.split(whole, [place, shape[axis] - place], dim=axis)
    offsets = [[0] * len(shape), [0] * len(shape)]
    offsets[1][axis] = place
    total = sum(tensor_digests.shard_digest(part, at, shape) for part, at in zip(parts, offsets, strict=True))
    assert tensor_digests.written(total) == tensor_digests.tensor_digest(whole)


@given(SHAPES, st.data())
@settings(max_examples=60, deadline=None)
def test_every_flipped_bit_shows(shape: tuple[int, ...], data: st.DataObject):
    tensor = torch.zeros(shape)
    before = tensor_digests.tensor_digest(tensor)
    flat = tensor.view(torch.int32).reshape(-1)
    place = data.draw(st.integers(0, flat.numel() - 1))
    bit = data.draw(st.integers(0, 31))
    flat[place] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert tensor_digests.tensor_digest(tensor) != before


@given(dtype=st.sampled_from(COMPLEX), imaginary=st.booleans(), conjugated=st.booleans())
def test_both_parts_of_a_complex_number_show(dtype: torch.dtype, *, imaginary: bool, conjugated: bool):
    tensor = torch.tensor([1 + 2j, 3 + 4j], dtype=dtype)
    other = tensor.clone()
    torch.view_as_real(other)[1, int(imaginary)] += 1
    if conjugated:
        tensor, other = tensor.conj(), other.conj()
    assert tensor_digests.tensor_digest(tensor) != tensor_digests.tensor_digest(other)


def test_exchanged_elements_show():
    assert tensor_digests.tensor_digest(torch.tensor([1.0, 2.0])) != tensor_digests.tensor_digest(
        torch.tensor([2.0, 1.0])
    )


def test_large_tensors_are_taken_in_slabs_with_the_same_result(monkeypatch: pytest.MonkeyPatch):
    tensor = torch.arange(1000.0).reshape(100, 10)
    whole = tensor_digests.tensor_digest(tensor)
    monkeypatch.setattr(tensor_digests, "_SLAB_ELEMENTS", 70)
    assert tensor_digests.tensor_digest(tensor) == whole


def test_scalars_and_empty_tensors_have_digests():
    assert tensor_digests.tensor_digest(torch.tensor(1.0)) != tensor_digests.tensor_digest(torch.tensor(2.0))
    assert tensor_digests.tensor_digest(torch.zeros(0, 3)) == "0" * 16


def test_one_digest_names_all_tensors_and_their_names():
    one = tensor_digests.joint_digest({"a": "00", "b": "11"})
    assert one == tensor_digests.joint_digest({"b": "11", "a": "00"})
    assert one != tensor_digests.joint_digest({"a": "11", "b": "00"})
