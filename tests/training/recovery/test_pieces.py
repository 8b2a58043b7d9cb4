from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.training.checkpoint import tensor_digests
from weft.training.recovery.agreement import agree, first_difference
from weft.training.recovery.copy_placement import placement
from weft.training.recovery.piece import Piece, overlap
from weft.training.recovery.state_pieces import as_bytes, digest, fill, from_bytes, missing, pieces_of


def cut(tensor: torch.Tensor, name: str, bounds: list[int]) -> list[tuple[Piece, torch.Tensor]]:
    """Cut the first dimension of `tensor` at `bounds`."""
    edges = sorted({0, tensor.shape[0], *(bound % tensor.shape[0] for bound in bounds)})
    rest = (0,) * (tensor.dim() - 1)
    return [
        (Piece(name, (low, *rest), (high - low, *tensor.shape[1:]), tuple(tensor.shape), "float32"), tensor[low:high])
        for low, high in pairwise(edges)
    ]


bounds = st.lists(st.integers(0, 20), max_size=5)


@given(bounds, bounds)
def test_a_state_cut_one_way_fills_a_state_cut_another_way(stored: list[int], wanted: list[int]):
    whole = torch.arange(21 * 3, dtype=torch.float32).reshape(21, 3)
    blank = torch.full_like(whole, -1.0)
    target = {piece.key: (piece, memory) for piece, memory in cut(blank, "w", wanted)}
    there = cut(whole, "w", stored)
    assert missing((piece for piece, _ in target.values()), (piece for piece, _ in there)) is None
    fill(target, there)
    assert torch.equal(blank, whole)
    assert missing((piece for piece, _ in target.values()), (piece for piece, _ in there[1:])) == "w"


@given(bounds)
def test_the_digest_of_a_tensor_does_not_depend_on_the_cut(where: list[int]):
    whole = torch.randn(21, 3, generator=torch.Generator().manual_seed(1))
    parts = cut(whole, "w", where)
    agreed = agree({0: {piece.key: digest(piece, part) for piece, part in parts}}, {p.key: p for p, _ in parts})
    assert agreed.tensors == {"w": tensor_digests.tensor_digest(whole)}


def test_scalars_and_low_precision_survive_the_way_through_bytes():
    state = {
        "model": {"w": torch.randn(3, 4).to(torch.bfloat16)},
        "optimizer": {"step": torch.tensor(7.0), "none": torch.zeros(0)},
    }
    pieces = pieces_of(state)
    assert [piece.name for piece, _ in pieces.values()] == ["model.w", "optimizer.step"]
    for piece, tensor in pieces.values():
        again = from_bytes(piece, bytearray(as_bytes(tensor)))
        assert again.dtype == tensor.dtype
        assert torch.equal(again, tensor)


def test_boxes_of_other_tensors_have_nothing_in_common():
    one = Piece("a", (0,), (4,), (8,), "float32")
    assert overlap(one, Piece("b", (0,), (4,), (8,), "float32")) is None
    assert overlap(one, Piece("a", (4,), (4,), (8,), "float32")) is None
    assert overlap(one, Piece("a", (2,), (4,), (8,), "float32")) is not None


ranks = st.integers(1, 8)


@given(
    ranks.flatmap(
        lambda count: st.tuples(
            st.lists(st.integers(0, 3), min_size=count, max_size=count),
            st.lists(st.sets(st.integers(0, count - 1), min_size=1), min_size=1, max_size=20),
        )
    )
)
def test_every_piece_lies_in_two_failure_domains_wherever_there_are_two(case: tuple[list[int], list[set[int]]]):
    nodes, held = case
    holders = {f"p{number}": sorted(who) for number, who in enumerate(held)}
    puts = placement(holders, nodes, sorted(set(nodes)))
    domains: dict[str, list[int]] = {}
    for rank, mine in puts.items():
        for key, node in mine:
            assert rank in holders[key]
            domains.setdefault(key, []).append(node)
    for key in holders:
        assert len(domains[key]) == len(set(domains[key])) == min(2, len(set(nodes)))


def test_replicas_in_two_domains_send_nothing_across_and_share_the_work():
    puts = placement({f"p{number}": [0, 1, 2, 3] for number in range(16)}, [0, 0, 1, 1], [0, 1])
    assert all(node == rank // 2 for rank, mine in puts.items() for _, node in mine)
    assert [len(mine) for mine in puts.values()] == [8, 8, 8, 8]


def test_a_domain_without_ranks_can_keep_and_one_without_a_keeper_gets_nothing():
    assert placement({"p": [0]}, [0], [0, 1]) == {0: [("p", 0), ("p", 1)]}
    assert placement({"p": [0, 1]}, [0, 1], [1]) == {0: [], 1: [("p", 1)]}


PIECE = Piece("model.w", (0,), (2,), (2,), "float32")


def test_a_minority_is_named_and_a_tie_names_everybody():
    votes = {0: {PIECE.key: 5}, 1: {PIECE.key: 6}, 2: {PIECE.key: 5}}
    (dissent,) = agree(votes, {PIECE.key: PIECE}).dissent
    assert (dissent.ranks, dissent.majority) == ((1,), True)
    assert str(dissent) == "rank 1 holds another model.w than the majority"
    (dissent,) = agree({0: {PIECE.key: 5}, 1: {PIECE.key: 6}}, {PIECE.key: PIECE}).dissent
    assert (dissent.ranks, dissent.majority) == ((0, 1), False)


def test_the_first_tensor_that_differs_is_named():
    assert first_difference({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == "b"
    assert first_difference({"a": "1"}, {"a": "1", "b": "3"}) == "b"
    assert first_difference({"a": "1"}, {"a": "1"}) is None
