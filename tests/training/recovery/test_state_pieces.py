import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.training.checkpoint.tensor_digests import tensor_digest
from weft.training.recovery.orders import START, Candidate, Stored
from weft.training.recovery.piece import Piece, overlap, piece_from
from weft.training.recovery.state_pieces import as_bytes, digest, fill, from_bytes, missing, pieces_of
from weft.training.recovery.tiers import _checked, _wanted

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8]


def strips(tensor: torch.Tensor, name: str, cuts: list[int]) -> list[tuple[Piece, torch.Tensor]]:
    """Cut the rows of `tensor` at `cuts`."""
    ends = sorted({0, *cuts, len(tensor)})
    return [
        (
            Piece(name, (low, 0), (high - low, tensor.shape[1]), tuple(tensor.shape), str(tensor.dtype)[6:]),
            tensor[low:high].clone(),
        )
        for low, high in itertools.pairwise(ends)
    ]


rows = st.integers(1, 9)
cuts = st.lists(st.integers(0, 9), max_size=4)


@given(rows, cuts, cuts)
def test_a_state_cut_one_way_fills_a_state_cut_another_way(count: int, there: list[int], here: list[int]):
    whole = torch.arange(count * 3, dtype=torch.float32).view(count, 3)
    stored = strips(whole, "a", [cut for cut in there if cut < count])
    target = {
        piece.key: (piece, torch.zeros(piece.sizes)) for piece, _ in strips(whole, "a", [c for c in here if c < count])
    }
    fill(target, stored)
    for piece, memory in target.values():
        start = piece.offsets[0]
        assert torch.equal(memory, whole[start : start + piece.sizes[0]])


@given(rows, cuts)
def test_digests_of_pieces_add_up_to_the_tensors(count: int, at: list[int]):
    whole = torch.arange(count * 3, dtype=torch.float32).view(count, 3)
    total = sum(digest(piece, part) for piece, part in strips(whole, "a", [cut for cut in at if cut < count]))
    assert f"{total % 2**64:016x}" == tensor_digest(whole)


@given(rows, cuts, st.data())
def test_a_strip_that_is_not_stored_is_missed_and_no_other(count: int, at: list[int], data: st.DataObject):
    whole = torch.zeros(count, 3)
    parts = [piece for piece, _ in strips(whole, "a", [cut for cut in at if cut < count])]
    assert missing(parts, parts) is None
    gone = data.draw(st.sampled_from(parts))
    assert missing(parts, [one for one in parts if one is not gone]) == "a"
    assert missing([one for one in parts if one is not gone], [one for one in parts if one is not gone]) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_survive_the_way_out_and_back(dtype: torch.dtype):
    tensor = torch.arange(12).to(dtype).view(3, 4)
    ((key, (piece, memory)),) = pieces_of({"model": {"w": tensor}}).items()
    assert key == piece.key == "model.w@0,0+3,4"
    assert torch.equal(from_bytes(piece, bytearray(as_bytes(memory))), tensor)
    with pytest.raises(ValueError, match="bytes instead of"):
        from_bytes(piece, bytearray(as_bytes(memory))[:-1])


def test_nested_tables_get_dotted_names_and_empty_tensors_are_left_out():
    state = {"model": {"a": torch.ones(2), "empty": torch.ones(0)}, "optimizer": {"a.step": torch.tensor(3.0)}, "n": 4}
    assert sorted(piece.name for piece, _ in pieces_of(state).values()) == ["model.a", "optimizer.a.step"]


def test_a_piece_shares_the_memory_of_its_state():
    tensor = torch.zeros(4)
    ((_, memory),) = pieces_of({"w": tensor}).values()
    memory += 1
    assert torch.equal(tensor, torch.ones(4))


boxes = st.tuples(st.integers(0, 5), st.integers(1, 5))


@given(boxes, boxes, boxes, boxes)
def test_an_overlap_is_what_both_boxes_cover(
    a: tuple[int, int], b: tuple[int, int], c: tuple[int, int], d: tuple[int, int]
):
    first = Piece("t", (a[0], b[0]), (a[1], b[1]), (10, 10), "float32")
    second = Piece("t", (c[0], d[0]), (c[1], d[1]), (10, 10), "float32")
    grid = torch.zeros(2, 10, 10, dtype=torch.bool)
    for number, one in enumerate((first, second)):
        grid[number, one.offsets[0] : one.offsets[0] + one.sizes[0], one.offsets[1] : one.offsets[1] + one.sizes[1]] = (
            True
        )
    common = int((grid[0] & grid[1]).sum())
    found = overlap(first, second)
    assert (0 if found is None else found.elements) == common
    places = torch.arange(100).view(10, 10)
    if found is not None:
        left = places[first.offsets[0] :, first.offsets[1] :][: first.sizes[0], : first.sizes[1]][found.there]
        right = places[second.offsets[0] :, second.offsets[1] :][: second.sizes[0], : second.sizes[1]][found.here]
        assert torch.equal(left, right)


@pytest.mark.parametrize("change", [{"name": "other"}, {"shape": (9, 9)}])
def test_pieces_of_different_tensors_have_nothing_in_common(change: dict[str, object]):
    piece = Piece("t", (0, 0), (2, 2), (4, 4), "float32")
    assert overlap(piece, piece_from({**piece.as_json(), **change})) is None
    assert piece_from(piece.as_json()) == piece


def stored(tensor: torch.Tensor, name: str = "model.w") -> Stored:
    piece = Piece(name, (0,), (len(tensor),), (len(tensor),), "float32")
    return Stored(piece, digest(piece, tensor), (0,))


def test_only_a_copy_with_the_agreed_digest_is_taken():
    tensor = torch.arange(4, dtype=torch.float32)
    one = stored(tensor)
    good = bytearray(as_bytes(tensor))
    got: dict[str, torch.Tensor] = {}
    assert _checked(one, None, got) == "is gone"
    assert _checked(one, good[:-1], got) == "has 15 bytes instead of 16"
    bad = bytearray(good)
    bad[5] ^= 1
    assert "is damaged" in (_checked(one, bad, got) or "")
    assert got == {}
    assert _checked(one, good, got) is None
    assert torch.equal(got[one.piece.key], tensor)


def test_a_rank_fetches_only_what_overlaps_its_own_pieces():
    mine = pieces_of({"model": {"w": torch.zeros(4)}})
    kept = {one.piece.key: one for one in (stored(torch.zeros(4)), stored(torch.zeros(4), "model.other"))}
    assert [one.piece.name for one in _wanted(kept, mine).values()] == ["model.w"]


def test_candidates_are_told_apart_and_named():
    first, second = Candidate("memory", 4, (0, 4)), Candidate("memory", 4, (1, 4))
    assert first.name != second.name
    assert [str(one) for one in (Candidate(START, 0), first)] == ["the start", "the memory of step 4"]
