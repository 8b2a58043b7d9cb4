"""Kernels: measured products move the right way, quantising has a cost, and what is not measured goes by its peak."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.collectives.costs import Column
from weft.planning.cost_model.kernels import KernelTimes, Pass
from weft.planning.cost_model.machine import Machine, usual_machine, with_efficiency
from weft.specs.gpus import GPUS, gpu_type_named
from weft.specs.software import SoftwareSpec

MEASURED = [name for name in GPUS.names() if gpu_type_named(name).efficiency.bf16 is not None]
SIDE = st.sampled_from([512, 1024, 4096, 8192, 16384])
NARROW = [(name, each) for name in MEASURED for each in ("fp8", "fp8-block", "nvfp4")
          if getattr(gpu_type_named(name).efficiency, each.replace("-", "_")) is not None]  # fmt: skip


def one(value: float) -> Column:
    return np.array([float(value)])


def kernels(name: str, precision: str = "bf16", **habits: float) -> KernelTimes:
    software = SoftwareSpec.model_validate({"precision": precision, **habits})
    return KernelTimes(usual_machine(name, 8, 400 * 10**9), software)


def whole(found: Pass) -> float:
    return float(found.forward[0] + found.backward[0])


def test_every_measured_type_says_how_well_its_form_fits():
    assert {"a100", "h100", "h200", "b200", "gb200", "gb300"} <= set(MEASURED)
    for name in MEASURED:
        share = gpu_type_named(name).efficiency
        tables = [each for each in (share.bf16, share.fp8, share.fp8_block, share.nvfp4) if each is not None]
        assert all(0 < each.error < 0.1 for each in tables)
        assert "read November 2026" in share.source


@pytest.mark.parametrize("name", MEASURED)
@given(SIDE, SIDE, SIDE)
@settings(max_examples=20, deadline=None)
def test_a_product_is_never_faster_than_the_data_sheet_and_grows_with_each_side(name: str, m: int, n: int, k: int):
    machine = kernels(name)
    base = machine.product(one(m), one(n), one(k))
    assert float(base.forward[0]) > 2 * m * n * k / machine.machine.bf16_flops
    assert float(base.backward[0]) > 4 * m * n * k / machine.machine.bf16_flops
    for larger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert whole(machine.product(*map(one, larger))) > whole(base)


@pytest.mark.parametrize(("name", "precision"), NARROW)
def test_narrow_products_are_faster_where_they_are_large_and_pay_for_quantising(name: str, precision: str):
    sides = [one(16384)] * 3
    usual, narrow = kernels(name).product(*sides), kernels(name, precision).product(*sides)
    assert whole(narrow) < whole(usual)
    machine = kernels(name, precision).machine
    free = KernelTimes(with_efficiency(machine, quantise=0.0), SoftwareSpec.model_validate({"precision": precision}))
    assert whole(free.product(*sides)) < whole(narrow)
    # What stays in half precision is not touched by any of it.
    assert whole(kernels(name, precision).product(*sides, usual=True)) == whole(usual)


@pytest.mark.parametrize("name", MEASURED)
def test_gradients_that_are_not_summed_by_the_product_cost_more(name: str):
    sides = [one(4096)] * 3
    fused, apart = (kernels(name, fused_sums=each).product(*sides) for each in (True, False))
    assert float(fused.forward[0]) == float(apart.forward[0])
    assert float(fused.backward[0]) < float(apart.backward[0])


@pytest.mark.parametrize("name", MEASURED)
@given(st.integers(512, 65536), st.sampled_from([32, 64, 96, 128, 256]))
@settings(max_examples=20, deadline=None)
def test_attention_is_slower_in_short_texts_narrow_heads_and_backward(name: str, length: int, width: int):
    machine = kernels(name)
    short, long = (machine.attention(one(1e15), each, width) for each in (length, 2 * length))
    assert whole(long) < whole(short)
    assert float(short.backward[0]) > 2.5 * float(short.forward[0])
    assert whole(machine.attention(one(1e15), length, max(1, width // 2))) >= whole(
        machine.attention(one(1e15), length, width)
    )


def without_tables(machine: Machine) -> Machine:
    return with_efficiency(machine, bf16=None, fp8=None)  # pyrefly: ignore[bad-argument-type]


@given(SIDE, SIDE, SIDE, st.floats(1.1, 4.0))
@settings(max_examples=30, deadline=None)
def test_pace_stretches_all_kernels_alike_measured_or_not(m: int, n: int, k: int, pace: float):
    base = usual_machine("H100", 8, 400 * 10**9)
    for machine in (base, without_tables(base)):
        usual, slow = (KernelTimes(with_efficiency(machine, pace=each), SoftwareSpec()) for each in (1.0, pace))
        calls: list[Callable[[KernelTimes], float]] = [
            lambda each: whole(each.product(one(m), one(n), one(k))),
            lambda each: whole(each.attention(one(1e14), m, 128)),
            lambda each: float(each.traffic(one(1e9))[0]),
        ]
        for call in calls:
            assert call(slow) == pytest.approx(pace * call(usual))
