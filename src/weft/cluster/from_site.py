"""From a site file to the nodes and budgets of a cluster: who stands where, and what may be drawn.

Places follow from the fabric's arithmetic: node n has NICs n*g to n*g+g-1, and those hang on T0s as
`fabric.graph.shape` says. A rack is a scale-up domain where that spans nodes, otherwise a few nodes.
"""

from weft.cluster.records.node import Location, Node, NodeState
from weft.cluster.records.snapshot import Power
from weft.fabric.graph.shape import shape_of
from weft.specs.site import SiteSpec

NODES_PER_RACK = 4
"""Nodes of a rack where the site's scale-up domain is one node: about 40 kW of air-cooled servers."""
RACKS_PER_FEEDER = 32
"""Racks behind one feeder; a class of low-voltage switchboards, not a figure of a site."""
_MILLI = 1000


def nodes_of(site: SiteSpec, count: int | None = None, state: NodeState = NodeState.READY) -> tuple[Node, ...]:
    """Return the nodes of a site, or the first `count` of them."""
    shape = shape_of(site.fabric)
    gpus = site.node.gpus
    whole = site.fabric.gpus // gpus
    per_domain = max(1, site.scale_up.gpus // gpus)
    per_rack = per_domain if per_domain > 1 else NODES_PER_RACK
    found: list[Node] = []
    for number in range(whole if count is None else min(count, whole)):
        t0 = shape.t0_of(number * gpus)
        rack = number // per_rack
        place = Location(number // per_domain, rack, t0, shape.pod_of(t0), rack // RACKS_PER_FEEDER)
        found.append(Node(number, f"node-{number:05d}", gpus, place, state))
    return tuple(found)


def power_of(site: SiteSpec) -> Power:
    """Return a site's budgets and what a node and a GPU draw, at the meter."""
    nic_mw = site.fabric.parts.nic.power
    idle_mw = site.node.power + site.node.gpus * (site.gpu.idle_power + nic_mw)
    limit, ramp = site.power.limit, site.power.ramp_per_second
    return Power(
        site_w=None if limit is None else limit // _MILLI,
        ramp_w_per_s=None if ramp is None else ramp // _MILLI,
        node_idle_w=round(idle_mw * site.power.pue / _MILLI),
        gpu_rise_w=round((site.gpu.power - site.gpu.idle_power) * site.power.pue / _MILLI),
    )
