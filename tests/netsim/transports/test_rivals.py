"""The engine and the reference agree on everything that rivals of MRC do."""

import pytest
from tests.netsim.scenarios import GBPS, check_report, fault, scenario, small_site

from weft.core.units import Bytes, Picoseconds
from weft.netsim.host.compiling import can_compile
from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.specs.rivals import AdaptiveSpec, DcqcnSpec, PfcSpec, PostingSpec, RoceSpec, TransportsSpec
from weft.specs.scenario import TrafficSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_compile(), reason="the compiler is not installed"),
]
RIVALS = ("roce:1", "roce:4", "reps", "adaptive")
TIGHT = PfcSpec(xoff=0.1, xon=0.05)
TABLES = {
    "usual": TransportsSpec(),
    "pauses": TransportsSpec.model_construct(
        roce=RoceSpec.model_construct(dcqcn=DcqcnSpec.model_construct(on=False), pfc=TIGHT),
        adaptive=AdaptiveSpec.model_construct(pfc=TIGHT),
    ),
    "turns": TransportsSpec.model_construct(
        posting=PostingSpec.model_construct(piece=Bytes(8192), under_way=2, turns=True),
        roce=RoceSpec.model_construct(
            dcqcn=DcqcnSpec.model_construct(
                gain=0.5, first_alpha=0.1, alpha_timer=Picoseconds(10**6), burst=Bytes(50_000)
            )
        ),
    ),
    "reconvergence": TransportsSpec.model_construct(
        roce=RoceSpec.model_construct(timeout=2, reconvergence=Picoseconds(40_000_000)),
        adaptive=AdaptiveSpec.model_construct(reconvergence=Picoseconds(40_000_000)),
    ),
}
TRAFFIC = {
    "permutation": TrafficSpec.model_construct(pattern="permutation", size=Bytes(300_000), across=True),
    "incast": TrafficSpec.model_construct(pattern="incast", size=Bytes(200_000), senders=7, across=True, victim=True),
    "all-to-all": TrafficSpec.model_construct(pattern="all-to-all", size=Bytes(9_000)),
    "nccl-all-to-all": TrafficSpec.model_construct(
        pattern="nccl-all-to-all", size=Bytes(20_000), server=4, at_once=3, times=2
    ),
}
FAULTS = (
    fault("link-down", "link1-p0-i0-u1", at_us=10, lasts_us=300),
    fault("loss", "link1-p0-i1-u0", at_us=5, amount=0.02),
    fault("black-hole", "link1-p0-i2-u2", at_us=20, lasts_us=30),
)


def assert_equal(setup, name: str, threads: int = 1) -> None:
    (transport,) = transports_of(setup, (name,))
    plain = run(setup, transport, engine="reference", fast=False)
    quick = run(setup, transport, engine="engine", threads=threads)
    check_report(plain, 1 if setup.scenario.transport.posting.turns else transport.queue_pairs)
    assert quick.pausing == plain.pausing
    assert quick.hash() == plain.hash()


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("traffic", TRAFFIC)
@pytest.mark.parametrize("table", TABLES)
def test_engine_and_reference_agree(name: str, traffic: str, table: str):
    site = small_site(gpus=16, planes=1, radix=8, rate=400 * GBPS)
    faults = FAULTS if table == "reconvergence" else ()
    spec = scenario(TRAFFIC[traffic], transport=TABLES[table], faults=faults, until_us=2000)
    assert_equal(set_up(spec, site, 5), name)


@pytest.mark.parametrize("name", RIVALS)
def test_they_agree_on_several_planes_and_tiers_and_threads(name: str):
    planes = set_up(scenario(TRAFFIC["permutation"], transport=TABLES["pauses"]), small_site(gpus=16, planes=4), 2)
    assert_equal(planes, name, threads=2)
    tiers = set_up(
        scenario(TRAFFIC["incast"], transport=TABLES["pauses"]), small_site(gpus=16, planes=1, radix=4, tiers=3), 2
    )
    assert_equal(tiers, name)


@pytest.mark.parametrize("table", ["usual", "turns"])
@pytest.mark.parametrize("name", ["mrc", "uet"])
def test_they_agree_on_exchanges_by_sprayers_too(name: str, table: str):
    site = small_site(gpus=16, planes=2, radix=8)
    assert_equal(set_up(scenario(TRAFFIC["nccl-all-to-all"], transport=TABLES[table]), site, 5), name)
