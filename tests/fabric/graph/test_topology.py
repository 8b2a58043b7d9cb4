import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.fabric.graph import invariants
from weft.fabric.graph.shape import Shape, shape_of
from weft.fabric.graph.topology import NO_LINK, NO_OPTIC, Links, Topology, build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

specs = st.from_type(FabricSpec)


def wiring_by_arithmetic(shape: Shape) -> list[tuple[str, str, int, str, int]]:
    """Say (link, lower node, lower port, upper node, upper port) of every link, from `Shape`'s scalar functions."""
    found = []

    def switch(tier: int, plane: int, index: int) -> str:
        return shape.switch_grids[tier].name(shape.switch_grids[tier].id(plane, index))

    for plane in range(shape.planes):
        for nic in range(shape.hosts):
            link = shape.link_grids[0].name(shape.link_grids[0].id(plane, nic))
            found.append((link, f"nic-i{nic}", plane, switch(0, plane, shape.t0_of(nic)), shape.down_port(nic)))
        for t0 in range(shape.t0 if shape.tiers > 1 else 0):
            for up in range(shape.up):
                link, t1 = f"link1-p{plane}-i{t0}-u{up}", shape.t1_above(t0, up)
                place = t0 * shape.bundle + up % shape.bundle if shape.tiers == 2 else t0 % shape.pod_t0
                found.append((link, switch(0, plane, t0), shape.down + up, switch(1, plane, t1), place))
        for t1 in range(shape.t1 if shape.tiers > 2 else 0):
            for up in range(shape.t1_up):
                link, t2 = f"link2-p{plane}-i{t1}-u{up}", shape.t2_above(t1, up)
                place = t1 // shape.pod_t1 * shape.bundle + up % shape.bundle
                found.append((link, switch(1, plane, t1), shape.radix // 2 + up, switch(2, plane, t2), place))
    return found


def wiring_in_columns(topology: Topology) -> list[tuple[str, str, int, str, int]]:
    links = topology.links
    return [
        (
            topology.name_of_link(link),
            topology.name_of_node(int(links.lower[link])),
            int(links.lower_port[link]),
            topology.name_of_node(int(links.upper[link])),
            int(links.upper_port[link]),
        )
        for link in range(len(links))
    ]


@given(spec=specs)
def test_the_columns_say_what_the_shape_says(spec: FabricSpec):
    assert sorted(wiring_in_columns(build(spec))) == sorted(wiring_by_arithmetic(shape_of(spec)))


@given(spec=specs)
def test_every_built_fabric_keeps_the_invariants(spec: FabricSpec):
    topology = build(spec)
    lanes = max(1, spec.parts.optic.rate // spec.port_rate)
    assert invariants.violations(topology) == []
    assert invariants.optics_are_not_overfull(topology, lanes) == []


@given(spec=specs)
def test_counts_rates_and_lengths_come_from_the_spec(spec: FabricSpec):
    topology, shape = build(spec), shape_of(spec)
    assert topology.nics == spec.gpus
    assert len(topology.switches.tier) == shape.switches
    assert len(topology.links) == sum(shape.links)
    assert np.bincount(topology.links.stage, minlength=shape.tiers).tolist() == list(shape.links)
    assert set(topology.links.rate_bps.tolist()) == {spec.port_rate}
    assert set(topology.links.length_mm.tolist()) == {1000}


@given(spec=specs)
def test_a_nic_has_as_few_optics_as_carry_its_ports(spec: FabricSpec):
    topology = build(spec)
    lanes = max(1, spec.parts.optic.rate // spec.port_rate)
    first = topology.links.lower == 0
    used = set(topology.links.lower_optic[first].tolist())
    if spec.links.nic_t0.medium == "copper":
        assert used == {NO_OPTIC}
    else:
        assert len(used) == -(-spec.planes // lanes)


@given(spec=specs)
def test_the_port_table_finds_every_link_at_both_its_ends(spec: FabricSpec):
    topology = build(spec)
    links = topology.links
    for link in range(len(links)):
        lower, upper = int(links.lower[link]), int(links.upper[link])
        assert topology.ports.of(lower)[links.lower_port[link]] == link
        assert topology.ports.of(upper)[links.upper_port[link]] == link
        assert (topology.far_end(link, lower), topology.far_end(link, upper)) == (upper, lower)
    assert np.count_nonzero(topology.ports.link != NO_LINK) == 2 * len(links)


def test_one_optic_of_the_131k_site_feeds_all_eight_planes_of_a_nic_and_eight_links_of_a_switch():
    topology = build(load_site("gb200-8x100g-131k").fabric)
    links = topology.links
    assert (len(links), len(topology.switches.tier)) == (2_097_152, 6_144)
    optic = topology.names.find("nicoptic-i5-o0", ("optic",))[1]
    fed = np.flatnonzero(links.lower_optic == optic)
    assert [topology.name_of_link(int(link)) for link in fed] == [f"link0-p{plane}-i5" for plane in range(8)]
    optic = topology.names.find("optic0-p3-i17-o32", ("optic",))[1]
    fed = np.flatnonzero((links.lower_optic == optic) | (links.upper_optic == optic))
    assert [topology.name_of_link(int(link)) for link in fed] == [f"link1-p3-i17-u{up}" for up in range(8)]
    columns = sum(getattr(links, column.name).nbytes for column in dataclasses.fields(links))
    assert columns == 34 * len(links)


def test_columns_cannot_be_changed():
    topology = build(load_site("laptop").fabric)
    with pytest.raises(ValueError, match="read-only"):
        topology.links.rate_bps[0] = 1


def broken(topology: Topology, column: str, value: int) -> Topology:
    """Say `topology` with one cell of its first link changed."""
    columns = {field.name: getattr(topology.links, field.name).copy() for field in dataclasses.fields(Links)}
    columns[column][0] = value
    return dataclasses.replace(topology, links=Links(**columns))


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("upper_port", 1, "link0-p0-i0 shares a port with another link"),
        ("plane", 1, "link0-p0-i0 leads into another plane"),
        ("upper", 3, "link0-p0-i0 has an end that does not exist"),
        ("stage", 1, "link0-p0-i0 joins tiers that are not one above the other"),
        ("lower", 3, "nic-i0 has the wrong number of links"),
        ("lower", 4, "link0-p0-i0 joins a node to itself"),
    ],
)
def test_a_broken_wiring_is_named(column: str, value: int, sentence: str):
    topology = broken(build(load_site("laptop").fabric), column, value)
    found = [
        line
        for rule in invariants.BUILT
        if column != "upper" or rule is invariants.ends_exist
        for line in rule(topology)
    ]
    assert sentence in found


def test_an_overfull_optic_is_named():
    fabric = load_site("gb200-3tier-64k").fabric.model_copy(update={"gpus": 64})
    topology = build(fabric)
    assert invariants.optics_are_not_overfull(topology, 1) == []
    crowded = broken(topology, "lower_optic", 1)
    assert invariants.optics_are_not_overfull(crowded, 1) == ["nicoptic-i1-o0 carries links that are not its own"]
