"""Registered memory: keys that open one region each, and no longer than it is registered."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import LimitReachedError, UsageError
from weft.transport.memory.layout import INDEX_MASK, REGION, REGIONS
from weft.transport.regions import RegionTable, address_and_size


def table() -> tuple[RegionTable, np.ndarray]:
    rows = np.zeros(REGIONS, REGION)
    return RegionTable(rows), rows


@given(st.lists(st.booleans(), max_size=60))
def test_open_regions_have_keys_of_their_own_and_closed_ones_are_shut(steps):
    regions, rows = table()
    held = []
    for opens in steps:
        if opens or not held:
            held.append(regions.add(1000 * len(held), 8, None, 0))
        else:
            region = held.pop()
            assert regions.close(region)
            assert rows[region.key & INDEX_MASK]["open"] == 0
            regions.forget(region)
            assert not regions.close(region), "a key is taken away once"
        assert len({region.key for region in held}) == len(held)
        assert sorted(np.flatnonzero(rows["open"]).tolist()) == sorted(region.key & INDEX_MASK for region in held)
        for region in held:
            row = rows[region.key & INDEX_MASK]
            assert (row["key"], row["address"], row["size"]) == (region.key, region.address, region.size)


def test_a_closed_row_is_not_used_again_before_it_is_forgotten():
    regions, _ = table()
    first = regions.add(0, 8, None, 0)
    regions.close(first)
    assert regions.add(0, 8, None, 0).key & INDEX_MASK != first.key & INDEX_MASK
    regions.forget(first)
    assert regions.add(0, 8, None, 0).key & INDEX_MASK == first.key & INDEX_MASK


def test_row_zero_is_nobodys_and_a_full_table_says_what_to_do():
    regions, rows = table()
    made = [regions.add(0, 8, None, 3) for _ in range(REGIONS - 1)]
    assert rows["open"].sum() == REGIONS - 1
    assert rows[0]["open"] == 0, "a key of zeros opens nothing"
    assert (rows["adds"][1:] == 3).all()
    with pytest.raises(LimitReachedError, match="all 4095 regions are in use; deregister some"):
        regions.add(0, 8, None, 0)
    regions.close(made[7])
    regions.forget(made[7])
    regions.add(0, 8, None, 0)


def test_a_key_of_somebody_else_closes_nothing():
    regions, rows = table()
    other, _ = table()
    region = regions.add(0, 8, None, 0)
    assert not other.close(region)
    assert rows["open"].sum() == 1


@pytest.mark.parametrize("memory", [np.zeros(10), np.zeros((3, 4), np.float32), np.zeros(0, np.int8)])
def test_arrays_are_registered_whole(memory):
    assert address_and_size(memory) == (memory.ctypes.data, memory.nbytes)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_tensors_are_registered_whole(kind):
    tensor = torch.zeros(7, 3).to(kind)
    assert address_and_size(tensor) == (tensor.data_ptr(), 21 * tensor.element_size())


@pytest.mark.parametrize(
    "memory",
    [np.zeros((4, 4))[:, 1], np.zeros(8)[::2], np.broadcast_to(np.zeros(1), 5), np.frombuffer(b"12345678", np.uint8)],
)
def test_memory_in_pieces_or_without_the_right_to_write_is_refused(memory):
    with pytest.raises(UsageError, match="only contiguous arrays that can be written to"):
        address_and_size(memory)


@pytest.mark.parametrize("tensor", [torch.zeros(4, 4).t()[:2], torch.zeros(8)[::2], torch.zeros(2, device="meta")])
def test_tensors_in_pieces_or_elsewhere_are_refused(tensor):
    with pytest.raises(UsageError, match="only contiguous CPU tensors"):
        address_and_size(tensor)
