"""Gangs that require a shape of the topology: one place for all, slices, or no two in one place; in whole worlds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.campaign.replay import Habits, TraceReplay
from weft.campaign.trace import TraceJob
from weft.cluster.invariants import broken
from weft.cluster.plan import plan
from weft.cluster.records.actions import Bind, Preempt, Replace, Wait
from weft.cluster.records.effects import witnessed
from weft.cluster.records.job import LEVELS, Gang, Job, JobState, Kind, Level, Placement, Team
from weft.cluster.records.node import Location, Node, NodeEvidence
from weft.cluster.records.snapshot import SchedulingPolicy, Snapshot
from weft.cluster.scheduling.admission import admit
from weft.cluster.scheduling.placement import Column
from weft.cluster.scheduling.pool import Pool
from weft.cluster.scheduling.topology import TopologyShape, shape_of
from weft.core.errors import UsageError

MINUTE, HOUR = 60_000, 3_600_000
PLAIN = SchedulingPolicy(fair=False, priorities=False, preempt=False, aged_ms=10**12)
WRITE = 7


def holds(pool: Pool, gang: Gang, nodes: Column) -> bool:
    """Return whether `nodes`, in rank order, have the shape that a gang requires."""
    shape = shape_of(pool, gang)
    if shape is None:
        return True
    groups = shape.groups[nodes]
    if shape.apart:
        return len(np.unique(groups)) == len(groups)
    width = shape.slice_nodes or len(groups)
    return len(groups) % width == 0 and bool((groups.reshape(-1, width) == groups[::width, None]).all())


def pool(domains: list[int], gpus: int) -> tuple[Node, ...]:
    """Nodes of domains of given sizes; a rack is half a domain, a T0 two domains, a pod four."""
    places = [(domain, at) for domain, size in enumerate(domains) for at in range(size)]
    return tuple(
        Node(number, f"n{number}", gpus, Location(domain, 2 * domain + at % 2, domain // 2, domain // 4))
        for number, (domain, at) in enumerate(places)
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=7), st.data(), st.sampled_from([0, 1, 2, 3]), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_the_cheapest_nodes_of_a_shape_are_the_cheapest_of_all_that_have_it(
    groups: list[int], data: st.DataObject, sliced: int, apart: bool, latest: bool
):
    shape = TopologyShape(np.array(groups), 0 if apart else sliced, apart)
    nodes = np.arange(len(groups))
    cost = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(groups), max_size=len(groups))))

    def fits(chosen: tuple[int, ...]) -> bool:
        each = [groups[node] for node in chosen]
        if apart:
            return len(set(each)) == len(each)
        width = sliced or len(chosen)
        return len(chosen) % width == 0 and all(each.count(group) % width == 0 for group in each)

    counts = [
        count
        for count in range(1, len(groups) + 1)
        if any(map(fits, itertools.combinations(range(len(groups)), count)))
    ]
    assert shape.capacity(nodes) == max(counts, default=0)
    for count in range(1, len(groups) + 1):
        chosen = shape.cheapest(nodes, cost, count, latest=latest)
        if count not in counts:
            assert not len(chosen) or count % max(1, sliced)
            continue
        together = max if latest else sum
        least = min(together(int(cost[node]) for node in each)
                    for each in itertools.combinations(range(len(groups)), count) if fits(each))  # fmt: skip
        assert fits(tuple(chosen.tolist()))
        assert together(cost[chosen].tolist()) == least


@st.composite
def shapes(draw: st.DrawFn, domains: list[int], gpus: int) -> tuple[int, Level, int, Level]:
    """Return nodes, what they share, slices and what they may not share, so that an empty pool could hold them."""
    nodes = pool(domains, gpus)
    kind, level = draw(st.sampled_from(["any", "within", "sliced", "apart"])), draw(st.sampled_from(LEVELS))
    groups = [getattr(node.place, level) for node in nodes]
    largest = max(groups.count(group) for group in groups)
    if kind == "within":
        return draw(st.integers(1, largest)), level, 0, ""
    if kind == "apart":
        return draw(st.integers(1, len(set(groups)))), "", 0, level
    if kind == "sliced":
        width = draw(st.integers(1, largest))
        slices = sum(groups.count(group) // width for group in set(groups))
        return width * draw(st.integers(1, slices)), level, width, ""
    return draw(st.integers(1, len(nodes))), "", 0, ""


World = tuple[list[TraceJob], tuple[Node, ...]]


@st.composite
def worlds(draw: st.DrawFn, *, told: str) -> World:
    domains = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    gpus = draw(st.sampled_from([1, 2, 4]))
    lines: list[TraceJob] = []
    at_ms = 0
    for _ in range(draw(st.integers(2, 16))):
        at_ms += draw(st.integers(0, 40))
        wide, within, sliced, apart = draw(shapes(domains, gpus))
        spent = draw(st.integers(1, 200))
        limit = spent if told == "exact" else draw(st.sampled_from([None, spent, 5 * spent]))
        kind: Kind = "experiment" if told == "exact" else draw(st.sampled_from(["training", "experiment"]))
        lines.append(TraceJob(at_ms, spent, limit, wide, draw(st.integers(1, gpus)), "red", 100, kind, within, sliced,
                              apart))  # fmt: skip
    return lines, pool(domains, gpus)


def first_head(world: World, *, backfill: bool) -> tuple[str, int]:
    """Return the first job that is blocked and when it starts; every pass is looked at for what must hold."""
    lines, nodes = world
    teams = (Team("red", sum(node.gpus for node in nodes)),)
    snapshot = Snapshot(nodes, teams=teams, policy=replace(PLAIN, backfill=backfill))
    replay = TraceReplay(snapshot, lines, Habits(min_run_ms=0, write_ms=WRITE, restore_ms=0), pass_ms=1)
    head = ""
    for action in replay.actions():
        promised = replay.cluster.reservation
        head = head or (promised.job if promised is not None else "")
        if isinstance(action, Bind):
            assert not broken(replay.cluster.snapshot())
    assert all(record.state for record in replay.measures.records.values())
    return head, replay.measures.records[head].start_ms or 0 if head else 0


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["exact", "mixed"]).flatmap(lambda told: worlds(told=told)))
def test_every_gang_gets_its_shape_and_a_head_starts_no_later_than_without_backfill(world: World):
    head, start_ms = first_head(world, backfill=True)
    again, without_ms = first_head(world, backfill=False)
    assert head == again
    writes = any(line.kind == "training" for line in world[0])
    assert start_ms <= without_ms + 1 + (WRITE + 1 if writes else 0)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=6), st.sampled_from([2, 4, 8]))
def test_an_urgent_gang_of_any_shape_starts_within_a_quarter_of_an_hour(
    data: st.DataObject, domains: list[int], gpus: int
):
    lines: list[TraceJob] = []
    for _ in range(sum(domains)):
        left = gpus
        while left:
            part = min(left, data.draw(st.sampled_from([1, 2, 4])))
            left -= part
            lines.append(TraceJob(0, 20 * HOUR, None, 1, part, "red", 0, "experiment"))
    wide, within, sliced, apart = data.draw(shapes(domains, gpus))
    each = data.draw(st.integers(1, gpus))
    lines.append(TraceJob(HOUR, HOUR, None, wide, each, "red", 1000, "training", within, sliced, apart))
    lines += [TraceJob(HOUR + at * MINUTE, HOUR, None, 1, 1, "red", 0, "experiment") for at in range(5)]
    nodes = pool(domains, gpus)
    replay = TraceReplay(Snapshot(nodes, teams=(Team("red", sum(domains) * gpus),)), lines)
    name = f"job-{lines.index(next(line for line in lines if line.priority)):06d}"
    left_for = 0
    for action in replay.actions():
        left_for += isinstance(action, Preempt) and action.stage == "ask"
        if name in replay.measures.records and replay.measures.records[name].start_ms is not None:
            break
    assert (replay.measures.records[name].wait_ms or 0) <= 15 * MINUTE
    # Nobody leaves beyond those on as many nodes as it needs.
    assert left_for <= wide * gpus


def test_sixteen_of_eighteen_trays_of_a_domain_are_taken_and_the_reason_names_the_shape():
    nodes = pool([18, 18], 4)
    busy = tuple(Job(f"b{at}", Gang(1, 4), 0, limit_ms=HOUR, state=JobState.RUNNING, start_ms=0,
                     placement=Placement((at,), 4)) for at in (0, 1, 2, 20, 21))  # fmt: skip
    wide = Job("wide", Gang(32, 4, within="domain", slice_nodes=16), 1)
    slim = Job("slim", Gang(15, 4, within="domain"), 2, limit_ms=MINUTE)
    snapshot = Snapshot(nodes, (*busy, wide, slim), (Team("default", 200),))
    actions = plan(snapshot, 10)
    (bound,) = [action for action in actions if isinstance(action, Bind)]
    assert (bound.job, {nodes[at].place.domain for at in bound.placement.nodes}) == ("slim", {0})
    said = {action.job: action.text for action in actions if isinstance(action, Wait)}
    assert "32, each 16 in one scale-up domain" in said["wide"]
    free = plan(replace(snapshot, jobs=(busy[0], busy[3], wide)), 10)
    (bound,) = [action for action in free if isinstance(action, Bind)]
    assert [len({nodes[at].place.domain for at in bound.placement.nodes[turn : turn + 16]}) for turn in (0, 16)] == [
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("gang", "words"),
    [
        (Gang(19, 4, within="domain"), "room for 18"), (Gang(3, 4, apart="domain"), "room for 2"),
        (Gang(12, 4, within="domain", slice_nodes=5), "do not divide"), (Gang(4, 4, slice_nodes=2), "needs within"),
        (Gang(2, 4, within="rack", apart="t0"), "one of them"),
    ],
)  # fmt: skip
def test_a_shape_that_the_cluster_cannot_have_is_refused_at_once(gang: Gang, words: str):
    with pytest.raises(UsageError, match=words):
        admit(Job("odd", gang, 0), pool([18, 18], 4), (Team("default", 100),))
    admit(Job("even", Gang(20, 4, within="domain", slice_nodes=10), 0), pool([18, 18], 4), (Team("default", 100),))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_spares_keep_the_shape_of_a_training_or_it_starts_again(data: st.DataObject, domains: list[int]):
    nodes = pool(domains, 4)
    wide, within, sliced, apart = data.draw(shapes(domains, 4))
    gang = Gang(wide, 4, within=within, slice_nodes=sliced, apart=apart)
    shape, numbers = shape_of(Pool(nodes), gang), np.arange(len(nodes))
    held = numbers[:wide] if shape is None else shape.cheapest(numbers, numbers * 0, wide)
    assert holds(Pool(nodes), gang, held)
    job = Job(
        "train", gang, 0, "training", state=JobState.RUNNING, start_ms=0, placement=Placement(tuple(held.tolist()), 4)
    )
    gone = data.draw(st.sampled_from(held.tolist()))
    seen = witnessed(nodes[gone], NodeEvidence("silent", 1000, "fatal", "no heartbeat"))
    after = tuple(seen if node.number == gone else node for node in nodes)
    actions = plan(Snapshot(after, (job,), (Team("default", 100),)), 2000)
    for action in actions:
        if isinstance(action, Replace):
            spares = dict(zip(action.lost, action.spares, strict=True))
            assert holds(Pool(nodes), gang, np.array([spares.get(node, node) for node in held.tolist()]))
            return
    assert any(isinstance(action, Preempt) for action in actions)
