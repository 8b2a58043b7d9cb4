"""Everybody to everybody as NCCL does it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.netsim.scenarios import GBPS, checked, scenario, small_site

from weft.core.errors import UsageError
from weft.core.units import Bytes
from weft.netsim.setup import set_up
from weft.netsim.workload.all_to_all import LEAST_PART, exchange_flows, rounds
from weft.specs import load_scenario, load_site
from weft.specs.scenario import TrafficSpec


def asked(**more) -> TrafficSpec:
    return TrafficSpec.model_construct(pattern="nccl-all-to-all", **more)


def test_eight_servers_are_met_in_nccls_order():
    assert [servers for servers, gpu in rounds(8, 2) if gpu == 0] == [0, 1, 3, 6, 2, 7, 5, 4]


@given(st.integers(2, 40), st.integers(1, 8))
def test_every_distance_comes_once(servers: int, gpus: int):
    found = list(rounds(servers, gpus))
    assert sorted(found) == [(server, gpu) for server in range(servers) for gpu in range(gpus)]


@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 20), st.integers(1, 3), st.integers(1, 300_000))
def test_every_rank_sends_all_to_every_rank_of_another_server(servers, gpus, at_once, times, size):
    hosts = servers * gpus
    flows = exchange_flows(asked(server=gpus, at_once=at_once, times=times, size=Bytes(size)), hosts)
    sent: dict[tuple[int, int], int] = {}
    for number, flow in enumerate(flows):
        assert all(before < number for before in (*flow.after, *flow.after_sent)), "nothing waits for what comes later"
        if not flow.is_wait:
            sent[flow.source, flow.destination] = sent.get((flow.source, flow.destination), 0) + flow.size
    apart = {(a, b) for a in range(hosts) for b in range(hosts) if a // gpus != b // gpus}
    assert sent == dict.fromkeys(apart, times * size)


def test_a_slot_goes_on_once_it_has_sent_one_and_received_another():
    # Three servers of one GPU, one slot: everybody to the next, then to the one before.
    flows = exchange_flows(asked(server=1, at_once=1, size=Bytes(10)), 3)
    sends = [flow for flow in flows if not flow.is_wait]
    assert [(flow.source, flow.destination) for flow in sends] == [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    assert [(flow.after, flow.after_sent) for flow in sends[3:]] == [((2,), (0,)), ((0,), (1,)), ((1,), (2,))]
    assert all(flow.after == flow.after_sent == () for flow in sends[:3])


def test_short_sends_take_fewer_channels():
    for size, lanes in ((LEAST_PART, 1), (2 * LEAST_PART, 2), (9 * LEAST_PART, 4)):
        flows = exchange_flows(asked(server=1, channels=4, size=Bytes(size)), 2)
        assert {flow.lane for flow in flows if not flow.is_wait} == set(range(lanes))


def test_what_is_no_whole_servers_or_only_one_is_refused():
    with pytest.raises(UsageError, match="no whole servers of 8"):
        exchange_flows(asked(), 12)
    with pytest.raises(UsageError, match="one server"):
        exchange_flows(asked(), 8)


def test_exchanges_follow_each_other_on_every_rank():
    spec = asked(server=2, channels=1, at_once=2, times=2, size=Bytes(20_000))
    setup = set_up(scenario(spec), small_site(gpus=8, planes=1, radix=8, rate=400 * GBPS), 1)
    report = checked(setup, "mrc")
    half = len(report.flows) // 2
    for rank in range(8):
        mine = [f for f in report.flows[:half] if rank in (f.source, f.destination)]
        later = [f for f in report.flows[half:] if f.source == rank]
        assert min(f.began_ps for f in later) >= max(f.arrived_ps for f in mine)


def test_the_built_in_scenario_fits_its_site():
    spec = load_scenario("rccl-all-to-all")
    assert len(set_up(spec, load_site(spec.site)).flows) == 4 * (64 * 56 * 2 + 64)
