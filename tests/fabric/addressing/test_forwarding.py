from hypothesis import given
from hypothesis import strategies as st

from weft.fabric.addressing.forwarding import NO_PORT, ForwardingAction, ForwardingPlane
from weft.fabric.addressing.srv6 import BLOCK, LOCAL, plan_of_shape
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

specs = st.from_type(FabricSpec)


@given(spec=specs)
def test_a_switch_knows_itself_its_neighbours_and_its_down_ports_and_nothing_else(spec: FabricSpec):
    topology, plan = build(spec), plan_of_shape(shape_of(spec))
    tables = ForwardingPlane(topology, plan)
    for switch in range(len(topology.switches.tier)):
        near = topology.neighbours(topology.switch_node(switch))
        expected = {usid: (ForwardingAction.SHIFT, {NO_PORT}) for usid in plan.usids(switch)}
        for port, node in zip(near.port.tolist(), near.node.tolist(), strict=True):
            if node < topology.nics:
                expected[LOCAL + port] = (ForwardingAction.FORWARD, {port})
                continue
            for usid in plan.usids(node - topology.nics):
                expected.setdefault(usid, (ForwardingAction.FORWARD, set()))[1].add(port)
        entries = tables.table_of(switch).entries()
        assert [entry.usid for entry in entries] == sorted(expected)
        for entry in entries:
            action, ports = expected[entry.usid]
            assert entry.action is action
            assert entry.port in ports


@given(spec=specs)
def test_every_used_port_is_reached_by_some_entry(spec: FabricSpec):
    topology, plan = build(spec), plan_of_shape(shape_of(spec))
    tables = ForwardingPlane(topology, plan)
    for node in range(topology.nodes):
        ports = {entry.port for entry in tables.of_node(node).entries()} - {NO_PORT}
        assert ports == set(topology.neighbours(node).port.tolist())


def test_a_t0_of_the_131k_site_needs_513_entries():
    spec = load_site("gb200-8x100g-131k").fabric
    tables = ForwardingPlane(build(spec), plan_of_shape(shape_of(spec)))
    table = tables.table_of(17)
    assert len(table) == 1 + 256 + 256
    assert table.entries()[0].match(BLOCK) == "fcbb:bbbb:12::/48"
    assert table.look_up(BLOCK, 0x12) == (0x12, ForwardingAction.SHIFT, NO_PORT)
    assert table.look_up(BLOCK, 1 + 512 + 4) == (517, ForwardingAction.FORWARD, 256 + 4)
    assert table.look_up(BLOCK, LOCAL + 255) == (LOCAL + 255, ForwardingAction.FORWARD, 255)
    assert table.look_up(BLOCK, 0xFFFF) is None
    assert table.look_up(BLOCK + 1, 0x12) is None
    assert len(tables.table_of(8 * 512)) == 1 + 512


def test_a_nic_knows_its_t0_in_every_plane_and_itself():
    spec = load_site("laptop").fabric
    topology, plan = build(spec), plan_of_shape(shape_of(spec))
    entries = ForwardingPlane(topology, plan).of_node(3).entries()
    assert [entry.action for entry in entries] == [ForwardingAction.FORWARD] * 4 + [ForwardingAction.DELIVER]
    assert [entry.port for entry in entries] == [0, 1, 2, 3, NO_PORT]
    assert entries[-1].usid == LOCAL + 1
