"""Placement: groups fit into what they are said to fit into, places hold what they can, failures cost in order."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.plans import Dimensions, Workload, one_plan
from weft.planning.run.placement import AXES, axes_of, colocation_of, failure_costs
from weft.specs import SITES, load_site
from weft.specs.software import SoftwareSpec

SITE = load_site("gb200-8x100g-131k")
WORK = Workload(Dimensions(16, 4096, 32, 8, 128, 14336, 128256), 1024, 4096)
POWERS = st.sampled_from((1, 2, 4, 8, 16))


@given(dp=POWERS, tp=POWERS, pp=POWERS, cp=POWERS, site=st.sampled_from(SITES.names()))
@settings(max_examples=60)
def test_axes_follow_each_other_without_gaps(dp: int, tp: int, pp: int, cp: int, site: str):
    found = axes_of(one_plan(dp=dp, tp=tp, pp=pp, cp=cp), 0, load_site(site))
    assert tuple(axis.name for axis in found) == AXES
    stride = 1
    for axis in found:
        assert axis.stride == stride
        stride *= axis.size
    assert stride == dp * tp * pp * cp
    assert all((axis.tier == "none") == (axis.size == 1) for axis in found)


@given(dp=POWERS, tp=POWERS, cp=POWERS)
@settings(max_examples=60)
def test_an_axis_further_out_never_crosses_less(dp: int, tp: int, cp: int):
    order = ("none", "node", "scale-up domain", "T0", "pod", "fabric")
    crossed = [order.index(axis.tier) for axis in axes_of(one_plan(dp=dp, tp=tp, cp=cp), 0, SITE) if axis.size > 1]
    assert crossed == sorted(crossed)


@given(dp=POWERS, tp=POWERS, pp=POWERS, cp=POWERS)
@settings(max_examples=60)
def test_a_place_holds_no_more_ranks_than_it_has_gpus(dp: int, tp: int, pp: int, cp: int):
    sizes = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
    for place in colocation_of(one_plan(**sizes), 0, SITE):
        assert math.prod(place.holds.values()) <= max(place.gpus, 1)
        assert all(1 <= place.holds[name] <= sizes[name] for name in AXES)


def test_places_are_named_from_the_smallest_on():
    for name in SITES.names():
        gpus = [place.gpus for place in colocation_of(one_plan(), 0, load_site(name))]
        assert gpus == sorted(set(gpus))


@pytest.fixture(scope="module")
def costs():
    plan = one_plan(dp=512, tp=8, pp=4, zero=1)
    return {cost.part: cost for cost in failure_costs(WORK, plan, machine_of(SITE), SoftwareSpec(), SITE)}


def test_a_part_that_takes_more_bandwidth_never_costs_less(costs):
    slowed = sorted((cost for cost in costs.values() if cost.bandwidth_lost), key=lambda cost: cost.bandwidth_lost)
    slower = [cost.slower for cost in slowed]
    assert slower == sorted(slower)
    assert all(cost.throughput_lost == pytest.approx(cost.slower / (1 + cost.slower)) for cost in slowed)


def test_a_lost_node_takes_a_replica_and_its_share_of_throughput(costs):
    assert costs["node"].replicas_lost == 1
    assert costs["node"].throughput_lost == pytest.approx(1 / 512)
    assert costs["scale-up domain"].replicas_lost == math.ceil(72 / 32)


def test_above_a_t0_a_link_counts_in_its_plane_alone(costs):
    assert costs["T0-T1 link"].bandwidth_lost < costs["NIC link"].bandwidth_lost == 1 / 8
    assert costs["whole plane"].bandwidth_lost == 1 / 8


def test_on_one_plane_a_lost_nic_link_stops_the_job():
    site = load_site("gb200-3tier-64k")
    found = failure_costs(WORK, one_plan(dp=8), machine_of(site), SoftwareSpec(), site)
    link = next(cost for cost in found if cost.part == "NIC link")
    assert (link.slower, link.throughput_lost) == (math.inf, 1.0)


def test_a_job_of_one_replica_stops_with_any_node():
    found = failure_costs(WORK, one_plan(tp=8), machine_of(SITE), SoftwareSpec(), SITE)
    node = next(cost for cost in found if cost.part == "node")
    assert (node.slower, node.replicas_lost, node.throughput_lost) == (math.inf, 1, 1.0)
