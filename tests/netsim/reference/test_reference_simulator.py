"""The reference as a whole: latency by hand, nothing lost or made, the same whatever the order."""

import dataclasses
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.netsim.scenarios import US, check_report, fault, flows, pair, run_world, scenario, simulate, small_site

from weft.core.errors import LimitReachedError
from weft.core.seeds import mix
from weft.core.units import Bytes, Picoseconds
from weft.fabric.addressing.forwarding import ForwardingPlane
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.addressing.walk import Walker
from weft.fabric.graph.topology import build
from weft.netsim.model.network import order_keys
from weft.netsim.reference.reference_simulator import ReferenceSimulator
from weft.netsim.run import prepare, run
from weft.netsim.setup import set_up, transports_of
from weft.specs.scenario import TrafficSpec

TRANSPORTS = ("mrc", "uet", "random")


def test_one_packet_takes_what_wires_switches_and_hosts_take():
    report = simulate(scenario(pair(size=2)))
    # 168 bytes at 100 Gb/s take 13.44 ns on each of four links; cables of 10, 30, 30 and 10 m at 4.9 ns a metre; three
    # switches of 580 ns; 4.4 us in the receiving NIC.
    there_ps = 4 * 13_440 + 80 * 4_900 + 3 * 580_000 + 4_400_000
    # The acknowledgement of 178 bytes takes the same way back.
    back_ps = 4 * 14_240 + 80 * 4_900 + 3 * 580_000 + 4_400_000
    (flow,) = report.flows
    assert (flow.arrived_ps, flow.acknowledged_ps) == (there_ps, there_ps + back_ps)


def test_a_flow_under_one_switch_is_quicker_by_two_switches_and_two_long_cables():
    across = simulate(scenario(pair(size=2, destination=5))).flows[0].arrived_ps
    local = simulate(scenario(pair(size=2, destination=1))).flows[0].arrived_ps
    assert across - local == 2 * (580_000 + 30 * 4_900 + 13_440)


def test_a_lone_flow_takes_the_ideal_time():
    report = simulate(scenario(pair(size=64 * 4096)))
    (flow,) = report.flows
    assert flow.completion_ps == report.ideal_ps


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "traffic",
    [
        TrafficSpec.model_construct(pattern="permutation", size=Bytes(65536)),
        TrafficSpec.model_construct(pattern="incast", size=Bytes(65536), senders=5, victim=True),
        TrafficSpec.model_construct(pattern="all-to-all", size=Bytes(8192)),
        TrafficSpec.model_construct(pattern="poisson", size=Bytes(10_000), load=0.4, lasts=Picoseconds(20 * US)),
        flows((0, 5, 1), (0, 5, 4097), (5, 0, 100_000), (3, 4, 1)),
    ],
    ids=["permutation", "incast", "all-to-all", "poisson", "flows"],
)
def test_every_byte_arrives_once_by_every_transport(transport: str, traffic: TrafficSpec):
    report = simulate(scenario(traffic), transport=transport)
    assert all(flow.acknowledged_ps >= 0 for flow in report.flows)


def test_flows_wait_for_the_flows_they_name():
    traffic = TrafficSpec.model_validate(
        {
            "pattern": "flows",
            "flows": [
                {"name": "a", "source": 0, "destination": 5, "size": "64 KiB"},
                {"name": "b", "source": 5, "destination": 2, "size": "4 KiB", "after": ["a"], "at": "3 us"},
            ],
        }
    )
    first, second = simulate(scenario(traffic)).flows
    assert second.began_ps == first.arrived_ps + 3_000_000


def test_background_is_carried_but_not_waited_for():
    spec = scenario(pair(size=4096), background=TrafficSpec.model_construct(pattern="permutation", size=Bytes(2**20)))
    report = simulate(spec)
    assert report.as_json()["flows"] == 1
    assert any(flow.acknowledged_ps < 0 for flow in report.flows if not flow.counted)


def test_an_incast_is_trimmed_and_completes():
    site = small_site(gpus=16, radix=16, planes=1)
    traffic = TrafficSpec.model_construct(pattern="incast", size=Bytes(2**18), senders=8, across=True)
    report = simulate(scenario(traffic), site)
    assert report.trimmed > 0
    assert report.total("resent") >= report.trimmed
    assert report.total("retired") == 0, "congestion is no reason to leave a path"


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    spec = scenario(
        TrafficSpec.model_construct(pattern="permutation", size=Bytes(65536)),
        faults=(fault("loss", "t1-p0-i1", amount=0.1),),
    )
    again = [simulate(spec, seed=seed).hash() for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_nothing_depends_on_the_order_in_which_ports_and_packets_are_visited(monkeypatch: pytest.MonkeyPatch):
    spec = scenario(
        TrafficSpec.model_construct(pattern="permutation", size=Bytes(65536)),
        faults=(fault("loss", "t1-p0-i1", amount=0.1),),
    )
    plain = simulate(spec).hash()
    arrive = ReferenceSimulator._arrive

    def shuffled(self, packets) -> None:
        random.Random(len(packets)).shuffle(packets)
        self.busy = set(random.Random(3).sample(sorted(self.busy), len(self.busy)))
        arrive(self, packets)

    monkeypatch.setattr(ReferenceSimulator, "_arrive", shuffled)
    assert simulate(spec).hash() == plain


def test_the_keys_that_order_arrivals_are_those_of_the_seeds():
    import numpy as np

    uids = [0, 1, 5 << 36, (7 << 36) + 12345]
    found = order_keys(2**64 - 5, 1000, np.array(uids, np.uint64)).tolist()
    assert found == [mix(2**64 - 5, (uid + (1000 << 44)) % 2**64) for uid in uids]


@pytest.mark.parametrize("tiers", [2, 3])
def test_a_packet_crosses_the_links_that_the_static_tables_lead_it_over(tiers: int):
    site = small_site(gpus=12, radix=4, planes=2, tiers=tiers) if tiers == 3 else small_site()
    setup = set_up(scenario(pair()), site)
    network, _ = prepare(setup, transports_of(setup)[0], fast=False)
    addressing = Addressing(network.shape)
    walker = Walker(ForwardingPlane(build(site.fabric), addressing.plan))
    for plane in range(2):
        for way in range(network.shape.paths):
            path = network.path(0, site.fabric.gpus - 1, plane, way)
            carrier = addressing.carrier(0, site.fabric.gpus - 1, plane * network.shape.paths + way)
            assert walker.walk(0, carrier).links == tuple(port // 2 for port in path)


def test_a_pair_that_can_reach_nobody_ends_in_a_named_error():
    site = small_site()
    spec = scenario(pair(size=8192), faults=(fault("black-hole", "t0-p0-i0"), fault("black-hole", "t0-p1-i0")))
    spec = spec.model_copy(update={"transport": _impatient(spec)})
    report = simulate(spec, site)
    assert report.flows[0].failure == "RETRY_EXCEEDED"
    assert report.as_json()["failed"] == 1


def _impatient(spec):
    transport = spec.transport
    loss = transport.mrc.loss.model_copy(update={"timeout": 4, "linear_retries": 1, "exponential_retries": 2})
    return transport.model_copy(update={"mrc": transport.mrc.model_copy(update={"loss": loss})})


def test_what_can_never_happen_is_an_error_and_no_hang():
    world = run_world(scenario(pair(size=4096)))
    world.board.open = 1
    with pytest.raises(LimitReachedError, match="nothing is left"):
        world.run()


def test_a_run_ends_when_time_is_up():
    report = simulate(scenario(pair(size=10**9), until_us=50))
    assert report.flows[0].acknowledged_ps == -1
    assert 50 * 10**6 <= report.end_ps < 51 * 10**6
    assert report.as_json()["fct_us"]["max"] is None
    assert report.goodput_bps_per_nic() > 100 * 10**9


def test_a_flow_longer_than_any_message_is_cut():
    report = simulate(scenario(pair(size=3 * 10**12), until_us=30))
    assert report.series.received[-1].sum() > 0


@pytest.mark.slow
def test_a_fabric_that_stays_full_keeps_its_rate():
    # Every uplink at its full rate for milliseconds: all queues mark, and no path is to blame. The first millisecond
    # has empty queues; after it, a window of 1.25 BDP keeps 97.8 %.
    spec = scenario(flows(*((n, (n + 4) % 16, 2**28) for n in range(16))), until_us=5000)
    setup = set_up(spec, small_site(gpus=16, planes=4), 1)
    (mrc,) = transports_of(setup, ("mrc",))
    rates = run(setup, mrc, engine="engine").series.rates_bps().reshape(5, -1).mean(axis=1)
    assert min(rates) > 0.975 * rates[0]


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_compiled_rules_give_the_same_run(transport: str):
    spec = scenario(
        TrafficSpec.model_construct(pattern="permutation", size=Bytes(2**17)),
        faults=(fault("black-hole", "t1-p0-i1", 5, 60), fault("port-down", "link0-p1-i3", 10, 30)),
    )
    setup = set_up(spec, small_site())
    (chosen,) = transports_of(setup, (transport,))
    plain, fast = (run(setup, chosen, fast=fast) for fast in (False, True))
    assert plain.hash() == fast.hash()
    assert {**plain.as_json(), "wall_s": 0, "cpu_s": 0} == {**fast.as_json(), "wall_s": 0, "cpu_s": 0}


FAULTS = st.builds(
    fault,
    st.sampled_from(["link-down", "black-hole", "loss", "slow", "flap"]),
    st.sampled_from(
        ["link0-p0-i0", "link0-p1-i5", "link1-p0-i0-u1", "link1-p1-i1-u2", "link1-p0-i1-u0", "link1-p1-i0-u3"]
    ),
    st.integers(0, 60),
    st.integers(1, 200),
    amount=st.sampled_from([0.05, 0.3, 0.7]),
    period=st.sampled_from([20 * 10**6, 50 * 10**6]),
)


@settings(max_examples=12)
@given(
    st.lists(FAULTS, max_size=4),
    st.sampled_from(TRANSPORTS),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 60_000)), min_size=1, max_size=4),
    st.integers(0, 2**40),
)
def test_any_world_delivers_every_byte_once_or_names_the_error(faults, transport: str, ends, seed: int):
    ends = [(a, b, size) for a, b, size in ends if a != b] or [(0, 5, 1000)]
    spec = scenario(flows(*ends), faults=tuple(faults), until_us=100_000)
    setup = set_up(spec, small_site(), seed)
    (chosen,) = transports_of(setup, (transport,))
    _, world = prepare(setup, chosen, fast=False)
    world.run()
    for flow, progress in zip(setup.flows, world.board.progress, strict=True):
        assert (progress.acknowledged_ps >= 0) != bool(progress.failure), (flow, progress)
    records = world.records
    assert records.injected == records.delivered + records.dropped + records.lost + world.in_flight
    queued = sum(len(port.data) + len(port.control) for port in world.ports)
    assert world.in_flight == queued + sum(len(packets) for packets in world.calendar.values())


@settings(max_examples=12)
@example([(a, b, size) for size in (8192, 808) for a in range(4) for b in range(6) if a != b], "roce", 5)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(4, 7), st.integers(1, 20_000)), min_size=1, max_size=12),
    st.sampled_from(TRANSPORTS),
    st.integers(0, 2**40),
)
def test_slots_in_which_nothing_can_happen_may_be_left_out(ends, transport: str, seed: int):
    spec = scenario(flows(*ends))
    one_each = tuple(dataclasses.replace(flow, lane=n) for n, flow in enumerate(set_up(spec, small_site()).flows))
    setup = dataclasses.replace(set_up(spec, small_site(planes=1), seed), flows=one_each)
    (chosen,) = transports_of(setup, (transport,))
    _, quick = prepare(setup, chosen, fast=False)
    _, slow = prepare(setup, chosen, fast=False)
    quick.run()
    while slow.board.open:
        slow.step()
    assert [each.arrived_ps for each in quick.board.progress] == [each.arrived_ps for each in slow.board.progress]
    assert quick.records.trace == slow.records.trace


def test_a_report_can_be_told_from_another():
    report = simulate(scenario(pair()))
    check_report(report)
    changed = dataclasses.replace(report, trace=report.trace + 1)
    assert changed.hash() != report.hash()
