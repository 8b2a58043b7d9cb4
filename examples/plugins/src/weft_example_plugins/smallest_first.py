"""A scheduling policy: the smallest gang first, whoever owns it. Aged jobs still go before all others.

It shortens the mean wait and lets large gangs wait longest, which is why weft's own policy does not do it.
"""

import numpy as np

from weft.cluster.scheduling.fair_share import Shares
from weft.cluster.scheduling.placement import Column
from weft.cluster.scheduling.queue import COLUMNS, Queue
from weft.cluster.scheduling.rules import BUILT_IN, SchedulingRules, rules_of

_GPUS_IN_ALL = COLUMNS.index("total")


def smallest_first(queue: Queue, shares: Shares, now_ms: int) -> tuple[Column, int]:
    """Return weft's order with the jobs behind the aged ones sorted by GPUs; equal ones keep their order."""
    rows, aged = queue.order(now_ms, shares)
    others = rows[aged:]
    by_size = np.argsort(queue.table[_GPUS_IN_ALL, others], kind="stable")
    return np.concatenate([rows[:aged], others[by_size]]), aged


POLICY = SchedulingRules(order=smallest_first, place=rules_of(BUILT_IN).place)
