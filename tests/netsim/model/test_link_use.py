"""What links carried: their sums are the report's, whoever counts, and merging bins loses nothing."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.netsim.scenarios import fault, scenario, small_site

from weft.netsim.model import link_use
from weft.netsim.model.link_use import METER_BYTES, METER_DROPPED, METER_MARKED, METER_PEAK, METER_TRIMMED, METERS
from weft.netsim.run import prepare, run
from weft.netsim.setup import set_up, transports_of
from weft.specs.scenario import ScenarioSpec, TrafficSpec

PATTERNS = ("permutation", "incast", "all-to-all")


def measured(pattern: str, size: int, **more) -> ScenarioSpec:
    spec = scenario(TrafficSpec.model_construct(pattern=pattern, size=size, senders=5), **more)
    return spec.model_copy(update={"measure": spec.measure.model_copy(update={"links": True})})


def check_sums(report, tiers: int) -> None:
    """Assert that what links counted adds up to what the run did."""
    use = report.links
    table, tier, down = use.table, use.place[:, 0], use.place[:, 5].astype(bool)
    assert table[:, :, METER_TRIMMED].sum() == report.trimmed
    assert table[:, :, METER_DROPPED].sum() == report.dropped
    assert table[:, :, METER_MARKED].sum() >= report.marked
    for stage in range(2 * tiers):
        rows = (tier == min(stage, 2 * tiers - 1 - stage)) & (down == (stage >= tiers))
        assert table[:, rows, METER_PEAK].max(initial=0) == report.series.queue_peaks[:, stage].max()
    # What NICs put on their links is the data, each packet as often as it was sent, and what answers it.
    sent = table[:, (tier == 0) & ~down, METER_BYTES].sum()
    assert sent >= sum(flow.size for flow in report.flows)
    assert use.shares().max() <= 1.5


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    pattern=st.sampled_from(PATTERNS), transport=st.sampled_from(("mrc", "uet", "roce", "adaptive")),
    size=st.integers(1, 150_000), tiers=st.sampled_from([2, 3]), broken=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_what_links_counted_adds_up(pattern, transport, size, tiers, broken, seed) -> None:
    site = small_site(gpus=8, planes=1, radix=4, tiers=3) if tiers > 2 else small_site()
    faults = (fault("loss", "link1-p0-i0-u0", amount=0.1),) if broken else ()
    spec = measured(pattern, size, faults=faults, until_us=3000)
    setup = set_up(spec, site, seed)
    (chosen,) = transports_of(setup, (transport,))
    unmeasured = spec.model_copy(update={"measure": spec.measure.model_copy(update={"links": False})})
    plain = run(set_up(unmeasured, site, seed), chosen, engine="reference", fast=False)
    report = run(setup, chosen, engine="reference", fast=False)
    assert report.hash() == plain.hash()
    check_sums(report, tiers)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", ["mrc", "roce"])
@pytest.mark.parametrize("threads", [1, 2])
def test_both_simulators_count_the_same(transport: str, threads: int) -> None:
    for pattern in PATTERNS:
        setup = set_up(measured(pattern, 200_000, until_us=3000), small_site(), 3)
        (chosen,) = transports_of(setup, (transport,))
        reference = run(setup, chosen, engine="reference", fast=False)
        engine = run(setup, chosen, engine="engine", threads=threads)
        assert engine.hash() == reference.hash()
        assert engine.links is not None
        assert reference.links is not None
        assert engine.links.ends_ps == reference.links.ends_ps
        assert np.array_equal(engine.links.place, reference.links.place)
        assert np.array_equal(engine.links.table, reference.links.table)


@given(bins=st.integers(1, 40), most=st.integers(1, 12), seed=st.integers(0, 99))
def test_merged_bins_keep_sums_and_peaks(bins: int, most: int, seed: int) -> None:
    setup = set_up(measured("permutation", 1000), small_site(), 0)
    network, _ = prepare(setup, transports_of(setup, ("mrc",))[0])
    rng = np.random.default_rng(seed)
    filled = rng.integers(0, 1000, (bins, network.ports, METERS))
    rows = len(
        np.unique(link_use._places(network, np.repeat(network.topology.links.stage.astype(np.int64), 2)), axis=0)
    )
    meter = link_use.LinkMeter(network, most * rows)
    for place, each in enumerate(filled):
        meter.close(10 * (place + 1), each.copy())
    use = meter.use()
    assert use.ends_ps[-1] == 10 * bins
    assert list(use.ends_ps) == sorted(set(use.ends_ps))
    assert len(use.ends_ps) <= most + 1
    assert use.table[:, :, METER_BYTES].sum() == filled[:, :, METER_BYTES].sum()
    assert use.table[:, :, METER_PEAK].max() == filled[:, :, METER_PEAK].max()
    # Each bin holds what was counted between its ends.
    firsts = [0, *use.ends_ps[:-1]]
    for table, first, end in zip(use.table, firsts, use.ends_ps, strict=True):
        assert table[:, METER_DROPPED].sum() == filled[first // 10 : end // 10, :, METER_DROPPED].sum()
