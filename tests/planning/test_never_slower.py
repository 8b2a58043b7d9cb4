"""Better hardware is never worse, over drawn sites and jobs, for the best plan that the search finds."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.specfile import validate
from weft.planning.cost_model.confidence import latest_s
from weft.planning.cost_model.machine import Machine, machine_of
from weft.planning.cost_model.plans import Workload, dimensions_of
from weft.planning.run.goodput import goodput_of
from weft.planning.search import search
from weft.specs import load_site
from weft.specs.job import ModelSpec
from weft.specs.site import SiteSpec
from weft.specs.software import PRESETS, SoftwareSpec

TABLES = {name: load_site(name).as_written() for name in ("h100-400g-16k", "gb200-4x200g-32k", "b200-400g-16k")}
DENSE = {"layers": 16, "width": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocabulary": 128256}
MIXED = {**DENSE, "experts": {"count": 32, "top_k": 4, "ffn": 2048, "shared": 2048}}
BETTER: dict[str, tuple[str, str, tuple[Any, Any]]] = {
    "memory bandwidth": ("gpu", "memory_rate", ("3 TB/s", "6 TB/s")),
    "memory": ("gpu", "memory", ("60 GB", "170 GB")),
    "power limit": ("gpu", "power", ("400 W", "600 W")),
    "scale-up bandwidth": ("scale_up", "rate", ("2 Tb/s", "6 Tb/s")),
    "scale-up latency": ("scale_up", "latency", ("4 us", "1 us")),
    "scale-up domain": ("scale_up", "gpus", (8, 32)),
    "NIC rate": ("fabric", "nic_rate", ("200 Gb/s", "400 Gb/s")),
}


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Workload, str, str]:
    model = {**draw(st.sampled_from([DENSE, MIXED])), "layers": draw(st.sampled_from([8, 12, 16]))}
    sequences, length = draw(st.sampled_from([32, 48])), draw(st.sampled_from([2048, 8192]))
    work = Workload(dimensions_of(validate(model, ModelSpec, "drawn")), sequences, length)
    return work, draw(st.sampled_from(sorted(PRESETS))), draw(st.sampled_from(["bf16", "fp8", "mxfp8"]))


def site(name: str, gpus: int, table: str, key: str, value: Any) -> SiteSpec:
    written = {**TABLES[name], "fabric": {**TABLES[name]["fabric"], "gpus": gpus}}
    changed = {**written[table], key: value}
    if key == "nic_rate":
        changed["port_rate"] = f"{int(value.split()[0]) // written['fabric']['planes']} Gb/s"
    return validate({**written, table: changed}, SiteSpec, "drawn")


@pytest.mark.parametrize("what", sorted(BETTER))
@given(st.sampled_from(sorted(TABLES)), st.sampled_from([16, 32]), jobs())
@settings(max_examples=5, deadline=None)
def test_the_best_plan_is_never_slower(what: str, name: str, gpus: int, job: tuple[Workload, str, str]):
    work, preset, precision = job
    software = PRESETS[preset].model_copy(update={"precision": precision})
    table, key, values = BETTER[what]
    worse, better = (machine_of(site(name, gpus, table, key, value)) for value in values)
    assert recommended(work, better, software) <= recommended(work, worse, software) * (1 + 1e-9)


def recommended(work: Workload, machine: Machine, software: SoftwareSpec) -> float:
    """Return the time that the recommended plan keeps in nine of ten cases; infinite where none fits."""
    best = search(work, machine, software, top=1).best
    if not len(best):
        return math.inf
    # A lower power limit widens the interval of every plan alike; the classes of plans are what is compared.
    level = replace(machine, power_w=math.inf)
    return float(latest_s(best.step_s, work, best.plans, level, software)[0])


RATES = ("gpu", "host", "software", "silent")


@given(
    st.sampled_from(sorted(TABLES)), st.sampled_from(RATES), st.integers(8, 1024), st.floats(1, 600), st.floats(0.1, 30)
)
@settings(max_examples=60, deadline=None)
def test_fewer_failures_are_never_worse(name: str, which: str, nodes: int, write_s: float, step_s: float):
    gpus = 16 * nodes
    many = site(name, 16384, "failures", which, "60 /1e6 h")
    few = site(name, 16384, "failures", which, "6 /1e6 h")
    shares = [goodput_of(each, gpus, 16, write_s=write_s, step_s=step_s).share for each in (many, few)]
    assert shares[0] <= shares[1] * (1 + 1e-12)
