"""Scenes of a pass over time: who is promised what by GPUs of each node, and who may start beside it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.worlds import nodes_of

from weft.campaign.measures import JobRecord
from weft.campaign.replay import Habits, TraceReplay
from weft.campaign.trace import TraceJob
from weft.cluster.plan import decide, plan
from weft.cluster.records.actions import Bind, Reserve
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy, Snapshot
from weft.cluster.scheduling.state import ClusterState

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
PLAIN = SchedulingPolicy(fair=False, priorities=False, preempt=False, aged_ms=10**12)


def line(at: int, duration: int, limit: int | None, nodes: int, gpus: int, priority: int = 100) -> TraceJob:
    return TraceJob(at, duration, limit, nodes, gpus, "red", priority, "experiment")


def lived(
    lines: Sequence[TraceJob], nodes: int, gpus: int, policy: SchedulingPolicy, pass_ms: int = 1000
) -> list[JobRecord]:
    snapshot = Snapshot(nodes_of(nodes, gpus, odd=False), teams=(Team("red", nodes * gpus),), policy=policy)
    ordered = sorted(lines, key=lambda each: each.submit_ms)
    world = TraceReplay(snapshot, ordered, Habits(min_run_ms=0), pass_ms=pass_ms)
    return list(world.run().records.values())


def waited(records: Sequence[JobRecord], nodes: int, gpus: int) -> int:
    found = next(each.wait_ms for each in records if each.nodes == nodes and each.gpus == nodes * gpus)
    assert found is not None
    return found


def test_a_head_that_needs_a_part_of_a_node_is_promised_when_that_part_is_free():
    # Four GPUs of the only node are held for 1,000 s, three for a day; the head needs five.
    lines = [line(0, DAY, DAY, 1, 3), line(0, 1_000_000, 1_000_000, 1, 4), line(1000, HOUR, HOUR, 1, 5)]
    late = [line(2000 + at, 13 * HOUR, 13 * HOUR, 1, 1) for at in range(4)]
    assert waited(lived([*lines, *late], 1, 8, PLAIN), 1, 5) <= 1_000_000


@pytest.mark.parametrize("mean_h", [0.5, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_gang_beside_a_stream_of_jobs_without_limits_starts_within_four_hours(seed: int, mean_h: float):
    draw = np.random.default_rng(seed)
    count = round(2 * 24 * 0.9 * 64 / mean_h)
    times = np.sort(draw.random(count) * 2 * DAY).astype(int)
    spans = np.maximum(1, draw.exponential(mean_h * HOUR, count)).astype(int)
    stream = [line(int(at), int(span), None, 1, 1) for at, span in zip(times, spans, strict=True)]
    gang = line(DAY, HOUR, None, 2, 8)
    assert waited(lived([*stream, gang], 8, 8, SchedulingPolicy(), 10_000), 2, 8) <= 4 * HOUR


@pytest.mark.parametrize(("nodes", "width", "victim_gpus"), [(8, 4, 1), (5, 2, 2), (6, 6, 1), (4, 2, 4)])
@pytest.mark.parametrize("limit", [None, 20 * HOUR])
def test_an_urgent_gang_evicts_smaller_jobs_from_the_same_nodes(
    nodes: int, width: int, victim_gpus: int, limit: int | None
):
    full = [line(0, 20 * HOUR, limit, 1, victim_gpus, 0) for _ in range(nodes * 8 // victim_gpus)]
    records = lived([*full, line(HOUR, HOUR, HOUR, width, 8, 1000)], nodes, 8, SchedulingPolicy())
    assert waited(records, width, 8) <= 15 * MINUTE
    assert sum(each.preemptions for each in records) == width * 8 // victim_gpus


def test_a_team_reclaims_its_quota_from_smaller_jobs_on_the_same_nodes():
    teams = (Team("red", 32), Team("blue", 32))
    lines = [TraceJob(0, 20 * HOUR, None, 1, 1, "red", 100, "experiment") for _ in range(64)]
    lines.append(TraceJob(HOUR, HOUR, HOUR, 4, 8, "blue", 100, "training"))
    world = TraceReplay(Snapshot(nodes_of(8, 8, odd=False), teams=teams), lines)
    assert waited(list(world.run().records.values()), 4, 8) <= 15 * MINUTE


@st.composite
def full_pools(draw: st.DrawFn) -> tuple[list[tuple[int, bool]], int, int, int, int]:
    """Jobs that fill every node, by GPUs and whether they declare a limit; nodes, GPUs, and a gang's two."""
    nodes, gpus = draw(st.integers(1, 8)), draw(st.sampled_from([2, 4, 8]))
    jobs: list[tuple[int, bool]] = []
    for _ in range(nodes):
        left = gpus
        while left:
            part = min(left, draw(st.sampled_from([1, 2, 4, 8])))
            jobs.append((part, draw(st.booleans())))
            left -= part
    return jobs, nodes, gpus, draw(st.integers(1, nodes)), draw(st.integers(1, gpus))


@settings(max_examples=30, deadline=None)
@given(full_pools(), st.sampled_from([0.0, 0.02, 0.1]), st.integers(0, 1), st.booleans(), st.booleans())
def test_an_urgent_gang_starts_soon_whatever_fills_the_pool(
    pool: tuple[list[tuple[int, bool]], int, int, int, int], lane: float, spares: int, by_quota: bool, brief: bool
):
    jobs, nodes, gpus, wide, each = pool
    # Parts of nodes may be nobody's to reclaim: what is above the quota can lie on other nodes.
    each = gpus if by_quota else each
    policy = SchedulingPolicy(lane_share=lane, spare_nodes=min(spares, nodes - wide))
    lines = [TraceJob(0, 20 * HOUR, 20 * HOUR if limited else None, 1, part, "red", 50, "experiment")
             for part, limited in jobs]  # fmt: skip
    team, priority = ("blue", 50) if by_quota else ("red", 1000)
    lines.append(TraceJob(HOUR, HOUR, HOUR if brief else None, wide, each, team, priority, "experiment"))
    # Quotas share out what is not kept for anybody: spares and the lane are nobody's.
    kept = policy.spare_nodes * gpus + round(lane * nodes * gpus)
    teams = (Team("red", max(0, nodes * gpus - wide * each - kept)), Team("blue", wide * each))
    world = TraceReplay(Snapshot(nodes_of(nodes, gpus, odd=False), teams=teams, policy=policy), lines)
    wait_ms = list(world.run().records.values())[-1].wait_ms
    assert wait_ms is not None
    assert wait_ms <= 15 * MINUTE


def covered_wait_ms(parts: Sequence[int], nodes: int, gpus: int, wide: int, lane: float, brief: bool) -> int:
    """Return how long a gang of whole nodes waits that its quota covers, in a pool full of another team's jobs."""
    lines = [TraceJob(0, 20 * HOUR, None, 1, part, "red", 50, "experiment") for part in parts]
    lines.append(TraceJob(HOUR, HOUR, HOUR if brief else None, wide, gpus, "blue", 50, "experiment"))
    red = max(0, (nodes - wide) * gpus - round(lane * nodes * gpus))
    teams, policy = (Team("red", red), Team("blue", wide * gpus)), SchedulingPolicy(lane_share=lane)
    world = TraceReplay(Snapshot(nodes_of(nodes, gpus, odd=False), teams=teams, policy=policy), lines)
    return list(world.run().records.values())[-1].wait_ms or 0


@pytest.mark.parametrize("brief", [False, True])
def test_a_covered_gang_does_not_wait_for_a_borrowers_turn(brief: bool):
    # The last of red's jobs waits for a node that is drained for it, which the lane keeps it from taking.
    assert covered_wait_ms((4, 2, 2, 1, 2, 1, 4, 8), 3, 8, 1, 0.1, brief) <= 15 * MINUTE
    for seed in range(16):
        draw = np.random.default_rng(seed)
        nodes, gpus = int(draw.integers(2, 9)), int(draw.choice([2, 4, 8]))
        parts: list[int] = []
        while (left := nodes * gpus - sum(parts)) > 0:
            parts.append(min(left, gpus - sum(parts) % gpus, int(draw.choice([1, 2, 4, 8]))))
        wide, lane = int(draw.integers(1, nodes)), float(draw.choice([0.02, 0.05, 0.1]))
        assert covered_wait_ms(parts, nodes, gpus, wide, lane, brief) <= 15 * MINUTE, seed


def test_victims_return_to_their_old_place_and_do_not_age_before_the_one_they_left_for():
    lines = [
        line(0, 4 * HOUR, 5 * HOUR, 1, 8, 0), line(7 * HOUR // 4, HOUR, HOUR, 1, 8, 0),
        line(2 * HOUR, HOUR, HOUR, 1, 8, 500),
    ]  # fmt: skip
    victim, later, urgent = lived(lines, 1, 8, SchedulingPolicy(aged_ms=3 * HOUR // 2))
    assert victim.preemptions == 1
    assert (urgent.wait_ms or 0) <= 15 * MINUTE
    assert urgent.end_ms is not None
    assert later.start_ms is not None
    # An experiment begins anew: four hours for the victim, before the one that came after it.
    assert later.start_ms >= urgent.end_ms + 4 * HOUR


def test_members_of_a_sweep_start_in_order():
    jobs = tuple(Job(f"sweep-{at}", Gang(1, 4), 0, limit_ms=HOUR) for at in range(12))
    cluster = ClusterState(Snapshot(nodes_of(1, 4, odd=False), jobs, (Team("default", 4),)))
    order, _ = cluster.queue.order(0, cluster.shares)
    assert [cluster.queue.ids[row] for row in order.tolist()] == [f"sweep-{at}" for at in range(12)]


@pytest.mark.parametrize(("nodes", "gpus", "lane"), [(2, 8, 0), (64, 4, 3), (100, 8, 8), (7500, 4, 300)])
def test_the_lane_gets_its_share_to_the_gpu(nodes: int, gpus: int, lane: int):
    policy = SchedulingPolicy(lane_share=0.01)
    wide = max(1, nodes - 90)
    some = (Job("wide", Gang(wide, gpus), 0),
            *(Job(f"j{at}", Gang(1, 1), 1, limit_ms=2 * HOUR) for at in range(400)))  # fmt: skip
    snapshot = Snapshot(nodes_of(nodes, gpus, odd=False), some, (Team("default", nodes * gpus),), policy=policy)
    given = sum(len(each.placement.nodes) * each.placement.gpus_per_node
                for each in plan(snapshot, 10) if isinstance(each, Bind))  # fmt: skip
    assert given == min(nodes * gpus - lane, sum(job.gpus for job in some))


@st.composite
def worlds(draw: st.DrawFn, *, unlimited: bool) -> tuple[list[TraceJob], int, int, int]:
    """Jobs with parts of nodes and whole ones; the position of a head, and jobs that come after it."""
    nodes, gpus = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 4, 8]))
    lines: list[TraceJob] = []
    submit_ms = 0
    for _ in range(draw(st.integers(2, 22))):
        submit_ms += draw(st.integers(0, 40))
        duration = draw(st.integers(1, 200))
        limit = None if unlimited and draw(st.booleans()) else duration
        lines.append(line(submit_ms, duration, limit, draw(st.integers(1, nodes)), draw(st.integers(1, gpus))))
    return lines, nodes, gpus, draw(st.integers(0, len(lines) - 1))


def head_starts(lines: Sequence[TraceJob], nodes: int, gpus: int, policy: SchedulingPolicy) -> tuple[str, int, int]:
    """Return the first head that is promised a time, when, and when it starts."""
    snapshot = Snapshot(nodes_of(nodes, gpus, odd=False), teams=(Team("red", nodes * gpus),), policy=policy)
    world = TraceReplay(snapshot, lines, pass_ms=1)
    head, at_ms = "", 0
    for action in world.actions():
        if isinstance(action, Reserve) and not head:
            head, at_ms = action.job, world.now_ms
    start_ms = world.measures.records[head].start_ms if head else 0
    assert start_ms is not None
    return head, at_ms, start_ms


@settings(max_examples=120, deadline=None)
@given(worlds(unlimited=False))
def test_a_head_starts_no_later_than_without_backfill(world: tuple[list[TraceJob], int, int, int]):
    lines, nodes, gpus, _ = world
    head, at_ms, start_ms = head_starts(lines, nodes, gpus, PLAIN)
    again, then_ms, without_ms = head_starts(lines, nodes, gpus, replace(PLAIN, backfill=False))
    # Up to the first head both runs are the same run.
    assert (head, at_ms) == (again, then_ms)
    assert start_ms <= without_ms + 1


@pytest.mark.parametrize("count", [3, 1500])
def test_jobs_that_just_run_out_end_a_replay(count: int):
    lines = [line(0, (1 + at) * 1000, None, 1, 1) for at in range(count)]
    assert all(each.state == "done" for each in lived(lines, -(-count // 8), 8, SchedulingPolicy()))


def test_a_head_behind_jobs_without_limits_drains_the_nodes_that_lack_least():
    jobs = (
        *(Job(f"a{at}", Gang(1, 1), 0) for at in range(12)),
        Job("head", Gang(1, 8), 1),
        Job("late", Gang(1, 1), 2),
        Job("brief", Gang(1, 1), 3, limit_ms=MINUTE),
    )
    cluster = ClusterState(
        Snapshot(nodes_of(2, 8, odd=False), jobs, (Team("default", 16),), policy=replace(PLAIN, give_way=False))
    )
    bound = {each.job: each.placement.nodes for each in decide(cluster, 10) if isinstance(each, Bind)}
    assert cluster.reservation is not None
    assert (cluster.reservation.job, cluster.reservation.at_ms) == ("head", FAR_MS)
    # The first twelve fill node 0 and half of node 1, which is drained.
    assert "late" not in bound
    # What runs there goes on for longer than a minute.
    assert bound["brief"] == (1,)
