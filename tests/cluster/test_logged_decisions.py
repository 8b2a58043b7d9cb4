"""Thousands of decisions under a policy with everything in it are made again by their log."""

import itertools

import pytest
from tests.cluster.worlds import nodes_of

from weft.campaign.replay import TraceReplay
from weft.campaign.trace import generated
from weft.cluster.log import replayed
from weft.cluster.records.job import Team
from weft.cluster.records.snapshot import Power, SchedulingPolicy, Snapshot
from weft.core.seeds import Seed

FULL = SchedulingPolicy(lane_share=0.02, spare_nodes=1, test_at_once=2, test_every_ms=3_600_000, grace_most_ms=120_000)
POWER = Power(site_w=400_000, ramp_w_per_s=60_000, node_idle_w=1000, gpu_rise_w=800)


@pytest.mark.parametrize("seed", [5, 6])
def test_a_log_of_a_whole_replay_makes_the_same_decisions(seed: int):
    teams = tuple(Team(f"team-{number}", 64) for number in range(4))
    world = TraceReplay(
        Snapshot(nodes_of(32, 8, odd=False), teams=teams, policy=FULL, power=POWER),
        generated(250, 32, 8, Seed(seed), load=1.1),
    )
    lines: list[str] = []
    world.record(lines.append)
    decided = sum(1 for _ in world.actions())
    assert decided > 600
    assert list(replayed(itertools.chain.from_iterable(each.splitlines() for each in lines))) == []
