"""Power: the golden wave, its spectrum, and what smoothing costs."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.machine import usual_machine
from weft.planning.cost_model.plans import Dimensions, Workload, one_plan
from weft.planning.cost_model.step import step_times
from weft.planning.run.goodput import goodput_of
from weft.planning.run.power import (
    Contract,
    Meter,
    energy_overhead,
    events_of,
    judge,
    mitigations,
    phases_of,
    samples,
    spectrum,
    two_level,
    with_floor,
    with_lag,
    with_ramps,
    with_stop_delay,
    with_storage,
)
from weft.specs import load_site
from weft.specs.software import SoftwareSpec

PER_SECOND = 200.0
WAVE = np.tile(two_level(1.0, 0.3, 0.844, 400), 8)


# arXiv 2508.14318, figure 6: a floor of 90 % of TDP costs 10.5 % energy.
@pytest.mark.parametrize(("high", "low", "duty"), [(1.0, 0.3, 0.844), (1.0, 0.4, 0.813), (0.95, 0.3, 0.851)])
def test_a_floor_of_ninety_percent_costs_what_was_published(high: float, low: float, duty: float):
    wave = two_level(high, low, duty)
    assert 100 * energy_overhead(wave, with_floor(wave, 0.9)) == pytest.approx(10.5, abs=0.3)
    assert 0.045 < energy_overhead(wave, with_floor(wave, 0.65)) < 0.065


def test_the_wave_lives_in_the_band_that_was_measured():
    frequencies, amplitudes = spectrum(WAVE, PER_SECOND)
    inside = (frequencies >= 0.2) & (frequencies <= 3.0)
    assert (amplitudes[inside] ** 2).sum() > 0.7 * (amplitudes**2).sum()
    assert frequencies[np.argmax(amplitudes)] == pytest.approx(0.5)


@given(st.floats(0.1, 10), st.floats(1, 20))
@settings(max_examples=20, deadline=None)
def test_a_sine_has_one_line_of_its_height(height: float, hertz: float):
    hertz = round(hertz)
    wave = 20 + height * np.sin(2 * np.pi * hertz * np.arange(2000) / PER_SECOND)
    frequencies, amplitudes = spectrum(wave, PER_SECOND)
    assert frequencies[np.argmax(amplitudes)] == pytest.approx(hertz)
    assert amplitudes.max() == pytest.approx(height)


@given(st.floats(0, 1.2))
@settings(max_examples=30, deadline=None)
def test_floors_and_delays_only_add(floor: float):
    assert (with_floor(WAVE, floor) >= WAVE).all()
    delayed = with_stop_delay(WAVE, 0.1, PER_SECOND)
    assert (delayed >= WAVE).all()
    assert len(delayed) == len(WAVE)


@given(st.floats(0.1, 50), st.floats(0.1, 50))
@settings(max_examples=30, deadline=None)
def test_ramps_keep_their_slopes(up: float, down: float):
    slopes = np.diff(with_ramps(WAVE, up, down, PER_SECOND)) * PER_SECOND
    assert slopes.max(initial=0) <= up + 1e-9
    assert slopes.min(initial=0) >= -down - 1e-9


def test_a_store_wastes_nothing_and_needs_what_the_square_wave_holds():
    flat, used = with_storage(WAVE, 10.0, PER_SECOND)
    assert flat.std() == pytest.approx(0, abs=1e-9)
    assert energy_overhead(WAVE, flat) == pytest.approx(0, abs=1e-9)
    # 0.7 high, duty d and period T: 0.7 d (1 - d) T.
    assert used == pytest.approx(0.7 * 0.844 * 0.156 * 2.0, rel=0.02)
    small, _ = with_storage(WAVE, used / 4, PER_SECOND)
    assert small.std() > 0.05


def test_a_contract_names_what_is_broken():
    wave = 100e6 * WAVE
    free = judge(wave, PER_SECOND, Contract())
    assert "limit" not in free.broken
    tight = judge(wave, PER_SECOND, Contract(limit_w=90e6, ramp_w_per_s=1e6, swing_w=10e6))
    assert {"limit", "ramp", "swing"} <= set(tight.broken)
    assert tight.swing_w == pytest.approx(70e6)
    flat = judge(np.full(1000, 50e6), PER_SECOND, Contract(limit_w=90e6, ramp_w_per_s=1e6, swing_w=10e6))
    assert flat.broken == ()
    assert flat.strongest_hz == 0


def test_every_mitigation_swings_less_than_nothing():
    found = mitigations(700 * WAVE, Meter(1000, 500.0, 1.2), 700.0, PER_SECOND, Contract(swing_w=100e3))
    base = found[0]
    assert base.energy == 0
    for other in found[1:]:
        assert other.verdict.swing_w <= base.verdict.swing_w + 1e-6, other.name
    floor = found[1]
    assert floor.energy > 0.05
    assert floor.slower == 0


def test_a_step_draws_between_idle_and_full_power():
    work = Workload(Dimensions(32, 4096, 32, 8, 128, 14336, 32000), 256, 4096)
    times = step_times(work, one_plan(dp=16, pp=4, zero=1), usual_machine("H100", 64, 400 * 10**9), SoftwareSpec())
    phases = phases_of(times, 0, 700.0, 70.0)
    assert sum(phase.seconds for phase in phases) == pytest.approx(float(times.step_s[0]))
    assert all(70 <= phase.watts <= 700 for phase in phases)
    step = float(times.step_s[0])
    wave = samples(phases, 3, 1000 / step)
    mean = sum(phase.seconds * phase.watts for phase in phases) / step
    assert wave.mean() == pytest.approx(mean, rel=0.01)
    slow = with_lag(wave, 1000 / step)
    assert slow.mean() == pytest.approx(mean, rel=0.02)
    assert np.ptp(slow) <= np.ptp(wave)


@given(st.integers(8, 200_000), st.floats(200, 1500), st.floats(20, 150))
def test_a_stop_a_start_and_a_checkpoint_are_swings_of_the_whole_job(gpus: int, full: float, idle: float):
    good = goodput_of(load_site("gb200-8x100g-131k"), 131_072, 512, write_s=2.0, step_s=2.0)
    stop, start, checkpoint = events_of(Meter(gpus, 100.0, 1.2), full, idle, good)
    assert stop.swing_w == pytest.approx((full - idle) * gpus * 1.2)
    assert start.swing_w > stop.swing_w > checkpoint.swing_w
    assert (stop.every_s, stop.seconds, checkpoint.every_s) == (good.mttf_s, good.restart_s, good.interval_s)


@given(st.floats(200, 1500), st.floats(0.01, 0.5))
def test_a_floor_alone_keeps_a_contract_only_above_a_fifth_of_full_power(tdp: float, share: float):
    wave = two_level(tdp, 0.1 * tdp, 0.8)
    meter = Meter(1000, 0.0, 1.0)
    found = mitigations(wave, meter, tdp, 500.0, Contract(swing_w=share * tdp * 1000))
    floor = next(each for each in found if each.name.startswith("floor at 90 %"))
    assume(abs(share - 0.2) > 1e-9)
    assert ("swing" in floor.verdict.broken) == (share < 0.2)
