import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from weft.core.seeds import Seed
from weft.training.parallel.exact_sum import Node, ReductionTree
from weft.training.parallel.reducer import Bucket, Family, Reducer, Share, bucket_size, bucketed, ordered
from weft.training.sdc.checksums import MemoryChecksums

LEAVES = 4


def parameters_of(sizes: list[int]) -> list[nn.Parameter]:
    draw = Seed(1).stream("parameters")
    return [nn.Parameter(torch.from_numpy(draw.standard_normal(size).astype("float32"))) for size in sizes]


def gradient_of(leaf: int, number: int, size: int) -> torch.Tensor:
    return torch.from_numpy(Seed(2).stream("gradient", leaf, number).standard_normal(size).astype("float32"))


def reduced(sizes: list[int], bucket_bytes: int, *, exact: bool, order: list[int] | None = None) -> list[torch.Tensor]:
    """Return the mean gradients after backward passes that hand parameters over in `order`."""
    parameters = parameters_of(sizes)
    reducer = Reducer([Family("dense", tuple(parameters), None)], bucket_bytes=bucket_bytes, exact=exact)
    reducer.begin({"dense": Share((tuple(range(LEAVES)),))}, 1.0 / LEAVES)
    for leaf in range(LEAVES):
        reducer.at({"dense": leaf})
        for number in order or range(len(sizes)):
            parameters[number].grad = gradient_of(leaf, number, sizes[number])
            reducer.take(parameters[number])
        reducer.pad(parameters)
    reducer.at(None)
    reducer.wait()
    found = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    reducer.close()
    return found


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(sizes, st.sampled_from([1, 64, 200, 10**6]), st.randoms(use_true_random=False))
def test_neither_bucket_boundaries_nor_the_order_of_backward_change_a_bit(
    sizes: list[int], bytes_each: int, draw: random.Random
):
    order = list(range(len(sizes)))
    draw.shuffle(order)
    wanted = reduced(sizes, 10**6, exact=True)
    found = reduced(sizes, bytes_each, exact=True, order=order)
    assert all(torch.equal(left, right) for left, right in zip(wanted, found, strict=True))


@given(sizes)
def test_the_exact_sum_is_the_tree_over_micro_batches(sizes: list[int]):
    found = reduced(sizes, 10**6, exact=True)
    for number, size in enumerate(sizes):
        a, b, c, d = (gradient_of(leaf, number, size) for leaf in range(LEAVES))
        assert torch.equal(found[number], ((a + b) + (c + d)) * 0.25)


@given(sizes)
def test_fast_mode_adds_in_the_order_in_which_gradients_come(sizes: list[int]):
    found = reduced(sizes, 10**6, exact=False)
    for number, size in enumerate(sizes):
        a, b, c, d = (gradient_of(leaf, number, size) for leaf in range(LEAVES))
        assert torch.equal(found[number], (((a + b) + c) + d) * 0.25)


def test_a_parameter_without_a_gradient_counts_as_zeros_in_its_leaf():
    first, second = parameters_of([3, 5])
    reducer = Reducer([Family("dense", (first, second), None)], bucket_bytes=1, exact=True)
    reducer.begin({"dense": Share(((0, 1),))}, 0.5)
    for leaf in range(2):
        reducer.at({"dense": leaf})
        first.grad = torch.ones(3)
        reducer.pad([first, second])
    reducer.wait()
    assert first.grad is not None
    assert second.grad is not None
    assert torch.equal(first.grad, torch.ones(3))
    assert torch.equal(second.grad, torch.zeros(5))
    reducer.scale(0.5)
    assert torch.equal(first.grad, torch.full((3,), 0.5))
    reducer.close()


def test_gradients_outside_a_leaf_are_left_alone():
    (weight,) = parameters_of([3])
    reducer = Reducer([Family("dense", (weight,), None)], bucket_bytes=1, exact=True)
    reducer.begin({"dense": Share(((0,),))}, 1.0)
    weight.grad = torch.ones(3)
    reducer.take(weight)
    assert weight.grad is not None
    reducer.close()


def test_autograd_hands_gradients_over_by_itself():
    (weight,) = parameters_of([3])
    reducer = Reducer([Family("dense", (weight,), None)], bucket_bytes=1, exact=True)
    reducer.begin({"dense": Share(((0, 1),))}, 1.0)
    for leaf in range(2):
        reducer.at({"dense": leaf})
        (weight * (leaf + 1)).sum().backward()
        reducer.pad([weight])
    reducer.wait()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((3,), 3.0))
    reducer.close()
    weight.grad = None
    weight.sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones(3))


def test_only_counted_families_answer_for_elements():
    first, second = parameters_of([3, 5])
    families = [Family("dense", (first,), None), Family("dense", (second,), None, counted=False)]
    reducer = Reducer(families, bucket_bytes=1, exact=True)
    reducer.begin({"dense": Share(((0,),))}, 1.0)
    reducer.at({"dense": 0})
    first.grad, second.grad = torch.ones(3), torch.ones(5)
    reducer.pad([first, second])
    reducer.wait()
    assert sum(float(part.sum()) for part in reducer.owned()) == 3.0
    reducer.close()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 400))
def test_buckets_hold_every_parameter_once_the_last_first(sizes: list[int], bytes_each: int):
    parameters = parameters_of(sizes)
    buckets = bucketed(Family("dense", tuple(parameters), None), bytes_each)
    laid = [parameter for bucket in buckets for parameter in bucket.parameters]
    assert [id(one) for one in laid] == [id(one) for one in reversed(parameters)]
    for bucket in buckets[:-1]:
        assert sum(one.numel() * 4 for one in bucket.parameters) >= bytes_each
    for bucket in buckets:
        assert sum(one.numel() * 4 for one in bucket.parameters[:-1]) < bytes_each


def test_parameters_of_another_type_get_a_bucket_of_their_own():
    wide, narrow = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    buckets = bucketed(Family("dense", (wide, narrow), None), 10**6)
    assert [bucket.dtype for bucket in buckets] == [torch.bfloat16, torch.float32]


def test_a_sum_that_changes_while_it_waits_is_noticed():
    (weight,) = parameters_of([8])
    reducer = Reducer([Family("dense", (weight,), None)], bucket_bytes=1, exact=True, overlap=False)
    checksums = MemoryChecksums()
    reducer.watch(checksums)
    for spoil in (False, True):
        reducer.begin({"dense": Share(((0, 1),))}, 1.0)
        for leaf in range(2):
            reducer.at({"dense": leaf})
            weight.grad = torch.ones(8)
            if spoil and leaf == 1:
                held = next(iter(reducer.buckets[0]._held.values()))
                held[3] = 5.0
            reducer.pad([weight])
        reducer.wait()
        assert checksums.broken() == (["gradient sums of bucket 0"] if spoil else [])
    reducer.close()


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e12), st.integers(1, 10**12))
def test_a_bucket_stays_within_its_limits_and_grows_with_latency(latency: float, rate: float, total: int):
    size = bucket_size(latency, rate, total)
    assert 256 * 1024 <= size <= 64 * 2**20
    assert size <= max(total // 2, 256 * 1024)
    assert bucket_size(2 * latency, rate, total) >= size


def test_subtrees_come_from_left_to_right():
    one, two, three = (torch.tensor(float(value)) for value in range(3))
    assert ordered({(0, 4): three, (1, 0): one, (1, 1): two}) == [one, two, three]


def test_a_bucket_starts_every_parameter_at_an_aligned_place():
    bucket = Bucket(Family("dense", tuple(parameters_of([3, 17, 1])), None), parameters_of([3, 17, 1]))
    assert [start % 16 for start, _ in bucket._places.values()] == [0, 0, 0]
    assert bucket.elements % 16 == 0


@pytest.mark.parametrize("positions", [((0,), (1,)), ((0, 1), (2, 3)), ((5,), (2, 7))])
def test_a_shares_tree_covers_every_rank(positions: tuple[tuple[int, ...], ...]):
    tree = Share(positions).tree
    assert isinstance(tree, ReductionTree)
    held: dict[Node, int] = {}
    for leaf in sorted(one for held_there in positions for one in held_there):
        tree.climb(held, leaf, 1, lambda a, b: a + b)
    assert tree.total(held, lambda a, b: a + b) == sum(len(one) for one in positions)
