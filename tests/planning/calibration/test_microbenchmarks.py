"""Measured times become the planner's figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.planning.calibration.microbenchmarks import (
    AttentionTime,
    BlockTime,
    MachineTimes,
    MessageTime,
    ProductTime,
    calibrate,
    measured_site,
    network_of,
    speed_of,
)
from weft.planning.cost_model.blocks import block_times
from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.plans import Workload, dimensions_of, one_plan
from weft.specs import load_site
from weft.specs.job import ModelSpec
from weft.specs.software import SoftwareSpec

BLOCK = ModelSpec(layers=1, width=192, heads=4, kv_heads=2, ffn=576)
TINY = ModelSpec(layers=1, width=16, heads=2, ffn=32)


def products(flops: float, small: float) -> tuple[ProductTime, ...]:
    sides = (32, 64, 128, 256, 512)
    return tuple(
        ProductTime(4 * k, 4 * k, k, 2 * 16 * k**3 / flops * (1 + small / k)) for k in sides
    )  # fmt: skip


def times(block_s: float = 0.1, ranks: int = 4) -> MachineTimes:
    return MachineTimes(
        device="cpu", ranks=ranks, value_bytes=4, products=products(2e10, 10.0),
        blocks=(BlockTime(TINY, 1, 4, 0.002), BlockTime(BLOCK, 2, 128, block_s), BlockTime(BLOCK, 2, 512, 4 * block_s)),
        attention=AttentionTime(1e7, 1e-3), copy_bytes_per_s=9e9,
        messages=(MessageTime(64, 0.001), MessageTime(1 << 22, 0.01)),
    )  # fmt: skip


@given(flops=st.floats(1e9, 1e15), small=st.floats(0, 500))
def test_the_speed_of_products_is_found_again(flops: float, small: float):
    found, side = speed_of(products(flops, small))
    assert found == pytest.approx(flops, rel=1e-6)
    assert side == pytest.approx(small, rel=1e-4, abs=1e-6)


@given(latency=st.floats(1e-6, 1e-2), rate=st.floats(1e6, 1e11), ranks=st.integers(2, 16))
def test_latency_and_rate_of_a_ring_are_found_again(latency: float, rate: float, ranks: int):
    steps = 2 * (ranks - 1)
    messages = [MessageTime(size, steps * (latency + size / ranks / rate)) for size in (0, 1 << 20)]
    found_latency, found_rate = network_of(messages, ranks)
    assert found_latency == pytest.approx(latency, rel=1e-6)
    # Two nearly equal times leave few digits of their difference.
    assert found_rate == pytest.approx(rate, rel=1e-3)


def test_the_blocks_that_were_timed_are_predicted_again():
    found = calibrate(times(), cores=2)
    site = measured_site(load_site("laptop"), found, name="here", ranks=4, memory_bytes=2**32)
    predicted = 0.0
    for length in (128, 512):
        parts = block_times(
            Workload(dimensions_of(BLOCK), 2, length),
            one_plan(micro=2),
            machine_of(site),
            SoftwareSpec(precision="fp32"),
        )
        predicted += float(parts.forward[0] + parts.backward[0]) + found.efficiency.block_us * 1e-6
    assert predicted == pytest.approx(5 * 0.1, rel=0.01)


def test_a_measured_site_can_be_written_and_has_its_ranks():
    site = measured_site(load_site("laptop"), calibrate(times(), cores=2), name="here", ranks=4, memory_bytes=2**32)
    assert site.fabric.gpus == 4
    assert site.efficiency is not None
    assert site.efficiency.ranks_per_core == 2.0
    assert not site.efficiency.overlaps
    assert machine_of(site).bf16_flops == pytest.approx(2e10)


def test_memory_is_never_faster_than_a_plain_addition():
    assert calibrate(times(block_s=1e-9), cores=4).efficiency.elementwise == 1.0
