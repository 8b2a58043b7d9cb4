"""The judge of links: the guilty are blamed, the innocent are not, what cannot be seen is called hidden."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.fabric.addressing.forwarding import ForwardingPlane
from weft.fabric.addressing.paths import links_on_path
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.addressing.walk import Walker
from weft.fabric.fault_localization import (
    Care,
    Health,
    PathObservation,
    ProbePath,
    blame,
    denials,
    parts_to_blame,
    probe_paths,
)
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import Topology, build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

Paths = tuple[Topology, list[ProbePath]]


@cache
def laptop() -> Paths:
    return paths_of(load_site("laptop").fabric)


def paths_of(spec: FabricSpec) -> Paths:
    topology = build(spec)
    return topology, probe_paths(topology, Addressing(shape_of(spec)).plan)


def deterministic(paths: list[ProbePath], dead: set[int], sent: int = 50) -> list[PathObservation]:
    return [PathObservation(path.links, sent, 0 if dead & set(path.links) else sent) for path in paths]


def by_chance(paths: list[ProbePath], loss: dict[int, float], sent: int, seed: int) -> list[PathObservation]:
    stream = Seed(seed).stream("probes")
    survival = [np.prod([1 - loss.get(link, 0.0) for link in path.links]) for path in paths]
    return [
        PathObservation(path.links, sent, int(stream.binomial(sent, share)))
        for path, share in zip(paths, survival, strict=True)
    ]


@given(st.from_type(FabricSpec))
@settings(max_examples=40)
def test_probes_come_home_over_the_links_they_name_and_every_link_is_seen(spec: FabricSpec):
    topology, paths = paths_of(spec)
    walker = Walker(ForwardingPlane(topology, Addressing(shape_of(spec)).plan))
    for path in paths:
        walk = walker.walk(path.source, path.carrier)
        assert walk.arrived == path.source
        assert walk.links == (*path.links, *reversed(path.links))
    assert {link for path in paths for link in path.links} == set(range(len(topology.links)))


@given(st.from_type(FabricSpec), st.data())
@settings(max_examples=40)
def test_dead_links_are_named_exactly_and_what_lies_behind_them_is_hidden(spec: FabricSpec, data: Any):
    topology, paths = paths_of(spec)
    assume(len(paths) <= 400)
    dead = data.draw(st.sets(st.integers(0, len(topology.links) - 1), max_size=4))
    verdicts = blame(deterministic(paths, dead), len(topology.links))
    for verdict in verdicts:
        ways = [path.links for path in paths if verdict.link in path.links]
        in_sight = any(not dead & (set(way) - {verdict.link}) for way in ways)
        wanted = (Health.DEAD if verdict.link in dead else Health.FINE) if in_sight else Health.HIDDEN
        assert verdict.health is wanted, topology.name_of_link(verdict.link)


@given(st.dictionaries(st.integers(0, 31), st.floats(0.03, 0.6), max_size=4), st.integers(0, 2**32))
# Two lossy links behind two that are fine: each of these explains a bit of both, and is tempting to take first.
@example({30: 0.125, 31: 0.125, 0: 0.5}, 0)
@example({18: 0.06, 19: 0.06, 2: 0.06}, 1892077906)
@example({21: 0.03, 22: 0.03, 23: 0.03, 7: 0.03}, 301853664)
@settings(max_examples=60)
def test_lossy_links_are_named_exactly_with_their_loss(loss: dict[int, float], seed: int):
    topology, paths = laptop()
    # A little loss behind a lot of it drowns; each must have one path on which it is alone.
    assume(all(any(set(path.links) & set(loss) == {link} for path in paths) for link in loss))
    verdicts = blame(by_chance(paths, loss, 1000, seed), len(topology.links))
    assert {one.link for one in verdicts if one.health is not Health.FINE} == set(loss)
    for one in verdicts:
        assert one.low - 0.08 <= loss.get(one.link, 0.0) <= one.high + 0.08


@given(st.integers(0, 2**32), st.integers(1, 3000))
@settings(max_examples=60)
def test_a_network_that_only_has_its_background_gets_no_blame(seed: int, sent: int):
    topology, paths = laptop()
    care = Care()
    each = dict.fromkeys(range(len(topology.links)), care.background / 4)
    verdicts = blame(by_chance(paths, each, sent, seed), len(topology.links), care)
    assert all(verdict.health is Health.FINE for verdict in verdicts)


def test_one_percent_at_a_single_link_is_found_with_a_thousand_probes_most_of_the_time():
    topology, paths = laptop()
    found = [
        {one.link for one in blame(by_chance(paths, {7: 0.02}, 1000, seed), len(topology.links)) if one.loss > 0.005}
        for seed in range(30)
    ]
    assert found.count({7}) >= 27


def test_one_lost_probe_proves_nothing():
    topology, paths = laptop()
    seen = [PathObservation(path.links, 50, 49) for path in paths]
    assert all(verdict.health is Health.FINE for verdict in blame(seen, len(topology.links)))


@pytest.mark.parametrize("name", ["t1-p2-i1", "t0-p0-i0", "nic-i3"])
def test_a_part_that_is_dead_altogether_is_named_once(name: str):
    topology, paths = laptop()
    kind, number = topology.names.find(name, ("nic", "switch"))
    node = number if kind == "nic" else topology.switch_node(number)
    dead = {int(link) for link in topology.neighbours(node).link}
    verdicts = blame(deterministic(paths, dead), len(topology.links))
    assert parts_to_blame(topology, verdicts) == [name]


def test_nothing_sent_means_nothing_known():
    verdicts = blame([], 3)
    assert {verdict.health for verdict in verdicts} == {Health.HIDDEN}


@given(st.sets(st.integers(0, 31), max_size=3))
@settings(max_examples=30)
def test_denied_evs_are_those_whose_path_crosses_a_blamed_link(bad: set[int]):
    shape = shape_of(load_site("laptop").fabric)
    denied = denials(shape, bad)
    for source in range(4):
        for destination in set(range(4)) - {source}:
            for ev in range(8):
                crosses = bool(bad & set(links_on_path(shape, source, destination, ev)))
                assert (ev in denied.get((source, destination), [])) == crosses
