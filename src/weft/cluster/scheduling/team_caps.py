"""What a team may have at most, by time: a job that waits for that is not passed by later ones of its team for ever.

Where a team has all that it may have, the first of its jobs that waits for this is to it what the head is to the pool:
later ones start before it only if they are over by the time that enough of the team's GPUs are back, or if they leave
it enough. Pure; knows nothing of nodes.
"""

import numpy as np

from weft.cluster.records.snapshot import FAR_MS
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.state import ClusterState


def held_soon(cluster: ClusterState) -> Column:
    """Return how many GPUs each team has, those apart whose jobs were asked to leave."""
    running, held = cluster.running, cluster.shares.held
    leaving = running.mask("leaving")
    if not leaving.any():
        return held
    gpus = (running.column("nodes") * running.column("gpus"))[leaving]
    return held - np.bincount(running.column("team")[leaving], weights=gpus, minlength=len(held)).astype(np.int64)


def crowding(cluster: ClusterState, barred: Flags, jobs: tuple[Column, Column, Column], now_ms: int) -> Flags:
    """Return who would use up what a job of its team waits for that stands before it.

    `barred` holds who waits for that, in the order of the queue, and `jobs` every job's team, GPUs and limit.
    """
    team, total, limit_ms = jobs
    found = np.zeros(len(team), dtype=bool)
    waiting = np.flatnonzero(barred)
    teams, first = np.unique(team[waiting], return_index=True)
    for number, at in zip(teams.tolist(), waiting[first].tolist(), strict=True):
        later = team == number
        later[: at + 1] = False
        if not later.any():
            continue
        start_ms, slack = _start_of(cluster, number, int(total[at]))
        found |= later & (total > slack) & (limit_ms > start_ms - now_ms)
    return found


def _start_of(cluster: ClusterState, team: int, total: int) -> tuple[int, int]:
    """Return by when a team may have `total` GPUs more, by what its jobs declare, and how many it may have besides."""
    running, shares = cluster.running, cluster.shares
    left = int(shares.most[team] - shares.held[team]) - total
    rows = np.flatnonzero(running.mask("live") & (running.column("team") == team))
    back_ms = running.column("back_ms")[rows]
    order = np.argsort(back_ms, kind="stable")
    gpus = (running.column("nodes") * running.column("gpus"))[rows][order]
    back_ms, freed = back_ms[order], np.cumsum(gpus)
    at = int(np.searchsorted(freed, -left))
    if at >= len(rows) or back_ms[at] >= FAR_MS:
        return 0, min(left, 0)
    last = int(np.searchsorted(back_ms, back_ms[at], side="right")) - 1
    return int(back_ms[at]), left + int(freed[last])
