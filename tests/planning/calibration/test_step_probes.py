"""Whole steps of probes become a machine's figures."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.engines.supervisor.probes import probe_jobs
from weft.planning.calibration.microbenchmarks import Calibration, measured_site
from weft.planning.calibration.step_probes import ProbeTime, fitted, times_of
from weft.specs import JobSpec, SiteSpec, load_job, load_site
from weft.specs.efficiency import EfficiencySpec

ALONE = Calibration(
    flops=4e10, memory_bytes_per_s=8e9, network_bytes_per_s=8e8,
    efficiency=EfficiencySpec(
        matmul=1.0, small=10.0, attention=0.3, memory=1.0, elementwise=0.3, sums_bytes=20.0, link=1.0, nic=1.0,
        message_us=500.0, kernel_us=0.0, block_us=2000.0, overlaps=False, ranks_per_core=2.0, usable=0.9, source="test",
    ),
)  # fmt: skip
"""Kernels timed alone."""


def site_of(found: Calibration, ranks: int = 4) -> SiteSpec:
    return measured_site(load_site("laptop"), found, name="here", ranks=ranks, memory_bytes=2**32)


def slower(flops: float, **more: float) -> Calibration:
    """Return the machine as it is inside a step."""
    return Calibration(flops, 8e9, 8e8, ALONE.efficiency.model_copy(update=more))


def step_s(found: Calibration, job: JobSpec, ranks: int = 4) -> float:
    return float(times_of(site_of(found, ranks), job).step_s[0])


def probed(truth: Calibration, ranks: int = 4) -> list[ProbeTime]:
    return [ProbeTime(job, step_s(truth, job, ranks)) for job in probe_jobs(ranks)]


def held_out() -> JobSpec:
    return load_job("tiny-gpt")


@settings(deadline=None, max_examples=4)
@given(
    flops=st.floats(2e10, 5e10), elementwise=st.floats(0.2, 0.5), update=st.floats(0.4, 1.2),
    block=st.floats(1e3, 4e3), step=st.floats(5e3, 4e4),
)  # fmt: skip
def test_a_job_that_was_no_probe_is_told_as_the_machine_would_run_it(
    flops: float, elementwise: float, update: float, block: float, step: float
):
    truth = slower(
        flops, elementwise=elementwise, update=update, block_us=block, step_us=step, tensor_us=3e4, shard_us=1e4,
        micro_us=2e3, token_us=2.0, tensor_bytes=500.0, stage_us=1e3, crowding=0.1, update_us=600.0, spread_us=3e3,
    )  # fmt: skip
    found = fitted(ALONE, site_of, probed(truth))
    assert step_s(found, held_out()) == pytest.approx(step_s(truth, held_out()), rel=0.05)


def test_steps_that_are_as_the_kernels_say_change_nothing():
    found = fitted(ALONE, site_of, probed(ALONE))
    assert found.flops == pytest.approx(ALONE.flops, rel=0.01)
    assert found.efficiency.block_us == pytest.approx(ALONE.efficiency.block_us, rel=0.02)
    assert found.efficiency.step_us == pytest.approx(0.0, abs=100)


def test_what_no_probe_shows_stays_as_it_was_measured_alone():
    one = partial(site_of, ranks=1)
    truth = slower(3e10, step_us=2e4, message_us=0.0)
    found = fitted(ALONE, one, probed(truth, ranks=1))
    assert found.network_bytes_per_s == pytest.approx(ALONE.network_bytes_per_s)
    assert found.efficiency.tensor_us == 0
    assert found.efficiency.shard_us == 0
