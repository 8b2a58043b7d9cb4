"""What a file cannot say: each rule over several fields refuses what it should, with what would be right."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import SpecError
from weft.core.spec import Spec
from weft.core.specfile import validate
from weft.specs import load_job, load_scenario, load_site
from weft.specs.fabric import FabricSpec, clos_capacity
from weft.specs.job import JobSpec, PlanSpec
from weft.specs.scenario import ScenarioSpec
from weft.specs.site import SiteSpec

BASES: dict[type[Spec], Spec] = {
    SiteSpec: load_site("gb200-4x200g-32k"),
    JobSpec: load_job("tiny-gpt"),
    ScenarioSpec: load_scenario("permutation"),
}


def changed(base: Spec, changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` as written with values at dotted keys replaced."""
    table = base.as_written()
    for key, value in changes.items():
        *path, last = key.split(".")
        below = table
        for part in path:
            below = below.setdefault(part, {})
        below[last] = value
    return table


def refused(model: type[Spec], changes: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        validate(changed(BASES[model], changes), model, "file.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fabric.gpus": 32766}, "write 32,764 or 32,768"),
        ({"scale_up.gpus": 70}, "a scale-up domain of 70 GPUs and nodes of 4 do not nest"),
        ({"fabric.planes": 3}, "3 planes of 200 Gb/s make 600 Gb/s, but nic_rate is 800 Gb/s; write planes = 4"),
        ({"fabric.port_rate": "300 Gb/s"}, "write port_rate = '200 Gb/s'"),
        ({"fabric.planes": 3, "fabric.port_rate": "300 Gb/s"}, "must carry exactly what the NIC does"),
        ({"fabric.radix": 512}, "need 102.4 Tb/s, but the switch carries 51.2 Tb/s; write radix = 256"),
        ({"fabric.parts.nic.rate": "400 Gb/s"}, "nic_rate is 800 Gb/s; the NIC in parts.nic carries 400 Gb/s"),
        ({"fabric.oversubscription": "2:1"}, "a radix of 256 cannot be split 2:1; choose one that 3 divides"),
        ({"fabric.tiers": 3}, "3 tiers need cables for t1_t2; add [fabric.links.t1_t2]"),
        ({"fabric.gpus": 65536}, "65,536 GPUs do not fit: 2 tiers of 256-port switches reach 32,768"),
        ({"fabric.radix": 255}, "255"),
        ({"fabric.nic_rate": "800"}, "800"),
        ({"fabric.nic_rate": "800 W"}, "800 W"),
        ({"power.pue": 0.5}, "0.5"),
        ({"gpu.memory": -1}, "memory"),
        ({"fabric.wires": 3}, "wires"),
        ({"name": "My Site"}, "My Site"),
    ],
)
def test_a_site_that_cannot_be_built_is_refused_with_what_could_be(changes: dict[str, Any], said: str):
    assert said in refused(SiteSpec, changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.heads": 5}, "heads do not divide a width"),
        ({"model.head_width": 7}, "a head is 7 wide, and positions are turned in pairs"),
        ({"model.heads": 4, "model.kv_heads": 3}, "3 kv_heads do not divide 4 heads"),
        ({"model.experts": {"count": 4, "top_k": 5, "ffn": 64}}, "top_k = 5 of 4 experts; write at most 4"),
        ({"model.rope_scaling": {"factor": 2.0, "low": 4.0, "high": 1.0, "length": 64}}, "high = 1.0 is not above low"),
        ({"batch.sequences": 7, "batch.micro": 2}, "7 sequences are not a whole number of micro-batches of 2"),
        ({"plan": {"dp": 4, "shard": 3}}, "shard = 3 does not divide dp = 4"),
        ({"plan": {"dp": 4, "ep": 3}}, "ep = 3 does not divide the 4 ranks"),
        ({"plan": {"dp": 4, "schedule": "2f2b"}}, "2f2b"),
        ({"plan": "best"}, "plan"),
        ({"optimizer.betas": [0.9, 1.0]}, "betas"),
        ({"steps": 0}, "steps"),
        ({"priority": 1001}, "priority"),
    ],
)
def test_a_job_that_cannot_run_is_refused_with_what_could(changes: dict[str, Any], said: str):
    assert said in refused(JobSpec, changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job": "tiny-gpt"}, "a scenario has either traffic, a job or [[jobs]]; write one of them"),
        ({"traffic": {"pattern": "pair", "source": 3, "destination": 3}}, "the pair is NIC 3 and itself"),
        ({"faults": [{"kind": "loss", "target": "t1-p0-i3"}]}, "needs an amount, the share of packets lost"),
        ({"faults": [{"kind": "slow", "target": "t1-p0-i3", "amount": 0.0}]}, "is dead; write kind = 'link-down'"),
        ({"faults": [{"kind": "flap", "target": "t1-p0-i3"}]}, "a flap needs a period"),
        ({"faults": [{"kind": "flap", "target": "t1-p0-i3", "period": "0 ms"}]}, "a flap needs a period"),
        ({"faults": [{"kind": "burn", "target": "t1-p0-i3"}]}, "burn"),
        ({"network.queues": {"ecn_low": 0.9, "ecn_high": 0.3}}, "ecn_low lies above ecn_high; swap them"),
        ({"measure.bin": "0 us"}, "a bin of no width holds nothing"),
        ({"gpus": 1}, "gpus"),
    ],
)
def test_a_scenario_that_means_nothing_is_refused_with_what_would(changes: dict[str, Any], said: str):
    assert said in refused(ScenarioSpec, changes)


def test_every_mistake_is_named_at_once():
    text = refused(SiteSpec, {"fabric.planes": 3, "fabric.radix": 512, "power.pue": 0.5, "scale_up.gpus": 70})
    assert all(word in text for word in ("planes", "pue"))


@pytest.mark.parametrize("model", list(BASES))
def test_what_is_not_changed_is_not_refused(model: type[Spec]):
    assert validate(BASES[model].as_written(), model, "file.toml") == BASES[model]


@given(st.sampled_from((1, 2, 3)), st.integers(1, 64), st.sampled_from(((1, 1), (2, 1), (3, 1), (1, 2))))
def test_another_tier_or_a_larger_radix_never_reaches_less(tiers: int, half: int, ratio: tuple[int, int]):
    radix = 12 * half
    reach = clos_capacity(tiers, radix, ratio)
    assert reach <= clos_capacity(tiers, radix + 12, ratio)
    if tiers < 3 and ratio[0] >= ratio[1]:
        assert reach <= clos_capacity(tiers + 1, radix, ratio)


@given(st.integers(1, 200))
def test_nothing_oversubscribed_reaches_the_textbook_number(half: int):
    radix = 2 * half
    assert [clos_capacity(tiers, radix, (1, 1)) for tiers in (1, 2, 3)] == [radix, radix**2 // 2, radix**3 // 4]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_a_plan_needs_the_product_of_its_axes(dp: int, tp: int, pp: int, cp: int):
    assert PlanSpec.model_validate({"dp": dp, "tp": tp, "pp": pp, "cp": cp}).ranks == dp * tp * pp * cp


def test_a_fabric_of_fewer_gpus_is_the_same_network():
    spec = load_site("gb200-4x200g-32k").fabric
    small = FabricSpec.model_validate(spec.as_written() | {"gpus": 64})
    assert small.model_copy(update={"gpus": spec.gpus}) == spec
