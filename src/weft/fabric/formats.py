"""A fabric in other tools' words: cabling lists, SONiC, FRR, containerlab, NCCL's topology of a node.

Pure: a topology in, text out. Entries of tables are those of `forwarding`, one by one. Linux's own commands are made by
`linux`. Nothing here says how a device is reached or managed.
"""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as Xml

from weft.fabric.addressing.forwarding import NO_PORT, ForwardingAction, ForwardingPlane
from weft.fabric.addressing.srv6 import UsidPlan
from weft.fabric.graph.topology import Topology
from weft.fabric.linux import addresses_at
from weft.specs.site import SiteSpec

_LOCATOR = "weft"
_MTU = 9216
_STAGES = ("NIC to T0", "T0 to T1", "T1 to T2")
_BLOCK_BITS, _NODE_BITS, _FUNCTION_BITS = 32, 16, 16
_MBPS = 1_000_000
_PCIE = {"link_speed": "32.0 GT/s PCIe", "link_width": "16"}
_GBYTE = 8_000_000_000


def cabling(topology: Topology) -> str:
    """Return a list of all cables as CSV: both ends with port and label, what kind, how long."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        (
            "cable",
            "plane",
            "stage",
            "from",
            "from_port",
            "to",
            "to_port",
            "rate_gbps",
            "length_m",
            "label_from",
            "label_to",
        )
    )
    links = topology.links
    for link in range(len(links)):
        lower, upper = (topology.name_of_node(int(column[link])) for column in (links.lower, links.upper))
        ports = int(links.lower_port[link]), int(links.upper_port[link])
        ends = f"{lower}:{ports[0]}", f"{upper}:{ports[1]}"
        writer.writerow((
            topology.name_of_link(link), int(links.plane[link]), _STAGES[int(links.stage[link])], lower, ports[0],
            upper, ports[1], f"{int(links.rate_bps[link]) / 1e9:g}", f"{int(links.length_mm[link]) / 1000:g}",
            f"{ends[0]} > {ends[1]}", f"{ends[1]} > {ends[0]}",
        ))  # fmt: skip
    return out.getvalue()


def sonic(topology: Topology, plan: UsidPlan, node: int) -> str:
    """Return the CONFIG_DB of one switch: ports, link-local interfaces, its uSIDs and its static routes."""
    table = ForwardingPlane(topology, plan).of_node(node)
    links, near = topology.links, topology.neighbours(node)
    ports: dict[str, Any] = {}
    for port, link, far in zip(near.port.tolist(), near.link.tolist(), near.node.tolist(), strict=True):
        ports[_sonic_port(port)] = {
            "admin_status": "up", "alias": f"port{port}", "index": str(port + 1), "lanes": str(port),
            "speed": str(int(links.rate_bps[link]) // _MBPS), "mtu": str(_MTU), "fec": "rs", "pfc_asym": "off",
            "description": f"{topology.name_of_link(link)} to {topology.name_of_node(far)}",
        }  # fmt: skip
    sids: dict[str, Any] = {}
    locators: dict[str, Any] = {}
    routes: dict[str, Any] = {}
    for entry in table.entries():
        match = entry.match(plan.block)
        if entry.action is ForwardingAction.SHIFT:
            name = f"{_LOCATOR}{len(locators)}"
            locators[name] = {"prefix": match.split("/")[0], "block_len": str(_BLOCK_BITS), "node_len": str(_NODE_BITS),
                              "func_len": "0", "arg_len": "0"}  # fmt: skip
            sids[f"{name}|{match}"] = {"action": "uN", "decap_dscp_mode": "uniform"}
        elif entry.port != NO_PORT:
            routes[f"default|{match}"] = {
                "nexthop": addresses_at(topology, node, entry.port)[1], "ifname": _sonic_port(entry.port)
            }  # fmt: skip
    database = {
        "DEVICE_METADATA": {
            "localhost": {"hostname": topology.name_of_node(node), "type": _sonic_type(topology, node)}
        },
        "PORT": ports,
        "INTERFACE": {name: {"ipv6_use_link_local_only": "enable"} for name in ports},
        "SRV6_MY_LOCATORS": locators,
        "SRV6_MY_SIDS": sids,
        "STATIC_ROUTE": routes,
    }
    return json.dumps(database, indent=2) + "\n"


def frr(topology: Topology, plan: UsidPlan, node: int) -> str:
    """Return the configuration of one switch for FRR 10.2 or newer: static SIDs (uN) and static routes."""
    lines = [f"hostname {topology.name_of_node(node)}", "log syslog informational", "!"]
    own: list[str] = []
    routes: list[str] = []
    for entry in ForwardingPlane(topology, plan).of_node(node).entries():
        match = entry.match(plan.block)
        if entry.action is ForwardingAction.SHIFT:
            own.append(match)
        elif entry.port != NO_PORT:
            routes.append(f"ipv6 route {match} {addresses_at(topology, node, entry.port)[1]} {_linux_port(entry.port)}")
    lines += [*routes, "!", "segment-routing", " srv6", "  locators"]
    for number, match in enumerate(own):
        lines += [
            f"   locator {_LOCATOR}{number}",
            f"    prefix {match} block-len {_BLOCK_BITS} node-len {_NODE_BITS} func-bits {_FUNCTION_BITS}",
            "    behavior usid", "   exit",
        ]  # fmt: skip
    lines += ["  exit", "  static-sids"]
    lines += [f"   sid {match} locator {_LOCATOR}{number} behavior uN" for number, match in enumerate(own)]
    return "\n".join([*lines, "  exit", " exit", "exit", "!"]) + "\n"


def containerlab(topology: Topology, name: str, image: str = "frrouting/frr:v10.2.1") -> str:
    """Return a containerlab topology: a Linux container for each NIC, FRR for each switch, a veth for each link."""
    nodes: dict[str, Any] = {}
    for node in range(topology.nodes):
        own = topology.name_of_node(node)
        binds = [f"{own}.conf:/etc/frr/frr.conf"]
        nodes[own] = {"kind": "linux"} if node < topology.nics else {"kind": "linux", "image": image, "binds": binds}
        if node < topology.nics:
            nodes[own]["image"] = "alpine:3"
    links = topology.links
    wires = [
        {"endpoints": [
            f"{topology.name_of_node(int(links.lower[link]))}:{_linux_port(int(links.lower_port[link]))}",
            f"{topology.name_of_node(int(links.upper[link]))}:{_linux_port(int(links.upper_port[link]))}",
        ]}
        for link in range(len(links))
    ]  # fmt: skip
    # YAML contains JSON: containerlab reads it as it is, and no YAML library is needed to write it.
    return json.dumps({"name": name, "topology": {"nodes": nodes, "links": wires}}, indent=2) + "\n"


def nccl_topology(site: SiteSpec) -> str:
    """Return one node of a site as NCCL_TOPO_FILE: its GPUs, and the NIC of each with a port in every plane."""
    system = Xml.Element("system", version="1")
    rate_mbps = str(int(site.fabric.port_rate) // _MBPS)
    for gpu in range(site.node.gpus):
        cpu = Xml.SubElement(system, "cpu", numaid=str(gpu), affinity="ffffffff", arch="x86_64", vendor="GenuineIntel",
                             familyid="6", modelid="143")  # fmt: skip
        bridge = _pci(cpu, f"0000:{gpu:02x}:00.0", "0x060400")
        card = _pci(bridge, f"0000:{gpu:02x}:01.0", "0x030200")
        device = Xml.SubElement(card, "gpu", dev=str(gpu), sm="90", rank=str(gpu), gdr="1")
        if site.scale_up.gpus > 1:
            lanes = max(1, round(int(site.scale_up.rate) / _GBYTE / 25))  # an NVLink of 25 GB/s, one direction
            Xml.SubElement(device, "nvlink", target="fffffff:ff:ff", count=str(lanes), tclass="0x068000")
        function = _pci(bridge, f"0000:{gpu:02x}:02.0", "0x020000")
        nic = Xml.SubElement(function, "nic")
        for plane in range(site.fabric.planes):
            number = gpu * site.fabric.planes + plane
            Xml.SubElement(nic, "net", name=f"mrc{gpu}p{plane}", dev=str(number), speed=rate_mbps, port=str(plane + 1),
                           guid=f"0x{number + 1:x}", maxconn="131072", gdr="1")  # fmt: skip
    Xml.indent(system)
    return Xml.tostring(system, encoding="unicode") + "\n"


def _pci(parent: Xml.Element, busid: str, kind: str) -> Xml.Element:
    return Xml.SubElement(parent, "pci", busid=busid, **_PCIE, **{"class": kind})


def of_switches(topology: Topology, plan: UsidPlan, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the content of every switch's file, `sonic` or `frr`."""
    make, ending = (sonic, "json") if kind == "sonic" else (frr, "conf")
    for node in range(topology.nics, topology.nodes):
        yield f"{topology.name_of_node(node)}.{ending}", make(topology, plan, node)


def _sonic_port(port: int) -> str:
    return f"Ethernet{port}"


def _sonic_type(topology: Topology, node: int) -> str:
    return "ToRRouter" if int(topology.switches.tier[node - topology.nics]) == 0 else "LeafRouter"


def _linux_port(port: int) -> str:
    return f"eth{port + 1}"  # containerlab keeps eth0 for its own network
