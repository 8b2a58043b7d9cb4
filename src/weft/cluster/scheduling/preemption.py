"""Who leaves for whom: the cheapest jobs by what they would lose on the same nodes, asked first and made to go later.

Two rights make others leave. Priority: a blocked job whose priority is higher by a gap. Quota: a blocked job within its
team's quota reclaims what other teams have borrowed for jobs of no higher priority, within a bounded time (their other
jobs leave where those that borrowed are on the wrong nodes, as long as the team keeps its quota). Who may make
another leave also stands before it in the queue, so that nobody leaves in vain. A gang needs its GPUs on each node:
nodes are chosen by what it costs to clear them, and those leave who are on them. Nobody leaves before its minimum run
time, except that a borrower's is bounded by the reclaim time, and that a job which began while the more urgent one
already waited has none against it; services leave last. An elastic gang gives nodes back
instead of leaving where that is enough. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from weft.cluster.records.actions import Preempt, Resize, Stop
from weft.cluster.records.job import Job, JobState
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.scheduling.topology import shape_of


@dataclass(frozen=True, slots=True)
class Want:
    """What a blocked job asks of others."""

    job: Job
    nodes: int
    """Nodes that must have its GPUs free."""
    in_quota: bool
    """Whether its team is within its quota with it."""
    soon_ms: int
    """What comes back by then needs nobody to leave."""
    total: int = 0
    """GPUs that must be free in all, those that are kept for the fast lane included; 0 where only nodes count."""
    closed: Flags | None = None
    """Nodes that are drained for somebody else: nobody leaves them for it."""
    own: int = 0
    """GPUs that its own team must give back, as it has all that it may have."""


def horizon_ms(cluster: ClusterState) -> int:
    """Return how soon nodes must come back for nobody to be asked to leave."""
    return max(cluster.policy.grace_most_ms, cluster.policy.reclaim_ms)


def make_room(cluster: ClusterState, want: Want, now_ms: int) -> list[Preempt | Resize]:
    """Return who is asked to leave, or to shrink, for a blocked job; nothing where they would not be enough."""
    running, policy = cluster.running, cluster.policy
    lowest = min(running.by_priority, default=want.job.priority)
    if lowest > want.job.priority - policy.preempt_gap and not (want.in_quota and running.borrowers):
        return []
    by_priority = running.column("priority") <= want.job.priority - policy.preempt_gap
    team = cluster.shares.index[want.job.team]
    over = (cluster.shares.held > cluster.shares.quota)[running.column("team")]
    foreign = over & (running.column("team") != team) & (running.column("priority") <= want.job.priority)
    foreign &= want.in_quota
    by_quota = foreign & running.mask("borrowed")
    settled_ms = running.column("start_ms") + running.column("min_run_ms")
    settled = (settled_ms <= now_ms) | (running.column("start_ms") > want.job.submit_ms)
    free = running.mask("live") & ~running.mask("leaving")
    able = free & ((by_priority & settled) | by_quota)
    want = shaped(cluster, want, np.flatnonzero(able), running.lost_gpu_ms(now_ms))
    clearing = _Clearing(cluster, want)
    lacks = clearing.wanted > 0 or clearing.short > 0 or want.own > 0
    if not lacks or int(clearing.own_gpus[able & by_priority & settled].sum()) < want.own:
        return []
    shrunk = _shrink(cluster, np.flatnonzero(able & (running.column("shrinks") > 0)), clearing)
    if shrunk and want.own <= 0:
        return shrunk
    chosen = clearing.cheapest(able, by_priority & settled, now_ms)
    if not chosen and by_quota.any():
        # What a team has beyond its quota may lie on the wrong nodes: then others of its jobs leave instead.
        chosen = clearing.cheapest(able | (free & foreign & settled), by_priority & settled, now_ms)
    if not chosen and (young := free & by_priority & ~settled).any():
        cluster.wake_by(int(settled_ms[young].min()))
    lost = running.lost_gpu_ms(now_ms)
    found: list[Preempt | Resize] = []
    for row in chosen:
        job = cluster.jobs[running.ids[row]]
        reason = "priority" if by_priority[row] and settled[row] else "reclaim"
        by_ms = leave_by_ms(cluster, job, reason, now_ms)
        found.append(Preempt(job.id, "ask", reason, by_ms, want.job.id, int(lost[row])))
    return found


def give_way(cluster: ClusterState, want: Want, now_ms: int, staying: Flags) -> list[Preempt]:
    """Return who leaves as it was let past a blocked job that could start without it; nobody where that is not enough.

    Only those that would stand behind it again: they would take their GPUs back otherwise. Who writes checkpoints
    gets its grace to write one, the others leave at once: what they have is lost in any case.
    """
    running, job, policy = cluster.running, want.job, cluster.policy
    if not running.let_past:
        return []
    able = running.mask("let_past") & ~running.mask("leaving") & ~staying
    # Who came later has no claim on what began before, unless it stands above it.
    able &= (running.column("start_ms") >= job.submit_ms) | (running.column("priority") < job.priority)
    columns = (
        running.column("priority"),
        running.column("team"),
        running.column("submit_ms"),
        running.mask("borrowed"),
    )
    able &= behind(cluster, want, columns)
    if not able.any():
        return []
    lost = running.lost_gpu_ms(now_ms)
    want = shaped(cluster, want, np.flatnonzero(able), lost)
    found: list[Preempt] = []
    # A borrower whose team came below its quota without it would be covered, and go before the one that it left for.
    certain = able if want.in_quota or not (policy.fair and policy.borrow) else able & _by_place(cluster, job)
    for row in _Clearing(cluster, want).cheapest(able, certain, now_ms):
        other = cluster.jobs[running.ids[row]]
        writes = other.checkpoint_every_ms is not None or other.checkpoint_ms is not None
        by_ms = now_ms + (min(other.grace_ms, policy.grace_most_ms) if writes else 0)
        found.append(Preempt(other.id, "ask" if writes else "evict", "backfill", by_ms, job.id, int(lost[row])))
    return found


def _by_place(cluster: ClusterState, job: Job) -> Flags:
    """Return which running jobs would stand behind one whatever any quota covers."""
    running = cluster.running
    below = (running.column("priority") < job.priority) & cluster.policy.priorities
    return below | (running.column("team") == cluster.shares.index[job.team])


def called_back(cluster: ClusterState, job: Job, now_ms: int) -> tuple[int, Column | None]:
    """Return by when all have left that were asked for a job, and their GPUs of each node if any of them gave way."""
    asked = [cluster.jobs[each] for each in cluster.running.leaving() if cluster.jobs[each].asked_for == job.id]
    # Others that were asked for it leave the same nodes: what they give back is no more for others than the rest.
    called: Column | None = np.zeros_like(cluster.pool.taken) if any(each.let_past for each in asked) else None
    for each in asked:
        if called is not None and each.placement is not None:
            called[cluster.nodes_of[each.id]] += each.placement.gpus_per_node
    return max([now_ms, *(each.leave_by_ms or 0 for each in asked)]), called


def behind(cluster: ClusterState, want: Want, columns: tuple[Column, Column, Column, Flags]) -> Flags:
    """Return which jobs would stand behind one: by priority, team, submission, and whether they are above a quota."""
    job, policy, shares = want.job, cluster.policy, cluster.shares
    priority, teams, submit_ms, borrowed = columns
    below = priority < job.priority if policy.priorities else np.zeros(len(priority), dtype=bool)
    equal = priority == job.priority if policy.priorities else ~below
    later = submit_ms >= job.submit_ms
    if not policy.fair:
        return below | (equal & later)
    # Teams take turns; a line is covered in its order, and whoever a quota covers goes before those that it does not.
    own = teams == shares.index[job.team]
    asked = job.gang.fewest * job.gang.gpus_per_node
    beyond = policy.borrow and not want.in_quota
    alone = beyond and asked > shares.quota[shares.index[job.team]]
    uncovered = borrowed if beyond else np.ones(len(priority), dtype=bool)
    return below | (equal & np.where(own, later & (uncovered | (not alone)), uncovered))


def shaped(cluster: ClusterState, want: Want, rows: Column, lost_gpu_ms: Column) -> Want:
    """Return what a job asks for on nodes of the shape that it requires, those that cost the least to clear."""
    pool, gang = cluster.pool, want.job.gang
    if (shape := shape_of(pool, gang)) is None:
        return want
    soon = pool.free_at(want.soon_ms)
    freed, cost = np.zeros_like(soon), np.zeros(pool.count)
    for row in rows.tolist():
        nodes = cluster.nodes_of[cluster.running.ids[row]]
        freed[nodes] += cluster.running.column("gpus")[row]
        cost[nodes] += 1 + lost_gpu_ms[row] / len(nodes)
    cost[soon >= gang.gpus_per_node] = 0
    able = pool.able(gang.gpus_per_node, degraded=want.job.takes_degraded) & (soon + freed >= gang.gpus_per_node)
    able = able if want.closed is None else able & ~want.closed
    nodes = np.flatnonzero(able)
    closed = np.ones(pool.count, dtype=bool)
    closed[shape.cheapest(nodes, cost[nodes], gang.fewest)] = False
    return replace(want, nodes=gang.fewest, closed=closed)


def leave_by_ms(cluster: ClusterState, job: Job, reason: str, now_ms: int) -> int:
    """Return when a job that is asked now must be gone."""
    assert job.start_ms is not None
    grace_ms = min(job.grace_ms, cluster.policy.grace_most_ms)
    if reason != "reclaim":
        return now_ms + grace_ms
    return min(now_ms + cluster.policy.reclaim_ms, max(now_ms, job.start_ms + job.min_run_ms) + grace_ms)


def overdue(cluster: ClusterState, now_ms: int) -> list[Preempt | Stop]:
    """Return the jobs whose time is over: past their limit for good, past their grace to wait again."""
    found: list[Preempt | Stop] = []
    for job in cluster.overdue(now_ms):
        assert job.start_ms is not None
        if job.limit_ms is not None and job.start_ms + job.limit_ms <= now_ms:
            found.append(Stop(job.id, "failed", "limit"))
        else:
            found.append(Preempt(job.id, "evict", "grace", now_ms, job.asked_for))
    return found


def orphans(cluster: ClusterState) -> list[Stop]:
    """Return the jobs that come after one that did not end well: they are cancelled."""
    bad = (JobState.FAILED, JobState.CANCELLED)
    return [
        Stop(name, "cancelled", "dependency")
        for name in sorted(cluster.held)
        if any(cluster.ended.get(each) in bad for each in cluster.jobs[name].after)
    ]


class _Clearing:
    """Nodes that lack GPUs for a job, and the search for jobs whose leaving gives it enough of them."""

    def __init__(self, cluster: ClusterState, want: Want) -> None:
        """Look at the nodes that could serve the job and will not by themselves."""
        self.cluster = cluster
        pool, gpus = cluster.pool, want.job.gang.gpus_per_node
        able = pool.able(gpus, degraded=want.job.takes_degraded)
        able = able if want.closed is None else able & ~want.closed
        soon = pool.free_at(want.soon_ms)
        self.wanted = want.nodes - int(np.count_nonzero(able & (soon >= gpus)))
        """Nodes that are still lacking."""
        self.lacking = np.where(able & (soon < gpus), gpus - soon, 0)
        """GPUs that each node lacks; 0 where it lacks none or cannot serve."""
        self.short = max(0, want.total - int(soon.sum()))
        """GPUs that are still lacking, wherever they are."""
        running = cluster.running
        self.gpus = running.column("gpus")
        self.own = want.own
        """GPUs that its own team must give back."""
        self.is_own: Flags = (running.column("team") == cluster.shares.index[want.job.team]) & (want.own > 0)
        self.own_gpus = running.column("nodes") * self.gpus * self.is_own

    def cheapest(self, able: Flags, by_priority: Flags, now_ms: int) -> list[int]:
        """Return rows of jobs that clear enough nodes between them, the cheapest nodes first."""
        return [] if self._hopeless(able, by_priority) else self._searched(able, by_priority, now_ms)

    def _searched(self, able: Flags, by_priority: Flags, now_ms: int) -> list[int]:
        running = self.cluster.running
        share = running.lost_gpu_ms(now_ms) / np.maximum(running.column("nodes"), 1)
        # Some of its own team leave in any case: their nodes are the cheapest.
        share = np.where(self.is_own, 0.0, share)
        first = self._nodes_by_cost(np.flatnonzero(able), share)
        # Borrowers leave only while their team is above its quota, others only where it stays at it.
        spare = (self.cluster.shares.held - self.cluster.shares.quota).tolist()
        team_of, borrowed, widths = running.column("team").tolist(), running.mask("borrowed"), running.column("nodes")
        left = self.lacking.copy()
        chosen: dict[int, None] = {}
        cleared = 0
        for node, rows in first:
            if cleared >= self.wanted:
                break
            if left[node] <= 0:
                continue
            leaving: list[int] = []
            owed = int(left[node])
            for row in rows:
                team, gpus = team_of[row], self.gpus.item(row)
                all_gpus = gpus * widths.item(row)
                least = 0 if by_priority[row] else 1 if borrowed[row] else all_gpus
                if owed <= 0 or row in chosen or (least and spare[team] < least):
                    continue
                spare[team] -= 0 if by_priority[row] else all_gpus
                leaving.append(row)
                owed -= gpus
            if owed > 0:
                for row in leaving:
                    all_gpus = self.gpus.item(row) * widths.item(row)
                    spare[team_of[row]] += 0 if by_priority[row] else all_gpus
                continue
            for row in leaving:
                chosen[row] = None
                cleared += self._vacate(left, row, 1)
        if cleared < self.wanted:
            return []
        needed = self._without_needless(list(chosen), left, cleared)
        others = np.flatnonzero(able)[np.argsort(share[able], kind="stable")].tolist()
        rest = [row for row in others if by_priority[row] or (borrowed[row] and spare[team_of[row]] > 0)]
        own = [row for row in rest if self.is_own[row] and by_priority[row]]
        with_own = self._with_more(needed, own, self.own, self.is_own)
        return self._with_more(with_own, rest, self.short, self.is_own | True)

    def _hopeless(self, able: Flags, by_priority: Flags) -> bool:
        """Return whether nobody needs to leave, or not even all who may would do: most searches end here."""
        running = self.cluster.running
        if max(self.wanted, self.short, self.own) <= 0:
            return True
        all_gpus = running.column("nodes") * self.gpus
        if self.wanted <= 0 or int(all_gpus[able].sum()) < self.short:
            return self.short > 0 and int(all_gpus[able].sum()) < self.short
        spare = (self.cluster.shares.held - self.cluster.shares.quota)[running.column("team")]
        may = able & (by_priority | (spare >= np.where(running.mask("borrowed"), 1, all_gpus)))
        rows = np.flatnonzero(may)
        held = [self.cluster.nodes_of[running.ids[row]] for row in rows.tolist()]
        if not held:
            return True
        gpus = np.repeat(self.gpus[rows], running.column("nodes")[rows])
        freed = np.bincount(np.concatenate(held), weights=gpus, minlength=len(self.lacking))
        return int(np.count_nonzero((self.lacking > 0) & (freed >= self.lacking))) < self.wanted

    def _with_more(self, chosen: list[int], others: list[int], wanted: int, counts: Flags) -> list[int]:
        """Add those whose going frees so many GPUs, of jobs that count; nobody where that fails."""
        running = self.cluster.running
        gpus = running.column("nodes") * running.column("gpus") * counts
        freed = int(gpus[chosen].sum())
        found = list(chosen)
        for row in sorted(others, key=lambda row: int(running.column("service")[row])):
            if freed >= wanted:
                break
            if row not in chosen:
                found.append(row)
                freed += int(gpus[row])
        return found if freed >= wanted else []

    def _vacate(self, left: Column, row: int, sign: int) -> int:
        """Take a job's GPUs off what its nodes lack; return how many nodes that clears."""
        running = self.cluster.running
        nodes = self.cluster.nodes_of[running.ids[row]]
        if len(nodes) == 1:
            # Most are on one node, and numbers are ten times as quick as columns of one.
            node, gpus = nodes.item(), sign * self.gpus.item(row)
            owed = left.item(node)
            left[node] = owed - gpus * (self.lacking.item(node) > 0)
            return int(owed > 0 >= left.item(node)) - int(owed <= 0 < left.item(node))
        nodes = nodes[self.lacking[nodes] > 0]
        before = int(np.count_nonzero(left[nodes] <= 0))
        left[nodes] -= sign * int(running.column("gpus")[row])
        return int(np.count_nonzero(left[nodes] <= 0)) - before

    def _without_needless(self, chosen: list[int], left: Column, cleared: int) -> list[int]:
        """Leave out who turned out not to be needed, the largest first."""
        running = self.cluster.running
        for row in sorted(chosen, key=lambda row: -int(running.column("nodes")[row] * running.column("gpus")[row])):
            change = self._vacate(left, row, -1)
            if cleared + change >= self.wanted:
                chosen.remove(row)
                cleared += change
            else:
                self._vacate(left, row, 1)
        return chosen

    def _nodes_by_cost(self, rows: Column, share: npt.NDArray[np.float64]) -> Iterator[tuple[int, list[int]]]:
        """Return the nodes that can be cleared, the cheapest first, each with its jobs, the cheapest first."""
        running, nodes_of = self.cluster.running, self.cluster.nodes_of
        if not len(rows):
            return
        held = [nodes_of[running.ids[row]] for row in rows.tolist()]
        node = np.concatenate(held)
        row = np.repeat(rows, [len(each) for each in held])
        there = self.lacking[node] > 0
        node, row = node[there], row[there]
        gpus, service = running.column("gpus")[row], running.column("service")[row]
        cost = share[row]
        order = np.lexsort((row, cost / np.maximum(gpus, 1), service, node))
        node, row, gpus, service, cost = (each[order] for each in (node, row, gpus, service, cost))
        heads, begins = np.unique(node, return_index=True)
        ends = np.append(begins[1:], len(node))
        reached = np.cumsum(gpus)
        before = reached - gpus
        base = np.repeat(before[begins], ends - begins) if len(heads) else before
        needed = before - base < self.lacking[node]
        price = np.add.reduceat(cost * needed, begins) if len(heads) else cost
        services = np.add.reduceat(service * needed, begins) if len(heads) else service
        enough = np.add.reduceat(gpus, begins) >= self.lacking[heads] if len(heads) else services > 0
        turn = np.lexsort((heads, price, services))
        # Few of thousands of nodes are cleared: the others' rows are never asked for.
        for at in turn[enough[turn]].tolist():
            yield int(heads[at]), row[begins[at] : ends[at]].tolist()


def _shrink(cluster: ClusterState, rows: Column, clearing: _Clearing) -> list[Preempt | Resize]:
    """Return elastic gangs that give back enough nodes between them, the widest first; nothing if too few."""
    room = cluster.running.column("shrinks")[rows]
    wanted = clearing.wanted
    if int(room.sum()) < wanted:
        return []
    found: list[Preempt | Resize] = []
    for row in rows[np.argsort(-room, kind="stable")].tolist():
        if wanted <= 0:
            break
        job = cluster.jobs[cluster.running.ids[row]]
        placement = job.placement
        assert placement is not None
        lacking = clearing.lacking[list(placement.nodes)]
        useful = np.flatnonzero((lacking > 0) & (lacking <= placement.gpus_per_node))[::-1].tolist()
        most = (len(placement.nodes) - job.gang.fewest) // job.gang.step * job.gang.step
        given = min(most, -(-min(wanted, len(useful)) // job.gang.step) * job.gang.step)
        if given <= 0:
            continue
        # The last ranks go first; whole replicas leave, whether or not all of their nodes are of use.
        others = [at for at in reversed(range(len(placement.nodes))) if at not in useful]
        gone = set([*useful, *others][:given])
        wanted -= min(given, len(useful))
        kept = [at for at in range(len(placement.nodes)) if at not in gone]
        nodes = tuple(placement.nodes[at] for at in kept)
        devices = tuple(placement.devices[at] for at in kept) if placement.devices else ()
        found.append(Resize(job.id, replace(placement, nodes=nodes, devices=devices), "shrink"))
    return found if wanted <= 0 else []
