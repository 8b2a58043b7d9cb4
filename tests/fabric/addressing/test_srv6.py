import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.fabric.addressing import srv6
from weft.fabric.addressing.srv6 import Addressing, EvSpace, plan_of_shape, plan_of_topology
from weft.fabric.graph.shape import Shape, shape_of
from weft.fabric.graph.topology import build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

specs = st.from_type(FabricSpec)
usid_lists = st.lists(st.integers(1, 0xFFFF), max_size=6)


@given(usids=usid_lists)
def test_a_carrier_unpacks_to_what_was_packed(usids: list[int]):
    carrier = srv6.pack(usids)
    assert srv6.unpack(carrier) == tuple(usids)
    assert srv6.from_text(srv6.to_text(carrier)) == carrier
    assert srv6.block_of(carrier) == srv6.BLOCK


@given(usids=usid_lists.filter(bool))
def test_shifting_removes_the_first_usid_and_keeps_the_block(usids: list[int]):
    assert srv6.shift(srv6.pack(usids)) == srv6.pack(usids[1:])


def test_a_carrier_holds_six_usids_and_no_more():
    with pytest.raises(UsageError, match="6 uSIDs, not 7"):
        srv6.pack([1] * 7)


@given(spec=specs)
def test_uplink_and_plane_are_an_ev_and_back(spec: FabricSpec):
    evs = EvSpace(shape_of(spec))
    assert evs.count == spec.planes * shape_of(spec).paths
    for ev in range(evs.count):
        assert evs.parse(evs.name(ev)) == evs.parse(str(ev)) == ev
        assert evs.grid.id(*evs.coordinates(ev)[: spec.tiers]) == ev
        assert ev < 2**evs.bits


def test_eleven_bits_name_every_path_of_the_131k_site():
    evs = EvSpace(shape_of(load_site("gb200-8x100g-131k").fabric))
    assert (evs.count, evs.bits) == (2048, 11)
    assert evs.coordinates(3 << 8 | 17) == (3, 17, 0)
    assert evs.name(3 << 8 | 17) == "p3-u17"


@pytest.mark.parametrize("text", ["2048", "p8-u0", "p0-u256", "p0", "p0-u0-v0", "", "-1", "twelve", "９"])
def test_an_ev_that_does_not_exist_is_refused_with_the_range(text: str):
    evs = EvSpace(shape_of(load_site("gb200-8x100g-131k").fabric))
    with pytest.raises(UsageError, match="from 0 to 2047, or from p0-u0 to p7-u255"):
        evs.parse(text)


@given(spec=specs)
def test_the_plan_by_arithmetic_is_the_plan_read_off_the_wiring(spec: FabricSpec):
    by_shape, by_wiring = plan_of_shape(shape_of(spec)), plan_of_topology(build(spec))
    assert by_shape.first.tolist() == by_wiring.first.tolist()
    assert by_shape.aliases.tolist() == by_wiring.aliases.tolist()


@given(spec=specs)
def test_every_usid_has_one_owner(spec: FabricSpec):
    plan = plan_of_shape(shape_of(spec))
    owned = [usid for switch in range(len(plan.first)) for usid in plan.usids(switch)]
    assert sorted(owned) == list(range(1, len(owned) + 1))
    for switch in range(len(plan.first)):
        for member, usid in enumerate(plan.usids(switch)):
            assert plan.owner(usid) == (switch, member)
    assert plan.owner(len(owned) + 1) is None
    assert plan.owner(0xE000) is None


@given(spec=specs, data=st.data())
def test_a_carrier_decodes_to_plane_uplinks_and_destination(spec: FabricSpec, data: st.DataObject):
    shape = shape_of(spec)
    addressing = Addressing(shape)
    nics = st.integers(0, shape.hosts - 1)
    source, destination = data.draw(nics), data.draw(nics)
    ev = data.draw(st.integers(0, addressing.evs.count - 1))
    route = addressing.decode(addressing.carrier(source, destination, ev))
    plane, first, second = addressing.evs.coordinates(ev)
    assert (route.plane, route.source_t0, route.destination) == (plane, shape.t0_of(source), destination)
    far = shape.t0_of(source) != shape.t0_of(destination)
    farther = far and shape.pod_of(shape.t0_of(source)) != shape.pod_of(shape.t0_of(destination))
    assert route.uplink == (first if far else None)
    assert route.second_uplink == (second if farther else None)
    usids = srv6.unpack(addressing.carrier(source, destination, ev))
    assert len(usids) == (6 if farther else 4 if far else 2)


@given(spec=specs)
def test_many_carriers_at_once_are_the_carriers_one_by_one(spec: FabricSpec):
    shape = shape_of(spec)
    addressing = Addressing(shape)
    draw = Seed(1).stream("carriers")
    source, destination = draw.integers(0, shape.hosts, (2, 50))
    ev = draw.integers(0, addressing.evs.count, 50)
    upper, lower = addressing.carriers(source, destination, ev)
    for place in range(50):
        one = addressing.carrier(int(source[place]), int(destination[place]), int(ev[place]))
        assert int(upper[place]) << 64 | int(lower[place]) == one


def test_changing_the_plane_adds_the_same_number_to_every_switch_usid():
    addressing = Addressing(shape_of(load_site("gb200-8x100g-131k").fabric))
    base = srv6.unpack(addressing.carrier(5, 70_000, 17))
    for plane in range(1, 8):
        moved = srv6.unpack(addressing.carrier(5, 70_000, plane << 8 | 17))
        steps = np.subtract(moved[:-1], base[:-1]).tolist()
        assert steps == [plane * 768] * 3
        assert moved[-1] == base[-1]


def test_a_carrier_of_the_131k_site_reads_as_the_paper_describes():
    addressing = Addressing(shape_of(load_site("gb200-8x100g-131k").fabric))
    # T0 0 is uSID 1, T1 17 follows 512 T0s, T0 273 holds NIC 70,000 at its down port 112.
    carrier = addressing.carrier(5, 70_000, 17)
    assert srv6.to_text(carrier) == f"fcbb:bbbb:1:{1 + 512 + 17:x}:{1 + 273:x}:{0xE000 + 112:x}::"


@pytest.mark.parametrize(
    "text",
    [
        "::1",
        "fcbb:bbbb::",
        "fcbb:bbbb:1:e000:1::",
        "fcbb:bbbb:1:2:3:4::",
        "fcbb:bbbb:1:f000::",
        "fcbb:bbbb:1:e000:0:1::",
        "fcbb:bbbb:e000::",
        "fcbb:bbbb:3:1:3:e000::",
        "fcbb:bbbb:1:7:2:e000::",
        "fcbb:bbbb:ffff:1:ffff:e000::",
    ],
)
def test_an_address_that_names_no_path_is_refused(text: str):
    addressing = Addressing(shape_of(load_site("laptop").fabric))
    with pytest.raises(UsageError, match="not a carrier of this fabric"):
        addressing.decode(srv6.from_text(text))


def test_text_that_is_no_address_is_refused():
    with pytest.raises(UsageError, match="'fcbb:zz' is not an IPv6 address"):
        srv6.from_text("fcbb:zz")


def test_a_fabric_with_more_switches_than_usids_is_refused():
    crowded = Shape(hosts=400_000, planes=8, tiers=3, radix=128, down=64, up=64)
    assert crowded.switches > 57_343
    with pytest.raises(UsageError, match=r"needs 132,944 switch uSIDs, but 16 bits hold 57,343"):
        plan_of_shape(crowded)
