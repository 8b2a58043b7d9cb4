"""Shares of a timeline: they add up, whatever overlaps whatever, and communication is told by its kernels' names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.diagnosis.timeline import BusyTime, KernelClass, TimelineShares, examine_timelines, kernel_class, union

KINDS: tuple[KernelClass, ...] = ("compute", "communication", "copy")
INTERVALS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 30), st.sampled_from(KINDS)), min_size=1, max_size=40
)


def shares(rows: list[tuple[int, int, KernelClass]]) -> TimelineShares:
    busy = BusyTime()
    for begin, length, kind in rows:
        busy.add(kind, float(begin), float(begin + length))
    return busy.shares(0)


@given(INTERVALS, st.integers(1, 50))
def test_shares_agree_with_a_count_of_every_moment(rows: list[tuple[int, int, KernelClass]], held: int) -> None:
    begin = np.array([row[0] for row in rows], dtype=float)
    end = begin + np.array([row[1] for row in rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.diagnosis.timeline._MOST_HELD", held)
        found = shares(rows)
    first, last = int(begin.min()), int(end.max())
    kinds = [{row[2] for row in rows if row[0] <= moment < row[0] + row[1]} for moment in range(first, last)]
    span = last - first
    assert found.compute == pytest.approx(sum("compute" in one for one in kinds) / span)
    assert found.exposed_communication == pytest.approx(
        sum("communication" in one and "compute" not in one for one in kinds) / span
    )
    assert found.overlapped_communication == pytest.approx(
        sum({"communication", "compute"} <= one for one in kinds) / span
    )
    assert found.copy == pytest.approx(sum(one == {"copy"} for one in kinds) / span, abs=1e-9)
    assert found.idle == pytest.approx(sum(not one for one in kinds) / span, abs=1e-9)


def test_many_intervals_are_held_as_few_and_their_sum_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.diagnosis.timeline._MOST_HELD", 100)
    monkeypatch.setattr("weft.diagnosis.timeline._MOST_INTERVALS", 64)
    chance = np.random.default_rng(0)
    rows: list[tuple[int, int, KernelClass]] = []
    at = 0
    for _ in range(5_000):
        length = int(chance.integers(1, 9))
        rows.append((at, length, "communication" if chance.random() < 0.3 else "compute"))
        at += length + int(chance.integers(1, 3) if chance.random() < 0.99 else 50)
    few = shares(rows)
    monkeypatch.setattr("weft.diagnosis.timeline._MOST_INTERVALS", 10**9)
    every = shares(rows)
    for key in ("compute", "exposed_communication", "idle"):
        assert getattr(few, key) == pytest.approx(getattr(every, key), abs=1e-9)


@given(INTERVALS)
def test_a_union_is_sorted_and_disjoint(rows: list[tuple[int, int, KernelClass]]) -> None:
    begin = np.array([row[0] for row in rows], dtype=float)
    found = union(begin, begin + np.array([row[1] for row in rows]))
    assert (found[:, 0] < found[:, 1]).all()
    assert (found[1:, 0] > found[:-1, 1]).all()


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel", "communication"),
        ("void dpsk::ep::internode::cached_notify<false>(int)", "kernel", "communication"),
        ("ampere_bf16_s16816gemm_bf16_128x128", "kernel", "compute"),
        ("void layer_norm::ln_fwd_kernel<...>", "kernel", "compute"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<...>>", "kernel", "compute"),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", "copy"),
    ],
)
def test_kernels_are_sorted_by_name(name: str, category: str, kind: str) -> None:
    assert kernel_class(name, category) == kind


def test_the_rank_that_computes_longest_is_named_and_equal_ranks_are_not() -> None:
    def rank(number: int, compute: float) -> TimelineShares:
        return TimelineShares(number, 1.0, compute, 0.0, 1 - compute, 0.0, 0.0)

    equal = examine_timelines([rank(number, 0.88 + 0.002 * number) for number in range(6)])
    assert equal.healthy
    slow = examine_timelines([rank(number, 0.95 if number == 4 else 0.875) for number in range(6)])
    assert [one.ranks for one in slow.findings if one.cause == "slow-rank"] == [(4,)]
