"""Pools of unequal nodes, and teams with limits: urgent gangs, promises and drains hold there, too."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.campaign.replay import Habits, TraceReplay
from weft.campaign.trace import TraceJob
from weft.cluster.records.actions import Preempt, Reserve
from weft.cluster.records.job import KINDS, Kind, Team
from weft.cluster.records.node import Location, Node
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy, Snapshot

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
PLAIN = SchedulingPolicy(fair=False, priorities=False, preempt=False, aged_ms=10**12)
WRITE = 7
"""Time that a training takes to write a checkpoint."""
TEAMS = ("red", "blue", "green")


def pool(sizes: list[int]) -> tuple[Node, ...]:
    return tuple(Node(at, f"n{at}", gpus, Location(at // 2, at // 2, at // 4)) for at, gpus in enumerate(sizes))


@st.composite
def busy_worlds(draw: st.DrawFn) -> tuple[list[TraceJob], list[int], SchedulingPolicy, TraceJob]:
    """Jobs of every kind that fill unequal nodes and queue up, and an urgent gang that some nodes could hold."""
    sizes = draw(st.lists(st.sampled_from([2, 4, 8, 16]), min_size=1, max_size=8))
    lines: list[TraceJob] = []
    at_ms = asked = 0
    while asked < 1.4 * sum(sizes):
        at_ms += draw(st.integers(0, 5 * MINUTE))
        gpus = draw(st.integers(1, max(sizes)))
        wide = draw(st.integers(1, min(3, sum(each >= gpus for each in sizes))))
        kind: Kind = draw(st.sampled_from(KINDS))
        team, priority = draw(st.sampled_from(TEAMS)), draw(st.sampled_from([0, 100, 500]))
        lines.append(TraceJob(at_ms, draw(st.integers(2, 24)) * HOUR, draw(st.sampled_from([None, 30 * HOUR])), wide,
                              gpus, team, priority, kind))  # fmt: skip
        asked += wide * gpus
    gpus = draw(st.sampled_from(sorted(set(sizes))))
    spares = draw(st.integers(0, 1)) if len(set(sizes)) > 1 else 0
    able = sum(each >= gpus for each in sizes)
    kind = draw(st.sampled_from(KINDS[:2]))
    urgent = TraceJob(at_ms + draw(st.integers(1, 30)) * MINUTE, HOUR, draw(st.sampled_from([None, HOUR])),
                      draw(st.integers(1, max(1, able - spares * (able == len(sizes))))), gpus,
                      draw(st.sampled_from(TEAMS)), 1000, kind)  # fmt: skip
    after = [TraceJob(urgent.submit_ms + number * MINUTE, 10 * MINUTE, None, 1, 1, "red", 0, "experiment")
             for number in range(8)]  # fmt: skip
    policy = SchedulingPolicy(lane_share=draw(st.sampled_from([0.0, 0.02, 0.1])), spare_nodes=spares)
    return [*lines, urgent, *after], sizes, policy, urgent


@settings(max_examples=15, deadline=None)
@given(busy_worlds())
def test_an_urgent_gang_starts_within_a_quarter_of_an_hour_on_unequal_nodes(
    world: tuple[list[TraceJob], list[int], SchedulingPolicy, TraceJob],
):
    lines, sizes, policy, urgent = world
    teams = tuple(Team(name, sum(sizes) // 3) for name in TEAMS)
    replay = TraceReplay(Snapshot(pool(sizes), teams=teams, policy=policy), lines)
    name = f"job-{lines.index(urgent):06d}"
    for _ in replay.actions():
        if (name in replay.measures.records and replay.measures.records[name].start_ms is not None) or (
            replay.now_ms > urgent.submit_ms + HOUR
        ):
            break
    wait_ms = replay.measures.records[name].wait_ms
    assert wait_ms is not None
    assert wait_ms <= 15 * MINUTE


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("gpus", [2, 8, 16])
def test_those_that_left_do_not_take_back_what_an_urgent_experiment_of_a_whole_node_waits_for(share: float, gpus: int):
    # It is short and has one node, so it belongs to the fast lane where there is one; the lane never holds all of it.
    held = [TraceJob(0, 10 * HOUR, None, 1, gpus // 2, "green", 0, "training"),
            TraceJob(1000, 10 * HOUR, None, 1, gpus, "green", 0, "service")]  # fmt: skip
    urgent = TraceJob(20 * MINUTE, HOUR, HOUR, 1, gpus, "blue", 1000, "experiment")
    stream = [TraceJob(at * MINUTE, 10 * MINUTE, None, 1, 1, "red", 0, "experiment") for at in range(20, 28)]
    teams = tuple(Team(name, gpus // 3) for name in TEAMS)
    snapshot = Snapshot(pool([gpus]), teams=teams, policy=SchedulingPolicy(lane_share=share))
    measures = TraceReplay(snapshot, [*held, urgent, *stream]).run()
    assert (measures.records["job-000002"].wait_ms or 0) <= 15 * MINUTE


@st.composite
def limited_worlds(draw: st.DrawFn) -> tuple[list[TraceJob], list[int], tuple[Team, ...], SchedulingPolicy]:
    """Jobs that run as long as they declare, or shorter, on unequal nodes, of teams with a most."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=2, max_size=6))
    most = draw(st.integers(max(sizes), sum(sizes)))
    lines: list[TraceJob] = []
    at_ms = 0
    for _ in range(draw(st.integers(2, 18))):
        at_ms += draw(st.integers(0, 40))
        gpus = draw(st.integers(1, max(sizes)))
        wide = draw(st.integers(1, max(1, min(sum(each >= gpus for each in sizes), most // gpus))))
        spent = draw(st.integers(1, 200))
        lines.append(TraceJob(at_ms, spent, spent + draw(st.sampled_from([0, 0, 100])), wide, gpus,
                              draw(st.sampled_from(["red", "blue"])), 100, "experiment"))  # fmt: skip
    policy = replace(PLAIN, lane_share=draw(st.sampled_from([0.0, 0.1])), lane_limit_ms=40)
    return lines, sizes, (Team("red", 0, most), Team("blue", sum(sizes))), policy


def first_head(
    world: tuple[list[TraceJob], list[int], tuple[Team, ...], SchedulingPolicy], *, backfill: bool
) -> tuple[str, int, int]:
    """Return the first job that is promised a start, the promise, and when it starts."""
    lines, sizes, teams, policy = world
    snapshot = Snapshot(pool(sizes), teams=teams, policy=replace(policy, backfill=backfill))
    replay = TraceReplay(snapshot, lines, Habits(min_run_ms=0), pass_ms=1)
    head, promise_ms = "", FAR_MS
    for action in replay.actions():
        if isinstance(action, Reserve) and head in ("", action.job):
            head, promise_ms = action.job, min(promise_ms, action.at_ms)
    return head, promise_ms, replay.measures.records[head].start_ms or 0 if head else 0


@settings(max_examples=25, deadline=None)
@given(limited_worlds())
def test_a_promise_is_kept_and_exact_limits_make_it_no_later_than_without_backfill(
    world: tuple[list[TraceJob], list[int], tuple[Team, ...], SchedulingPolicy],
):
    head, promise_ms, start_ms = first_head(world, backfill=True)
    assert start_ms <= promise_ms + 1
    if all(each.limit_ms == each.duration_ms for each in world[0]):
        again, _, without_ms = first_head(world, backfill=False)
        assert head == again
        assert start_ms <= without_ms + 1


@st.composite
def untold_worlds(draw: st.DrawFn) -> tuple[list[TraceJob], list[int], tuple[Team, ...], SchedulingPolicy]:
    """Jobs of unequal nodes whose limits are missing, exact or up to ten times too long; some write checkpoints."""
    lines, sizes, _, policy = draw(limited_worlds())
    told = draw(st.sampled_from(["never", "too long", "mixed"]))
    kinds: tuple[Kind, ...] = draw(st.sampled_from([KINDS[1:2], KINDS[:2]]))
    found: list[TraceJob] = []
    for each in lines:
        longer = each.duration_ms * draw(st.integers(1, 10))
        limit = {"never": None, "too long": longer, "mixed": draw(st.sampled_from([None, longer]))}[told]
        found.append(replace(each, team="red", limit_ms=limit, kind=draw(st.sampled_from(kinds))))
    return found, sizes, (Team("red", sum(sizes)),), replace(policy, lane_share=0.0, fair=draw(st.booleans()))


@settings(max_examples=80, deadline=None)
@given(untold_worlds())
def test_no_head_starts_later_than_without_backfill_whatever_limits_say(
    world: tuple[list[TraceJob], list[int], tuple[Team, ...], SchedulingPolicy],
):
    heads: list[tuple[str, int]] = []
    for backfill in (True, False):
        lines, sizes, teams, policy = world
        snapshot = Snapshot(pool(sizes), teams=teams, policy=replace(policy, backfill=backfill))
        replay = TraceReplay(snapshot, lines, Habits(min_run_ms=0, write_ms=WRITE), pass_ms=1)
        head = ""
        for _ in replay.actions():
            promised = replay.cluster.reservation
            head = head or (promised.job if promised is not None else "")
        heads.append((head, replay.measures.records[head].start_ms or 0 if head else 0))
    (head, start_ms), (again, without_ms) = heads
    assert head == again
    # Who writes checkpoints is asked and gets its grace for one; who writes none leaves at once.
    assert start_ms <= without_ms + 1 + (WRITE + 1 if any(each.kind == "training" for each in lines) else 0)


def test_who_was_let_past_leaves_only_where_that_lets_the_blocked_job_start():
    # Two nodes of four; the head needs both. One runs for long; what was let past on the other one stays.
    lines = [TraceJob(0, 1000, None, 1, 4, "red", 100, "experiment"),
             TraceJob(1, 50, None, 2, 4, "red", 100, "experiment"),
             TraceJob(2, 400, None, 1, 1, "red", 100, "experiment"),
             TraceJob(3, 5000, None, 1, 3, "red", 100, "experiment")]  # fmt: skip
    snapshot = Snapshot(pool([4, 4]), teams=(Team("red", 8),), policy=PLAIN)
    replay = TraceReplay(snapshot, lines, Habits(min_run_ms=0), pass_ms=1)
    left = [(each.job, replay.now_ms) for each in replay.actions() if isinstance(each, Preempt)]
    assert [name for name, _ in left] == ["job-000003"]
    assert left[0][1] == 1000
    assert replay.measures.records["job-000001"].start_ms == 1001
    assert replay.measures.preempted["backfill"] == 1


@pytest.mark.parametrize(("seed", "wide"), [(0, 4), (1, 5)])
def test_a_stream_that_another_quota_covers_does_not_refill_what_is_drained_for_a_gang(seed: int, wide: int):
    # Two teams, each covered by half of the pool; jobs of two hours without limits take every GPU that comes free.
    draw = np.random.default_rng(seed)
    nodes, gpus, hours = 10, 8, 2
    times = np.sort(draw.random(round(1.2 * 24 * nodes * gpus / hours / 2)) * 1.2 * DAY).astype(int)
    stream = [TraceJob(int(at), hours * HOUR, None, 1, 1 << int(draw.integers(3)), TEAMS[number % 2], 100, "experiment")
              for number, at in enumerate(times)]  # fmt: skip
    gang = TraceJob(DAY // 4, HOUR, None, wide, gpus, "red", 100, "training")
    lines = sorted([*stream, gang], key=lambda each: each.submit_ms)
    teams = (Team("red", nodes * gpus // 2), Team("blue", nodes * gpus // 2))
    replay = TraceReplay(Snapshot(pool([gpus] * nodes), teams=teams), lines, pass_ms=10_000)
    name, head_ms = f"job-{lines.index(gang):06d}", 0
    for _ in replay.actions():
        promised = replay.cluster.reservation
        head_ms = head_ms or (replay.now_ms if promised is not None and promised.job == name else 0)
        if name in replay.measures.records and replay.measures.records[name].start_ms is not None:
            break
    # Whoever holds its nodes is gone two hours after they are closed to others.
    assert (replay.measures.records[name].start_ms or 0) - head_ms <= 2 * hours * HOUR
