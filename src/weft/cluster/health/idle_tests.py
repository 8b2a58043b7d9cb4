"""Tests of idle nodes, the least recently tested first; a test gives way to work at once.

The least recently tested node comes first, so that how long it takes to look at every node once is a number, not a
hope. Pure.
"""

import numpy as np

from weft.cluster.records.actions import RunTest
from weft.cluster.scheduling.state import ClusterState

TEST_MOST_MS = 3_600_000
"""A test of an idle node that has not reported by then is taken as lost."""


def idle_tests(cluster: ClusterState, now_ms: int) -> list[RunTest]:
    """Return the tests of idle nodes that begin now; the state takes them as begun."""
    most = cluster.policy.test_at_once
    if not most:
        return []
    pool = cluster.pool
    empty = (pool.usable > 0) & (pool.taken == 0)
    begun = empty & (pool.idle_test_ms > pool.tested_ms) & (pool.idle_test_ms > now_ms - TEST_MOST_MS)
    due = empty & ~begun & ((pool.tested_ms < 0) | (pool.tested_ms <= now_ms - cluster.policy.test_every_ms))
    room = most - int(np.count_nonzero(begun))
    waiting = np.flatnonzero(due)
    if room <= 0 or not len(waiting):
        return []
    first = waiting[np.argsort(pool.tested_ms[waiting], kind="stable")[:room]]
    found = [RunTest(number, "idle", idle=True) for number in first.tolist()]
    for action in found:
        cluster.take_up_node(action, now_ms)
    return found


def hours_to_validate(nodes: int, idle_share: float, at_once: int, test_ms: int) -> float:
    """Return how long it takes to test every node once in its idle time, `at_once` at a time (0: all that are idle)."""
    idle = idle_share * nodes
    together = min(idle, at_once) if at_once else idle
    return float("inf") if together <= 0 else nodes * test_ms / together / 3_600_000
