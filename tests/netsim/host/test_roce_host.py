"""RoCE: one path, in order, go back N, and DCQCN's rates, each against a case worked out by hand."""

import numpy as np
import pytest
from tests.netsim.scenarios import GBPS, US, checked, fault, flows, pair, scenario, simulate, small_site

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.core.units import Bytes, Picoseconds
from weft.fabric.graph.topology import build
from weft.mrc.columns import NEVER
from weft.netsim.host import roce_host
from weft.netsim.host.host_state import DUE
from weft.netsim.model.network import Network
from weft.netsim.model.queue_pairs import Pair
from weft.netsim.run import prepare
from weft.netsim.setup import set_up, transports_of
from weft.netsim.transports.column_endpoints import make_packet_pool
from weft.netsim.transports.registry import transport_named
from weft.netsim.transports.roce import RoceEndpoints, make_host_state
from weft.specs.rivals import DcqcnSpec, RoceSpec, TransportsSpec
from weft.specs.scenario import FlowSpec, NetworkSpec, TrafficSpec

HEADER = 82


def transports(**more) -> TransportsSpec:
    return TransportsSpec.model_construct(roce=RoceSpec.model_construct(**more))


def one_plane(**more):
    return small_site(planes=1, **more)


def halves(**more):
    """Return the columns of one queue pair at 100 Gb/s, started."""
    site = one_plane()
    transport = transport_named("roce", TransportsSpec())
    network = Network(build(site.fabric), site.fabric, NetworkSpec(), transport.frames(4096), False, True)
    made = make_host_state(network, (Pair(0, 5),), RoceSpec.model_construct(**more))
    roce_host.start_pair(made, 0, 0, 0, 0)
    return made


def test_one_packet_takes_what_wires_switches_and_hosts_take():
    report = simulate(scenario(pair(size=2)), one_plane(), "roce")
    # 84 bytes at 100 Gb/s take 6.72 ns on each of four links, an acknowledgement of 86 bytes 6.88 ns; cables of 10, 30,
    # 30 and 10 m at 4.9 ns a metre; three switches of 580 ns; 4.4 us in the receiving NIC.
    fixed_ps = 80 * 4_900 + 3 * 580_000 + 4_400_000
    (flow,) = report.flows
    assert flow.arrived_ps == fixed_ps + 4 * 6_720
    assert flow.acknowledged_ps == flow.arrived_ps + fixed_ps + 4 * 6_880


def test_a_queue_pair_alone_has_the_whole_link():
    report = simulate(scenario(pair(size=64 * 4096)), one_plane(), "roce")
    assert report.flows[0].completion_ps == report.ideal_ps


def test_a_queue_pair_stays_on_one_path_and_in_order():
    setup = set_up(scenario(flows((0, 5, 10**6), (1, 6, 10**6), (2, 7, 10**6))), one_plane(), 7)
    report = checked(setup, "roce")
    assert report.total("outside") == report.total("duplicates") == report.total("resent") == 0
    assert report.total("sent") == 3 * 245


@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_a_flow_is_cut_over_its_queue_pairs_and_is_over_with_the_last(count: int):
    setup = set_up(scenario(flows((0, 5, 256 * 4096))), one_plane(), 3)
    report = checked(setup, f"roce:{count}")
    assert (report.transport, len(report.pairs), len(report.flows)) == (f"roce:{count}", count, 1)
    assert report.flows[0].size == 256 * 4096


def test_flows_that_share_an_uplink_share_its_rate():
    # Four flows from one T0 over four uplinks: at equal sizes each ends at a whole multiple of a lone flow's time.
    ends = tuple((n, 4 + n, 2 * 2**20) for n in range(4))
    alone = simulate(scenario(flows(ends[0])), one_plane(), "roce").flows[0].completion_ps
    setup = set_up(scenario(flows(*ends)), one_plane(), 5)
    (chosen,) = transports_of(setup, ("roce",))
    _, world = prepare(setup, chosen, fast=False)
    assert isinstance(world.endpoints, RoceEndpoints)
    uplinks = [world.endpoints.route(n, 0, int(world.endpoints.host_state.s.qp[n]["route"]))[1] for n in range(4)]
    report = checked(setup, "roce")
    for n, flow in enumerate(report.flows):
        shared = uplinks.count(uplinks[n])
        assert flow.completion_ps is not None
        assert alone is not None
        assert flow.completion_ps / alone == pytest.approx(shared, rel=0.25 if shared > 1 else 0.01)


def test_a_lost_packet_brings_back_everything_behind_it():
    # The link of the receiver loses what begins in one slot only: one packet, or none of an acknowledgement's way.
    lost = fault("black-hole", "link0-p0-i5", at_us=10.0, lasts_us=0.3)
    spec = scenario(pair(size=100 * 4096), faults=(lost,))
    report = simulate(spec, one_plane(), "roce")
    (found,) = report.faults
    assert found.data_lost == 1
    assert report.total("naks") == 1, "a gap is told once"
    assert report.total("outside") == report.total("resent") - 1, (
        "all that came behind it is thrown away and sent again"
    )
    # It takes a round trip to hear of the gap: as many packets are under way by then as fit into it.
    (chosen,) = transports_of(set_up(spec, one_plane()), ("roce",))
    network, _ = prepare(set_up(spec, one_plane()), chosen, fast=False)
    in_a_round_trip = network.round_trip_ps / network.slot_ps
    assert report.total("resent") == pytest.approx(in_a_round_trip, abs=3)


def test_the_last_packet_of_a_message_is_missed_only_by_the_timer():
    lost = fault("black-hole", "link0-p0-i5", at_us=0, lasts_us=20)
    spec = scenario(pair(size=4096), faults=(lost,), transport=transports(timeout=4))
    report = simulate(spec, one_plane(), "roce")
    assert (report.total("timeouts"), report.total("naks"), report.total("resent")) == (1, 0, 1)
    # 4.096 us x 2^4, to the slot.
    assert report.flows[0].arrived_ps == pytest.approx(65_536_000 + 7_869_000, abs=340_000)


def test_a_queue_pair_whose_path_is_dead_fails_by_name():
    dead = fault("black-hole", "link0-p0-i5")
    spec = scenario(pair(size=4096), faults=(dead,), transport=transports(timeout=1, retries=3))
    report = simulate(spec, one_plane(), "roce")
    assert report.flows[0].failure == "RETRY_EXCEEDED"
    assert report.total("timeouts") == 4


def test_routing_goes_round_a_dead_link_once_it_knows():
    ends = flows(*((n, 4 + n, 2**20) for n in range(4)))
    setup = set_up(scenario(ends), one_plane(), 5)
    (chosen,) = transports_of(setup, ("roce",))
    _, world = prepare(setup, chosen, fast=False)
    assert isinstance(world.endpoints, RoceEndpoints)
    uplinks = [world.endpoints.route(n, 0, int(world.endpoints.host_state.s.qp[n]["route"]))[1] // 2 for n in range(4)]
    target = uplinks[0] - world.network.shape.link_grids[1].first
    down = fault("link-down", f"link1-p0-i0-u{target}", at_us=5)
    table = transports(timeout=4, reconvergence=Picoseconds(100 * US))
    report = simulate(scenario(ends, faults=(down,), transport=table), one_plane(), "roce", seed=5)
    assert all(flow.acknowledged_ps >= 0 for flow in report.flows)
    hit = report.flows[0]
    assert hit.arrived_ps > 105 * US, "nothing arrives before routing knows"
    static = scenario(ends, faults=(down,), transport=transports(timeout=1, retries=1), until_us=400)
    assert simulate(static, one_plane(), "roce", seed=5).flows[0].failure == "RETRY_EXCEEDED"


def test_a_name_with_too_many_queue_pairs_is_refused():
    for name in ("roce:0", "roce:17", "roce:x"):
        with pytest.raises(UsageError, match="roce:1 to roce:16"):
            transport_named(name, TransportsSpec())


def test_dcqcn_halves_the_rate_at_its_first_cnp_and_goes_half_the_way_back_after_each_timer():
    h = halves()
    q = h.s.qp[0]
    line = 100 * GBPS
    assert (q["rate_bps"], q["alpha"]) == (line, roce_host.ALPHA_ONE)
    roce_host._slow_down(h, 0, 0)
    # alpha = 1, so the rate halves; alpha stays 1: (1 - g) 1 + g.
    assert (q["rate_bps"], q["target_bps"], q["alpha"]) == (line // 2, line, roce_host.ALPHA_ONE)
    expected = line // 2
    outbox = make_packet_pool()
    for n in range(1, 6):
        roce_host._pass_time(h, outbox, 0, n * 55 * US)
        expected = (expected + line) // 2
        assert q["rate_bps"] == expected
    assert q["rise_ps"] == 6 * 55 * US


def test_the_first_cnp_takes_half_of_the_first_alpha():
    h = halves(dcqcn=DcqcnSpec(first_alpha=1 / 16))
    roce_host._slow_down(h, 0, 0)
    assert h.s.qp[0]["rate_bps"] == pytest.approx(100 * GBPS * (1 - 1 / 32), rel=1e-5)


def test_alpha_decays_while_no_cnp_comes():
    h = halves()
    q = h.s.qp[0]
    roce_host._slow_down(h, 0, 0)
    # Ten timers of 55 us later alpha is (1 - 1/256)^10; then the rate falls by half of that.
    rate = int(q["rate_bps"])
    roce_host._slow_down(h, 0, 550 * US)
    alpha = (1 - 1 / 256) ** 10
    assert q["rate_bps"] == pytest.approx(rate * (1 - alpha / 2), rel=1e-5)
    assert q["alpha"] / roce_host.ALPHA_ONE == pytest.approx(alpha * (1 - 1 / 256) + 1 / 256, rel=1e-4)


def test_the_target_rises_additively_and_then_by_leaps():
    h = halves()
    q = h.s.qp[0]
    for _ in range(60):
        roce_host._slow_down(h, 0, 0)
    assert q["rate_bps"] == h.s.params[0]["least_bps"]
    # Five rounds of the timer only recover; from the fifth on the target takes R_AI: 40 Mb/s x 100/40.
    for n in range(1, 7):
        roce_host._pass_time(h, make_packet_pool(), 0, n * 55 * US)
    assert q["target_bps"] == h.s.params[0]["least_bps"] + 2 * 100_000_000
    q["byte_rounds"] = 8
    q["time_rounds"] = 7
    before = int(q["target_bps"])
    roce_host._speed_up(h, 0)
    assert q["target_bps"] - before == 2 * 1_000_000_000


def test_a_paced_sender_sends_at_its_rate():
    # A hundredth of the line rate: 82 + 4096 bytes every 33.4 us.
    slow = transports(dcqcn=DcqcnSpec.model_construct(on=False))
    setup = set_up(scenario(pair(size=10 * 4096), transport=slow), one_plane())
    (chosen,) = transports_of(setup, ("roce",))
    _, world = prepare(setup, chosen, fast=False)
    assert isinstance(world.endpoints, RoceEndpoints)
    world.endpoints.host_state.s.qp[0]["rate_bps"] = GBPS
    world.run()
    apart_ps = (4096 + HEADER) * 8 * 1000
    first_ps = 4 * 334_240 + 80 * 4_900 + 3 * 580_000 + 4_400_000
    assert world.board.progress[0].arrived_ps == pytest.approx(first_ps + 9 * apart_ps, abs=340_000)


@pytest.mark.parametrize(("burst", "early"), [(0, 0), (3 * 4178, 3), (10**6, 9)])
def test_a_queue_pair_that_has_rested_sends_what_its_bucket_holds_at_once(burst: int, early: int):
    # As above, but after a rest of 10 ms, long enough to fill any bucket.
    control = DcqcnSpec.model_construct(on=False, burst=Bytes(burst))
    flow = FlowSpec.model_construct(source=0, destination=5, size=10 * 4096, at=Picoseconds(10_000 * US))
    traffic = TrafficSpec.model_construct(pattern="flows", flows=(flow,))
    setup = set_up(scenario(traffic, transport=transports(dcqcn=control)), one_plane())
    (chosen,) = transports_of(setup, ("roce",))
    _, world = prepare(setup, chosen, fast=False)
    assert isinstance(world.endpoints, RoceEndpoints)
    world.endpoints.host_state.s.qp[0]["rate_bps"] = GBPS
    world.run()
    apart_ps, at_once_ps = (4096 + HEADER) * 8 * 1000, 334_240
    first_ps = 4 * 334_240 + 80 * 4_900 + 3 * 580_000 + 4_400_000
    took_ps = world.board.progress[0].arrived_ps - 10_000 * US - first_ps
    assert took_ps == pytest.approx(early * at_once_ps + (9 - early) * apart_ps, abs=4 * 340_000)


def test_marks_bring_cnps_no_more_often_than_allowed():
    incast = TrafficSpec.model_construct(pattern="incast", size=Bytes(4 * 2**20), senders=3, across=True, destination=1)
    report = simulate(scenario(incast), one_plane(), "roce", seed=2)
    assert report.marked > 0
    took_us = report.end_ps / US
    assert 0 < report.total("cnps") <= 3 * (took_us / 50 + 1)


def test_hashes_are_even_over_planes_and_paths():
    site = small_site(gpus=8, planes=4)
    transport = transport_named("roce", TransportsSpec())
    network = Network(build(site.fabric), site.fabric, NetworkSpec(), transport.frames(4096), False, True)
    pairs = [Pair(0, 5, lane) for lane in range(2000)]
    endpoints = transport.open(network, pairs, Seed(3), fast=False)
    assert isinstance(endpoints, RoceEndpoints)
    counts = np.bincount(endpoints.host_state.s.qp["route"], minlength=16)
    # 16 cells of 125 on average: 5 sigma is 56.
    assert counts.min() > 69
    assert counts.max() < 181


def test_a_receiver_has_nothing_to_do_by_itself():
    h = halves()
    roce_host.set_deadline(h, 1)
    assert h.nics.each[1, DUE] == NEVER
