"""Histograms: every value lies in one bucket, and the last bucket counts them all."""

from hypothesis import given
from hypothesis import strategies as st

from weft.engines.kubernetes.controller.histograms import WAIT_BOUNDS_S, HistogramCounts, size_class


@given(st.lists(st.floats(0, 1e6)))
def test_buckets_count_what_is_at_most_their_bound(values: list[float]) -> None:
    counted = HistogramCounts(WAIT_BOUNDS_S)
    for value in values:
        counted.add(value)
    buckets = dict(counted.buckets())
    for bound in WAIT_BOUNDS_S:
        assert buckets[str(bound)] == sum(value <= bound for value in values)
    assert buckets["+Inf"] == len(values)


def test_sizes_fall_into_classes_without_gaps() -> None:
    assert [size_class(nodes) for nodes in (1, 2, 8, 9, 64, 65, 512, 513, 7500)] == [
        "1", "2-8", "2-8", "9-64", "9-64", "65-512", "65-512", "513+", "513+",
    ]  # fmt: skip
