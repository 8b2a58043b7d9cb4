import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.training.parallel.context_parallel import part, positions


@given(st.integers(1, 6), st.integers(1, 5))
def test_every_position_is_held_by_one_rank(ranks: int, piece: int):
    length = 2 * ranks * piece
    held = torch.cat([positions(length, ranks, rank) for rank in range(ranks)])
    assert sorted(held.tolist()) == list(range(length))


@given(st.integers(1, 6), st.integers(1, 5))
def test_every_rank_has_the_same_work_under_a_causal_mask(ranks: int, piece: int):
    length = 2 * ranks * piece
    work = {int((positions(length, ranks, rank) + 1).sum()) for rank in range(ranks)}
    assert len(work) == 1


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
def test_a_part_is_the_tokens_at_its_positions(ranks: int, piece: int, batch: int):
    length = 2 * ranks * piece
    tokens = torch.arange(batch * length).view(batch, length)
    for rank in range(ranks):
        mine = part(tokens, ranks, rank)
        assert mine.shape == (batch, 2 * piece)
        assert torch.equal(mine, tokens[:, positions(length, ranks, rank)])
