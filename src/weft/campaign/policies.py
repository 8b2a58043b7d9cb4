"""Policies by name, to be replayed side by side: weft's own, what others do, and weft's with one rule left out.

Rules of other distributions (`cluster.scheduling.rules`) are policies too: weft's numbers, their order and placement.
"""

from dataclasses import replace

from weft.cluster.records.snapshot import SchedulingPolicy
from weft.cluster.scheduling.rules import rule_names
from weft.core.errors import UsageError

LANE_SHARE = 0.01
"""Share of the GPUs that the fast lane keeps."""
_PLAIN = SchedulingPolicy(backfill=False, preempt=False, priorities=False, fair=False, power=False)

NAMES = {
    "weft": "priorities, fair share, quotas, reservations with backfill, preemption, fast lane, power",
    "fifo": "in the order of submission; whoever does not fit stops all behind it",
    "backfill-only": "in the order of submission, with backfill that does not delay the first (EASY)",
    "no-preempt": "weft's, but nobody is asked to leave",
    "no-lane": "weft's, without nodes kept for small experiments",
    "no-power": "weft's, without budgets and ramps",
}
"""Every policy and what it is."""


def policy_of(name: str) -> SchedulingPolicy:
    """Return a policy by name."""
    full = SchedulingPolicy(lane_share=LANE_SHARE)
    table = {
        "weft": full,
        "fifo": _PLAIN,
        "backfill-only": replace(_PLAIN, backfill=True),
        "no-preempt": replace(full, preempt=False),
        "no-lane": replace(full, lane_share=0),
        "no-power": replace(full, power=False),
    }
    if name in table:
        return table[name]
    if name in rule_names():
        return replace(full, rules=name)
    known = dict.fromkeys((*table, *rule_names()))
    raise UsageError(f"there is no policy {name!r}; there are: {', '.join(known)}")
