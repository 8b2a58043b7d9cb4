import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import ForwardingPlane, usids_along
from weft.fabric.addressing.paths import links_on_path, links_on_paths
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.addressing.walk import FailedParts, Walker, failures_named
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import NO_LINK, NO_OPTIC, build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

specs = st.from_type(FabricSpec)


def every_way(addressing: Addressing, most: int) -> list[tuple[int, int, int]]:
    """Say every (source, destination, EV), or `most` of them drawn at random where there are more."""
    hosts, evs = addressing.shape.hosts, addressing.evs.count
    total = hosts * hosts * evs
    picks = range(total) if total <= most else Seed(7).stream("ways").integers(0, total, most).tolist()
    return [(pick // evs // hosts, pick // evs % hosts, pick % evs) for pick in picks]


def walker_of(spec: FabricSpec) -> tuple[Addressing, Walker]:
    addressing = Addressing(shape_of(spec))
    return addressing, Walker(ForwardingPlane(build(spec), addressing.plan))


@given(spec=specs)
def test_every_pair_arrives_on_every_ev_over_the_links_that_arithmetic_names(spec: FabricSpec):
    addressing, walker = walker_of(spec)
    for source, destination, ev in every_way(addressing, most=150):
        carrier = addressing.carrier(source, destination, ev)
        walk = walker.walk(source, carrier)
        assert walk.death is None
        assert walk.arrived == destination
        assert walk.links == links_on_path(addressing.shape, source, destination, ev)
        usids = usids_along(walker.tables.topology, addressing.plan, source, list(walk.links))
        assert srv6.pack(usids) == carrier


@given(spec=specs)
def test_an_ev_means_one_path_of_its_own_where_the_path_is_longest(spec: FabricSpec):
    shape = shape_of(spec)
    source, destination = 0, shape.hosts - 1
    crossed = {links_on_path(shape, source, destination, ev) for ev in range(Addressing(shape).evs.count)}
    tiers_crossed = (shape.hops_max + 1) // 2
    assert len(crossed) == {1: shape.planes, 2: shape.planes * shape.up, 3: shape.planes * shape.paths}[tiers_crossed]


@given(spec=specs)
def test_many_paths_at_once_are_the_paths_one_by_one(spec: FabricSpec):
    shape = shape_of(spec)
    draw = Seed(3).stream("paths")
    source, destination = draw.integers(0, shape.hosts, (2, 40))
    ev = draw.integers(0, Addressing(shape).evs.count, 40)
    many = links_on_paths(shape, source, destination, ev)
    for place in range(40):
        one = links_on_path(shape, int(source[place]), int(destination[place]), int(ev[place]))
        assert [link for link in many[place].tolist() if link != NO_LINK] == list(one)


def test_ten_thousand_random_packets_of_the_131k_site_arrive_through_tables_only():
    addressing, walker = walker_of(load_site("gb200-8x100g-131k").fabric)
    draw = Seed(2605).stream("packets")
    source, destination = draw.integers(0, addressing.shape.hosts, (2, 10_000))
    ev = draw.integers(0, addressing.evs.count, 10_000)
    upper, lower = addressing.carriers(source, destination, ev)
    expected = links_on_paths(addressing.shape, source, destination, ev)
    for place in range(10_000):
        walk = walker.walk(int(source[place]), int(upper[place]) << 64 | int(lower[place]))
        assert walk.arrived == destination[place], walk.death
        assert list(walk.links) == [link for link in expected[place].tolist() if link != NO_LINK]


@given(spec=specs, data=st.data())
def test_a_packet_dies_at_the_first_dead_thing_on_its_path_and_only_there(spec: FabricSpec, data: st.DataObject):
    addressing, healthy = walker_of(spec)
    topology = healthy.tables.topology
    nics = st.integers(0, topology.nics - 1)
    source, destination = data.draw(nics), data.draw(nics)
    ev = data.draw(st.integers(0, addressing.evs.count - 1))
    dead_links = data.draw(st.frozensets(st.integers(0, len(topology.links) - 1), max_size=4))
    dead_switches = data.draw(st.frozensets(st.integers(0, len(topology.switches.tier) - 1), max_size=2))
    dead_optics = data.draw(st.frozensets(st.integers(0, topology.optics - 1), max_size=2))
    carrier = addressing.carrier(source, destination, ev)
    way = healthy.walk(source, carrier)
    failures = FailedParts(dead_links, dead_switches, dead_optics)
    walk = Walker(healthy.tables, failures).walk(source, carrier)
    expected = None
    for step, link in enumerate(way.links):
        optics = {int(topology.links.lower_optic[link]), int(topology.links.upper_optic[link])} - {NO_OPTIC}
        next_node = way.hops[step + 1].node
        if link in dead_links or optics & dead_optics or next_node - topology.nics in dead_switches:
            expected = step
            break
    if expected is None:
        assert walk == way
    else:
        assert walk.arrived is None
        assert walk.links == way.links[:expected]
        place = topology.name_of_node(way.hops[expected].node)
        assert walk.death is not None
        assert walk.death.startswith(f"dies at {place}: its link {topology.name_of_link(way.links[expected])} to ")


BIG = load_site("gb200-8x100g-131k").fabric.model_copy(update={"gpus": 8192})


@pytest.mark.parametrize(
    ("down", "sentence"),
    [
        ("link1-p3-i17-u4", "dies at t0-p3-i17: its link link1-p3-i17-u4 to t1-p3-i4 is down"),
        ("t1-p3-i4", "dies at t0-p3-i17: its link link1-p3-i17-u4 to t1-p3-i4 leads to a dead switch"),
        (
            "optic1-p3-i4-o0",
            "dies at t1-p3-i4: its link link1-p3-i0-u4 to t0-p3-i0 is down with optic1-p3-i4-o0",
        ),
        ("link0-p3-i9", "dies at t0-p3-i0: its link link0-p3-i9 to nic-i9 is down"),
        ("nic-i9", "dies at t0-p3-i0: its link link0-p3-i9 to nic-i9 leads to a dead NIC"),
        ("nic-i4400", "dies at nic-i4400: the NIC is down"),
        ("nicoptic-i4400-o0", "dies at nic-i4400: its link link0-p3-i4400 to t0-p3-i17 is down with "
         "nicoptic-i4400-o0"),
    ],
)  # fmt: skip
def test_where_and_why_a_packet_dies_is_said_exactly(down: str, sentence: str):
    addressing, healthy = walker_of(BIG)
    walker = Walker(healthy.tables, failures_named(healthy.tables.topology, [down]))
    carrier = addressing.carrier(4400, 9, addressing.evs.parse("p3-u4"))
    assert walker.walk(4400, carrier).death == sentence


def test_an_address_that_no_table_knows_dies_with_the_reason():
    addressing, walker = walker_of(load_site("laptop").fabric)
    t0 = addressing.plan.usid(0)
    assert walker.walk(0, srv6.pack((t0, 0x7777))).death == "dies at t0-p0-i0: its table has no entry for uSID 0x7777"
    assert walker.walk(0, srv6.pack((t0,))).death == "dies at t0-p0-i0: no uSID is left in the carrier"
    other = srv6.pack((t0,), block=0xFCBB0001)
    assert walker.walk(0, other).death == "dies at nic-i0: fcbb:1:1:: is outside its block fcbb:bbbb::/32"


def test_a_hop_limit_ends_a_walk():
    addressing, walker = walker_of(load_site("laptop").fabric)
    carrier = addressing.carrier(0, 3, 0)
    assert Walker(walker.tables, hop_limit=4).walk(0, carrier).arrived == 3
    short = Walker(walker.tables, hop_limit=3).walk(0, carrier)
    assert short.death == "dies at t0-p0-i1: its hop limit of 3 is used up"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t1-p0-i900", "t1 i900 does not exist: i runs from 0 to 1"),
        ("spine7", "there is no link, switch, optic or NIC called 'spine7'; names look like 'link0-p0-i0'"),
        ("optic0-p0-i0-o0", "optic0-p0-i0-o0 carries no link"),
    ],
)
def test_a_failure_that_does_not_exist_is_refused(name: str, message: str):
    with pytest.raises(UsageError, match=message):
        failures_named(build(load_site("laptop").fabric), [name])
