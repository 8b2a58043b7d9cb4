"""A policy file is taken up when it changes, and a wrong one changes nothing."""

import os
from pathlib import Path

from weft.cluster.records.node import Node
from weft.cluster.records.snapshot import Power, SchedulingPolicy, Snapshot
from weft.engines.policy_file import PolicyFile, default_policy, with_policy
from weft.specs import PolicySpec


def write(path: Path, text: str, turn: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(turn, turn))


def test_a_file_is_read_once_for_each_change(tmp_path: Path):
    path, said = tmp_path / "policy.toml", []
    file = PolicyFile(path, said.append)
    assert file.changed() is None
    write(path, "spares.nodes = 2", 1)
    found = file.changed()
    assert found is not None
    assert found.spares.nodes == 2
    assert file.changed() is None
    write(path, "spares.nodes = -2", 2)
    assert file.changed() is None
    assert file.changed() is None
    assert len(said) == 1
    assert "spares.nodes" in said[0]
    write(path, 'order.rules = "nobody"', 3)
    assert file.changed() is None
    assert len(said) == 2
    path.unlink()
    assert file.changed() is None


def test_a_state_under_another_policy_keeps_what_its_ramps_are_busy_with():
    busy = Snapshot((Node(0, "n", 1),), power=Power(site_w=9, ramp_free_ms=5, fall_lane_free_ms=7))
    found = with_policy(busy, PolicySpec())
    assert found.policy == default_policy() != SchedulingPolicy()
    assert found.power == Power(ramp_free_ms=5, fall_lane_free_ms=7)
