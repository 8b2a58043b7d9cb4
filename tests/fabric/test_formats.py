"""A fabric in other tools' words says what its tables say: every cable, every entry, every port, once."""

import csv
import io
import ipaddress
import json
from xml.etree import ElementTree as Xml

import pytest

from weft.fabric import formats
from weft.fabric.addressing.forwarding import NO_PORT, ForwardingAction, ForwardingPlane
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import Topology, build
from weft.fabric.linux import addresses_at
from weft.specs import load_site

SITE = load_site("laptop")


@pytest.fixture(scope="module")
def topology() -> Topology:
    return build(SITE.fabric)


@pytest.fixture(scope="module")
def tables(topology: Topology) -> ForwardingPlane:
    return ForwardingPlane(topology, Addressing(shape_of(SITE.fabric)).plan)


def test_a_cabling_list_has_every_cable_with_both_labels(topology: Topology) -> None:
    rows = list(csv.DictReader(io.StringIO(formats.cabling(topology))))
    assert [row["cable"] for row in rows] == [topology.name_of_link(link) for link in range(len(topology.links))]
    ends = [f"{row[end]}:{row[f'{end}_port']}" for row in rows for end in ("from", "to")]
    assert len(set(ends)) == len(ends), "a port has one cable"
    assert all(row["label_from"].split(" > ")[::-1] == row["label_to"].split(" > ") for row in rows)


def test_a_switch_of_sonic_has_the_entries_of_its_table(topology: Topology, tables: ForwardingPlane) -> None:
    for node in range(topology.nics, topology.nodes):
        found = json.loads(formats.sonic(topology, tables.plan, node))
        entries = tables.of_node(node).entries()
        routes = {
            f"default|{entry.match(tables.plan.block)}": {
                "nexthop": addresses_at(topology, node, entry.port)[1], "ifname": f"Ethernet{entry.port}"
            }
            for entry in entries if entry.port != NO_PORT
        }  # fmt: skip
        assert found["STATIC_ROUTE"] == routes
        own = {entry.match(tables.plan.block) for entry in entries if entry.action is ForwardingAction.SHIFT}
        assert {key.partition("|")[2] for key in found["SRV6_MY_SIDS"]} == own
        assert {key.partition("|")[0] for key in found["SRV6_MY_SIDS"]} == found["SRV6_MY_LOCATORS"].keys()
        assert found["INTERFACE"].keys() == found["PORT"].keys() >= {route["ifname"] for route in routes.values()}
        assert found["DEVICE_METADATA"]["localhost"]["hostname"] == topology.name_of_node(node)


def test_a_switch_of_frr_has_the_entries_of_its_table(topology: Topology, tables: ForwardingPlane) -> None:
    for node in range(topology.nics, topology.nodes):
        lines = formats.frr(topology, tables.plan, node).splitlines()
        entries = tables.of_node(node).entries()
        routes = [line.split() for line in lines if line.startswith("ipv6 route")]
        assert {words[2] for words in routes} == {e.match(tables.plan.block) for e in entries if e.port != NO_PORT}
        for words in routes:
            assert ipaddress.ip_network(words[2]).prefixlen == 48
            assert ipaddress.ip_address(words[3]).is_link_local
        sids = [line.split() for line in lines if line.strip().startswith("sid ")]
        assert {words[1] for words in sids} == {
            e.match(tables.plan.block) for e in entries if e.action is ForwardingAction.SHIFT
        }
        assert all(f"   locator {words[3]}" in lines for words in sids)


def test_containerlab_wires_every_link_once(topology: Topology) -> None:
    found = json.loads(formats.containerlab(topology, "laptop"))["topology"]
    assert set(found["nodes"]) == {topology.name_of_node(node) for node in range(topology.nodes)}
    ends = [end for link in found["links"] for end in link["endpoints"]]
    assert len(ends) == len(set(ends)) == 2 * len(topology.links)
    assert {end.partition(":")[0] for end in ends} <= set(found["nodes"])
    assert not any(end.endswith(":eth0") for end in ends), "containerlab keeps eth0"


@pytest.mark.parametrize("name", ["laptop", "gb200-8x100g-131k"])
def test_nccl_sees_every_gpu_and_every_plane(name: str) -> None:
    site = load_site(name)
    system = Xml.fromstring(formats.nccl_topology(site))
    assert len(system.findall(".//gpu")) == site.node.gpus
    ports = system.findall(".//net")
    assert len(ports) == site.node.gpus * site.fabric.planes
    assert {port.get("speed") for port in ports} == {str(int(site.fabric.port_rate) // 1_000_000)}
    assert len({port.get("dev") for port in ports}) == len(ports)
