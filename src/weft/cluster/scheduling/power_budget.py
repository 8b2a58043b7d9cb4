"""Power as a resource: budgets of site, feeders and racks, and starts that are staggered so that the draw never jumps.

A GPU that works draws more than an idle one; a job's rise is that difference times its GPUs. A start is cut into waves
so that the site's draw rises no faster than its contract allows; waves of different gangs follow one another, and small
starts have a share of the ramp of their own, so that they do not wait behind a gang's. Pure.
"""

from dataclasses import replace

import numpy as np

from weft.cluster.records.actions import Wave
from weft.cluster.records.snapshot import FAR_MS, Power, SchedulingPolicy
from weft.cluster.scheduling.placement import Column, capped

LANE_SHARE = 10
"""Small starts have one part in this many of the ramp."""
SMALL_SHARE = 100
"""A start is small if it needs less than one part in this many of what may be added in a second."""
WAVE_MS = 250
"""Time between waves: a quarter of the second over which a ramp is measured."""
_SECOND_MS = 1000


def site_left_w(power: Power, policy: SchedulingPolicy, draw_w: int) -> int:
    """Return how many watts more the site may draw."""
    return FAR_MS if power.site_w is None or not policy.power else power.site_w - draw_w


def within(candidates: Column, groups: Column, drawn: Column, budget_w: int | None, node_rise_w: int) -> Column:
    """Return those of `candidates` that a budget by rack or feeder leaves to a job with this rise on each node."""
    if budget_w is None or node_rise_w <= 0 or not len(candidates):
        return candidates
    slots = np.maximum(budget_w - drawn, 0) // node_rise_w
    return capped(candidates, groups, slots)


class Ramp:
    """Until when each share of the ramp is taken: for rises and falls, for gangs and small ones; one owner."""

    def __init__(self, power: Power, policy: SchedulingPolicy) -> None:
        """Begin where `power` says."""
        self.limit_w_per_s = power.ramp_w_per_s if policy.power else None
        self._rises = [power.ramp_free_ms, power.lane_free_ms]
        self._falls = [power.fall_free_ms, power.fall_lane_free_ms]

    def record(self, power: Power) -> Power:
        """Return the budgets with what the ramp is busy with now."""
        (gang, lane), (fall, fall_lane) = self._rises, self._falls
        return replace(power, ramp_free_ms=gang, lane_free_ms=lane, fall_free_ms=fall, fall_lane_free_ms=fall_lane)

    def rise(self, nodes: int, node_rise_w: int, now_ms: int) -> tuple[Wave, ...]:
        """Return the waves in which `nodes` nodes may start; empty for all of them now."""
        return self._waves(self._rises, nodes, node_rise_w, now_ms)

    def fall(self, nodes: int, node_rise_w: int, now_ms: int) -> tuple[Wave, ...]:
        """Return the waves in which the draw of `nodes` nodes falls when their job ends; empty for all of them now.

        Whoever sees a job end calls this: its nodes are free at once, but keep drawing until their wave.
        """
        return self._waves(self._falls, nodes, node_rise_w, now_ms)

    def _waves(self, free_ms: list[int], nodes: int, node_rise_w: int, now_ms: int) -> tuple[Wave, ...]:
        """Return waves and take up their share of the ramp.

        A wave of w watts takes its share up for w over the share's rate. Of the waves that begin within any second all
        but the last have taken up no more than that second, so their sum is at most the rate and one wave: the rates
        leave room for it.
        """
        ramp = self.limit_w_per_s
        if ramp is None or node_rise_w <= 0:
            return ()
        whole_w = nodes * node_rise_w
        small = whole_w * SMALL_SHARE <= ramp
        share = ramp // LANE_SHARE if small else ramp - ramp // LANE_SHARE
        rate = max(1, share - ramp // SMALL_SHARE if small else share * _SECOND_MS // (_SECOND_MS + WAVE_MS))
        begin_ms = max(now_ms, free_ms[small])
        if small or whole_w * _SECOND_MS <= rate * WAVE_MS:
            free_ms[small] = begin_ms - (-whole_w * _SECOND_MS // rate)
            return (Wave(begin_ms - now_ms, nodes),) if begin_ms > now_ms else ()
        # A node that alone rises by more than a wave may add starts every few waves.
        each = max(1, rate * WAVE_MS // _SECOND_MS // node_rise_w)
        step_ms = max(WAVE_MS, -(-each * node_rise_w * _SECOND_MS // rate))
        counts = [each] * (nodes // each) + ([nodes % each] if nodes % each else [])
        free_ms[small] = begin_ms + len(counts) * step_ms
        return tuple(Wave(begin_ms - now_ms + number * step_ms, count) for number, count in enumerate(counts))


def earliest_ms(ends_ms: Column, watts: Column, lacking_w: int) -> int:
    """Return when running jobs have given back `lacking_w` watts, by what they declare."""
    order = np.argsort(ends_ms, kind="stable")
    back = np.cumsum(watts[order])
    at = int(np.searchsorted(back, lacking_w))
    return int(ends_ms[order[at]]) if at < len(order) else FAR_MS
