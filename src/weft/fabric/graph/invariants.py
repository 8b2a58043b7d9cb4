"""What must hold of every fabric, as functions that return what does not.

Run in tests and before anything real is made from a topology. Each function returns sentences, none when all is well.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.fabric.graph.topology import NO_OPTIC, Topology

_SHOWN = 3


def ends_exist(topology: Topology) -> list[str]:
    """Return the links whose ends are no nodes, or whose upper end is not a switch."""
    links = topology.links
    lower_ok = (links.lower >= 0) & (links.lower < topology.nodes)
    upper_ok = (links.upper >= topology.nics) & (links.upper < topology.nodes)
    return _sentences(topology, ~(lower_ok & upper_ok), "has an end that does not exist")


def links_join_two_nodes(topology: Topology) -> list[str]:
    """Return the links that lead from a node to itself."""
    return _sentences(topology, topology.links.lower == topology.links.upper, "joins a node to itself")


def ports_are_used_once(topology: Topology) -> list[str]:
    """Return the links that share a port with another link."""
    links = topology.links
    ends = np.concatenate((_end(links.lower, links.lower_port), _end(links.upper, links.upper_port)))
    _, place, count = np.unique(ends, return_inverse=True, return_counts=True)
    lower_shared, upper_shared = (count[place] > 1).reshape(2, -1)
    return _sentences(topology, lower_shared | upper_shared, "shares a port with another link")


def planes_are_disjoint(topology: Topology) -> list[str]:
    """Return the links that lead to a switch of another plane."""
    links, wrong = topology.links, np.zeros(len(topology.links), bool)
    for end in (links.lower, links.upper):
        at_switch = end >= topology.nics
        plane = topology.switches.plane[np.where(at_switch, end - topology.nics, 0)]
        wrong |= at_switch & (plane != links.plane)
    return _sentences(topology, wrong, "leads into another plane")


def stages_join_their_tiers(topology: Topology) -> list[str]:
    """Return the links of a built fabric that do not join tier `stage - 1` to tier `stage`."""
    links, tier = topology.links, topology.switches.tier.astype(np.int16)
    at_switch = links.lower >= topology.nics
    lower = np.where(at_switch, tier[np.where(at_switch, links.lower - topology.nics, 0)], -1)
    wrong = (tier[links.upper - topology.nics] != links.stage) | (lower != links.stage.astype(np.int16) - 1)
    return _sentences(topology, wrong, "joins tiers that are not one above the other")


def degrees_are_right(topology: Topology) -> list[str]:
    """Return the nodes of a built fabric that have another number of links than their tier says."""
    shape = topology.shape
    if shape is None:
        return []
    links, nics = topology.links, topology.nics
    above = np.bincount(links.lower, minlength=topology.nodes)
    below = np.bincount(links.upper, minlength=topology.nodes)
    tier, index = topology.switches.tier, topology.switches.index
    full_up = np.array([shape.up, shape.t1_up, 0])
    wrong = np.zeros(topology.nodes, bool)
    wrong[:nics] = (above[:nics] != shape.planes) | (below[:nics] != 0)
    wrong[nics:] = (above[nics:] != full_up[tier]) | (above[nics:] + below[nics:] > shape.radix)
    last_t0 = shape.hosts - (shape.t0 - 1) * shape.down
    wrong[nics:] |= (tier == 0) & (below[nics:] != np.where(index == shape.t0 - 1, last_t0, shape.down))
    return [f"{topology.name_of_node(node)} has the wrong number of links" for node in _first(wrong)]


def optics_are_not_overfull(topology: Topology, lanes: int) -> list[str]:
    """Return the optics that carry more than `lanes` links, or links of more than one node."""
    links = topology.links
    optic = np.concatenate((links.lower_optic, links.upper_optic))
    node = np.concatenate((links.lower, links.upper))[optic != NO_OPTIC]
    optic = optic[optic != NO_OPTIC]
    overfull = np.bincount(optic, minlength=topology.optics) > lanes
    owner = np.full(topology.optics, -1, np.int32)
    owner[optic] = node
    overfull[optic[owner[optic] != node]] = True
    return [f"{topology.names.of('optic', one)} carries links that are not its own" for one in _first(overfull)]


ALWAYS: tuple[Callable[[Topology], list[str]], ...] = (
    ends_exist,
    links_join_two_nodes,
    ports_are_used_once,
    planes_are_disjoint,
)
"""What holds of every fabric, imported ones too."""
BUILT: tuple[Callable[[Topology], list[str]], ...] = (*ALWAYS, stages_join_their_tiers, degrees_are_right)
"""What holds of a fabric that was built from a spec."""


def violations(topology: Topology) -> list[str]:
    """Return everything that does not hold of `topology`."""
    rules = ALWAYS if topology.shape is None else BUILT
    return [sentence for rule in rules for sentence in rule(topology)]


def _end(node: NDArray[np.int32], port: NDArray[np.uint16]) -> NDArray[np.int64]:
    return node.astype(np.int64) << 16 | port


def _first(wrong: NDArray[Any]) -> list[int]:
    return [int(place) for place in np.flatnonzero(wrong)[:_SHOWN]]


def _sentences(topology: Topology, wrong: NDArray[Any], problem: str) -> list[str]:
    return [f"{topology.name_of_link(link)} {problem}" for link in _first(wrong)]
