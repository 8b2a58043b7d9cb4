"""The compiled engine against the reference: the same packets, the same times, the same everything."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.netsim.scenarios import fault, flows, scenario, small_site

from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.specs.scenario import FlowSpec, TrafficSpec

# The first one compiles, which takes minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
TRANSPORTS = ("mrc", "uet", "random")
KB = 1000


def assert_equal(spec, site=None, transport: str = "mrc", seed: int = 0, threads: int = 1) -> None:
    """Run both and compare everything that a report holds."""
    setup = set_up(spec, site or small_site(), seed)
    (chosen,) = transports_of(setup, (transport,))
    reference = run(setup, chosen, engine="reference", fast=False)
    engine = run(setup, chosen, engine="engine", threads=threads)
    assert engine.flows == reference.flows
    for name, column in reference.counters.items():
        assert np.array_equal(engine.counters[name], column), name
    assert engine.hash() == reference.hash()
    assert engine.faults == reference.faults
    assert engine.end_ps == reference.end_ps
    assert np.array_equal(engine.series.received, reference.series.received)
    assert np.array_equal(engine.series.queue_peaks, reference.series.queue_peaks)
    assert np.array_equal(engine.series.counts, reference.series.counts)


def incast(size: int = 200 * KB, senders: int = 6) -> TrafficSpec:
    return TrafficSpec.model_construct(pattern="incast", senders=senders, destination=0, size=size)


def permutation(size: int = 150 * KB) -> TrafficSpec:
    return TrafficSpec.model_construct(pattern="permutation", size=size)


def chained() -> TrafficSpec:
    first = FlowSpec.model_construct(name="a", source=0, destination=5, size=50 * KB)
    then = FlowSpec.model_construct(name="b", source=5, destination=2, size=50 * KB, after=("a",))
    last = FlowSpec.model_construct(name="c", source=2, destination=0, size=9 * KB, after=("a", "b"))
    return TrafficSpec.model_construct(pattern="flows", flows=(first, then, last))


FAULTS = {
    "none": (),
    "link": (fault("link-down", "link1-p0-i0-u1", 5),),
    "switch": (fault("switch-down", "t1-p0-i2", 4, 40),),
    "nic port": (fault("port-down", "link0-p0-i2", 8, 60),),
    "black hole": (fault("black-hole", "t1-p1-i1", 3, 30),),
    "losses": (fault("loss", "link1-p1-i0-u1", 3, amount=0.1), fault("loss", "nic-i5", 0, amount=0.02)),
    "slow": (fault("slow", "link1-p1-i1-u2", 1, 20, amount=0.3), fault("slow", "link0-p0-i5", 0, amount=0.01)),
    "flap": (fault("flap", "link1-p0-i1-u0", 2, 50, period=10_000_000, amount=0.4),),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
def test_faults_hit_the_same_packets(faults, transport: str):
    assert_equal(scenario(incast(), faults=faults, until_us=3000), transport=transport, seed=3)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("tiers", [1, 2, 3])
def test_any_depth_of_fabric(tiers: int, transport: str):
    hosts = {1: 8, 2: 24, 3: 32}[tiers]
    assert_equal(scenario(permutation()), small_site(gpus=hosts, tiers=tiers), transport)


def test_planes_that_are_not_full():
    assert_equal(scenario(permutation()), small_site(gpus=13, planes=3))


def test_flows_that_wait_for_others():
    assert_equal(scenario(chained()))


def test_many_queue_pairs_share_a_nic():
    spec = TrafficSpec.model_construct(pattern="all-to-all", size=20 * KB, queue_pairs=3)
    assert_equal(scenario(spec))


def test_threads_change_nothing():
    faults = FAULTS["switch"] + FAULTS["losses"] + FAULTS["nic port"]
    for threads in (2, 3):
        assert_equal(scenario(permutation(), faults=faults, until_us=3000), small_site(gpus=16), threads=threads)


ends = st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 90_000)).filter(lambda each: each[0] != each[1])
broken = st.sampled_from([each for faults in FAULTS.values() for each in faults])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(ends, min_size=1, max_size=8), st.lists(broken, max_size=3), st.sampled_from(TRANSPORTS),
    st.integers(0, 2**40), st.sampled_from([1, 1, 2]),
)  # fmt: skip
def test_any_small_world_is_the_same(ends, faults, transport: str, seed: int, threads: int):
    spec = scenario(flows(*ends), faults=tuple(faults), until_us=2000)
    assert_equal(spec, transport=transport, seed=seed, threads=threads)
