"""Exchanges of a step, simulated, become the planner's table."""

import pytest

from weft import api
from weft.netsim.step_table import SIZES, step_tables
from weft.planning.rehearsal import rehearse, simulated_figures
from weft.specs import load_site


@pytest.fixture(scope="module")
def tables():
    return step_tables(load_site("laptop"))


def test_a_permutation_gives_a_share_for_every_size(tables):
    assert tables.healthy.sizes_bytes == tuple(float(size) for size in SIZES)
    assert all(0.5 < share <= 1 for share in tables.healthy.shares)


def test_a_lost_spine_costs_something_and_not_everything(tables):
    assert tables.spine_lost is not None
    assert 0.3 < min(tables.spine_lost.shares) < min(tables.healthy.shares)


def test_the_simulated_column_is_filled(tables):
    report = api.plan("tiny-gpt", "laptop")
    figures = simulated_figures(report, tables.healthy, tables.spine_lost)
    lines = {line.key: line for line in rehearse(report, simulated=figures)}
    assert lines["step_s"].simulated == pytest.approx(float(report.chosen.step_s[0]), rel=0.1)
    spine = lines["slower:T1 switch"].simulated
    assert spine is not None
    assert spine > 0
