"""Power as a resource: whatever starts and ends, the draw changes by no more than the ramp within any second."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.plan import plan
from weft.cluster.records.actions import Bind, Wait
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.node import Location, Node
from weft.cluster.records.snapshot import Power, SchedulingPolicy, Snapshot
from weft.cluster.scheduling.power_budget import Ramp

LIMIT = 100_000


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 300)), min_size=1, max_size=40))
def test_starts_of_any_size_at_any_time_keep_the_ramp_within_any_second(starts: list[tuple[int, int]]):
    ramp = Ramp(Power(ramp_w_per_s=LIMIT), SchedulingPolicy())
    changes: list[tuple[int, int]] = []
    for now_ms, nodes in sorted(starts):
        waves = ramp.rise(nodes, 500, now_ms)
        assert not waves or sum(wave.nodes for wave in waves) == nodes
        changes += [(now_ms + wave.after_ms, 500 * wave.nodes) for wave in waves] or [(now_ms, 500 * nodes)]
    for end_ms, _ in changes:
        assert sum(watts for at_ms, watts in changes if end_ms - 1000 < at_ms <= end_ms) <= LIMIT


def test_a_small_start_does_not_wait_behind_a_gangs_ramp():
    ramp = Ramp(Power(ramp_w_per_s=LIMIT), SchedulingPolicy())
    gang = ramp.rise(10_000, 500, 0)
    assert gang[-1].after_ms > 60_000
    assert ramp.rise(1, 500, 10) == ()


def test_waves_come_one_after_the_other():
    waves = Ramp(Power(ramp_w_per_s=LIMIT), SchedulingPolicy()).fall(1000, 500, 0)
    assert all(later.after_ms > sooner.after_ms for sooner, later in pairwise(waves))


def test_a_rack_carries_no_more_than_its_budget():
    nodes = tuple(Node(number, f"n{number}", 4, Location(rack=number // 4)) for number in range(16))
    power = Power(rack_w=4 * 10 + 2 * 4 * 100, node_idle_w=10, gpu_rise_w=100)
    jobs = (Job("fits", Gang(8, 4), 0), Job("waits", Gang(1, 4), 1))
    actions = plan(Snapshot(nodes, jobs, (Team("default", 64),), power), 10)
    bound = next(action for action in actions if isinstance(action, Bind))
    racks = [number // 4 for number in bound.placement.nodes]
    assert (bound.job, [racks.count(rack) for rack in range(4)]) == ("fits", [2, 2, 2, 2])
    assert [(action.job, action.code) for action in actions if isinstance(action, Wait)] == [("waits", "power")]
