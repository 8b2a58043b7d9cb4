"""One pass of the controller, pure: what was seen and what was decided go in, what is to be written comes out.

`reconcile` puts what has changed into the scheduler's state, asks `weft.cluster` what is to be done, and compares what
was decided with what the server holds. No I/O, no clock, no client: everything comes in as an `Observation` and a time.
A decision is written into a job's status before anything is done for it, so the controller may die between any two
writes. It decides nothing itself about who runs where.
"""

import logging
from collections.abc import Sequence, Set
from dataclasses import replace

from weft.cluster.health.tickets import ticket_document
from weft.cluster.lifecycle import ProcessEnd, Tries, outcome_of, pod_rules
from weft.cluster.records import actions
from weft.cluster.records.effects import after_reports, checkpointed, ended, witnessed
from weft.cluster.records.encoding import as_plain
from weft.cluster.records.exit_status import TRY_AGAIN
from weft.cluster.records.job import ENDED, HOLDING, Ending, Gang, Job, JobState, Placement
from weft.cluster.records.node import NodeEvidence
from weft.cluster.why import why
from weft.engines.kubernetes.controller.claims import crowded, evicted, full, given_up, let_go
from weft.engines.kubernetes.controller.controller_state import (
    ClearPod,
    ControllerState,
    MarkNode,
    MovePod,
    Observation,
    RefuseJob,
    SendTicket,
    TellEvent,
    Write,
    WriteStatus,
    WriteTeam,
    open_tickets,
)
from weft.engines.kubernetes.controller.failed_pods import failure_text, to_blame, unfit_nodes
from weft.engines.kubernetes.controller.gangs import Make, Step, count_pods, steps
from weft.engines.kubernetes.controller.ledger import (
    JobEntry,
    asked_now,
    bind_reason,
    difference,
    newer,
    placed_by,
    refused,
    restore,
    status_of,
)
from weft.engines.kubernetes.controller.observed import ObservedJob, ObservedPod
from weft.engines.kubernetes.controller.settings import Now
from weft.engines.kubernetes.controller.workload_gangs import (
    GangView,
    PlacePod,
    WorkloadStep,
    gang_observed,
    workload_steps,
)
from weft.engines.kubernetes.controller.workloads import adopted, stood_for

_LOG = logging.getLogger(__name__)
_LEFT_BY_NODE = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Evicted", "Preempting", "UnexpectedAdmissionError"})
"""What Kubernetes writes as the reason of a pod that its node, not its program, has ended."""
_LARGE = 1000
_PODS_PER_S = 20_000
"""To compare a gang with its pods costs as much as it has pods; a large one is compared this many in a second."""
_SHOW_S = 5.0
"""Between two writes of a status that only counts pods."""
_UNSEEN_S = 30.0
"""A pod that was made and does not show in the watch for this long is made again."""


def reconcile(seen: Observation, state: ControllerState, now: Now) -> list[Write]:
    """Take in what has changed, decide, and return what is to be written; `state` is brought up to date."""
    one = _Pass(seen, state, now)
    jobs: set[str] = set(seen.changed_jobs)
    nodes: set[str] = set(seen.changed_nodes)
    if not state.opened:
        state.open(seen)
        jobs |= seen.jobs.keys() | seen.pods_of.keys()
        nodes |= seen.nodes.keys()
    if now.s - state.resynced_s > state.settings.resync_s:
        state.resynced_s = now.s
        jobs |= state.entries.keys() | seen.pods_of.keys() | seen.workloads.items.keys()
    jobs |= state.live
    fresh = not state.passes
    one.take_in_nodes(nodes | state.silent)
    one.take_in_reports()
    for name in sorted(seen.changed_teams):
        state.put_team(name, seen, now)
    for job_id in sorted(jobs):
        one.take_in_job(job_id)
    decided, lines = state.cluster.decided(now.ms)
    if lines:
        state.lines.append(lines)
    for action in decided:
        state.decisions += not isinstance(action, actions.Wait)
        one.take_up(action)
    for text in state.invariants.after_pass(state.cluster):
        _LOG.error("invariant violated: %s", text)
    one.compare(sorted(jobs | state.live))
    if fresh:
        one.repeat_tickets()
    one.show_teams()
    state.passes += 1
    return one.writes


def load(seen: Observation, state: ControllerState, now: Now) -> None:
    """Bring a new state up to what an observation holds, without deciding anything."""
    one = _Pass(seen, state, now)
    state.open(seen)
    one.take_in_nodes(seen.nodes.keys())
    for name in seen.teams:
        state.put_team(name, seen, now)
    for job in seen.jobs.values():
        if job.body is not None:
            one.meet(job, None)


class _Pass:
    """One pass over one observation."""

    def __init__(self, seen: Observation, state: ControllerState, now: Now) -> None:
        self._seen, self._state, self._now = seen, state, now
        self.writes: list[Write] = []
        self._answered = False

    def take_in_nodes(self, changed: Set[str]) -> None:
        """Put changed nodes into the scheduler's state; more nodes may be large enough for jobs that found none."""
        state = self._state
        if state.put_nodes(changed, self._seen, self._now):
            for entry in [state.entries[name] for name in sorted(state.unfit) if name in state.entries]:
                self._put(entry)

    def take_in_reports(self) -> None:
        """Put what pods, tests and silence have shown into the scheduler's state."""
        state, now, cluster = self._state, self._now, self._state.cluster
        for one in self._seen.reports:
            entry = state.entries.get(one.job)
            if entry is not None and one.checkpoint_ms is not None and entry.record.state is JobState.RUNNING:
                self._set(entry, checkpointed(entry.record, one.checkpoint_ms))
            state.measures.reports.update(each.severity for each in one.seen)
            self._witness(one.node, *one.seen)
        pool = cluster.pool
        looked_at = {node.name: node for node in (pool.nodes[number] for number in sorted(pool.watched))}
        for name, report in list(state.tests.reports(self._seen.ready, looked_at, now)):
            node = witnessed(looked_at[name], report)
            cluster.put(node, now.ms)
            self.writes.append(MarkNode(node, report.text))

    def _witness(self, name: str, *seen: NodeEvidence) -> None:
        cluster = self._state.cluster
        if seen and (number := self._state.node_index.numbers.get(name)) is not None:
            cluster.put(after_reports(cluster.pool.nodes[number], seen, self._now.ms), self._now.ms)

    def take_in_job(self, job_id: str) -> None:
        """Join what the server holds of a job with what was decided, and look at its pods."""
        state, now = self._state, self._now
        seen, entry = self._seen.jobs.get(job_id), state.entries.get(job_id)
        if entry is not None and (seen is None or seen.uid != entry.seen.uid):
            del state.entries[job_id]
            state.cluster.drop(job_id, now.ms)
            state.cluster.forget_end(job_id)
            state.unfit.discard(job_id)
            entry = None
        if seen is not None and seen.body is None:
            # What runs goes on as it was asked for before it was spoilt.
            if entry is None:
                self._refuse(seen)
            seen = None if entry is None else entry.seen
        if seen is not None:
            entry = self.meet(seen, entry)
            self._observe(entry)
            self._explain(entry)
        self._adopt(job_id, entry)
        self._keep_orphans(job_id, entry)

    def _adopt(self, job_id: str, entry: JobEntry | None) -> None:
        """Let a job stand for a workload of another controller, where there is one."""
        view = self._seen.workloads
        wanted = adopted(view.items.get(job_id), self._seen.jobs.get(job_id), entry, view)
        self.writes += [one for one in wanted if one.key not in self._state.adopting]
        self._state.adopting.update(one.key for one in wanted)

    def _observe_workload(self, entry: JobEntry, pods: Sequence[ObservedPod]) -> None:
        """Say what a workload and its pods have come to."""
        workload = stood_for(entry, self._seen.workloads)
        if workload is not None and (after := gang_observed(entry, workload, pods, self._now.ms)) is not None:
            self._set(entry, after)

    def _explain(self, entry: JobEntry) -> None:
        """Answer the question why a job waits, once for each time that it is asked."""
        seen = entry.seen
        known = (entry.explained or seen.status.get("explained") or {}).get("question")
        if not seen.question or known == seen.question or self._answered:
            return
        # One answer for each pass: it costs as much as the queue is long, and everybody else waits meanwhile.
        self._answered = True
        found = why(self._state.cluster.snapshot(), seen.id, self._now.ms)
        entry.explained = {"question": seen.question, "answer": None if found is None else as_plain(found)}
        entry.shown_at = float("-inf")

    def _refuse(self, seen: ObservedJob) -> None:
        """Say why a job cannot be read, once for each time that it is changed."""
        said = seen.status.get("state") == "refused" and seen.status.get("why") == seen.problem
        if not said and self._state.refused.get(seen.uid) != seen.version:
            self._state.refused[seen.uid] = seen.version
            self.writes.append(RefuseJob(seen, refused(seen, self._now.ms)))

    def meet(self, seen: ObservedJob, entry: JobEntry | None) -> JobEntry:
        """Return the entry of a job, brought up to what the server holds."""
        state = self._state
        if entry is None:
            for name in seen.placed.nodes if seen.placed else ():
                if state.node_index.number(name) >= state.cluster.pool.count:
                    self.take_in_nodes({name})
            entry = self._restore(seen)
        elif not entry.writing and newer(seen.version, entry.seen.version):
            if seen.record != entry.seen.record or seen.placed != entry.seen.placed:
                _LOG.warning("%s: somebody else has changed its status; theirs counts", seen.id)
                entry = self._restore(seen)
            else:
                entry.seen = seen
                asked = asked_now(entry.record, seen)
                if asked != entry.record:
                    self._set(entry, asked)
        if seen.cancelled and entry.record.state not in ENDED and entry.record.ending != "cancelled":
            entry.why = f"cancelled by {seen.cancelled}"
            if entry.record.holds:
                self._leave(entry, "cancelled")
            else:
                self._set(entry, ended(entry.record, JobState.CANCELLED))
        return entry

    def _restore(self, seen: ObservedJob) -> JobEntry:
        """Take up a job as its status tells it, and what its pods have shown since."""
        entry = self._state.entries[seen.id] = restore(seen, self._state.node_index.numbers)
        self._state.live.add(seen.id)
        after = None
        if entry.record.state in HOLDING and not entry.stands_in:
            entry.counts = count_pods(seen.owner, entry.placed, self._pods(seen.id))
            after = let_go(entry.record, entry.counts, self._now.ms)
        self._set(entry, after or entry.record)
        return entry

    def _pods(self, job_id: str) -> list[ObservedPod]:
        return list(self._seen.pods_of.get(job_id, {}).values())

    def _put(self, entry: JobEntry) -> None:
        """Tell the scheduler's state of a job; one that no node is large enough for is kept out of it."""
        state, now, record = self._state, self._now, entry.record
        gpus, largest = record.gang.gpus_per_node, state.cluster.pool.largest
        state.cluster.drop(record.id, now.ms)
        if record.state is JobState.WAITING and gpus > largest:
            state.unfit.add(record.id)
            entry.why = f"it asks for {gpus} GPUs on a node; the largest has {largest}"
            return
        state.unfit.discard(record.id)
        if record.placement is not None:
            lost = crowded(state.cluster.pool, record.placement.nodes, record.placement.gpus_per_node)
            if lost:
                _LOG.warning("%s: %d of its nodes are another job's; it leaves", record.id, len(lost))
                entry.why = "others were on its nodes"
                record = entry.record = evicted(record, lost, now.ms)
        state.cluster.put(record, now.ms)

    def _set(self, entry: JobEntry, record: Job) -> None:
        """Take a new record of a job as true; a job that holds nothing has no place."""
        entry.record = record
        self._state.live.add(entry.seen.id)
        if record.state not in HOLDING:
            entry.placed = None
        self._put(entry)

    def _leave(self, entry: JobEntry, ending: Ending) -> None:
        self._set(entry, replace(entry.record, state=JobState.STOPPING, ending=ending, leave_by_ms=self._now.ms))

    def _observe(self, entry: JobEntry) -> None:
        """Say what a job's pods have come to; only of decisions that are written down."""
        if entry.writing or not entry.durable or entry.record.state in ENDED:
            return
        if _too_soon(entry, self._now.s - entry.looked_at):
            return
        entry.looked_at = self._now.s
        if entry.rejected:
            entry.why, entry.rejected = f"its pods are refused: {entry.rejected}", ""
            self._leave(entry, "failed")
            return
        record, pods = entry.record, self._pods(entry.seen.id)
        if entry.stands_in:
            self._observe_workload(entry, pods)
            return
        count = entry.counts = count_pods(entry.seen.owner, entry.placed, pods)
        there = self._seen.pods_of.get(entry.seen.id, {})
        for name in [name for name in entry.made if name in there and there[name].node]:
            del entry.made[name]
        after = let_go(record, count, self._now.ms)
        if after is not None:
            entry.why = "" if after.state is JobState.DONE else entry.why
            entry.counts = count if after.state is JobState.DONE else replace(count, bound=0, running=0)
            self._set(entry, after)
            return
        match record.state:
            case JobState.STARTING | JobState.RUNNING if count.failed:
                self._failed(entry)
            case JobState.STARTING if count.running + count.succeeded == count.wanted:
                self._set(entry, replace(record, state=JobState.RUNNING))
            case JobState.RUNNING if sum(pod.owner == entry.seen.uid for pod in pods) < count.wanted:
                entry.why = "a pod of it was taken away"
                self._leave(entry, "requeue")
            case _:
                pass

    def _failed(self, entry: JobEntry) -> None:
        """Take up that a pod failed: what becomes of its job is decided in `cluster.lifecycle`."""
        first = to_blame(entry.counts.failed)
        node = self._seen.nodes.get(first.node)
        lost = bool(first.unfit) or first.reason in _LEFT_BY_NODE or node is None or not node.ready or node.sick
        for name, evidence in unfit_nodes(entry.record.id, entry.counts.failed, self._now.ms):
            self._witness(name, evidence)
        text = failure_text(first, left=lost or first.code == TRY_AGAIN)
        restarts = entry.seen.body.restarts if entry.seen.body is not None else 0
        # A pod that the node has failed may show status 0; it has not finished all the same.
        end = ProcessEnd(first.code or None, text, lost)
        found = outcome_of(entry.record, end, pod_rules(restarts), Tries(restarts=entry.restarts))
        entry.why = found.text
        entry.restarts += found.counts
        self._leave(entry, "requeue" if found.verdict == "requeue" else "failed")

    def _keep_orphans(self, job_id: str, entry: JobEntry | None) -> None:
        """Show pods whose job has gone to decisions, because they hold their nodes until they have left."""
        state, now = self._state, self._now
        orphan = f"{job_id}@gone"
        others = set(self._seen.owners_of.get(job_id, ())) - ({entry.seen.uid} if entry else set())
        if not others and orphan not in state.orphans:
            return
        pods = [pod for pod in self._pods(job_id) if entry is None or pod.owner != entry.seen.uid]
        numbers = sorted({state.node_index.number(pod.node) for pod in pods if pod.node and not pod.over})
        if numbers and max(numbers) >= state.cluster.pool.count:
            self.take_in_nodes({state.node_index.names[number] for number in numbers})
        there = self._seen.jobs.get(job_id)
        self._clear(job_id, [pod for pod in pods if there is None or pod.owner != there.uid])
        state.cluster.drop(orphan, now.ms)
        state.orphans.pop(orphan, None)
        if not numbers:
            return
        each = max(pod.gpus for pod in pods)
        taken = crowded(state.cluster.pool, numbers, each)
        numbers = [number for number in numbers if number not in taken]
        record = Job(orphan, Gang(len(numbers), each), now.ms, state=JobState.STOPPING, start_ms=now.ms,
                     placement=Placement(tuple(numbers), each), ending="cancelled", leave_by_ms=now.ms)  # fmt: skip
        state.orphans[orphan] = record
        state.cluster.put(record, now.ms)

    def _clear(self, job_id: str, pods: Sequence[ObservedPod]) -> None:
        for one in pods:
            heard = self._seen.ready(one.node)
            if one.uid not in self._state.clearing and not (one.leaving and heard):
                self._state.clearing.add(one.uid)
                # A pod that was never bound has no node to end it on; a silent node ends nothing either.
                self.writes.append(ClearPod(job_id, one, at_once=not (one.node and heard)))

    def take_up(self, action: actions.Action) -> None:
        """Note what was decided; the scheduler's state has taken it as done already."""
        state = self._state
        if (job := getattr(action, "job", None)) is not None:
            state.live.add(job)
        match action:
            case actions.Bind() | actions.Replace() | actions.Resize():
                entry = state.entries[action.job]
                self._count_wait(action, entry)
                # Whoever gets other nodes has to start on them, too.
                entry.record = replace(state.cluster.jobs[action.job], state=JobState.STARTING)
                entry.placed = placed_by(action, entry.record, entry, state.node_index.names)
                state.cluster.put(entry.record, self._now.ms)
                entry.why, entry.expected_ms = "", None
                self._tell(entry, "Placed", f"{len(entry.placed.nodes)} nodes ({bind_reason(action)})")
            case actions.Preempt() | actions.Stop():
                self._take_up_leaving(action)
            case actions.Wait():
                entry = state.entries[action.job]
                entry.record = state.cluster.jobs[action.job]
                entry.why, entry.expected_ms = action.text, action.expected_ms
            case actions.RunTest():
                state.tests.begin(state.node_index.names[action.node], action.program, self._now)
            case actions.Quarantine() | actions.Drain() | actions.Move() | actions.Degrade():
                state.measures.health[type(action).__name__.lower()] += 1
                self.writes.append(MarkNode(state.cluster.pool.nodes[action.node], action.reason))
            case actions.Ticket():
                state.measures.health["ticket"] += 1
                node = state.cluster.pool.nodes[action.node]
                self.writes.append(SendTicket(ticket_document(node, action)))
            case actions.Alarm():
                state.alarms.pop(action.kind, None)
                if action.on:
                    state.alarms[action.kind] = action.text
                _LOG.warning("alarm %s %s: %s", action.kind, "on" if action.on else "off", action.text)
            case _:
                _LOG.debug("%s", action)

    def _count_wait(self, action: actions.Bind | actions.Replace | actions.Resize, entry: JobEntry) -> None:
        if isinstance(action, actions.Bind):
            since_ms = entry.record.queued_ms or entry.record.submit_ms
            self._state.measures.placed(len(action.placement.nodes), max(0, self._now.ms - since_ms) / 1000)

    def repeat_tickets(self) -> None:
        """Send the tickets of nodes under repair again: the controller before may have died before it sent them."""
        sent = {one.document["id"] for one in self.writes if isinstance(one, SendTicket)}
        found = open_tickets(self._state.cluster.pool, self._now.ms)
        self.writes += [SendTicket(document) for document in found if document["id"] not in sent]

    def _take_up_leaving(self, action: actions.Preempt | actions.Stop) -> None:
        if action.job in self._state.orphans:
            return
        entry = self._state.entries[action.job]
        after = self._state.cluster.jobs.get(action.job)
        if after is None:
            assert isinstance(action, actions.Stop), "only a job that is stopped leaves the queue"
            after = ended(entry.record, JobState(action.ending))
        entry.record = after
        if after.state in ENDED:
            entry.placed = None
        entry.why = action.reason
        self._tell(entry, type(action).__name__, action.reason)

    def _tell(self, entry: JobEntry, reason: str, message: str) -> None:
        self.writes.append(TellEvent(entry.seen, reason, message))

    def compare(self, jobs: Sequence[str]) -> None:
        """Compare what was decided with what the server holds, job by job."""
        state = self._state
        given = given_up(state.entries[name] for name in state.live if name in state.entries)
        for job_id in jobs:
            entry = state.entries.get(job_id)
            if entry is not None:
                self._next(entry, given)
            if entry is None or (entry.durable and entry.record.state not in HOLDING):
                state.live.discard(job_id)

    def _next(self, entry: JobEntry, given: Set[str]) -> None:
        """Do what is next for a job: write its status, or move its pods to where it says.

        Nodes in `given` are about to be given up by others; nobody's claim on them is written before that is.
        """
        now = self._now
        if entry.writing or now.s < entry.again_at:
            return
        durable = entry.durable
        if not durable and entry.placed is not None and not given.isdisjoint(entry.placed.nodes):
            return
        if not durable or now.s - entry.shown_at > _SHOW_S:
            changed = difference(status_of(entry, now.ms), entry.seen)
            entry.shown_at = now.s
            if changed:
                entry.writing = True
                self.writes.append(WriteStatus(entry, entry.record, changed))
        if durable and not entry.writing and not _too_soon(entry, now.s - entry.moved_at):
            entry.moved_at = now.s
            self._move(entry)

    def _move(self, entry: JobEntry) -> None:
        record, owner, now = entry.record, entry.seen.owner, self._now
        pods = self._pods(entry.seen.id)
        silent = {pod.node for pod in pods if pod.node and not self._seen.ready(pod.node)}
        elapsed_ms = now.ms - record.start_ms if record.start_ms is not None else 0
        todo: Sequence[Step | WorkloadStep]
        if entry.stands_in:
            gang, workload = GangView(owner, record, entry.placed, elapsed_ms), stood_for(entry, self._seen.workloads)
            todo = [] if workload is None else workload_steps(gang, workload, pods, silent)
        else:
            todo = steps(owner, record.state, entry.placed, pods, silent, elapsed_ms=elapsed_ms)
        for step in todo:
            made_s = entry.made.get(step.pod, float("-inf"))
            if step.pod not in entry.busy and now.s - made_s > _UNSEEN_S and not self._taken(entry, step):
                entry.busy.add(step.pod)
                self.writes.append(MovePod(entry, step, now.ms))

    def _taken(self, entry: JobEntry, step: Step | WorkloadStep) -> bool:
        """Say whether a pod has to wait for others that have not left its node yet."""
        if not isinstance(step, Make | PlacePod) or entry.placed is None:
            return False
        there, node = self._seen.pods_on.get(step.node), self._seen.nodes.get(step.node)
        if there is None or node is None:
            return False
        return full(there.values(), step.pod, entry.placed.gpus_per_node, node.gpus)

    def show_teams(self) -> None:
        """Say now and then what each team holds, where that has changed."""
        state = self._state
        if self._now.s - state.teams_s < state.settings.teams_s:
            return
        state.teams_s = self._now.s
        self.writes += [WriteTeam(name, status) for name, status in state.team_statuses(self._seen)]


def _too_soon(entry: JobEntry, since_s: float) -> bool:
    """Say whether a large gang was looked at a moment ago: a look costs as much as it has pods."""
    wanted = len(entry.placed.nodes) if entry.placed else 0
    return wanted > _LARGE and since_s < wanted / _PODS_PER_S
