"""Power as a resource: budgets of site, feeders and racks, and starts that are staggered so that the draw never jumps.

A GPU that works draws more than an idle one; a job's rise is that difference times its GPUs. A start is cut into waves
so that the site's draw rises no faster than its contract allows; waves of different gangs follow one another, and small
starts have a share of the ramp of their own, so that they do not wait behind a gang's. Pure.
"""

from dataclasses import replace

import numpy as np

from weft.cluster.actions import Wave
from weft.cluster.placement import Column, capped
from weft.cluster.snapshot import FAR_MS, Policy, Power

LANE_SHARE = 10
"""Small starts have one part in this many of the ramp."""
SMALL_SHARE = 100
"""A start is small if it needs less than one part in this many of what may be added in a second."""
WAVE_MS = 250
"""Time between waves: a quarter of the second over which a ramp is measured."""
_SECOND_MS = 1000


def site_left_w(power: Power, policy: Policy, draw_w: int) -> int:
    """Return how many watts more the site may draw."""
    return FAR_MS if power.site_w is None or not policy.power else power.site_w - draw_w


def within(candidates: Column, groups: Column, drawn: Column, budget_w: int | None, node_rise_w: int) -> Column:
    """Return those of `candidates` that a budget by rack or feeder leaves to a job with this rise on each node."""
    if budget_w is None or node_rise_w <= 0 or not len(candidates):
        return candidates
    slots = np.maximum(budget_w - drawn, 0) // node_rise_w
    return capped(candidates, groups, slots)


def rising(power: Power, policy: Policy, nodes: int, node_rise_w: int, now_ms: int) -> tuple[tuple[Wave, ...], Power]:
    """Return the waves in which `nodes` nodes may start, and the budgets with the ramp taken up until then."""
    waves, small, until_ms = _staggered(
        power, policy, nodes, node_rise_w, now_ms, (power.ramp_free_ms, power.lane_free_ms)
    )
    after = replace(power, lane_free_ms=until_ms) if small else replace(power, ramp_free_ms=until_ms)
    return waves, after if until_ms else power


def falling(power: Power, policy: Policy, nodes: int, node_rise_w: int, now_ms: int) -> tuple[tuple[Wave, ...], Power]:
    """Return the waves in which the draw of `nodes` nodes falls when their job ends, and the budgets after that.

    Whoever sees a job end calls this: its nodes are free at once, but keep drawing until their wave.
    """
    waves, small, until_ms = _staggered(
        power, policy, nodes, node_rise_w, now_ms, (power.fall_free_ms, power.fall_lane_free_ms)
    )
    after = replace(power, fall_lane_free_ms=until_ms) if small else replace(power, fall_free_ms=until_ms)
    return waves, after if until_ms else power


def _staggered(  # noqa: PLR0917 - the arguments of its two callers, and whose ledger
    power: Power, policy: Policy, nodes: int, node_rise_w: int, now_ms: int, free: tuple[int, int]
) -> tuple[tuple[Wave, ...], bool, int]:
    """Return waves, whether the change is small, and until when its share of the ramp is taken; 0 where none is.

    A wave of w watts takes its share of the ramp up for w over the share's rate. Within any second the waves that begin
    then, all but the last, have taken up no more than that second, so their sum is at most the rate and one wave: the
    rates leave room for it.
    """
    ramp = power.ramp_w_per_s
    if ramp is None or not policy.power or node_rise_w <= 0:
        return (), False, 0
    whole_w = nodes * node_rise_w
    small = whole_w * SMALL_SHARE <= ramp
    share = ramp // LANE_SHARE if small else ramp - ramp // LANE_SHARE
    rate = max(1, share - ramp // SMALL_SHARE if small else share * _SECOND_MS // (_SECOND_MS + WAVE_MS))
    begin_ms = max(now_ms, free[small])
    until_ms = begin_ms - (-whole_w * _SECOND_MS // rate)
    if small or whole_w * _SECOND_MS <= rate * WAVE_MS:
        return ((Wave(begin_ms - now_ms, nodes),) if begin_ms > now_ms else ()), small, until_ms
    # A node that alone rises by more than a wave may add starts every few waves.
    each = max(1, rate * WAVE_MS // _SECOND_MS // node_rise_w)
    step_ms = max(WAVE_MS, -(-each * node_rise_w * _SECOND_MS // rate))
    counts = [each] * (nodes // each) + ([nodes % each] if nodes % each else [])
    waves = tuple(Wave(begin_ms - now_ms + number * step_ms, count) for number, count in enumerate(counts))
    return waves, small, begin_ms + len(counts) * step_ms


def earliest_ms(ends_ms: Column, watts: Column, lacking_w: int) -> int:
    """Return when running jobs have given back `lacking_w` watts, by what they declare."""
    order = np.argsort(ends_ms, kind="stable")
    back = np.cumsum(watts[order])
    at = int(np.searchsorted(back, lacking_w))
    return int(ends_ms[order[at]]) if at < len(order) else FAR_MS
