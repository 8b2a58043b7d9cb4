"""The bars of a step and its power wave are one: bars, sends and the slowest rank end where the wave does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.machine import usual_machine
from weft.planning.cost_model.plans import Dimensions, Workload, one_plan
from weft.planning.cost_model.step import step_times
from weft.planning.cost_model.timeline import timeline
from weft.planning.run.power import phases_of, samples
from weft.specs.software import PRESETS

# A small vocabulary: the output matrix does not make the last stage the slowest.
MODEL = Dimensions(48, 8192, 64, 8, 128, 28_672, 4_096, tied=False)
FULL_W, IDLE_W = 700.0, 70.0


@given(
    st.sampled_from([2, 4, 8]), st.sampled_from([1, 3]), st.sampled_from([1, 2, 4]), st.integers(1, 4),
    st.sampled_from(["nemo-2025", "megatron-2024", "megascale", "torchtitan"]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_bars_and_wave_agree_within_a_percent(stages: int, chunks: int, tp: int, groups: int, preset: str):
    rounds = groups * stages
    work = Workload(MODEL, 4 * rounds, 8192)
    plan = one_plan(dp=4, tp=tp, pp=stages, zero=1, chunks=chunks, schedule="interleaved" if chunks > 1 else "1f1b")
    times = step_times(work, plan, usual_machine("H100", 4 * tp * stages, 400 * 10**9), PRESETS[preset])
    bars = timeline(stages, rounds, float(times.forward_s[0]), float(times.backward_s[0]), chunks=chunks)
    phases = {each.name: each for each in phases_of(times, 0, FULL_W, IDLE_W)}
    assert sum(each.seconds for each in phases.values()) == pytest.approx(float(times.step_s[0]))
    # What is no bar: the slowest rank, and sends that show.
    waited = float(times.straggler_s[0] + times.pipeline_s[0])
    piped = sum(phases[name].seconds for name in ("fill", "compute", "exposed traffic", "drain"))
    assert max(bar.end_s for bar in bars) + waited == pytest.approx(piped, rel=0.01)
    busy = sum(bar.end_s - bar.start_s for bar in bars) / stages
    assert busy + waited == pytest.approx(phases["compute"].seconds + phases["exposed traffic"].seconds, rel=0.01)
    # The sampled wave has the energy of the phases.
    wave = samples(tuple(phases.values()), 8, 500 / float(times.step_s[0]))
    energy = sum(each.seconds * each.watts for each in phases.values()) / float(times.step_s[0])
    assert float(np.mean(wave)) == pytest.approx(energy, rel=0.01)
