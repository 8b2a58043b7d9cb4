"""A fabric as an InfraGraph (infragraph.dev, schema 3.1) and back: instances of devices, and edges between ports.

Edges of the same kind that follow each other become one with slices, so that a fabric of two million links is a file of
some thousand edges. What comes back is an edge list for `graph.edges`. Pure: text in, text out.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.core.errors import UsageError
from weft.fabric.graph.edges import MOST_PLANES
from weft.fabric.graph.topology import Topology

_NS_PER_M = 5
"""Light in glass, rounded: 4.9 ns for a metre."""
_MOST_LINKS = 4_000_000
_ENDPOINT = re.compile(r"^([^\[\].]+)(?:\[([^\]]*)\])?$")
_End: TypeAlias = tuple[str, int, int]
"""Instance, its number, and the number of the port."""


@dataclass
class _Run:
    """Links that follow each other: at each end, one of instance and port counts up, or none."""

    first: tuple[_End, _End]
    link: str
    length: int = 1
    steps: tuple[tuple[int, int], tuple[int, int]] | None = None

    def takes(self, ends: tuple[_End, _End], link: str) -> bool:
        """Take one more link, if it goes on as the others do."""
        if link != self.link or any(mine[0] != its[0] for mine, its in zip(self.first, ends, strict=True)):
            return False
        moved = [(its[1] - mine[1], its[2] - mine[2]) for mine, its in zip(self.first, ends, strict=True)]
        if self.steps is None:
            near, far = moved
            if any(step not in {(0, 0), (0, 1), (1, 0)} for step in moved) or near == far == (0, 0):
                return False
            self.steps = near, far
        if moved != [(step[0] * self.length, step[1] * self.length) for step in self.steps]:
            return False
        self.length += 1
        return True

    def edge(self) -> dict[str, Any]:
        """Return it as an edge."""
        steps = self.steps or ((0, 0), (0, 0))
        ends = [
            {"instance": _sliced(name, number, step[0] * self.length),
             "component": _sliced("port", port, step[1] * self.length)}
            for (name, number, port), step in zip(self.first, steps, strict=True)
        ]  # fmt: skip
        # One port and many on the other side: every one of these is joined with it.
        scheme = "one2one" if all(any(step) for step in steps) or self.length == 1 else "many2many"
        return {"ep1": ends[0], "ep2": ends[1], "scheme": scheme, "link": self.link}


def _sliced(name: str, first: int, count: int) -> str:
    return f"{name}[{first}:{first + count}]" if count > 1 else f"{name}[{first}]"


def infragraph(topology: Topology, name: str) -> str:
    """Return a fabric as an InfraGraph, as JSON."""
    instance, number = _instances(topology)
    counts: dict[str, int] = {}
    ports: dict[str, int] = {}
    for node, one in enumerate(instance):
        counts[one] = counts.get(one, 0) + 1
        near = topology.neighbours(node)
        ports[one] = max(ports.get(one, 1), 1 + max(near.port.tolist(), default=0))
    links = topology.links
    kinds: dict[tuple[int, int], str] = {}
    runs: list[_Run] = []
    for link in range(len(links)):
        kind = int(links.rate_bps[link]), int(links.length_mm[link])
        title = kinds.setdefault(kind, f"link-{kind[0] // 1_000_000}M-{kind[1]}mm")
        ends = tuple(
            (instance[node], number[node], port)
            for node, port in ((int(links.lower[link]), int(links.lower_port[link])),
                               (int(links.upper[link]), int(links.upper_port[link])))
        )  # fmt: skip
        pair = (ends[0], ends[1])
        if not runs or not runs[-1].takes(pair, title):
            runs.append(_Run(pair, title))
    document = {
        "name": name, "description": f"{name}: {topology.nics} NICs, {len(links)} links",
        "devices": [_device(one, ports[one]) for one in counts],
        "instances": [{"name": one, "device": f"{one}-device", "count": count} for one, count in counts.items()],
        "links": [
            {"name": title, "physical": {
                "bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": rate / 1e9},
                "latency": {"choice": "ns", "ns": length * _NS_PER_M / 1000},
            }}
            for (rate, length), title in kinds.items()
        ],
        "edges": [run.edge() for run in runs],
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


def _instances(topology: Topology) -> tuple[list[str], list[int]]:
    """Return for each node the instance that it is one of, and its number in it."""
    switches = topology.switches
    named = [f"t{tier}-p{plane}" for tier, plane in zip(switches.tier.tolist(), switches.plane.tolist(), strict=True)]
    return ["nic"] * topology.nics + named, [*range(topology.nics), *switches.index.tolist()]


def _device(instance: str, ports: int) -> dict[str, Any]:
    core = "nic" if instance == "nic" else "switch"
    inside = {"component": f"{core}-chip[0]"}, {"component": f"port[0:{ports}]"}
    return {
        "name": f"{instance}-device", "description": f"{core} with {ports} ports",
        "components": [{"name": f"{core}-chip", "count": 1, "choice": core},
                       {"name": "port", "count": ports, "choice": "port"}],
        "links": [{"name": "inside"}],
        "edges": [{"ep1": inside[0], "ep2": inside[1], "scheme": "many2many", "link": "inside"}],
    }  # fmt: skip


@dataclass(frozen=True)
class ImportedEdges:
    """An edge list, and which of its nodes are hosts, where the file says so."""

    text: str
    hosts: frozenset[str]


def edges_of_infragraph(document: Mapping[str, Any], file: str) -> ImportedEdges:
    """Return the links between instances as an edge list; what is wired inside of devices is left out."""
    try:
        return _edges(document)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UsageError(f"{file} is no InfraGraph that can be read: {type(error).__name__} {error}") from None


def _edges(document: Mapping[str, Any]) -> ImportedEdges:
    devices = {one["name"]: {part["name"]: part for part in one["components"]} for one in document["devices"]}
    instances = {one["name"]: one for one in document["instances"]}
    links = {one["name"]: one.get("physical") or {} for one in document.get("links") or ()}
    hosts: set[str] = set()
    found: list[tuple[str, str, str]] = []
    for edge in document["edges"]:
        sides = [list(_nodes(edge[end], instances, devices, hosts)) for end in ("ep1", "ep2")]
        tail = _written(links.get(edge.get("link"), {}))
        if edge["scheme"] == "many2many":
            pairs = [(one, other) for one in sides[0] for other in sides[1]]
        else:
            pairs = list(zip(*sides, strict=False))
        found += [(one, other, tail) for one, other in pairs if one != other]
        if len(found) > _MOST_LINKS:
            raise ValueError(f"more than {_MOST_LINKS:,} links")
    planes = _planes(found, hosts)
    rows = [f"{one},{other},{tail},{planes[other if one in hosts else one]}" for one, other, tail in found]
    return ImportedEdges("\n".join(["a,b,rate,length,plane", *rows]) + "\n", frozenset(hosts))


def _planes(links: Sequence[tuple[str, str, str]], hosts: set[str]) -> dict[str, int]:
    """Return the plane of each switch: networks that are joined by nothing but the hosts' own ports."""
    head: dict[str, str] = {}

    def top(node: str) -> str:
        head.setdefault(node, node)
        while head[node] != node:
            head[node] = head[head[node]]
            node = head[node]
        return node

    for one, other, _ in links:
        if one in hosts or other in hosts:
            head.setdefault(one, one)
            head.setdefault(other, other)
        else:
            head[top(one)] = top(other)
    numbers: dict[str, int] = {}
    found = {node: numbers.setdefault(top(node), len(numbers)) for node in head if node not in hosts}
    # Switches of their own are no planes where there are too many: a network that falls apart is said to do so later.
    return {node: (found.get(node, 0) if len(numbers) <= MOST_PLANES else 0) for node in head}


def _nodes(
    end: Mapping[str, str], instances: Mapping[str, Any], devices: Mapping[str, Any], hosts: set[str]
) -> Iterator[str]:
    """Yield the node that each port of an endpoint belongs to: its instance, or its NIC where that has several."""
    name, numbers = _indices(end["instance"], instances)
    parts = devices[instances[name]["device"]]
    path = end["component"].split(".")
    component, places = _indices(path[0], parts)
    is_nic = parts[component].get("choice") in {"nic", "device"} and len(path) >= 1
    holds_nic = any(part.get("choice") == "nic" for part in parts.values())
    for number in numbers:
        for place in places:
            node = f"{name}.{number}.{component}.{place}" if is_nic else f"{name}.{number}"
            if is_nic or holds_nic:
                hosts.add(node)
            yield node


def _indices(text: str, counted: Mapping[str, Any]) -> tuple[str, Sequence[int]]:
    found = _ENDPOINT.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no endpoint")
    name, inside = found.groups()
    count = int(counted[name]["count"])
    if not inside:
        return name, range(count)
    bounds = [int(part) if part else None for part in inside.split(":")]
    if len(bounds) == 1 and bounds[0] is not None:
        return name, [range(count)[bounds[0]]]
    return name, range(count)[slice(*bounds)]


def _written(physical: Mapping[str, Any]) -> str:
    """Return rate and length of a link as cells; empty where the file does not say."""
    bandwidth, latency = physical.get("bandwidth") or {}, physical.get("latency") or {}
    scale = {"gigabits_per_second": 1.0, "gigabytes_per_second": 8.0}
    rate = next((f"{float(bandwidth[key]) * scale[key]:g} Gb/s" for key in scale if bandwidth.get(key)), "")
    length = f"{float(latency['ns']) / _NS_PER_M:g} m" if latency.get("ns") else ""
    return f"{rate},{length}"
