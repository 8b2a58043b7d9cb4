"""Limits: what a failure takes away, counted on the columns of the built fabric, and the arithmetic of latency."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from weft.fabric.graph.shape import THREE_TIERS, TWO_TIERS, links_per_optic, shape_of
from weft.fabric.graph.topology import NO_OPTIC, Topology, build
from weft.fabric.limits import (
    PICOSECONDS_PER_MILLIMETRE,
    blasts_of,
    latency_floor_ps,
    limits_of,
    ratio_to_three_tier,
    three_tier_rival,
)
from weft.specs import SITES, load_site
from weft.specs.fabric import FabricSpec


def uplinks_of(topology: Topology, node: int) -> np.ndarray:
    return np.flatnonzero(topology.links.lower == node)


@given(...)
@settings(max_examples=40)
def test_a_lost_nic_link_takes_one_port_of_one_nic(spec: FabricSpec):
    topology = build(spec)
    blast = next(blast for blast in blasts_of(spec) if blast.part == "nic link")
    assert blast.nics == 1
    assert blast.share == Fraction(1, len(uplinks_of(topology, 0)))


@given(...)
@settings(max_examples=40)
def test_a_lost_t0_takes_a_plane_from_the_nics_below_it(spec: FabricSpec):
    topology = build(spec)
    below = topology.links.lower[topology.links.upper == topology.nics]
    blast = next(blast for blast in blasts_of(spec) if blast.part == "t0")
    assert blast.nics == len(below)
    assert blast.share == Fraction(1, spec.planes)


@given(...)
@settings(max_examples=40)
def test_a_lost_link_between_switches_takes_one_of_the_uplinks(spec: FabricSpec):
    topology, shape = build(spec), shape_of(spec)
    for stage, part in ((1, "t0-t1 link"), (2, "t1-t2 link")):
        rows = np.flatnonzero(topology.links.stage == stage)
        found = [blast for blast in blasts_of(spec) if blast.part == part]
        assert bool(found) == bool(len(rows))
        if stage == 1 and found:
            assert found[0].share == Fraction(1, len(uplinks_of(topology, int(topology.links.lower[rows[0]]))))
        if stage == 2 and found:
            ways = shape.pod_t1 * len(uplinks_of(topology, int(topology.links.lower[rows[0]])))
            assert found[0].share == Fraction(1, ways)


@given(...)
@settings(max_examples=40)
def test_a_lost_optic_takes_the_links_that_it_carries(spec: FabricSpec):
    topology = build(spec)
    links = topology.links
    if links.lower_optic[0] == NO_OPTIC:
        return
    first = np.flatnonzero((links.stage == 0) & (links.lower == 0) & (links.lower_optic == links.lower_optic[0]))
    assert len(first) == min(spec.planes, links_per_optic(spec))
    blast = next(blast for blast in blasts_of(spec) if blast.part == "nic optic")
    assert blast.share == min(Fraction(1), Fraction(links_per_optic(spec), spec.planes))


@given(...)
@settings(max_examples=60)
def test_no_failure_takes_more_than_all_and_no_part_fails_that_is_not_there(spec: FabricSpec):
    for blast in blasts_of(spec):
        assert 0 < blast.share <= 1
        assert 1 <= blast.nics <= spec.gpus
    parts = [blast.part for blast in blasts_of(spec)]
    assert len(parts) == len(set(parts))
    assert ("t1" in parts) == (spec.tiers >= TWO_TIERS)
    assert ("t2" in parts) == (spec.tiers == THREE_TIERS)
    assert limits_of(spec).share_lost("a part that is not there") == 0


@given(...)
@settings(max_examples=60)
def test_the_first_bit_takes_the_light_of_its_cables_and_every_switch(spec: FabricSpec):
    shape = shape_of(spec)
    cables = (spec.links.nic_t0, spec.links.t0_t1, spec.links.t1_t2)
    crossed = (shape.hops_max + 1) // 2
    length = sum(2 * cable.length for cable in cables[:crossed] if cable is not None)
    least = length * PICOSECONDS_PER_MILLIMETRE + shape.hops_max * spec.parts.switch.latency
    assert latency_floor_ps(spec) == round(least)


@given(...)
@settings(max_examples=60)
def test_the_bisection_is_never_more_than_half_of_the_nics_can_send(spec: FabricSpec):
    limits = limits_of(spec)
    assert 0 < limits.bisection_bps <= spec.gpus * spec.nic_rate // 2
    assert limits.hosts_max >= spec.gpus
    assert limits.paths == spec.planes * shape_of(spec).paths


@pytest.mark.parametrize("name", SITES.names())
def test_a_rival_of_three_tiers_is_full_and_has_one_plane(name: str):
    spec = load_site(name).fabric
    rival = three_tier_rival(spec)
    ratio = ratio_to_three_tier(spec)
    assert (rival is None) == (ratio is None)
    if rival is not None and ratio is not None:
        assert (rival.planes, rival.tiers, rival.port_rate) == (1, THREE_TIERS, spec.nic_rate)
        assert limits_of(rival).hosts_max == rival.gpus
        assert ratio.switches_per_gpu > 0


def test_a_three_tier_network_is_its_own_measure():
    rival = three_tier_rival(load_site("gb200-3tier-64k").fabric)
    assert rival is not None
    ratio = ratio_to_three_tier(rival)
    assert ratio is not None
    assert ratio.switches_per_gpu == ratio.optics_per_gpu == 1
