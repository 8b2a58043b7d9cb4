"""The queue's order: aged jobs first, then by priority, quota and fair share, then by submission."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.worlds import nodes_of

from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy, Snapshot
from weft.cluster.scheduling.fair_share import Shares
from weft.cluster.scheduling.queue import COLUMNS, LAST_WAIT, Queue, is_fast, is_quick
from weft.cluster.scheduling.state import ClusterState

TEAMS = (Team("red", 8), Team("blue", 8), Team("none", 0))
PLAIN = SchedulingPolicy(aged_ms=10**12)
NAMES = [team.name for team in TEAMS]


def queue_of(jobs: list[Job], policy: SchedulingPolicy = PLAIN) -> tuple[Queue, Shares]:
    shares = Shares(TEAMS, policy)
    queue = Queue(policy, 16)
    for job in jobs:
        queue.put(job, shares.index[job.team], 0, 100, 0)
    return queue, shares


def order(jobs: list[Job], policy: SchedulingPolicy = PLAIN, now_ms: int = 10**6) -> list[str]:
    queue, shares = queue_of(jobs, policy)
    rows, _ = queue.order(now_ms, shares)
    return [queue.ids[row] for row in rows.tolist()]


jobs_drawn = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 500), st.integers(1, 16)), max_size=12
).map(
    lambda rows: [
        Job(f"j{at:02d}", Gang(nodes), submit, team=team, priority=100 * priority)
        for at, (team, priority, submit, nodes) in enumerate(rows)
    ]
)


@given(jobs_drawn)
def test_everybody_is_considered_once(jobs: list[Job]):
    assert sorted(order(jobs)) == sorted(job.id for job in jobs)


@given(jobs_drawn)
def test_a_higher_priority_is_considered_first(jobs: list[Job]):
    known = {job.id: job.priority for job in jobs}
    found = [known[name] for name in order(jobs)]
    assert found == sorted(found, reverse=True)


@given(jobs_drawn)
def test_without_priorities_and_shares_the_order_is_that_of_submission(jobs: list[Job]):
    policy = replace(PLAIN, priorities=False, fair=False)
    assert order(jobs, policy) == [job.id for job in sorted(jobs, key=lambda job: (job.submit_ms, job.id))]


@given(jobs_drawn, st.integers(0, 600))
def test_jobs_that_waited_too_long_stand_before_all_others(jobs: list[Job], now_ms: int):
    policy = replace(PLAIN, aged_ms=100)
    queue, shares = queue_of(jobs, policy)
    rows, aged = queue.order(now_ms, shares)
    found = [queue.ids[row] for row in rows.tolist()]
    old = {job.id for job in jobs if job.submit_ms <= now_ms - 100}
    assert set(found[:aged]) == old
    known = {job.id: job.submit_ms for job in jobs}
    assert [known[name] for name in found[:aged]] == sorted(known[name] for name in old)


@settings(max_examples=40)
@given(jobs_drawn, st.data())
def test_who_is_taken_out_is_gone_and_the_others_keep_their_order(jobs: list[Job], data: st.DataObject):
    # What a quota covers depends on who else waits.
    policy = replace(PLAIN, borrow=False)
    queue, shares = queue_of(jobs, policy)
    gone = data.draw(st.sets(st.sampled_from(jobs)) if jobs else st.just(set()))
    before = [name for name in order(jobs, policy) if name not in {job.id for job in gone}]
    for job in gone:
        queue.drop(job, shares.index[job.team])
    rows, _ = queue.order(10**6, shares)
    assert [queue.ids[row] for row in rows.tolist()] == before
    assert len(queue) == len(before)


def test_a_row_that_was_left_is_used_again():
    queue, shares = queue_of([Job(f"j{at}", Gang(1), at, team="red") for at in range(100)])
    for at in range(100):
        queue.drop(Job(f"j{at}", Gang(1), at, team="red"), shares.index["red"])
    size = queue.table.shape
    for at in range(100):
        queue.put(Job(f"k{at}", Gang(1), at, team="red"), 0, 0, 0, 0)
    assert queue.table.shape == size


def test_the_team_that_used_less_of_its_quota_goes_first():
    jobs = [Job("r", Gang(1), 0, team="red"), Job("b", Gang(1), 1, team="blue")]
    assert order(jobs) == ["r", "b"]
    shares = Shares((replace(TEAMS[0], used_gpu_ms=50.0), *TEAMS[1:]), PLAIN)
    queue = Queue(PLAIN, 16)
    for job in jobs:
        queue.put(job, shares.index[job.team], 0, 0, 0)
    assert [queue.ids[row] for row in queue.order(0, shares)[0].tolist()] == ["b", "r"]


def test_who_would_borrow_stands_behind_who_would_not():
    jobs = [Job("large", Gang(9), 0, team="red"), Job("small", Gang(8), 1, team="red")]
    assert order(jobs) == ["small", "large"]
    assert order(jobs, replace(PLAIN, borrow=False)) == ["large", "small"]


def test_a_job_that_had_to_leave_has_its_old_place_and_ages_anew():
    jobs = [Job("back", Gang(1), 0, team="red", queued_ms=50), Job("new", Gang(1), 20, team="red")]
    assert order(jobs) == ["back", "new"]
    assert order(jobs, replace(PLAIN, aged_ms=100), now_ms=130) == ["new", "back"]


def test_a_quota_covers_a_teams_jobs_in_their_order():
    jobs = [
        Job("first", Gang(5), 0, team="red"),
        Job("gang", Gang(4), 1, team="red"),
        Job("small", Gang(1), 2, team="red"),
    ]
    assert order(jobs) == ["first", "gang", "small"]


@given(jobs_drawn, st.data())
def test_who_was_promised_goes_before_all_but_the_more_important(jobs: list[Job], data: st.DataObject):
    if not jobs:
        return
    mine = data.draw(st.sampled_from(jobs))
    queue, shares = queue_of(jobs)
    before = order(jobs)
    rows, _ = queue.order(10**6, shares, mine.id)
    after = [queue.ids[row] for row in rows.tolist()]
    assert [name for name in after if name != mine.id] == [name for name in before if name != mine.id]
    known = {job.id: job for job in jobs}
    ahead = after[: after.index(mine.id)]
    assert all(known[name].priority >= mine.priority for name in ahead)
    assert {job.id for job in jobs if job.priority > mine.priority} <= set(ahead)


@pytest.mark.parametrize("names", [["s-0", "s-1", "s-2", "s-10", "s-11"], ["a9b", "a10a", "a10b", "b"]])
def test_members_of_a_sweep_go_by_their_numbers(names: list[str]):
    assert order([Job(name, Gang(1), 0, team="red") for name in reversed(names)]) == names


@pytest.mark.parametrize(
    ("job", "quick"),
    [
        (Job("j", Gang(1), 0, limit_ms=10), True),
        (Job("j", Gang(1), 0, limit_ms=3_600_001), False),
        (Job("j", Gang(1), 0), False),
        (Job("j", Gang(2), 0, limit_ms=10), False),
        (Job("j", Gang(1), 0, "training", limit_ms=10), False),
        (Job("j", Gang(1), 0, "service", limit_ms=10), False),
    ],
)
def test_the_fast_lane_is_for_small_experiments_that_say_how_long(job: Job, quick: bool):
    assert is_quick(job, PLAIN) == quick
    assert not is_fast(job, PLAIN)
    assert is_fast(job, replace(PLAIN, lane_nodes=1)) == quick


def test_a_row_holds_what_a_pass_asks_for():
    job = Job("j", Gang(4, 8, min_nodes=2), 0, team="blue", takes_degraded=False)
    queue, _ = queue_of([job])
    row = dict(zip(COLUMNS, queue.table[:, 0].tolist(), strict=True))
    assert row == {
        "need": 2, "gpus": 8, "total": 16, "watts": 1600, "team": 1, "limit_ms": FAR_MS, "array": 0, "last_wait": 0,
        "degraded": 0, "fast": 0, "minds_lane": 1, "queued_ms": 0,
        "priority": 100, "size_class": 25, "submit_ms": 0, "shape": 0,
    }  # fmt: skip
    assert COLUMNS[LAST_WAIT] == "last_wait"


@pytest.mark.parametrize(
    ("lane", "spare", "nodes", "minds"), [(0, 0, 16, 1), (2, 0, 14, 1), (2, 0, 15, 0), (2, 1, 14, 0), (1.5, 0, 14, 1)]
)
def test_a_gang_that_needs_the_whole_pool_may_take_the_lane(lane: int, spare: int, nodes: int, minds: int):
    policy = replace(PLAIN, lane_nodes=int(lane), spare_nodes=spare, lane_share=(lane % 1) / 16)
    job = Job("j", Gang(nodes, 4), 0, "training", team="red")
    queue = ClusterState(Snapshot(nodes_of(16, 4, odd=False), (job,), TEAMS, policy=policy)).queue
    assert queue.table[COLUMNS.index("minds_lane"), 0] == minds
