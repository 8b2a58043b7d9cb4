"""How fast flows could be at best: each alone in the network, one after the other where they wait, or sharing NICs."""

from collections.abc import Sequence

import numpy as np

from weft.fabric.addressing.paths import links_on_paths
from weft.fabric.graph.topology import NO_LINK
from weft.netsim.model.flow import Flow
from weft.netsim.model.network import Network


def ideal_ps(network: Network, flows: Sequence[Flow]) -> int:
    """Return a bound below which counted flows cannot complete.

    Of flows that wait for each other it is a bound on the time of all of them, of others on that of the slowest.
    """
    counted = [flow for flow in flows if flow.counted and not flow.is_wait]
    if not counted:
        return _chain_ps(network, flows) if any(flow.counted for flow in flows) else 0
    if any(flow.after for flow in flows if flow.counted):
        return max(_chain_ps(network, flows), _shared_ps(network, counted))
    alone = max(network.ideal_ps(flow.source, flow.destination, flow.size) for flow in _one_of_each(network, counted))
    if any(flow.after_sent or flow.at_ps != counted[0].at_ps for flow in counted):
        return alone
    return max(alone, _shared_ps(network, counted))


def _shared_ps(network: Network, flows: Sequence[Flow]) -> int:
    """Return how long the NIC with the most to send, or to receive, takes at best."""
    found = 0
    for end in ("source", "destination"):
        load: dict[int, int] = {}
        for flow in flows:
            nic = getattr(flow, end)
            load[nic] = load.get(nic, 0) + flow.size
        nic, size = max(load.items(), key=lambda item: item[1])
        mine = _one_of_each(network, [flow for flow in flows if getattr(flow, end) == nic])
        found = max(found, min(network.ideal_ps(flow.source, flow.destination, size) for flow in mine))
    return found


def _one_of_each(network: Network, flows: Sequence[Flow]) -> list[Flow]:
    """Return one flow of each size and kind of path: flows of the same kind take as long, each alone in the network."""
    source, destination = np.array([(flow.source, flow.destination) for flow in flows], np.int64).T
    links = links_on_paths(network.shape, source, destination, np.zeros_like(source))
    each_way = network.delay_ps[2 * links], network.delay_ps[2 * links + 1]
    sizes = np.array([[flow.size] for flow in flows], np.int64)
    kinds = np.concatenate((sizes, links == NO_LINK, *each_way, network.rate_bps[links]), axis=1)
    _, first = np.unique(kinds, axis=0, return_index=True)
    return [flows[i] for i in first.tolist()]


def _chain_ps(network: Network, flows: Sequence[Flow]) -> int:
    """Return a bound on the end of flows that wait for each other: the longest chain, each alone in the network."""
    known: dict[tuple[int, int, int], tuple[int, int]] = {}
    arrived: list[int] = []
    first_ps = min(0 if flow.is_wait else flow.at_ps for flow in flows if flow.counted and not flow.after)
    last_ps = 0
    for flow in flows:
        key = flow.source, flow.destination, flow.size
        if key not in known:
            known[key] = (0, 0) if flow.is_wait else (network.arrival_ps(*key), network.ideal_ps(*key))
        begins_ps = flow.at_ps + max((arrived[before] for before in flow.after), default=0)
        arrived.append(begins_ps + known[key][0])
        if flow.counted:
            last_ps = max(last_ps, begins_ps + known[key][1])
    return last_ps - first_ps
