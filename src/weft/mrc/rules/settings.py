"""Makes the row of numbers that the rules read from an `MrcSpec` and the fabric around it.

Everything that needs a fraction is worked out here once and rounded, so that the rules stay in whole numbers.
"""

from fractions import Fraction

import numpy as np

from weft.core.units import PICOSECONDS_PER_SECOND
from weft.mrc.columns import PARAMS
from weft.mrc.rules.congestion import ALGORITHMS
from weft.mrc.wire.overhead import CONGESTION_OVERHEAD_BYTES
from weft.specs.transport import MrcSpec, window_packets

TIMEOUT_UNIT_PS = 1_024_000
"""The unit of the local acknowledgement timeout, 1.024 us."""
QUICK_ADAPT_GATE = 3
"""Quick adapt acts below max window / 2^3 (facts section 4.4)."""
_REFERENCE_BDP = 150_000
_REFERENCE_DELAY_PS = 12_000_000


def settings(spec: MrcSpec, *, planes: int, rate_bps: int, payload: int = 4096) -> np.ndarray:
    """Return the parameters of queue pairs on NICs of `rate_bps` over `planes` planes."""
    row = np.zeros(1, PARAMS)
    ev, loss, window = spec.ev, spec.loss, spec.window
    per_plane = max(1, ev.active // planes)
    values: dict[str, int] = {
        "payload": payload,
        "overhead": CONGESTION_OVERHEAD_BYTES,
        "window": window_packets(window),
        "slot_mask": slots_mask(window_packets(window)),
        "planes": planes,
        # The same number in every plane, rounded up.
        "evs": planes * (per_plane + -(-ev.backup // planes)),
        "active": planes * per_plane,
        "min_active": min(ev.min_active, planes * per_plane),
        # A dead path is known by one silence where switches trim (facts section 4.2).
        "losses_to_retire": 1 if spec.trimming else ev.losses_to_retire,
        "most_skips": ev.most_skips,
        "trimming": int(spec.trimming),
        "retire": int(spec.retire),
        "skip": int(spec.skip),
        "even": int(spec.skip and spec.even),
        "paced": int((spec.skip and spec.even) or ev.most_skips > 1),
        "same_plane": int(spec.same_plane),
        "shuffle": int(spec.shuffle),
        "remap_ps": spec.port_remap_delay,
        "ev_probe_interval_ps": ev.probe_interval,
        "ev_probe_timeout_ps": ev.probe_timeout,
        "probes_to_readmit": ev.probes_to_readmit,
        "infer": int(loss.infer),
        "spread_ps": loss.spread,
        "spread_max_ps": loss.spread_max,
        "spread_decay_ps": loss.spread_decay,
        "passed_packets": loss.passed_packets,
        "probe_after_ps": loss.probe_after,
        "timeout_ps": TIMEOUT_UNIT_PS << loss.timeout,
        "linear_retries": loss.linear_retries,
        "exponential_retries": loss.exponential_retries,
        "messages": window.messages,
        "message_mask": slots_mask(window.messages),
        "immediates": window.immediates,
        "ack_bytes": window.ack_bytes,
        "ack_packet_bytes": window.ack_packet_bytes,
        "mpr": window.mpr,
        # Published is one in a round trip; a thread cannot do that for nothing, as a NIC can.
        "probe_back_ps": max(spec.congestion.base_rtt, spec.reverse.probe_interval),
        "heard_lately_ps": spec.reverse.heard_lately,
        **_congestion(spec, rate_bps, payload + CONGESTION_OVERHEAD_BYTES),
    }
    assert set(values) == set(PARAMS.names or ()), "every parameter is set here"
    for name, value in values.items():
        row[name] = value
    return row


def slots_mask(count: int) -> int:
    """Return one less than the smallest power of two that is not below `count`."""
    return (1 << (count - 1).bit_length()) - 1


def _congestion(spec: MrcSpec, rate_bps: int, mtu: int) -> dict[str, int]:
    """Return NSCC's constants (facts section 4.4), scaled to the rate and the round trip."""
    rtt_ps = spec.congestion.base_rtt
    bdp = rate_bps * rtt_ps // (8 * PICOSECONDS_PER_SECOND)
    target_ps = round(rtt_ps * Fraction(spec.congestion.target_delay))
    scale_a = Fraction(bdp, _REFERENCE_BDP)
    scale_b = Fraction(target_ps, _REFERENCE_DELAY_PS)
    return {
        "congestion": ALGORITHMS.index(spec.congestion.algorithm),
        "base_rtt_ps": rtt_ps,
        "target_ps": target_ps,
        "bdp": bdp,
        "window_max": max(mtu, round(bdp * Fraction(spec.congestion.max_window))),
        "mtu": mtu,
        "prop_gain": max(1, round(4 * scale_a * scale_b * mtu)),
        "fair_gain": max(1, round(5 * scale_a * mtu)),
        # In 1/1024 of the acknowledged bytes.
        "fast_gain": max(1, round(Fraction(1024, 4) * scale_a)),
        "eta": max(1, round(Fraction(15, 100) * scale_a * mtu)),
        "adjust_bytes": 8 * mtu,
        "quick_adapt": int(spec.congestion.quick_adapt),
        "qa_gate": QUICK_ADAPT_GATE,
        "delay_cuts": int(spec.congestion.delay_cuts),
    }
