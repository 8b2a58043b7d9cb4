"""Snapshots of states whose parts come, go and change their size."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from weft.training.recovery.orders import Orders
from weft.training.recovery.snapshots import Snapshots
from weft.training.recovery.state_pieces import pieces_of

NAMES = ("weight", "(group)", "history:json")
STATES = st.lists(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), min_size=1), min_size=1, max_size=5)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Witness(Snapshots):
    """Snapshots whose keepers remember what they were sent."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.sent: dict[int, set[str]] = {}
        orders = Orders((0,), {0: "one", 1: "another"}, 1, ())
        super().__init__(orders, 1, lambda kind, content: self.said.append((kind, content)) is None)

    @override
    def _put(self, node: int, snapshot: tuple[int, int], content: Any) -> bool:
        del node
        self.sent.setdefault(snapshot[1], set()).update(piece.key for piece, _ in content)
        return True


@given(STATES)
@settings(max_examples=30)
def every_piece_is_sent(sizes: list[dict[str, int]]) -> None:
    witness = Witness()
    for step, one in enumerate(sizes):
        state = {"kept": {name: torch.full((size,), float(step)) for name, size in one.items()}}
        witness.take(step, state)
        witness.wait()
        kind, (said, digests, stored, pieces) = witness.said[-1]
        assert (kind, said) == ("snapshot", step)
        assert set(digests) == {piece.key for piece in pieces} == set(pieces_of(state)) == witness.sent[step]
        assert {key for keys in stored.values() for key in keys} == witness.sent[step]


@pytest.mark.usefixtures("alone")
def test_every_piece_is_sent_whatever_the_snapshots_before_it_held():
    every_piece_is_sent()


@pytest.mark.usefixtures("alone")
def test_a_snapshot_that_fails_is_told_and_the_next_one_is_taken(monkeypatch: pytest.MonkeyPatch):
    witness = Witness()
    with monkeypatch.context() as patch:
        patch.setattr(witness, "_put", lambda *_: 1 // 0)
        witness.take(1, {"kept": {"weight": torch.ones(2)}})
        witness.wait()
    ((kind, (what, step, text, _)),) = witness.said
    assert (kind, what, step) == ("trouble", "snapshot", 1)
    assert "ZeroDivisionError" in text
    witness.take(2, {"kept": {"weight": torch.ones(2)}})
    witness.wait()
    assert witness.said[-1][0] == "snapshot"
