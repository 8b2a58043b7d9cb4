"""The registry: each collective delivers what its kind says, at its cost, and plugins are known like those built in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.collectives import algorithms, registry
from weft.collectives.registry import CollectiveAlgorithm, find, known, named, schedule_named
from weft.collectives.symbolic import critical_path, missing
from weft.core import plugins
from weft.core.errors import FailedError, UsageError

ALPHA, RATE, SIZE = 3.0, 7.0, 5040.0
EACH = {f"{one.kind} by {one.algorithm}": one for one in known()}


@pytest.mark.parametrize("name", sorted(EACH))
@given(ranks=st.integers(2, 17))
@settings(max_examples=16)
def test_each_delivers_what_its_kind_says(name: str, ranks: int):
    one = EACH[name]
    count = 1 << (ranks.bit_length() - 1) if one.powers_of_two else ranks
    schedule = schedule_named(one.kind, one.algorithm, count)
    assert (schedule.kind, schedule.ranks) == (one.kind, count)
    assert missing(schedule) == []


@pytest.mark.parametrize("name", sorted(set(EACH) - {"all-reduce by double-tree"}))
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_the_cost_is_the_critical_path_of_the_schedule(name: str, ranks: int):
    one = EACH[name]
    assert one.cost is not None
    # A rank of an all-to-all has a part for itself too, and its buffer is what it sends altogether.
    size = SIZE * ranks if one.kind == "all-to-all" else SIZE
    took = critical_path(one.schedule(ranks), size, (ALPHA, RATE))
    cost = float(one.cost(np.array([float(ranks)]), np.array([SIZE]), ALPHA, RATE)[0])
    assert took == pytest.approx(cost)


@given(ranks=st.integers(2, 40))
@settings(max_examples=12)
def test_the_cost_of_two_trees_is_never_below_their_critical_path(ranks: int):
    one = find("all-reduce", "double-tree")
    assert one.cost is not None
    took = critical_path(one.schedule(ranks), SIZE, (ALPHA, RATE))
    assert took <= float(one.cost(np.array([float(ranks)]), np.array([SIZE]), ALPHA, RATE)[0]) * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted(name for name, one in EACH.items() if one.rounds_alike))
@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
def test_rounds_that_are_alike_have_each_rank_send_one_part(name: str, ranks: int):
    schedule = EACH[name].schedule(ranks)
    assert len(schedule) % ranks == 0
    for first in range(0, len(schedule), ranks):
        assert sorted(schedule.source[first : first + ranks].tolist()) == list(range(ranks))
        assert set(schedule.count[first : first + ranks].tolist()) == {1}


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("all-reduce", "ring"), ("reduce-scatter", "ring"), ("all-gather", "ring"), ("broadcast", "ring"),
     ("all-to-all", "direct")],
)  # fmt: skip
def test_the_usual_algorithm_is_found_without_a_name(kind: str, algorithm: str):
    assert find(kind) is find(kind, algorithm)


@pytest.mark.parametrize("short", sorted(registry.SHORT_NAMES))
def test_a_short_name_is_one_of_those_known(short: str):
    assert named(short) in known()
    assert named(short) is find(*registry.SHORT_NAMES[short])


def test_any_other_is_named_by_kind_and_algorithm():
    assert named("all-reduce/double-tree") is find("all-reduce", "double-tree")
    assert named("broadcast/ring") is find("broadcast")


@pytest.mark.parametrize("name", ["", "rign", "all-reduce", "gather/ring", "/ring"])
def test_an_unknown_name_is_refused_with_those_there_are(name: str):
    with pytest.raises(UsageError, match=r"there is no collective called .*ring, reduce-scatter"):
        named(name)


def test_an_unknown_algorithm_is_refused_with_those_of_its_kind():
    with pytest.raises(UsageError, match="no all-to-all by ring; there is one by direct"):
        find("all-to-all", "ring")


@pytest.mark.parametrize("ranks", [3, 6, 12])
@pytest.mark.parametrize("kind", ["reduce-scatter", "all-gather"])
def test_halving_needs_a_power_of_two(kind: str, ranks: int):
    with pytest.raises(UsageError, match=f"power of two of ranks, not {ranks}; use a ring"):
        schedule_named(kind, "halving-doubling", ranks)


def plug(monkeypatch: pytest.MonkeyPatch, found: dict[str, object]) -> None:
    monkeypatch.setattr(
        plugins, "entry_point", lambda group, name: found.get(name) if group == registry.GROUP else None
    )
    monkeypatch.setattr(plugins, "names", lambda _group: tuple(found))


OWN = CollectiveAlgorithm("broadcast", "star", algorithms.binomial_broadcast)


@pytest.mark.parametrize("given_as", [OWN, (OWN,), (CollectiveAlgorithm("all-gather", "star", OWN.schedule), OWN)])
def test_a_plugin_is_known_by_its_algorithm(monkeypatch: pytest.MonkeyPatch, given_as: object):
    plug(monkeypatch, {"star": given_as})
    assert find("broadcast", "star") is OWN
    assert named("broadcast/star") is OWN
    assert schedule_named("broadcast", "star", 5).ranks == 5


def test_a_plugin_of_another_kind_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    plug(monkeypatch, {"star": OWN})
    with pytest.raises(UsageError, match=r"no all-reduce by star; there is one by ring, .*star"):
        find("all-reduce", "star")


def test_no_plugin_takes_the_place_of_one_built_in(monkeypatch: pytest.MonkeyPatch):
    plug(monkeypatch, {"ring": CollectiveAlgorithm("all-reduce", "ring", algorithms.double_tree_all_reduce)})
    assert find("all-reduce", "ring").schedule is algorithms.ring_all_reduce


def test_a_plugin_that_is_no_collective_is_refused(monkeypatch: pytest.MonkeyPatch):
    plug(monkeypatch, {"star": "a word"})
    with pytest.raises(FailedError, match="no CollectiveAlgorithm"):
        find("broadcast", "star")
