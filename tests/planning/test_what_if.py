"""Changes in a word: a split NIC is rebuilt with as few tiers as reach all GPUs, as `weft explain planes` argues."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.fabric.graph.shape import shape_of
from weft.planning.what_if import changed
from weft.specs import load_job, load_site
from weft.specs.fabric import clos_capacity

JOB = load_job("gpt3-175b")


@pytest.mark.parametrize("name", ["gb200-3tier-64k", "gb200-8x100g-131k", "gb200-4x200g-32k"])
@given(st.sampled_from([1, 2, 4, 8]), st.integers(8, 512))
@settings(max_examples=25, deadline=None)
def test_a_split_nic_has_two_tiers_wherever_two_reach_all_gpus(name: str, planes: int, nodes: int):
    site, _ = changed(load_site(name), JOB, f"nodes={nodes * 16}")
    split, _ = changed(site, JOB, f"planes={planes}")
    fabric = split.fabric
    reached = clos_capacity(2, fabric.radix, fabric.oversubscription) >= fabric.gpus
    assert fabric.tiers == (2 if reached else 3)
    assert fabric.planes * fabric.port_rate == fabric.nic_rate


def test_more_planes_take_a_tier_away():
    site, _ = changed(load_site("gb200-3tier-64k"), JOB, "nodes=8192")
    assert site.fabric.tiers == 3
    assert changed(site, JOB, "planes=4")[0].fabric.tiers == 2


@pytest.mark.parametrize(("gpus", "name"), [(65_536, "gb200-3tier-64k"), (32_768, "gb200-4x200g-32k")])
@pytest.mark.parametrize("planes", [1, 2, 4, 8])
def test_a_split_buys_no_core_that_nobody_asked_for(gpus: int, name: str, planes: int):
    site, _ = changed(load_site(name), JOB, f"planes={planes}")
    ports = site.fabric.planes * gpus
    # A whole Clos of t tiers has 2 t - 1 switch ports for each host port, and not many more where it is not full.
    assert shape_of(site.fabric).switches * site.fabric.radix <= 2 * (2 * site.fabric.tiers - 1) * ports


def test_a_power_limit_is_a_change():
    site, _ = changed(load_site("h100-400g-16k"), JOB, "power=500 W")
    assert site.gpu.power == 500_000
