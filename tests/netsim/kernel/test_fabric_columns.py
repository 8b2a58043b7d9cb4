"""The engine's columns against the topology that they are made from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.netsim.scenarios import small_site

from weft.core.seeds import Seed
from weft.fabric.graph.topology import build
from weft.netsim.kernel import layout
from weft.netsim.kernel.allocation import grown_queues, grown_wires, make_queues, make_wires, parts_of
from weft.netsim.kernel.fabric_columns import NO_PORT, build_fabric, near_ps, per_slot, rate_row
from weft.netsim.model.network import Network, grants
from weft.netsim.transports.mrc import Mrc
from weft.specs.scenario import NetworkSpec
from weft.specs.transport import MrcSpec


def network_of(**more) -> Network:
    fabric = small_site(**more).fabric
    frames = Mrc(MrcSpec()).frames(4096)
    return Network(build(fabric), fabric, NetworkSpec(), frames, trimming=True, ecn_last_hop=False)


@pytest.mark.parametrize("more", [{}, {"gpus": 13, "planes": 3}, {"gpus": 32, "tiers": 3}, {"tiers": 1}])
def test_every_port_of_the_network_is_there_once_and_leads_where_its_link_does(more):
    network = network_of(**more)
    fabric, _ = build_fabric(network, 1, Seed(0))
    numbers = fabric.ports[:, layout.NUMBER]
    used = np.flatnonzero(numbers != NO_PORT)
    assert sorted(numbers[used].tolist()) == list(range(network.ports))
    links, nodes = network.topology.links, fabric.nodes
    owner = np.repeat(np.arange(len(nodes)), nodes[:, layout.PORTS])
    far = fabric.ports[:, layout.FAR]
    for row in used.tolist():
        link, downwards = divmod(int(numbers[row]), 2)
        other = int(np.flatnonzero(numbers == 2 * link + 1 - downwards)[0])
        assert far[row] == owner[other], "a port leads to the node that owns the other direction"
        assert nodes[owner[row], layout.PLANE] == links.plane[link] or nodes[owner[row], layout.TIER] < 0


@given(st.integers(1, 10**12), st.integers(1, 10**9), st.integers(0, 2**31 - 2))
def test_a_rate_grants_exactly_what_the_reference_does(rate_bps: int, slot_ps: int, slot: int):
    row = rate_row(rate_bps, slot_ps)
    slots = slot + 1
    blocks, left = slots >> layout.BLOCK_BITS, slots & ((1 << layout.BLOCK_BITS) - 1)
    fraction = blocks * row[layout.REST] + row[layout.PART] * left
    assert fraction < 2**63, "compiled code has 64 bits"
    found = row[layout.WHOLE] * slots + blocks * row[layout.BLOCK] + fraction // row[layout.BASE]
    assert found == grants(rate_bps, slot_ps, slot)


@given(st.integers(32, 10**9), st.integers(1, 4096), st.data())
def test_near_times_are_divided_into_slots_by_a_product(slot_ps: int, furthest: int, data: st.DataObject):
    near = near_ps(slot_ps, furthest)
    time_ps = data.draw(
        st.integers(0, near - 1) | st.integers(0, near // slot_ps).map(lambda n: max(0, n * slot_ps - 1))
    )
    assert time_ps * per_slot(slot_ps) < 2**63, "compiled code has 64 bits"
    assert time_ps * per_slot(slot_ps) >> layout.PER_SLOT_BITS == time_ps // slot_ps <= furthest


def listed(after, head: int) -> list[int]:
    """Return the members of a list of free places."""
    found: list[int] = []
    while head >= 0:
        found.append(head)
        head = int(after[head])
    return found


def test_stores_grow_without_losing_a_place():
    queues = make_queues(100, 0, 2)
    queues.free[:, 1] += 7
    grown = grown_queues(queues)
    free: set[int] = set()
    for stack, (height, fresh, end, held) in zip(grown.spare.tolist(), grown.free.tolist(), strict=True):
        mine = set(range(fresh, end)) | set(stack[:height])
        assert len(mine) == held - 7
        free |= mine
    assert len(free) == len(grown.rows) - 14


def test_wires_grow_without_losing_a_chunk():
    wires = make_wires(100, 0, 2, 8, 4)
    wires.free[:, 1] += 3
    grown = grown_wires(wires)
    for head, fresh, end, count in grown.free.tolist():
        assert len(listed(grown.after, head)) == count
        assert end > fresh


def test_parts_share_all_nodes_evenly():
    fabric, _ = build_fabric(network_of(gpus=32), 1, Seed(0))
    parts = parts_of(fabric.nodes, 3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(fabric.nodes)))
