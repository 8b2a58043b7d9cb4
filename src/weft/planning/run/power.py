"""Watts over a step, what they cost, and what the grid allows: the waveform, its spectrum and its mitigations.

A synchronous job draws power in unison: full in its products, little while it waits. The wave is a list of phases, or
samples of it in a numpy column; every mitigation is a function from samples to samples, with its cost in energy. The
critical bands and the form of the contract are those of arXiv 2508.14318. Meters are in `training.metrics.energy`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from weft.collectives.costs import Column
from weft.core.quantity import ENERGY
from weft.planning.cost_model.step import StepTimes
from weft.planning.run.goodput import Goodput

JOULES_PER_KWH = 3.6e6
LAG_S = 0.025
"""Time constant of a GPU's draw, between 10 and 50 ms."""
RACK_JOULES = 65.0
"""Energy store of a GB300 rack's power shelf for each GPU (NVIDIA, July 2025)."""

# Shares of the range from idle to full power; classes, after arXiv 2508.14318 (compute near the limit, communication
# close to idle) and arXiv 2412.08602.
_NOISE = 1e-9
_FEWEST_SAMPLES = 4
_COMPUTE, _MEMORY, _NETWORK, _WAIT = 1.0, 0.65, 0.2, 0.05

EDP = 1.1
"""Highest draw of a GPU for milliseconds over its TDP, where power management has not caught up (arXiv 2508.14318)."""

CRITICAL_BANDS = ((0.1, 1.0, "between areas"), (1.0, 2.5, "between plants"), (7.0, 100.0, "turbine shafts"))
"""Bands in Hz in which an oscillating load meets a resonance of the grid (arXiv 2508.14318)."""
BAND_LOW_HZ, BAND_HIGH_HZ = 0.1, 20.0
BAND_SHARE = 0.2
"""Most of the wave's magnitude that a contract lets lie between those frequencies, as an example (same source)."""


@dataclass(frozen=True)
class PowerPhase:
    """A stretch of a step in which the draw is constant."""

    name: str
    """What the GPUs do."""
    seconds: float
    """How long."""
    watts: float
    """Draw of one GPU."""


def phases_of(times: StepTimes, row: int, power_w: float, idle_w: float) -> tuple[PowerPhase, ...]:
    """Return the phases of one GPU's step: products with hidden traffic, waiting in the pipeline, reduction, update."""
    levels = (
        ("fill", float(times.bubble_s[row]) / 2, _WAIT),
        ("compute", float(times.compute_s[row] + times.recompute_s[row]), _COMPUTE),
        ("exposed traffic", float((times.network_s - times.data_s + times.straggler_s)[row]), _NETWORK),
        ("drain", float(times.bubble_s[row]) / 2, _WAIT),
        ("gradients", float(times.data_s[row]), _NETWORK),
        ("update", float(times.optimizer_s[row]), _MEMORY),
    )
    return tuple(PowerPhase(name, seconds, idle_w + level * (power_w - idle_w)) for name, seconds, level in levels)


def samples(phases: tuple[PowerPhase, ...], steps: int, per_second: float) -> Column:
    """Return the draw of one GPU over `steps` steps, sampled; traffic between products is spread through them."""
    main = [phase for phase in phases if phase.name in ("compute", "exposed traffic")]
    seconds = sum(phase.seconds for phase in main)
    mean = sum(phase.seconds * phase.watts for phase in main) / seconds if seconds else 0.0
    order = ("fill", "busy", "drain", "gradients", "update")
    table = {phase.name: phase for phase in phases} | {"busy": PowerPhase("busy", seconds, mean)}
    edges = np.cumsum([table[name].seconds for name in order])
    period = float(edges[-1])
    if period * per_second < _FEWEST_SAMPLES:
        # Steps shorter than the samples are apart: the supply sees their mean.
        whole = sum(table[name].seconds * table[name].watts for name in order) / period
        return np.full(math.ceil(steps * period * per_second), whole)
    moments = np.mod((np.arange(math.ceil(steps * period * per_second)) + 0.5) / per_second, period)
    levels = np.array([table[name].watts for name in order])
    return levels[np.minimum(np.searchsorted(edges, moments, side="right"), len(order) - 1)]


def with_lag(wave: Column, per_second: float, lag_s: float = LAG_S) -> Column:
    """Return the wave as the supply sees it: a GPU's draw follows its work with a first-order lag."""
    follow = -math.expm1(-1 / (lag_s * per_second))
    level, drawn = float(wave.mean()), np.empty_like(wave)
    # Twice around, so that the start is that of a wave which has been running for long.
    for number in range(-len(wave), len(wave)):
        level += follow * (float(wave[number]) - level)
        drawn[number] = level
    return drawn


def two_level(high: float, low: float, duty: float, count: int = 1000) -> Column:
    """Return one period of a wave that is high for a share `duty` and low for the rest."""
    return np.where(np.arange(count) < round(duty * count), high, low)


def with_floor(wave: Column, floor: float) -> Column:
    """Return the wave with power burnt so that it never falls below `floor`."""
    return np.maximum(wave, floor)


def with_ramps(wave: Column, up_per_second: float, down_per_second: float, per_second: float) -> Column:
    """Return the wave with its slopes limited: held back on the way up, burnt on the way down."""
    limited = np.empty_like(wave)
    level = float(wave[0])
    up, down = up_per_second / per_second, down_per_second / per_second
    for number, wanted in enumerate(wave):
        level = min(max(float(wanted), level - down), level + up)
        limited[number] = level
    return limited


def with_stop_delay(wave: Column, delay_s: float, per_second: float) -> Column:
    """Return the wave in which power falls only after it has been low for `delay_s`: a running maximum."""
    window = max(1, round(delay_s * per_second))
    padded = np.concatenate([np.full(window - 1, wave[0]), wave])
    return np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)


def with_storage(wave: Column, capacity_j: float, per_second: float) -> tuple[Column, float]:
    """Return the wave behind a store that holds the mean as far as it reaches, and the capacity that it used.

    The store starts half full. Its losses are not counted; it burns nothing.
    """
    target = float(wave.mean())
    store = capacity_j / 2
    lowest = highest = store
    drawn = np.empty_like(wave)
    for number, wanted in enumerate(wave):
        given = min(max(float(wanted) - target, -(capacity_j - store) * per_second), store * per_second)
        store -= given / per_second
        lowest, highest = min(lowest, store), max(highest, store)
        drawn[number] = float(wanted) - given
    return drawn, highest - lowest


def energy_overhead(before: Column, after: Column) -> float:
    """Return how much more energy the second wave takes, as a share of the first one's."""
    return float(after.sum() / before.sum()) - 1


def spectrum(wave: Column, per_second: float) -> tuple[Column, Column]:
    """Return frequencies in Hz and amplitudes of the wave around its mean."""
    amplitude = 2 * np.abs(np.fft.rfft(wave - wave.mean())) / len(wave)
    return np.asarray(np.fft.rfftfreq(len(wave), 1 / per_second), dtype=np.float64), amplitude


@dataclass(frozen=True)
class PowerVerdict:
    """A wave against a contract; powers in watts at the meter."""

    mean_w: float
    """Mean draw."""
    peak_w: float
    """Highest draw."""
    swing_w: float
    """Largest difference within a second."""
    ramp_w_per_s: float
    """Steepest change of the one-second mean."""
    band_share: float
    """Share of the wave's magnitude, mean included, that lies in the critical range."""
    strongest_hz: float
    """Frequency of the strongest oscillation; 0 where the wave is flat."""
    broken: tuple[str, ...]
    """Terms of the contract that it breaks."""


@dataclass(frozen=True)
class Contract:
    """What a utility allows; none where it says nothing."""

    limit_w: float | None = None
    """Most that may be drawn."""
    ramp_w_per_s: float | None = None
    """Steepest change of the draw."""
    swing_w: float | None = None
    """Largest swing within a second before ramps count."""


def judge(wave: Column, per_second: float, contract: Contract) -> PowerVerdict:
    """Return how a wave at the meter stands against a contract."""
    window = max(1, round(per_second))
    views = np.lib.stride_tricks.sliding_window_view(np.resize(wave, len(wave) + window), window + 1)
    swing = float((views.max(axis=1) - views.min(axis=1)).max())
    swing = swing if swing > _NOISE * float(wave.mean()) else 0.0
    means = views.mean(axis=1)
    ramp = float(np.abs(means[window:] - means[:-window]).max()) if len(means) > window else swing
    frequencies, amplitudes = spectrum(wave, per_second)
    inside = (frequencies >= BAND_LOW_HZ) & (frequencies <= BAND_HIGH_HZ)
    whole = float(wave.mean()) + float(amplitudes.sum())
    share = float(amplitudes[inside].sum()) / whole if whole else 0.0
    strongest = float(frequencies[int(np.argmax(amplitudes))]) if amplitudes.max(initial=0.0) > 0 else 0.0
    terms = (
        ("limit", contract.limit_w, float(wave.max())),
        ("ramp", contract.ramp_w_per_s, ramp),
        ("swing", contract.swing_w, swing),
        ("critical range", BAND_SHARE, share),
    )
    return PowerVerdict(
        mean_w=float(wave.mean()),
        peak_w=float(wave.max()),
        swing_w=swing,
        ramp_w_per_s=ramp,
        band_share=share,
        strongest_hz=strongest,
        broken=tuple(name for name, allowed, found in terms if allowed is not None and found > allowed),
    )


@dataclass(frozen=True)
class Mitigation:
    """One way to smooth the wave, what it leaves and what it costs."""

    name: str
    """What is done."""
    energy: float
    """More energy, as a share."""
    slower: float
    """Longer steps, as a share."""
    verdict: PowerVerdict
    """What the meter then sees."""
    store_j: float = 0.0
    """Energy store that each GPU needs for it, which is hardware."""


@dataclass(frozen=True)
class Meter:
    """From one GPU's watts to those that the utility sees."""

    gpus: int
    """GPUs that draw in unison."""
    other_w: float
    """Constant draw of everything else for each GPU: host, NIC, its share of the switches."""
    pue: float
    """Draw of the whole site over that of its computers."""

    def at(self, wave: Column) -> Column:
        """Return the wave at the meter."""
        return (wave + self.other_w) * (self.gpus * self.pue)


@dataclass(frozen=True)
class PowerEvent:
    """A change of the whole job's draw that is no part of its steps, at the meter."""

    name: str
    """What happens."""
    every_s: float
    """How often; infinite for once."""
    from_w: float
    """Draw before."""
    to_w: float
    """Draw after."""
    seconds: float
    """How long it stays."""

    @property
    def swing_w(self) -> float:
        """Return the size of the change."""
        return abs(self.to_w - self.from_w)


def events_of(meter: Meter, power_w: float, idle_w: float, goodput: Goodput) -> tuple[PowerEvent, ...]:
    """Return what a utility asks about first: stops, starts and checkpoints.

    A stop takes every GPU from its full draw to idle within milliseconds, and a start back to the peak that power
    management has not caught yet. While a checkpoint is written GPUs copy their state.
    """
    full, idle, peak, copying = (
        float(meter.at(np.array([watts]))[0])
        for watts in (power_w, idle_w, EDP * power_w, idle_w + _MEMORY * (power_w - idle_w))
    )
    return (
        PowerEvent("stop by a failure", goodput.mttf_s, full, idle, goodput.restart_s),
        PowerEvent("start after it", goodput.mttf_s, idle, peak, LAG_S),
        PowerEvent("checkpoint", goodput.interval_s, full, copying, goodput.write_s),
    )


def mitigations(wave: Column, meter: Meter, tdp_w: float, per_second: float, contract: Contract) -> list[Mitigation]:
    """Return the usual ways to smooth a GPU's wave, each judged at the meter."""

    def judged(name: str, smooth: Column, *, slower: float = 0.0, store_j: float = 0.0) -> Mitigation:
        verdict = judge(meter.at(smooth), per_second, contract)
        return Mitigation(name, energy_overhead(meter.at(wave), meter.at(smooth)), slower, verdict, store_j)

    def floored(name: str, smooth: Column) -> Mitigation:
        # A floor holds what is below it; above it stand the milliseconds in which GPUs draw more than their TDP.
        found = judged(name, smooth)
        spread = (EDP * tdp_w - floor) * meter.gpus * meter.pue
        swing = max(found.verdict.swing_w, spread)
        over = contract.swing_w is not None and swing > contract.swing_w and "swing" not in found.verdict.broken
        broken = (*found.verdict.broken, "swing") if over else found.verdict.broken
        return replace(found, verdict=replace(found.verdict, swing_w=swing, broken=broken))

    def running(smooth: Callable[[Column], Column]) -> Column:
        return smooth(np.tile(wave, 2))[len(wave) :]

    floor, ramp = 0.9 * tdp_w, 0.5 * tdp_w
    stored, used = with_storage(wave, RACK_JOULES, per_second)
    wide = float(wave.max() - wave.min()) * len(wave) / per_second
    large, used_large = with_storage(wave, wide, per_second)
    held = running(lambda twice: with_ramps(twice, ramp, ramp, per_second))
    # Where power is held back on the way up, that much work is done later.
    held_back = float(np.maximum(0.0, wave - held).sum() / wave.sum())
    return [
        judged("nothing", wave),
        floored("floor at 90 % of full power", with_floor(wave, floor)),
        judged(f"ramps of {ramp:.0f} W/s a GPU", held, slower=held_back),
        judged("stop delay of 1 s", running(lambda twice: with_stop_delay(twice, 1.0, per_second))),
        judged(
            f"rack storage of {RACK_JOULES:.0f} J a GPU ({ENERGY.about(1000 * used)} used)", stored,
            store_j=RACK_JOULES,
        ),
        judged(f"storage as needed ({ENERGY.about(1000 * used_large)} a GPU)", large, store_j=used_large),
        judged("floor and rack storage", with_storage(with_floor(wave, floor), RACK_JOULES, per_second)[0],
               store_j=RACK_JOULES),
    ]  # fmt: skip
