"""Teams with a most: what a job waits for of it is neither refilled by later ones nor out of reach of an urgent one."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.worlds import nodes_of

from weft.campaign.replay import Habits, TraceReplay
from weft.campaign.trace import TraceJob
from weft.cluster.records.job import Team
from weft.cluster.records.snapshot import SchedulingPolicy, Snapshot

MINUTE, HOUR = 60_000, 3_600_000


class CappedWorld(NamedTuple):
    """A team that has all that it may have, a gang of it, and smaller jobs of it that come later."""

    lines: list[TraceJob]
    gang: int
    snapshot: Snapshot


@st.composite
def capped_worlds(draw: st.DrawFn, *, urgent: bool) -> CappedWorld:
    nodes, gpus = draw(st.integers(1, 6)), draw(st.sampled_from([2, 4, 8]))
    most = draw(st.integers(gpus, nodes * gpus))
    each = draw(st.integers(1, gpus))
    wide = draw(st.integers(1, min(nodes, most // each)))
    lines: list[TraceJob] = []
    left = most
    while left:
        part = min(left, draw(st.integers(1, gpus)))
        left -= part
        spent = draw(st.integers(2, 12)) * HOUR
        limit = draw(st.sampled_from([None, spent, 2 * spent])) if urgent else spent
        lines.append(TraceJob(0, spent, limit, 1, part, "red", draw(st.sampled_from([0, 100])) if urgent else 100,
                              "experiment"))  # fmt: skip
    gang = TraceJob(HOUR, HOUR, draw(st.sampled_from([None, 2 * HOUR])), wide, each, "red", 1000 if urgent else 100,
                    draw(st.sampled_from(["training", "experiment"])))  # fmt: skip
    others = draw(st.integers(0, 3))
    lines += [TraceJob(0, 2 * HOUR, 2 * HOUR, 1, gpus, "blue", 100, "experiment") for _ in range(others)]
    stream = [TraceJob(HOUR + at * 5 * MINUTE, draw(st.integers(1, 4)) * HOUR, None, 1, 1, "red", 100, "experiment")
              for at in range(1, 60)]  # fmt: skip
    policy = SchedulingPolicy(borrow=draw(st.booleans()), fair=draw(st.booleans()))
    teams = (Team("red", most, most), Team("blue", nodes * gpus - most))
    snapshot = Snapshot(nodes_of(nodes, gpus, odd=False), teams=teams, policy=policy)
    return CappedWorld([*lines, gang, *stream], len(lines), snapshot)


def wait_ms(world: CappedWorld) -> int:
    replay = TraceReplay(world.snapshot, world.lines, Habits(min_run_ms=0))
    name = f"job-{world.gang:06d}"
    for _ in replay.actions():
        if name in replay.measures.records and replay.measures.records[name].start_ms is not None:
            break
    found = replay.measures.records[name].wait_ms
    assert found is not None
    return found


@settings(max_examples=20, deadline=None)
@given(capped_worlds(urgent=True))
def test_an_urgent_gang_makes_others_of_its_own_team_leave_where_that_has_all_it_may_have(world: CappedWorld):
    assert wait_ms(world) <= 15 * MINUTE


@settings(max_examples=20, deadline=None)
@given(capped_worlds(urgent=False))
def test_later_jobs_of_a_team_do_not_use_up_what_its_gang_waits_for(world: CappedWorld):
    alone = world._replace(lines=world.lines[: world.gang + 1])
    # Who borrows meanwhile may have to be asked for what a later job has made it move to.
    assert wait_ms(world) <= wait_ms(alone) + 15 * MINUTE
