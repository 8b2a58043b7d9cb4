"""Builds the engine's columns from a network: nodes, ports, grades, rates, and the parts that threads work on.

Nodes are numbered NICs first (those below each T0, in blocks), then T0s, T1s and T2s, plane by plane. The ports of a
node stand together: of NICs plane by plane, of a T0 down and then up, of a T1 by T0 (or up, in three tiers, after
those), of a T2 by pod.
"""

from math import gcd

import numpy as np
from numpy.typing import NDArray

from weft.core.seeds import Seed
from weft.mrc.columns import NEVER, aligned
from weft.netsim.kernel import layout
from weft.netsim.model.link_use import METERS
from weft.netsim.model.network import Network, pause_lags

Column = NDArray[np.int64]
_BITS = 8 * 10**12
_SIGN = 2**63
_MOST_RATES = 64
MOST_SLOWED = 256
"""Kinds of ports that faults can make by slowing others."""
_MOST_PACE, _MOST_WAY = 1 << 20, 1 << 31
"""What a port's row can hold of picoseconds a byte and for the way."""
_WORD_BITS = 32
_MOST_NICS = 32
"""NICs of one node: what they work on should stay in the nearer caches while a node is taken through a round."""
NO_PORT = -1
"""What stands for the number of a port that a switch has but nobody uses."""


def signed(word: int) -> int:
    """Return 64 bits as a signed number."""
    return (word + _SIGN) % (2 * _SIGN) - _SIGN


def rate_row(rate_bps: int, slot_ps: int) -> list[int]:
    """Return what a rate grants in slots of this length, in whole numbers that do not overflow."""
    whole, rest = divmod(rate_bps * slot_ps, _BITS)
    common = gcd(rest, _BITS)
    part, base = rest // common, _BITS // common
    block, left = divmod(part << layout.BLOCK_BITS, base)
    per_byte = _BITS // rate_bps if _BITS % rate_bps == 0 else 0
    return [rate_bps, per_byte, whole, part, base, block, left]


def per_slot(slot_ps: int) -> int:
    """Return the factor by which times that are `near_ps` are divided into slots."""
    return -(-(1 << layout.PER_SLOT_BITS) // slot_ps)


def near_ps(slot_ps: int, furthest: int) -> int:
    """Return below what time that division is exact, and leads no further than `furthest` slots."""
    return min(1 << layout.NEAR_BITS, (1 << layout.PER_SLOT_BITS) // slot_ps, (furthest + 1) * slot_ps)


def build_fabric(network: Network, pairs: int, seed: Seed, *, metered: bool = False) -> tuple[layout.Fabric, Column]:
    """Return the columns of a network, and how many words of busy ports its nodes have."""
    shape = network.shape
    nodes, numbers, far = _nodes(network)
    ports = aligned((len(numbers), layout.PORT_COLUMNS), np.int32)
    ports[:, layout.CREDITED] = -1
    for column in (layout.DATA_FIRST, layout.DATA_LAST, layout.CONTROL_FIRST, layout.CONTROL_LAST):
        ports[:, column] = -1
    ports[:, layout.FAR] = far
    ports[:, layout.NUMBER] = numbers
    grades, grade_of = _grades(network)
    # A port that nobody uses is never asked for anything.
    ports[:, layout.GRADE] = grade_of[np.maximum(numbers, 0)]
    rates, which = np.unique(network.rate_bps, return_inverse=True)
    ports[:, layout.RATE] = which[np.maximum(numbers, 0) // 2]
    table = np.zeros((_MOST_RATES, layout.RATE_COLUMNS), np.int64)
    table[:, layout.BASE] = 1
    for number, rate in enumerate(rates.tolist()):
        table[number] = rate_row(rate, int(network.slot_ps))
    set_ways(ports, grades, table, ordered=network.switching.ordered)
    figures = np.zeros(layout.FIGURES, np.int64)
    values = {
        layout.SLOT_PS: int(network.slot_ps),
        layout.ORDER_WORD: signed(seed.branch("order").word()),
        layout.LOSS_WORD: signed(seed.branch("loss").word()),
        layout.TRIMMING: int(network.trimming),
        layout.HEADER: network.frames.header,
        layout.FULL: network.frames.full,
        layout.PLANES: shape.planes,
        layout.DOWN: shape.down,
        layout.BUNDLE: shape.bundle,
        layout.POD_T0: shape.pod_t0,
        layout.SECONDS: max(1, shape.t1_up),
        layout.TIERS: shape.tiers,
        **_manners(network),
        layout.PER_SLOT: per_slot(int(network.slot_ps)),
        layout.METERED: int(metered),
    }
    for place, value in values.items():
        figures[place] = value
    blocks = int((nodes[:, layout.TIER] == layout.AT_NICS).sum())
    fabric = layout.Fabric(
        figures,
        ports,
        grades,
        table,
        np.zeros(_MOST_RATES, np.int64),
        nodes,
        (np.arange(shape.hosts) // shape.down).astype(np.int32),
        np.zeros(shape.hosts, np.int64),
        np.full(shape.hosts, -2, np.int64),
        np.full(blocks, NEVER, np.int64),
        np.zeros(blocks, np.int64),
        _holds(network),
        np.full(network.ports if network.switching.ordered else 1, -1, np.int64),
        np.zeros(len(network.topology.links) if network.switching.adaptive else 1, np.int8),
        np.zeros((network.ports if metered else 1, METERS), np.int64),
        _unwatched(pairs),
    )
    return fabric, np.array([len(rates), int(_words(nodes)[-1])], np.int64)


def set_ways(ports: NDArray[np.int32], grades: Column, rates: Column, *, ordered: bool) -> None:
    """Note in the rows of ports how long packets take over them, and from where they may mark."""
    of_grade, of_rate = grades[ports[..., layout.GRADE]], rates[ports[..., layout.RATE]]
    pace, way, low = of_rate[..., layout.PER_BYTE], of_grade[..., layout.DELAY], of_grade[..., layout.ECN_LOW]
    simple = (pace > 0) & (pace < _MOST_PACE) & (way < _MOST_WAY) & (not ordered)
    ports[..., layout.PACE] = np.where(simple, pace, 0)
    ports[..., layout.WAY] = np.where(simple, way, layout.NO_WAY)
    ports[..., layout.MARK_FROM] = np.where(low < 0, layout.MARKS_NOTHING, np.minimum(low, layout.MARKS_NOTHING))


def _manners(network: Network) -> dict[int, int]:
    """Return the figures of what switches do besides queueing."""
    shape, switching = network.shape, network.switching
    firsts = [grid.first for grid in shape.link_grids] + [0, 0]
    pause = switching.pause
    return {
        layout.PAUSING: int(pause is not None),
        layout.XOFF: 0 if pause is None else pause.xoff,
        layout.XON: 0 if pause is None else pause.xon,
        layout.ROOM: 0 if pause is None else pause.xoff + pause.headroom,
        layout.ORDERED: int(switching.ordered),
        layout.ADAPTIVE: int(switching.adaptive),
        layout.UPS: shape.up,
        layout.T0S: shape.t0,
        layout.T1S: shape.t1,
        layout.POD_T1: shape.pod_t1,
        layout.FIRST_UPLINK: firsts[1],
        layout.FIRST_SECOND: firsts[2],
    }


def _holds(network: Network) -> Column:
    """Return the rows that pausing needs."""
    pause = network.switching.pause
    rows = np.zeros((1 if pause is None else network.ports, layout.HOLD_COLUMNS), np.int64)
    rows[:, layout.CHANGES :] = NEVER
    if pause is not None:
        lags = np.array(pause_lags(network, pause), np.int64)
        assert int(lags.max()) + 2 < layout.MOST_CHANGES, "pauses need longer than the ring of changes holds"
        rows[:, layout.LAG] = lags
    return rows


def _unwatched(pairs: int) -> Column:
    found = np.zeros((pairs, 2), np.int64)
    found[:, 1] = -1
    return found


def _words(nodes: Column) -> Column:
    """Return where the words of busy ports of each node begin, and where all end."""
    at_nics = nodes[:, layout.TIER] == layout.AT_NICS
    words = np.where(at_nics, nodes[:, layout.NICS], -(-nodes[:, layout.PORTS] // _WORD_BITS))
    return np.concatenate(([0], np.cumsum(words)))


def _grades(network: Network) -> tuple[Column, Column]:
    """Return the kinds of ports that there are, and the one of every port."""
    links = network.topology.links
    rates = np.repeat(network.rate_bps, 2)
    both = np.stack((network.delay_ps, network.stage, network.first_hop, network.last_hop, rates), axis=1)
    both = both.astype(np.int64)
    kinds, first, which = np.unique(both, axis=0, return_index=True, return_inverse=True)
    # The last rows are left for ports that faults slow down.
    rows = np.zeros((len(kinds) + MOST_SLOWED, layout.GRADE_COLUMNS), np.int64)
    for number, port in enumerate(first.tolist()):
        limits = network.limits(port)
        rows[number] = [
            network.delay_ps[port], limits.ecn_low, limits.ecn_high, limits.data, limits.control, network.stage[port],
            network.last_hop[port], limits.ecn_most,
        ]  # fmt: skip
    assert 2 * len(links) == len(which), "every port has a grade"
    return rows, which.reshape(-1)


def _nodes(network: Network) -> tuple[Column, Column, Column]:
    """Return the nodes, and for all their ports the number in the network and the node at the far end."""
    shape = network.shape
    planes, hosts, down, up = shape.planes, shape.hosts, shape.down, shape.up
    t0s, t1s, t2s = shape.t0, shape.t1, shape.t2
    blocks = [(t0, nics) for t0 in range(t0s) for nics in _blocks(t0 * down, min((t0 + 1) * down, hosts))]
    block_of = np.repeat(np.arange(len(blocks)), [len(nics) for _, nics in blocks])
    first_t0 = len(blocks)
    first_t1 = first_t0 + planes * t0s
    first_t2 = first_t1 + planes * t1s
    stages = [grid.first for grid in shape.link_grids]
    rows: list[list[int]] = []
    numbers: list[Column] = []
    far: list[Column] = []

    def add(tier: int, plane: int, index: int, port: Column, leads: Column, nics: tuple[int, int] = (0, 0)) -> None:
        rows.append([tier, plane, index, 0, len(port), *nics, 0])
        numbers.append(port.astype(np.int64))
        far.append(leads.astype(np.int64))

    plane = np.arange(planes)
    for t0, nics in blocks:
        port = 2 * (plane[None, :] * hosts + nics[:, None])
        leads = np.broadcast_to(first_t0 + plane * t0s + t0, port.shape)
        add(layout.AT_NICS, 0, t0, port.reshape(-1), leads.reshape(-1), (int(nics[0]), len(nics)))
    for p in range(planes):
        for t0 in range(t0s):
            nics = np.arange(t0 * down, min((t0 + 1) * down, hosts))
            below = np.full(down, NO_PORT)
            below[: len(nics)] = 2 * (p * hosts + nics) + 1
            uplinks = np.arange(up)
            above = 2 * (stages[1] + (p * t0s + t0) * up + uplinks) if up else uplinks
            t1 = shape.pod_of(t0) * shape.pod_t1 + uplinks if t2s else uplinks // shape.bundle
            to_nics = np.zeros(down, np.int64)
            to_nics[: len(nics)] = block_of[nics]
            leads = np.concatenate((to_nics, first_t1 + p * t1s + t1))
            add(0, p, t0, np.concatenate((below, above)), leads, (int(nics[0]), len(nics)))
    for p in range(planes):
        for t1 in range(t1s):
            pod, x = divmod(t1, shape.pod_t1)
            add(1, p, pod, *_t1_ports(network, p, pod, x, (first_t0, first_t2)))
    for p in range(planes):
        for t2 in range(t2s):
            x, member = divmod(t2, shape.group_t2)
            pods = np.repeat(np.arange(shape.pods), shape.bundle)
            second = member * shape.bundle + np.tile(np.arange(shape.bundle), shape.pods)
            t1 = pods * shape.pod_t1 + x
            port = 2 * (stages[2] + (p * t1s + t1) * shape.t1_up + second) + 1
            add(2, p, t2, port, first_t1 + p * t1s + t1)
    nodes = np.array(rows, np.int64)
    nodes[:, layout.FIRST_PORT] = np.concatenate(([0], np.cumsum(nodes[:-1, layout.PORTS])))
    nodes[:, layout.FIRST_WORD] = _words(nodes)[:-1]
    return nodes, np.concatenate(numbers), np.concatenate(far)


def _blocks(first: int, end: int) -> list[Column]:
    """Return the NICs from `first` to before `end` in blocks of an even size: what one node looks after."""
    count = -(-(end - first) // _MOST_NICS)
    return np.array_split(np.arange(first, end), count)


def _t1_ports(network: Network, plane: int, pod: int, x: int, firsts: tuple[int, int]) -> tuple[Column, Column]:
    """Return the ports of one T1: to the T0s of its pod, and in three tiers its uplinks."""
    shape = network.shape
    first_t0, first_t2 = firsts
    stages = [grid.first for grid in shape.link_grids]
    here = np.arange(pod * shape.pod_t0, min((pod + 1) * shape.pod_t0, shape.t0))
    if not shape.t2:
        t0 = np.repeat(here, shape.bundle)
        uplink = x * shape.bundle + np.tile(np.arange(shape.bundle), len(here))
        port = 2 * (stages[1] + (plane * shape.t0 + t0) * shape.up + uplink) + 1
        return port, first_t0 + plane * shape.t0 + t0
    below = np.full(shape.pod_t0, NO_PORT)
    below[: len(here)] = 2 * (stages[1] + (plane * shape.t0 + here) * shape.up + x) + 1
    leads = np.full(shape.pod_t0, first_t0 + plane * shape.t0)
    leads[: len(here)] += here
    second = np.arange(shape.t1_up)
    t1 = pod * shape.pod_t1 + x
    above = 2 * (stages[2] + (plane * shape.t1 + t1) * shape.t1_up + second)
    t2 = x * shape.group_t2 + second // shape.bundle
    return np.concatenate((below, above)), np.concatenate((leads, first_t2 + plane * shape.t2 + t2))
