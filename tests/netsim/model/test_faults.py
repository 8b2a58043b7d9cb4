"""Faults: names, times, and what each kind does to a running transfer."""

import pytest
from tests.netsim.scenarios import fault, flows, pair, scenario, simulate, small_site

from weft.core.errors import UsageError
from weft.core.units import Bytes, Picoseconds
from weft.fabric.graph.topology import build
from weft.netsim.model.faults import changes_of, links_of
from weft.specs.rivals import TransportsSpec
from weft.specs.scenario import TrafficSpec
from weft.specs.transport import MrcSpec

TOPOLOGY = build(small_site().fabric)
# 8 NICs on 2 planes: links 0..15 join NICs (plane x 8 + NIC), 16..31 join T0s to T1s (plane, T0, uplink).


@pytest.mark.parametrize(
    ("kind", "target", "links"),
    [
        ("link-down", "link1-p1-i0-u2", (26,)),
        ("switch-down", "t0-p0-i1", (4, 5, 6, 7, 20, 21, 22, 23)),
        ("black-hole", "t1-p0-i3", (19, 23)),
        ("port-down", "link0-p1-i3", (11,)),
        ("port-down", "nic-i3", (3, 11)),
    ],
)
def test_a_name_stands_for_its_links(kind: str, target: str, links: tuple[int, ...]):
    assert links_of(fault(kind, target), TOPOLOGY) == links


def test_an_optic_stands_for_every_link_that_it_carries():
    name = TOPOLOGY.names.of("optic", int(TOPOLOGY.links.lower_optic[0]))
    # An 800G optic carries both 100G ports of a NIC.
    assert links_of(fault("optic-down", name), TOPOLOGY) == (0, 8)


@pytest.mark.parametrize(
    ("kind", "target", "reason"),
    [
        ("switch-down", "t2-p0-i0", "no switch called"),
        ("link-down", "t0-p0-i0", "no link called"),
        ("port-down", "link1-p0-i0-u0", "no port of a NIC"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(kind: str, target: str, reason: str):
    with pytest.raises(UsageError, match=reason):
        links_of(fault(kind, target), TOPOLOGY)


def test_changes_come_in_order_and_flaps_repeat():
    faults = (
        fault("link-down", "link0-p0-i0", 50, 10),
        fault("flap", "link0-p0-i1", 10, 100, period=Picoseconds(40 * 10**6), amount=0.25),
    )
    changes = changes_of(faults, TOPOLOGY)
    times = [change.at_ps for change in changes]
    assert times == sorted(times)
    flaps = [(change.at_ps // 10**6, change.begins) for change in changes if change.fault == 1]
    assert flaps == [(10, True), (20, False), (50, True), (60, False), (90, True), (100, False)]


def test_a_flap_for_ever_is_refused():
    with pytest.raises(UsageError, match="never ends"):
        changes_of((fault("flap", "link0-p0-i0", period=Picoseconds(10**6)),), TOPOLOGY)


def test_a_dead_uplink_is_left_and_everything_lost_arrives_in_the_end():
    report = simulate(scenario(pair(size=2**20), faults=(fault("link-down", "link1-p0-i0-u1"),)))
    (found,) = report.faults
    # One packet in every round of eight EVs, until a round trip and a spread later the loss is known.
    assert 0 < found.data_lost < 40
    assert found.unrecovered == 0
    assert found.pairs == 1
    assert max(found.recovery_ps) < 100 * 10**6
    assert report.total("retired") >= 1
    assert report.flows[0].acknowledged_ps > 0


def test_without_retirement_the_same_link_goes_on_taking_packets():
    spec = scenario(pair(size=2**22), faults=(fault("link-down", "link1-p0-i0-u1"),))
    weak = spec.model_copy(update={"transport": TransportsSpec(mrc=MrcSpec(retire=False))})
    with_it, without = simulate(spec), simulate(weak)
    assert without.faults[0].data_lost > 2 * with_it.faults[0].data_lost
    assert without.total("retired") == 0


def test_a_repaired_link_carries_packets_again():
    spec = scenario(pair(size=2**22), faults=(fault("black-hole", "link1-p0-i0-u1", 0, 20),))
    report = simulate(spec)
    assert report.total("readmitted") >= 1


def test_a_nic_port_that_goes_down_takes_its_plane_out_and_brings_it_back():
    spec = scenario(pair(size=2**21), faults=(fault("port-down", "link0-p0-i0", 10, 150),))
    quick = MrcSpec().model_copy(update={"port_remap_delay": Picoseconds(5 * 10**6)})
    report = simulate(spec.model_copy(update={"transport": TransportsSpec(mrc=quick)}))
    rates = report.series.rates_bps() / 1e9
    # 200 Gb/s on two planes, of which headers leave 192; one plane is left from about 20 us to 165 us.
    assert rates[6:15].mean() == pytest.approx(96.1, rel=0.02)
    assert report.total("retired") <= 1, "the four paths of a plane that is known to be down are not blamed"


def test_a_slow_link_slows_what_it_alone_carries():
    full = simulate(scenario(pair(size=2**19, destination=1))).completions_us()[0]
    slow = (fault("slow", "link0-p0-i1", amount=0.25), fault("slow", "link0-p1-i1", amount=0.25))
    report = simulate(scenario(pair(size=2**19, destination=1), faults=slow))
    assert 2.5 * full < report.completions_us()[0] < 5 * full


def test_a_lossy_nic_link_loses_about_its_share():
    spec = scenario(
        flows(*((a, a + 4, 2**19) for a in range(4))),
        faults=tuple(fault("loss", f"t0-p{p}-i1", amount=0.02) for p in (0, 1)),
    )
    report = simulate(spec)
    lost = sum(found.lost for found in report.faults)
    # 512 data packets cross two links of that switch, and as many acknowledgements: 2,048 chances of 2 % and more.
    assert 20 < lost < 80
    assert all(flow.acknowledged_ps > 0 for flow in report.flows)


def test_denied_links_are_never_used():
    dead = fault("black-hole", "t1-p0-i2")
    spec = scenario(TrafficSpec.model_construct(pattern="permutation", size=Bytes(2**18), across=True), faults=(dead,))
    report = simulate(spec.model_copy(update={"denied": ("t1-p0-i2",)}))
    assert report.faults[0].lost == 0
    assert simulate(spec).faults[0].lost > 0


def test_a_flow_held_to_one_uplink_stays_on_it():
    site = small_site()
    spec = scenario(
        TrafficSpec.model_construct(pattern="pair", source=0, destination=5, size=Bytes(2**17), uplinks=(2,))
    )
    others = tuple(fault("black-hole", f"link1-p{p}-i0-u{u}") for p in (0, 1) for u in (0, 1, 3))
    report = simulate(spec.model_copy(update={"faults": others}), site)
    assert report.lost == 0
