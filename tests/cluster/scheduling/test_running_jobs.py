"""The columns over running jobs: when nodes come back, and what each job would lose."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.records.job import Gang, Job, JobState, Placement
from weft.cluster.records.snapshot import FAR_MS
from weft.cluster.scheduling.running_jobs import RunningJobs, back_ms


def job(name: str, **more: int | None) -> Job:
    nodes = more.pop("nodes", 1) or 1
    placement = Placement(tuple(range(nodes)), 2)
    known = {"start_ms": 0, **more}
    return Job(
        name, Gang(nodes, 2), 0, "training", priority=known.get("priority") or 100, limit_ms=known.get("limit_ms"),
        state=JobState.RUNNING, placement=placement, start_ms=known["start_ms"],
        checkpoint_ms=known.get("checkpoint_ms"), checkpoint_every_ms=known.get("checkpoint_every_ms"),
        leave_by_ms=known.get("leave_by_ms"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("start", "limit", "leave_by", "back"),
    [(5, None, None, FAR_MS), (5, 10, None, 15), (5, 10, 12, 12), (5, 10, 99, 15), (5, None, 30, 30)],
)
def test_nodes_come_back_at_the_limit_or_when_the_job_must_be_gone(
    start: int, limit: int | None, leave_by: int | None, back: int
):
    assert back_ms(job("j", start_ms=start, limit_ms=limit, leave_by_ms=leave_by)) == back


ends = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(ends, st.data(), st.integers(0, 60))
def test_the_first_end_by_which_enough_nodes_are_empty_is_found_from_any_guess(
    limits: list[int], data: st.DataObject, guess_ms: int
):
    running = RunningJobs()
    for at, limit in enumerate(limits):
        running.put(job(f"j{at}", limit_ms=limit), 0, 0, fast=False)
    back = np.array([0, *limits], dtype=np.int64)
    wanted = data.draw(st.integers(1, len(back)))
    assert running.earliest_ms(back, wanted, guess_ms) == sorted(back.tolist())[wanted - 1]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 50)), min_size=1, max_size=6), st.integers(50, 100))
def test_a_job_loses_what_it_did_since_its_checkpoint(rows: list[tuple[int, int]], now_ms: int):
    running = RunningJobs()
    for at, (nodes, kept_ms) in enumerate(rows):
        running.put(job(f"j{at}", nodes=nodes, checkpoint_ms=kept_ms), 0, 0, fast=False)
    expected = [nodes * 2 * (now_ms - kept_ms) for nodes, kept_ms in rows]
    assert running.lost_gpu_ms(now_ms).tolist() == expected


@given(st.integers(0, 100), st.integers(1, 30), st.integers(0, 300))
def test_checkpoints_by_the_clock_bound_the_loss(start_ms: int, every_ms: int, ran_ms: int):
    running = RunningJobs()
    one = job("j", start_ms=start_ms, checkpoint_every_ms=every_ms)
    running.put(one, 0, 0, fast=False)
    now_ms = start_ms + ran_ms
    lost = int(running.lost_gpu_ms(now_ms)[0])
    assert lost == 2 * (now_ms - one.kept_ms(now_ms))
    assert lost < 2 * every_ms


@given(st.lists(st.integers(0, 3), max_size=20))
def test_counts_follow_who_comes_and_goes(priorities: list[int]):
    running = RunningJobs()
    there: dict[str, int] = {}
    for at, priority in enumerate(priorities):
        if priority == 0 and there:
            name = min(there)
            running.drop(name)
            del there[name]
        else:
            name = f"j{at:02d}"
            running.put(job(name, priority=priority + 1), 0, 0, fast=False)
            there[name] = priority + 1
        assert len(running) == len(there)
        assert sum(running.by_priority.values()) == len(there)
        assert set(running.by_priority) == set(there.values())
        assert int(running.column("live").sum()) == len(there)
