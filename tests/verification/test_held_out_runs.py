"""Runs that nothing was fitted to: predicted through files, within the bars, and nine in ten inside their intervals."""

from pathlib import Path

import numpy as np
import pytest
from verification.held_out_runs import (
    DENSE_MEAN_BAR,
    INSIDE_BAR,
    MIXTURE_MEAN_BAR,
    SOURCES,
    HeldOutRun,
    runs,
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[HeldOutRun]:
    return list(runs(Path(tmp_path_factory.mktemp("held-out"))))


def test_every_row_has_a_source_that_is_named(rows: list[HeldOutRun]):
    assert {row.source for row in rows} == set(SOURCES)
    assert len(rows) >= 80


@pytest.mark.parametrize(("mixture", "bar"), [(False, DENSE_MEAN_BAR), (True, MIXTURE_MEAN_BAR)])
def test_errors_are_within_the_bar_on_average(rows: list[HeldOutRun], mixture: bool, bar: float):
    assert np.mean([abs(row.error) for row in rows if row.mixture is mixture]) <= bar


@pytest.mark.parametrize("mixture", [False, True])
def test_nine_in_ten_lie_inside_the_printed_interval(rows: list[HeldOutRun], mixture: bool):
    assert np.mean([row.inside for row in rows if row.mixture is mixture]) >= INSIDE_BAR
