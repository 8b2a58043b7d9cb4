"""Designs: the published figures, exactly, and properties that hold for any fabric."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.api import compare, design
from weft.core.errors import UsageError
from weft.fabric.bill import bill_of, cables_of
from weft.fabric.graph.shape import links_per_optic, shape_of
from weft.fabric.graph.topology import NO_OPTIC, build
from weft.fabric.limits import limits_of, ratio_to_three_tier, three_tier_rival
from weft.specs import load_site
from weft.specs.fabric import FabricSpec


def test_the_eight_plane_fabric_is_the_published_one():
    found = design("gb200-8x100g-131k").as_json()
    assert found["gpus"] == 131_072
    assert found["switches"] == {"t0": 4096, "t1": 2048, "t2": 0, "total": 6144}
    assert found["hops_max"] == 3
    assert found["loss"] == {"fabric_link": 1 / 256, "nic_link": 1 / 8, "t0": 1 / 8, "t1": 1 / 256}
    assert found["paths_cross_t1"] == 2048
    assert found["ratio_to_three_tier"] == {"switches_per_gpu": 0.6, "optics_per_gpu": 2 / 3}
    assert found["bisection_bps"] == 131_072 * 800 * 10**9 // 2
    assert found["links"] == 2_097_152


def test_the_three_tier_rival_is_the_published_one():
    found = design("gb200-3tier-64k").as_json()
    assert found["gpus"] == 65_536
    assert found["switches"]["total"] == 5120
    assert found["hops_max"] == 5
    assert found["loss"]["fabric_link"] == 1 / 32
    assert found["loss"]["nic_link"] == 1
    assert found["ratio_to_three_tier"] == {"switches_per_gpu": 1.0, "optics_per_gpu": 1.0}


def test_the_ratios_are_exact():
    ratio = ratio_to_three_tier(load_site("gb200-8x100g-131k").fabric)
    assert ratio is not None
    assert (ratio.switches_per_gpu, ratio.optics_per_gpu) == (Fraction(3, 5), Fraction(2, 3))


def test_four_planes_are_between():
    found = design("gb200-4x200g-32k").as_json()
    assert (found["gpus"], found["switches"]["total"], found["paths_cross_t1"]) == (32_768, 1536, 512)
    assert found["loss"]["fabric_link"] == 1 / 128


@given(spec=st.from_type(FabricSpec))
def test_switch_ports_suffice_and_links_join_them(spec: FabricSpec):
    shape = shape_of(spec)
    ports = [
        (shape.t0, min(shape.down, shape.hosts) + shape.up),
        (shape.t1, shape.pod_t0 * (shape.bundle if shape.tiers == 2 else 1) + shape.t1_up),
        (shape.t2, shape.pods * shape.bundle),
    ]
    assert all(used <= shape.radix for count, used in ports if count)
    assert shape.links[0] == shape.hosts * shape.planes
    assert all(count > 0 for count in shape.links)


@given(spec=st.from_type(FabricSpec))
def test_compact_needs_no_more_switches_than_growable(spec: FabricSpec):
    compact = shape_of(spec.model_copy(update={"build": "compact"}))
    growable = shape_of(spec.model_copy(update={"build": "growable"}))
    assert compact.switches <= growable.switches
    assert compact.links == growable.links
    assert compact.paths == growable.paths


@given(spec=st.from_type(FabricSpec))
def test_every_optical_link_has_its_lanes(spec: FabricSpec):
    optics = bill_of(spec).count("optic")
    lanes = links_per_optic(spec)
    optical = [stage for stage, cable in enumerate(cables_of(spec)) if cable.medium == "optical"]
    assert optics * lanes >= 2 * sum(shape_of(spec).links[stage] for stage in optical)


@given(spec=st.from_type(FabricSpec))
def test_the_bill_counts_the_optics_that_the_columns_use(spec: FabricSpec):
    links = build(spec).links
    used = set(links.lower_optic.tolist()) | set(links.upper_optic.tolist())
    assert len(used - {NO_OPTIC}) == bill_of(spec).count("optic")


@given(spec=st.from_type(FabricSpec))
def test_a_larger_part_never_takes_less_in_all(spec: FabricSpec):
    lost = {blast.part: blast.nics * blast.share for blast in limits_of(spec).blasts}
    assert lost["nic link"] <= lost["t0 down optic"] <= lost["t0"] + lost["nic link"]
    assert all(0 < blast.share <= 1 for blast in limits_of(spec).blasts)


def test_oversubscription_divides_the_bisection():
    spec = load_site("gb200-8x100g-131k").fabric
    half = spec.model_copy(update={"oversubscription": (3, 1), "gpus": 65_536})
    assert limits_of(half).bisection_bps == 65_536 * 800 * 10**9 // 6


def test_the_best_design_comes_first():
    found = compare(131_072)
    assert found[0].name == "8 x 100 Gb/s, 2 tiers"
    prices = [each.bill.price_cents for each in found]
    assert prices == sorted(prices)
    assert all(each.limits.hosts_max >= 131_072 for each in found)


@given(gpus=st.integers(1, 600_000), nic=st.sampled_from([100, 200, 400, 800, 1600]))
def test_every_design_reaches_what_was_asked(gpus: int, nic: int):
    for found in compare(gpus, f"{nic} Gb/s", "102.4 Tb/s"):
        assert found.spec.gpus == gpus <= found.limits.hosts_max
        assert found.spec.planes * found.spec.port_rate == nic * 10**9


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"gpus": 0}, "at least 1"),
        ({"gpus": 5_000_000}, "at most"),
        ({"gpus": 100, "nic": "7 Gb/s"}, "split"),
        ({"gpus": 100, "nic": "800 GB"}, "unit"),
        ({"gpus": 100, "planes": (3,)}, "1, 2, 4, 8"),
        ({"gpus": 100_000, "switch": "1 Tb/s"}, "larger switch"),
        ({"gpus": 10, "switch": "10 Gb/s"}, "two ports"),
    ],
)
def test_what_cannot_be_designed_says_why(arguments, hint):
    with pytest.raises(UsageError, match=hint):
        compare(**arguments)


def test_a_switch_too_small_for_three_tiers_has_no_rival():
    assert three_tier_rival(load_site("laptop").fabric) is None
    assert design("laptop").as_json()["ratio_to_three_tier"] is None
