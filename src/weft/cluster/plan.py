"""`plan`: from a cluster's state to what is to be done; every engine and every replay carries out the same.

`plan(snapshot, now_ms)` is one pass over a fresh `ClusterState`. An engine keeps one, tells it what has changed and
calls `decide`, which makes the same pass over it; tests hold the two equal.
"""

from weft.cluster.health.idle_tests import idle_tests
from weft.cluster.health.quarantine import health_pass
from weft.cluster.records.actions import Action, Wait
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.recovery.gang_recovery import emptied, recover_gangs
from weft.cluster.scheduling.elastic import growth
from weft.cluster.scheduling.preemption import orphans, overdue
from weft.cluster.scheduling.queue_pass import held, queue_pass
from weft.cluster.scheduling.state import ClusterState


def plan(snapshot: Snapshot, now_ms: int) -> tuple[Action, ...]:
    """Return what is to be done with the cluster at `now_ms`; same snapshot, same actions."""
    return decide(ClusterState(snapshot), now_ms)


def decide(cluster: ClusterState, now_ms: int) -> tuple[Action, ...]:
    """Make one pass over a state and return what is to be done; the state takes it as carried out."""
    cluster.shares.advance(now_ms)
    actions = [*health_pass(cluster, now_ms), *recover_gangs(cluster, now_ms), *emptied(cluster, now_ms)]
    over = [*overdue(cluster, now_ms), *orphans(cluster)]
    for action in over:
        cluster.take_up(action, now_ms)
    actions += over
    actions += queue_pass(cluster, now_ms)
    actions += growth(cluster, now_ms)
    actions += idle_tests(cluster, now_ms)
    actions += held(cluster)
    for action in actions:
        if isinstance(action, Wait):
            cluster.take_up(action, now_ms)
    cluster.planned_ms = now_ms
    return tuple(actions)
