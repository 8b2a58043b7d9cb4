"""A site's fabric for a map: who loses what when parts fail, the path of a packet hop by hop, and faults over time.

What is drawn is computed from the links' columns and the static tables of `weft.fabric`; failed parts have the names
that `weft fabric path --down` takes.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import UsageError, WeftError
from weft.core.input_files import json_of
from weft.core.quantity import RATE
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import ForwardingPlane
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.addressing.walk import FailedParts, Walker, failures_named
from weft.fabric.graph.shape import Shape, shape_of
from weft.fabric.graph.topology import Topology, build
from weft.specs import SCENARIOS, SiteSpec, load_scenario
from weft.specs.fabric import FabricSpec

MOST_DOWN = 64
_MOST_SERIES, _MOST_SERIES_BYTES, _MOST_LINES = 8, 64 << 20, 4000
_PS_PER_US = PICOSECONDS_PER_SECOND // 10**6
_MOST_DRAWN = 300_000
"""GPUs that one map holds as a pixel each."""


@lru_cache(maxsize=2)
def _built(fabric: FabricSpec) -> Topology:
    return build(fabric)


def shape_shown(site: SiteSpec) -> dict[str, Any]:
    """Return the sizes of a site's fabric."""
    shape = shape_of(site.fabric)
    if shape.hosts > _MOST_DRAWN:
        raise UsageError(f"{site.name} has {shape.hosts:,} NICs; the map holds {_MOST_DRAWN:,}")
    return {
        "site": site.name, "nics": shape.hosts, "planes": shape.planes, "tiers": shape.tiers, "down": shape.down,
        "t0": shape.t0, "t1": shape.t1, "t2": shape.t2, "pods": shape.pods, "up": shape.up,
        "evs": Addressing(shape).evs.count,
        "port_rate": RATE.format(site.fabric.port_rate), "nic_rate": RATE.format(site.fabric.nic_rate),
    }  # fmt: skip


def affected(site: SiteSpec, down: Sequence[str]) -> dict[str, Any]:
    """Return which NICs lose which planes, and which links between T0 and T1 are out, when `down` have failed.

    NICs come as runs of neighbours with one mask of planes; links as (plane, T0, T1).
    """
    topology, shape = _built(site.fabric), shape_of(site.fabric)
    out = _links_out(topology, _failed(topology, down))
    links = topology.links
    first = np.flatnonzero(out & (links.stage == 0))
    masks = np.zeros(shape.hosts, np.int64)
    np.bitwise_or.at(masks, links.lower[first], 1 << links.plane[first].astype(np.int64))
    second = np.flatnonzero(out & (links.stage == 1))
    cells = np.stack(
        [links.plane[second], _index(topology, links.lower[second]), _index(topology, links.upper[second])], 1
    )
    lost = [int((masks >> plane & 1).sum()) for plane in range(shape.planes)]
    return {
        "runs": _runs(masks), "links": np.unique(cells, axis=0).tolist() if len(cells) else [],
        "nics_by_plane": lost, "nics_affected": int((masks > 0).sum()),
        "nics_cut_off": int((masks == (1 << shape.planes) - 1).sum()), "links_out": int(out.sum()),
    }  # fmt: skip


def _failed(topology: Topology, down: Sequence[str]) -> FailedParts:
    if len(down) > MOST_DOWN:
        raise UsageError(f"{len(down)} failed parts; name at most {MOST_DOWN}")
    return failures_named(topology, down)


def _links_out(topology: Topology, failed: FailedParts) -> np.ndarray:
    """Return for each link whether it carries nothing."""
    links = topology.links
    out = np.zeros(len(links), np.bool_)
    out[list(failed.links)] = True
    nodes = [*failed.nics, *(topology.switch_node(switch) for switch in failed.switches)]
    if nodes:
        out |= np.isin(links.lower, nodes) | np.isin(links.upper, nodes)
    if failed.optics:
        optics = list(failed.optics)
        out |= np.isin(links.lower_optic, optics) | np.isin(links.upper_optic, optics)
    return out


def _index(topology: Topology, nodes: np.ndarray) -> np.ndarray:
    return topology.switches.index[nodes - topology.nics]


def _runs(masks: np.ndarray) -> list[list[int]]:
    """Return neighbours with the same mask as [first, how many, mask], those that have lost something."""
    ends = np.flatnonzero(np.diff(masks, prepend=masks[:1] - 1))
    sizes = np.diff(np.append(ends, len(masks)))
    return [[int(first), int(size), int(masks[first])]
            for first, size in zip(ends, sizes, strict=True) if masks[first]]  # fmt: skip


def path_shown(site: SiteSpec, source: int, destination: int, ev: str, down: Sequence[str]) -> dict[str, Any]:
    """Return the way of a packet through the static tables, hop by hop, with its SRv6 address."""
    shape = shape_of(site.fabric)
    for number in (source, destination):
        if not 0 <= number < shape.hosts:
            raise UsageError(f"NIC {number} is not one of 0 to {shape.hosts - 1}")
    if source == destination:
        raise UsageError("a packet goes from one NIC to another; choose two")
    addressing, topology = Addressing(shape), _built(site.fabric)
    entropy = addressing.evs.parse(ev)
    carrier = addressing.carrier(source, destination, entropy)
    walk = Walker(ForwardingPlane(topology, addressing.plan), _failed(topology, down)).walk(source, carrier)
    hops = [
        {"node": topology.name_of_node(hop.node), "matched": [f"{usid:x}" for usid in hop.matched],
         "address": srv6.to_text(hop.remaining), "port": hop.port,
         "link": None if hop.link is None else topology.name_of_link(hop.link), **_place(topology, shape, hop.node)}
        for hop in walk.hops
    ]  # fmt: skip
    return {
        "ev": entropy, "ev_name": addressing.evs.name(entropy), "evs": addressing.evs.count,
        "carrier": srv6.to_text(carrier), "hops": hops, "arrived": walk.arrived == destination, "death": walk.death,
    }  # fmt: skip


def _place(topology: Topology, shape: Shape, node: int) -> dict[str, Any]:
    if node < topology.nics:
        return {"tier": "nic", "plane": None, "index": node}
    switch = node - topology.nics
    switches = topology.switches
    assert shape.tiers >= int(switches.tier[switch]), "a switch stands in a tier that there is"
    return {"tier": f"t{switches.tier[switch]}", "plane": int(switches.plane[switch]),
            "index": int(switches.index[switch])}  # fmt: skip


def scenarios_of(site: str, folders: Iterable[Path]) -> dict[str, Any]:
    """Return the built-in scenarios of a site with their faults over time, and kept series of simulations."""
    found: list[dict[str, Any]] = []
    for name in SCENARIOS.names():
        try:
            scenario = load_scenario(name)
        except WeftError:
            continue
        if scenario.site != site or not scenario.faults:
            continue
        found.append({
            "name": name, "description": scenario.description,
            "faults": [{"kind": fault.kind, "target": fault.target, "at_us": fault.at / _PS_PER_US,
                        "lasts_us": None if fault.lasts is None else fault.lasts / _PS_PER_US}
                       for fault in scenario.faults],
        })  # fmt: skip
    return {"scenarios": found, "series": list(_series(folders))}


def _series(folders: Iterable[Path]) -> Iterable[dict[str, Any]]:
    """Yield what `weft simulate --series` has kept directly in the folders: goodput of each transport over time."""
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl"))[:_MOST_SERIES]:
            lines = _lines(path)
            by_transport: dict[str, dict[str, list[float]]] = {}
            for line in lines:
                own = by_transport.setdefault(str(line["transport"]), {"time_us": [], "rate_bps": [], "lost": []})
                own["time_us"].append(line["time_us"])
                own["rate_bps"].append(line["rate_bps"])
                own["lost"].append(line.get("data_lost_to_faults", 0))
            if by_transport:
                yield {"name": path.name, "transports": by_transport}


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        if path.stat().st_size > _MOST_SERIES_BYTES:
            return []
        found = [json_of(raw) for raw in path.read_bytes().splitlines()[:_MOST_LINES]]
    except (OSError, ValueError):
        return []
    numbers = (int, float)
    return [line for line in found if isinstance(line, dict) and "transport" in line
            and isinstance(line.get("time_us"), numbers) and isinstance(line.get("rate_bps"), numbers)]  # fmt: skip
