"""Nodes and budgets of every built-in site: dense places, whole racks, power at the meter."""

import pytest

from weft.cluster.from_site import NODES_PER_RACK, RACKS_PER_FEEDER, nodes_of, power_of
from weft.cluster.records.node import NodeState
from weft.specs import SITES, load_site


@pytest.mark.parametrize("name", SITES.names())
def test_nodes_are_numbered_from_nought_and_places_never_go_back(name: str):
    nodes = nodes_of(load_site(name), 300)
    assert [node.number for node in nodes] == list(range(len(nodes)))
    assert len({node.name for node in nodes}) == len(nodes)
    for level in ("domain", "rack", "t0", "pod", "feeder"):
        column = [getattr(node.place, level) for node in nodes]
        assert column == sorted(column), level


@pytest.mark.parametrize("name", SITES.names())
def test_a_rack_holds_a_scale_up_domain_or_a_few_nodes(name: str):
    site = load_site(name)
    nodes = nodes_of(site, 300)
    per_domain = max(1, site.scale_up.gpus // site.node.gpus)
    most = per_domain if per_domain > 1 else NODES_PER_RACK
    racks = [node.place.rack for node in nodes]
    assert max(racks.count(rack) for rack in set(racks)) <= most
    assert all(node.place.feeder == node.place.rack // RACKS_PER_FEEDER for node in nodes)


@pytest.mark.parametrize("name", SITES.names())
def test_a_part_of_a_site_is_its_first_nodes(name: str):
    site = load_site(name)
    part = nodes_of(site, 5, NodeState.JOINING)
    assert len(part) <= 5
    assert all(node.state is NodeState.JOINING and node.gpus == site.node.gpus for node in part)
    assert [node.place for node in part] == [node.place for node in nodes_of(site, 9)[: len(part)]]


@pytest.mark.parametrize("name", SITES.names())
def test_what_a_busy_site_draws_is_more_than_an_idle_one(name: str):
    site = load_site(name)
    power = power_of(site)
    assert power.node_idle_w > 0
    assert power.gpu_rise_w > 0
    assert power.gpu_rise_w <= site.gpu.power * site.power.pue / 1000 + 1
    assert (power.site_w is None) == (site.power.limit is None)
    assert (power.ramp_w_per_s is None) == (site.power.ramp_per_second is None)
