"""The queue's part of a pass: one cycle over all that wait, or over the first of a line that nobody may pass.

Around `backfill.SchedulingCycle`, which decides; `cluster.plan` calls both functions.
"""

from weft.cluster.records.actions import Action, Wait
from weft.cluster.records.wait_reasons import REMEDIES, TEXTS
from weft.cluster.scheduling.backfill import SchedulingCycle
from weft.cluster.scheduling.state import ClusterState

_DEPTH, _DEEPER = 64, 8
"""Jobs that are looked at first where nobody may pass a blocked one, and by what that grows if none was."""


def queue_pass(cluster: ClusterState, now_ms: int) -> list[Action]:
    """Consider every waiting job once; the state takes every action as carried out."""
    cluster.wake_ms = None
    if not len(cluster.queue):
        cluster.reservation = None
        return []
    if cluster.policy.backfill:
        return SchedulingCycle(cluster, now_ms).run()
    # Nobody passes the first that is blocked: the rest of a long queue need not be looked at.
    actions: list[Action] = []
    depth = _DEPTH
    while True:
        cycle = SchedulingCycle(cluster, now_ms, depth)
        actions += cycle.run()
        if cycle.head is not None or not len(cycle.beyond):
            return actions + cycle.beyond_waits()
        depth *= _DEEPER


def held(cluster: ClusterState) -> list[Action]:
    """Tell the jobs that stand in no line why."""
    return [
        Wait(name, reason.code, TEXTS[reason], None, cluster.jobs[name].after, (), REMEDIES[reason])
        for name, reason in sorted(cluster.held.items())
        if cluster.jobs[name].last_wait_code != reason.code
    ]
