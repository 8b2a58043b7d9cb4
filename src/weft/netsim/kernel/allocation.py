"""Memory of a run: how much is planned, how it is cut into parts, and how it grows.

What a run holds per packet in flight lies in two stores, wires and queues. Both are reserved generously and touched
only where used; should a slot need more than is left, they grow between two slots.
"""

import numpy as np
from numpy.typing import NDArray

from weft.mrc.columns import aligned
from weft.netsim.host.host_state import HEADER, Column
from weft.netsim.kernel import layout
from weft.netsim.model.network import Network

_LEAST_CHUNKS = 4096
_LEAST_ROWS = 65_536
_LEAST_SCRATCH = 4096
_MOST_LOGGED = 1 << 20
_ROUND_TRIPS = 3
_PER_PORT = 16
_COPIED = 1 << 16
"""Rows that are copied, or left, together."""


def ring_slots(network: Network, ahead: int) -> int:
    """Return the slots of the ring: a power of two beyond the longest way over one link from the end of a round."""
    slot_ps = int(network.slot_ps)
    slowest = int(network.rate_bps.min())
    longest = int(network.delay_ps.max()) + network.frames.full * 8 * 10**12 // slowest + slot_ps
    return 1 << (longest // slot_ps + 2 + ahead).bit_length()


def planned_packets(network: Network, pairs: int, window: int) -> int:
    """Return how many packets may be in flight at once: what windows allow, or what some round trips hold."""
    by_window = pairs * (window // network.frames.payload + 4)
    rate_bps = network.fabric.nic_rate
    by_rate = rate_bps * _ROUND_TRIPS * int(network.round_trip_ps) // (8 * 10**12 * network.frames.full)
    ports = network.shape.hosts * network.shape.planes
    return min(by_window, network.shape.hosts * by_rate + _PER_PORT * ports) + _LEAST_ROWS


def planned_in_round(network: Network, slots: int, most_sent: int) -> int:
    """Return how many packets NICs may send in a round of so many slots, answers to what arrives among them."""
    return network.shape.hosts * network.shape.planes * slots * (most_sent + layout.ANSWERS)


def make_wires(packets: int, in_round: int, parts: int, ring: int, nodes: int) -> layout.Wires:
    """Return wires for so many packets, and room for what a round may add."""
    each = _LEAST_CHUNKS + (packets + in_round) // (layout.CHUNK * parts) + (8 + ring) * nodes
    chunks = parts * each
    heads = np.full((parts, ring, nodes), layout.NO_CHUNK, np.int64)
    free = np.zeros((parts, 4), np.int64)
    free[:, 0] = -1
    free[:, 1] = np.arange(parts) * each
    free[:, 2] = free[:, 1] + each
    return layout.Wires(
        aligned((chunks * layout.CHUNK, layout.WORDS), np.int64),
        np.empty(chunks, np.int32),
        heads,
        free,
        np.zeros((parts, ring), np.int64),
    )


def make_queues(packets: int, in_round: int, parts: int) -> layout.Queues:
    """Return queues for so many packets, and room for what a round may add."""
    each = _LEAST_ROWS + (packets + in_round) // parts
    free = np.zeros((parts, 4), np.int64)
    free[:, 1] = np.arange(parts) * each
    free[:, 2] = free[:, 1] + each
    free[:, 3] = each
    rows = aligned((parts * each, layout.QUEUE_WORDS), np.int64)
    return layout.Queues(rows, np.zeros((parts, each), np.int32), free)


def grown_wires(wires: layout.Wires) -> layout.Wires:
    """Return the wires with room for half as many packets again, shared evenly."""
    parts = len(wires.free)
    had = len(wires.after)
    each = max(_LEAST_CHUNKS, had // (2 * parts))
    after = np.concatenate((wires.after, np.empty(parts * each, np.int32)))
    free = wires.free.copy()
    _keep_rest(after, free)
    free[:, 1] = had + np.arange(parts) * each
    free[:, 2] = free[:, 1] + each
    rows = aligned((len(after) * layout.CHUNK, layout.WORDS), np.int64)
    _copy_touched(wires.rows, rows)
    return wires._replace(rows=rows, after=after, free=free)


def grown_queues(queues: layout.Queues) -> layout.Queues:
    """Return the queues with room for half as many packets again, shared evenly."""
    parts = len(queues.free)
    had = len(queues.rows)
    each = max(_LEAST_ROWS, had // (2 * parts))
    spare = np.zeros((parts, queues.spare.shape[1] + each), np.int32)
    free = queues.free.copy()
    for stack, old, row in zip(spare, queues.spare, free, strict=True):
        height, first, end = row[:3].tolist()
        stack[:height] = old[:height]
        # The untouched range is about to move: what is left of it goes onto the stack.
        stack[height : height + end - first] = np.arange(first, end)
        row[0] = height + end - first
    free[:, 1] = had + np.arange(parts) * each
    free[:, 2] = free[:, 1] + each
    free[:, 3] += each
    rows = aligned((had + parts * each, layout.QUEUE_WORDS), np.int64)
    _copy_touched(queues.rows, rows)
    return layout.Queues(rows, spare, free)


def _copy_touched(old: Column, new: Column) -> None:
    """Copy what was ever written, and leave the rest of the new memory to nobody."""
    for first in range(0, len(old), _COPIED):
        block = old[first : first + _COPIED]
        if block.any():
            new[first : first + len(block)] = block


def _keep_rest(after: NDArray[np.int32], free: Column) -> None:
    """Put chunks that were never used into the lists of free ones, because the untouched range is about to move."""
    for row in free:
        first, end = int(row[1]), int(row[2])
        if first == end:
            continue
        after[first : end - 1] = np.arange(first + 1, end)
        after[end - 1] = row[0]
        row[0] = first
        row[3] += end - first


def make_shard(network: Network, fabric: layout.Fabric, part: int, nodes: Column, half_count: int) -> layout.Shard:
    """Return what part number `part`, which looks after `nodes`, works with."""
    most_ports = int(max(fabric.nodes[:, layout.PORTS].max(), fabric.nodes[:, layout.NICS].max()))
    nic_nodes = int((fabric.nodes[nodes, layout.TIER] == layout.AT_NICS).sum())
    count = np.zeros(layout.COUNTERS, np.int64)
    count[layout.NIC_NODES] = nic_nodes
    return layout.Shard(
        part,
        nodes,
        np.zeros(1, HEADER),
        np.zeros((2 * half_count + 64, 3), np.int64),
        np.zeros(2, np.int64),
        count,
        np.zeros(2 * network.shape.tiers, np.int64),
        np.empty((_MOST_LOGGED, 4), np.int64),
        np.empty((_MOST_LOGGED, 3), np.int64),
        np.full(most_ports, -1, np.int64),
        np.empty(layout.CAME * _LEAST_SCRATCH, np.int64),
        np.empty(_LEAST_SCRATCH, np.int64),
        np.zeros(network.shape.planes, np.int64),
        np.zeros((layout.GRANT_SLOTS, len(fabric.rates)), np.int64),
    )


def with_scratch(shard: layout.Shard, count: int) -> layout.Shard:
    """Return the shard with room for so many arrivals at one node."""
    return shard._replace(came=np.empty(layout.CAME * count, np.int64), order=np.empty(count, np.int64))


def parts_of(nodes: Column, parts: int) -> list[Column]:
    """Return the nodes of every part, NICs first: of each tier an equal share, so that all have as much to do."""
    shares: list[list[Column]] = [[] for _ in range(parts)]
    for tier in np.unique(nodes[:, layout.TIER]).tolist():
        members = np.flatnonzero(nodes[:, layout.TIER] == tier)
        for part, share in enumerate(np.array_split(members, parts)):
            shares[part].append(share)
    return [np.concatenate(share).astype(np.int64) for share in shares]
