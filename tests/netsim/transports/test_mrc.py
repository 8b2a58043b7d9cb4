"""MRC in incasts of any degree on any fabric: hardly a path is blamed, and little is sent twice."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verification.findings import scenario, simulate, site_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
DOWN = 32
_BY_FORTY = 1.4
"""Short incasts are over before windows have found their size: 200 senders of 256 KiB have one round trip each."""
_FEW_PATHS, _PATHS_FROM = 10, 140
"""Of 300 drawn cases of 40 to 150 senders none blamed a path; of 400 of 51 to 200, three with more than 148, 1 to 5 of
their tens of thousands of paths.
"""
_ONE_SLOW_PLANE, _SLOW_FROM = 1.8, 100
"""Into a NIC of one plane of 50G, where not every sender has room for one packet in a round trip: up to 1.75 were
drawn.
"""


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    senders=st.integers(2, 200), planes=st.sampled_from([1, 2, 4, 8]), rate=st.sampled_from([50, 100, 200, 400]),
    size=st.sampled_from(["256 KiB", "1 MiB", "2 MiB"]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_an_incast_blames_hardly_a_path(senders: int, planes: int, rate: int, size: str, seed: int) -> None:
    site = site_of(planes, gpus=8 * DOWN, radix=2 * DOWN, rate_gbps=rate)
    traffic = {"pattern": "incast", "across": True, "senders": senders, "destination": 7 * DOWN, "size": size}
    report = simulate(scenario(traffic), site, seed=seed)
    assert all(flow.completion_ps is not None for flow in report.flows)
    assert report.total("retired") <= (_FEW_PATHS if senders > _PATHS_FROM else 0)
    assert report.total("resent") <= 1.1 * (report.trimmed + report.dropped)
    over = report.over_ideal()
    assert over is not None
    assert over <= (_ONE_SLOW_PLANE if senders > _SLOW_FROM and planes == 1 else _BY_FORTY)
