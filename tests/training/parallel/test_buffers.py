"""What several micro-batches make of buffers, of every type of element, whoever computes them."""

from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.meshes import mesh_of

from weft.training.parallel.buffers import Buffers
from weft.training.parallel.microbatches import MicroBatchSplit

LARGE = 2**60


class Held:
    """A model of which only its buffers matter."""

    def __init__(self, **held: torch.Tensor) -> None:
        self.mesh, self.held = mesh_of(), held

    def buffers(self) -> dict[str, torch.Tensor]:
        return self.held


def synchronised(model: Held, count: int, pass_over: Any) -> None:
    """Have `pass_over` change the buffers in each of `count` micro-batches, and join what came of it."""
    buffers = Buffers(cast("Any", model), "synchronised")
    buffers.begin()
    for number in range(count):
        buffers.next_micro_batch()
        pass_over(model.held, number)
    buffers.end(MicroBatchSplit.even(model.mesh.layout, count))


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=6))
def test_complex_statistics_keep_both_parts_of_their_mean(values: list[tuple[float, float]]):
    model = Held(phase=torch.zeros(2, dtype=torch.complex64))
    synchronised(model, len(values), lambda held, number: held["phase"].fill_(complex(*values[number])))
    wanted = sum(complex(*one) for one in values) / len(values)
    assert complex(model.held["phase"][1]) == pytest.approx(wanted, abs=1e-5)


@given(st.integers(-LARGE, LARGE), st.lists(st.integers(-5, 5), min_size=1, max_size=6))
def test_counters_count_every_micro_batch_to_the_last_digit(start: int, steps: list[int]):
    model = Held(seen=torch.tensor(start))
    synchronised(model, len(steps), lambda held, number: held["seen"].add_(steps[number]))
    assert int(model.held["seen"]) == start + sum(steps)


@given(st.booleans(), st.lists(st.booleans(), min_size=1, max_size=6))
def test_a_flag_is_what_micro_batches_have_made_of_it(start: bool, flips: list[bool]):
    model = Held(flag=torch.tensor(start))
    synchronised(model, len(flips), lambda held, number: held["flag"].logical_xor_(torch.tensor(flips[number])))
    assert bool(model.held["flag"]) == (start != any(flips))
