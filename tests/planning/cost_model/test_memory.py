"""Memory of a GPU: what papers measured, and how shards divide it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.machine import usual_machine
from weft.planning.cost_model.memory import memory_of
from weft.planning.cost_model.plans import Dimensions, Workload, one_plan
from weft.specs.software import SoftwareSpec

GIB = 2**30
PLAIN = SoftwareSpec(flash=False, sequence_parallel=False, dropout=True)
SEQUENCE = SoftwareSpec(flash=False, sequence_parallel=True, dropout=True)

# arXiv 2205.05198, figure 1: layers, width, heads, pp, chunks, batch, micro; GiB of a GPU: states, activations without
# recomputation, and with sequence parallelism and selective recomputation.
FIGURE_1 = {
    "22B": (48, 6144, 64, 1, 1, 4, 4, 45.56, 59.25, 9.56),
    "175B": (96, 12288, 96, 8, 3, 64, 1, 45.56, 66.84, 12.35),
    "530B": (105, 20480, 128, 35, 3, 280, 1, 31.64, 114.02, 23.08),
    "1T": (128, 25600, 160, 64, 1, 512, 1, 32.96, 131.25, 26.56),
}


@pytest.mark.parametrize("name", sorted(FIGURE_1))
def test_activations_are_those_of_the_paper(name: str):
    layers, width, heads, pp, chunks, batch, micro, states, none, selective = FIGURE_1[name]
    work = Workload(Dimensions(layers, width, heads, heads, width // heads, 4 * width, 51200, gated=False), batch, 2048)
    schedule = "interleaved" if chunks > 1 else "1f1b"
    machine = usual_machine("A100", 8 * pp, 200 * 10**9)
    for practice, recompute, expected in ((PLAIN, "none", none), (SEQUENCE, "selective", selective)):
        plan = one_plan(tp=8, pp=pp, schedule=schedule, chunks=chunks, micro=micro, recompute=recompute)
        found = memory_of(work, plan, practice)
        assert float(found.activations[0]) / GIB == pytest.approx(expected, rel=0.03)
        held = float((found.weights + found.gradients + found.optimizer)[0]) / GIB
        # The paper's figure is the mean over stages; ours is the fullest, which has the embedding.
        assert states * 0.97 < held < states * 1.12
        # What the paper ran fits, and what it says does not fit, does not.
        assert (float(found.total[0]) <= machine.memory_bytes) == (recompute == "selective")


@given(zero=st.integers(0, 2), tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_more_sharding_is_never_larger(zero: int, tp: int, pp: int):
    work = Workload(Dimensions(16, 2048, 16, 4, 128, 5632, 32000), 64, 2048)
    ours = SoftwareSpec()
    less, more = (memory_of(work, one_plan(dp=8, tp=tp, pp=pp, zero=stage), ours) for stage in (zero, zero + 1))
    for part in ("weights", "gradients", "optimizer"):
        assert float(getattr(more, part)[0]) <= float(getattr(less, part)[0])


def test_zero_divides_exactly():
    work = Workload(Dimensions(16, 2048, 16, 4, 128, 5632, 32000), 64, 2048)
    plain, sharded = (memory_of(work, one_plan(dp=8, zero=zero), SoftwareSpec()) for zero in (0, 3))
    for part in ("weights", "gradients", "optimizer"):
        assert float(getattr(sharded, part)[0]) == pytest.approx(float(getattr(plain, part)[0]) / 8)


def test_hybrid_sharding_lies_between():
    work = Workload(Dimensions(16, 2048, 16, 4, 128, 5632, 32000), 64, 2048)
    weights = [
        float(memory_of(work, one_plan(dp=64, zero=3, shard=shard), SoftwareSpec()).weights[0]) for shard in (1, 8, 64)
    ]
    assert weights[0] == pytest.approx(8 * weights[1])
    assert weights[1] == pytest.approx(8 * weights[2])


@pytest.mark.parametrize("practice", [PLAIN, SEQUENCE, SoftwareSpec(), SoftwareSpec(lean=True)])
def test_recomputing_more_keeps_less(practice: SoftwareSpec):
    work = Workload(Dimensions(16, 2048, 16, 16, 128, 8192, 32000), 64, 2048)
    kept = [
        float(memory_of(work, one_plan(tp=2, pp=4, recompute=how), practice).activations[0])
        for how in ("none", "selective", "full")
    ]
    assert kept[0] >= kept[1] > kept[2]


@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 3), st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "selective", "full"]), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_larger_micro_batch_or_a_longer_text_is_never_smaller_and_more_shards_never_larger(
    tp: int, pp: int, zero: int, micro: int, recompute: str, mixture: bool
):
    plain = Dimensions(16, 2048, 16, 4, 128, 5632, 32000)
    model = replace(plain, experts=16, top_k=2, shared=2048) if mixture else plain

    def total(**changes: int) -> float:
        choices = {"dp": 8, "tp": tp, "pp": pp, "zero": zero, "micro": micro, **changes}
        length = choices.pop("length", 2048)
        plan = one_plan(**choices, recompute=recompute)  # pyrefly: ignore[bad-argument-type]
        return float(memory_of(Workload(model, 256, length), plan, SoftwareSpec(fold=True)).total[0])

    assert total() <= total(micro=2 * micro)
    assert total() <= total(length=4096)
    assert total(shard=8) <= total(shard=4) <= total(shard=2)
