"""A policy file says what a `SchedulingPolicy` and budgets hold, key by key, and nothing else."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from weft.cluster.from_policy import as_tables, differences, policy_of_spec, power_of_spec
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.node import Node
from weft.cluster.records.snapshot import HOUR_MS, Power, SchedulingPolicy, Snapshot
from weft.cluster.scheduling.state import ClusterState
from weft.core.errors import UsageError
from weft.core.toml import written
from weft.specs import POLICIES, PolicySpec, load_policy


def test_a_file_that_says_nothing_has_the_numbers_of_the_records_and_a_lane():
    assert policy_of_spec(PolicySpec()) == replace(SchedulingPolicy(), lane_share=0.01)
    assert power_of_spec(PolicySpec()) == Power()


def flat(tables: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return found


def test_every_number_of_a_policy_has_a_key_of_its_own():
    usual = flat(as_tables(SchedulingPolicy()))
    assert len(usual) == len(fields(SchedulingPolicy))
    for field in fields(SchedulingPolicy):
        value = getattr(SchedulingPolicy(), field.name)
        other: Any = not value if isinstance(value, bool) else "other" if isinstance(value, str) else (value or 0) + 1
        changed = flat(as_tables(replace(SchedulingPolicy(), **{field.name: other})))
        assert sum(changed[key] != usual[key] for key in usual) == 1, field.name


@pytest.mark.parametrize("name", POLICIES.names())
def test_built_in_policies_are_written_and_read_back(name: str, tmp_path: Path):
    spec = load_policy(name)
    assert spec.description
    (tmp_path / "mine.toml").write_text(written(spec.as_written()))
    assert load_policy(str(tmp_path / "mine.toml")) == spec


def test_what_differs_is_said_in_one_line():
    assert differences(as_tables(policy_of_spec(load_policy("weft")))) == ""
    assert differences(as_tables(policy_of_spec(load_policy("no-lane")))) == "lane.share 0.0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('order.rules = "shortest"', "no scheduling rules 'shortest'"),
        ("lane.share = 1.5", "lane.share"),
        ('lane.limit = "1500 us"', "milliseconds"),
        ('limits = { default = "2 h", most = "1 h" }', "longer than the longest"),
        ("lane.shares = 0.5", "lane.shares"),
    ],
)
def test_a_mistake_is_named(text: str, said: str, tmp_path: Path):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match=said):
        policy_of_spec(load_policy(str(tmp_path / "mine.toml")))


def test_budgets_of_the_file_stand_above_those_of_the_site(tmp_path: Path):
    (tmp_path / "mine.toml").write_text('power = { site = "2 MW", ramp_per_second = "1 MW" }')
    found = power_of_spec(load_policy(str(tmp_path / "mine.toml")), Power(site_w=5, node_idle_w=7))
    assert (found.site_w, found.ramp_w_per_s, found.node_idle_w) == (2_000_000, 1_000_000, 7)


@pytest.mark.parametrize(
    ("declared", "default", "most", "got"),
    [(None, None, None, None), (None, 2, None, 2), (None, None, 3, 3), (5, 2, 3, 3), (1, 2, 3, 1), (None, 2, 3, 2)],
)
def test_limits_are_given_and_cut(declared: int | None, default: int | None, most: int | None, got: int | None):
    hours = [None if each is None else each * HOUR_MS for each in (declared, default, most, got)]
    policy = SchedulingPolicy(limit_default_ms=hours[1], limit_most_ms=hours[2])
    job = Job("j", Gang(1, 1), 0, limit_ms=hours[0])
    cluster = ClusterState(Snapshot((Node(0, "n", 1),), (job,), (Team("default", 1),), policy=policy))
    assert cluster.jobs["j"].limit_ms == hours[3]
