"""The machine: the planner counts with what a site says, and reads a table of the fabric between its rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.planning.cost_model.machine import FabricTable, machine_of, usual_machine, with_efficiency
from weft.specs import SITES, load_site
from weft.specs.gpus import GPUS, gpu_type_named

TABLE = FabricTable(sizes_bytes=(2.0**10, 2.0**20, 2.0**30), shares=(0.1, 0.5, 0.9), source="a test")


@pytest.mark.parametrize("name", SITES.names())
def test_nothing_is_faster_than_its_data_sheet(name: str):
    site = load_site(name)
    found = machine_of(site)
    assert found.memory_bytes <= site.gpu.memory
    assert found.memory_rate <= site.gpu.memory_rate / 8
    assert found.domain_rate <= site.scale_up.rate / 8
    assert found.nic_rate < site.fabric.nic_rate / 8
    assert (found.gpus, found.node_gpus) == (site.fabric.gpus, site.node.gpus)
    assert found.domain_gpus >= found.node_gpus
    assert found.idle_power_w <= found.power_w


@pytest.mark.parametrize("name", GPUS.names())
def test_a_usual_machine_is_one_type_in_whole_domains(name: str):
    known = gpu_type_named(name)
    found = usual_machine(known.gpu.kind, 256, 400 * 10**9)
    assert (found.kind, found.gpus) == (known.gpu.kind, 256)
    assert found.domain_gpus == found.node_gpus == known.scale_up.gpus
    assert found.bf16_flops == known.gpu.bf16
    assert found.fp8_flops == (known.gpu.fp8 or known.gpu.bf16)
    assert found.fp32_flops == (known.gpu.fp32 or known.gpu.bf16 / 2)


@given(st.integers(1, 64))
def test_a_faster_nic_counts_in_proportion(factor: int):
    one, more = (usual_machine("H100", 64, rate * 10**9) for rate in (100, 100 * factor))
    assert more.nic_rate == pytest.approx(factor * one.nic_rate)
    assert replace(more, nic_rate=one.nic_rate) == one


def test_oversubscription_divides_what_a_nic_reaches():
    site = load_site("gb200-4x200g-32k")
    thin = site.model_copy(update={"fabric": site.fabric.model_copy(update={"oversubscription": (3, 1)})})
    assert machine_of(thin).nic_rate == pytest.approx(machine_of(site).nic_rate / 3)


def test_what_a_site_measured_wins_over_the_catalogue():
    site = load_site("h100-400g-16k")
    share = gpu_type_named("h100").efficiency.model_copy(update={"memory": 0.5})
    measured = machine_of(site.model_copy(update={"efficiency": share}))
    assert measured.memory_rate == pytest.approx(site.gpu.memory_rate / 8 * 0.5)


@given(st.floats(0.01, 1))
def test_a_share_is_replaced_alone(share: float):
    found = usual_machine("H100", 64, 400 * 10**9)
    changed = with_efficiency(found, matmul=share)
    assert changed.efficiency.matmul == share
    assert replace(changed, efficiency=found.efficiency) == found


@pytest.mark.parametrize(
    ("size", "share"), [(2.0**10, 0.1), (2.0**20, 0.5), (2.0**30, 0.9), (1.0, 0.1), (2.0**40, 0.9)]
)
def test_a_table_gives_its_rows_and_its_ends_beyond_them(size: float, share: float):
    found = replace(usual_machine("H100", 64, 400 * 10**9), table=TABLE)
    whole = found.nic_rate / found.efficiency.nic
    assert float(found.far_rate(np.array([size]))[0]) == pytest.approx(share * whole)


@given(st.lists(st.floats(1, 1e13), min_size=2, max_size=20))
def test_a_larger_exchange_never_reaches_less_where_the_table_rises(sizes: list[float]):
    found = replace(usual_machine("H100", 64, 400 * 10**9), table=TABLE)
    assert (np.diff(found.far_rate(np.sort(np.array(sizes)))) >= 0).all()


def test_near_and_far_are_latency_and_rate():
    found = usual_machine("H100", 64, 400 * 10**9)
    assert found.near == (found.domain_latency_s, found.domain_rate)
    latency, rate = found.far(np.array([1e6, 1e9]))
    assert latency == found.fabric_latency_s
    assert rate.tolist() == [found.nic_rate, found.nic_rate]
