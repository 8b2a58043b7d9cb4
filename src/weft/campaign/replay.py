"""A trace through the real decisions in simulated time.

The world knows how long jobs truly take, carries out what `decide` says, and tells the state what it sees: a job has
ended, has left, a node has failed. It coalesces: however much happens, there is one pass in `pass_ms`. Everything that
is measured is kept by `measures`; nothing here decides who runs where.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from weft.campaign.failures import Failures
from weft.campaign.measures import Measures
from weft.campaign.start_forecasts import StartForecasts
from weft.campaign.trace import TraceJob
from weft.cluster.forecast import StartCalibration
from weft.cluster.health.quarantine import repaired, report
from weft.cluster.invariants import InvariantSampler
from weft.cluster.log import RecordedState
from weft.cluster.records.actions import Action, Bind, Preempt, Replace, Resize, RunTest, Stop, Ticket, Wait
from weft.cluster.records.effects import checkpointed, ended, stopped, witnessed
from weft.cluster.records.job import Job, JobState
from weft.cluster.records.node import NodeEvidence, NodeState
from weft.cluster.records.snapshot import Snapshot
from weft.core.errors import LimitReachedError

Watch = Callable[[int, int], None]
"""Gets how many of how many jobs are over."""
_IDLE_PASSES = 1000
_HORIZON_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Habits:
    """How jobs of a trace behave where the trace does not say."""

    checkpoint_ms: int = 1_800_000
    """Time between a training's checkpoints."""
    write_ms: int = 30_000
    """Time that a training needs to write one when it is asked to leave."""
    grace_ms: int = 60_000
    """Grace that jobs ask for."""
    min_run_ms: int = 600_000
    """Minimum run time that jobs are promised."""
    restore_ms: int = 180_000
    """Time from a restart to the first new step (arXiv 2602.00277)."""


class TraceReplay:
    """One trace on one cluster under one policy; run once."""

    def __init__(
        self,
        snapshot: Snapshot,
        lines: Sequence[TraceJob],
        habits: Habits | None = None,
        *,
        pass_ms: int = 1000,
        failures: Failures | None = None,
        calibration: StartCalibration | None = None,
    ) -> None:
        """Prepare the world; `snapshot` holds no jobs yet. Without `failures` no node ever fails.

        With a `calibration` every job that has to wait hears when it will start; what comes true calibrates on.
        """
        self.cluster = RecordedState(snapshot, recording=False)
        self.lines = lines
        self.log: Callable[[str], object] = str
        self.habits = habits or Habits()
        self.pass_ms = pass_ms
        self.measures = Measures(self.cluster, lines)
        self.starts = None if calibration is None else StartForecasts(self.cluster, calibration)
        self.failures = failures
        self._invariants = InvariantSampler()
        self._failed = 0
        self.passes = 0
        self._left_ms: dict[str, int] = {}
        self._turn: dict[str, int] = {}
        self._work_ms: dict[str, int] = {}
        self._ends: list[tuple[int, int, str, str]] = []
        self._freed = False
        """Whether carrying out the last pass gave nodes back: an engine would see that and make another."""
        self._submitted = 0
        self._over = 0
        self.now_ms = 0
        if failures is not None:
            # Long enough for what is still to run after the last submission.
            until_ms = 2 * lines[-1].submit_ms + _HORIZON_MS
            for at_ms, node in failures.until(len(snapshot.nodes), until_ms):
                heapq.heappush(self._ends, (at_ms + failures.detect_ms, node, "failed", ""))

    def record(self, log: Callable[[str], object]) -> None:
        """Give every decision to a log (`cluster.log`) from now on."""
        self.log = log
        self.cluster.begin_log()

    def run(self, watch: Watch | None = None) -> Measures:
        """Run until every job has ended, and return what was measured."""
        for _ in self.actions(watch):
            pass
        return self.measures

    def actions(self, watch: Watch | None = None) -> Iterator[Action]:
        """Run until every job has ended; yield every action once it is carried out."""
        last_ms = -self.pass_ms
        idle = 0
        while self._over < len(self.lines):
            at_ms = self._next_ms()
            if at_ms is None:
                raise LimitReachedError(f"{len(self.lines) - self._over} jobs wait and nothing will ever happen")
            self.now_ms = max(at_ms, last_ms + self.pass_ms)
            self._happen(self.now_ms)
            self._freed = False
            actions, lines = self.cluster.decided(self.now_ms)
            if lines:
                self.log(lines)
            self.passes += 1
            self._invariants.demand(self.cluster)
            last_ms = self.now_ms
            for action in actions:
                self._carry_out(action)
                yield action
            self.measures.after_pass(self.now_ms)
            if self.starts is not None:
                self.starts.after_pass(actions, self.now_ms)
            waiting = len(self.lines) - self._over
            idle = 0 if actions or self._ends or self._submitted < len(self.lines) else idle + 1
            if idle > _IDLE_PASSES and waiting:
                raise LimitReachedError(f"{waiting} jobs wait and {idle} passes changed nothing")
            if watch is not None and self.passes % 500 == 0:
                watch(self._over, len(self.lines))
        self.measures.close(self.now_ms)

    def _next_ms(self) -> int | None:
        """Return when something happens next."""
        times = [self._ends[0][0]] if self._ends else []
        if self._freed:
            times.append(self.now_ms)
        if self._submitted < len(self.lines):
            times.append(self.lines[self._submitted].submit_ms)
        due = self.cluster.due_ms()
        if due is not None:
            times.append(max(due, self.now_ms + 1))
        return min(times, default=None)

    def _happen(self, now_ms: int) -> None:
        """Tell the state everything that has happened up to `now_ms`, in order."""
        habits = self.habits
        while True:
            submit_ms = self.lines[self._submitted].submit_ms if self._submitted < len(self.lines) else now_ms + 1
            end_ms = self._ends[0][0] if self._ends else now_ms + 1
            if min(submit_ms, end_ms) > now_ms:
                return
            if end_ms <= submit_ms:
                self._event(*heapq.heappop(self._ends))
                continue
            job = self.lines[self._submitted].request(
                self._submitted, checkpoint_ms=habits.checkpoint_ms, grace_ms=habits.grace_ms,
                min_run_ms=habits.min_run_ms,
            )  # fmt: skip
            self._left_ms[job.id] = self.lines[self._submitted].duration_ms
            self._submitted += 1
            self.cluster.put(job, submit_ms)
            self.measures.submitted(job)

    def _event(self, at_ms: int, turn: int, what: str, name: str) -> None:
        """Take in one event; those of a job's earlier starts are echoes."""
        if not name:
            self._node_event(at_ms, turn, what)
            return
        if self._turn.get(name) != turn:
            return
        job = self.cluster.jobs[name]
        if what == "done":
            self._finish(ended(job, JobState.DONE), job, at_ms)
        else:
            # It was asked, has written its checkpoint, and leaves.
            kept = checkpointed(job, at_ms)
            self._leave(kept, at_ms, done_ms=max(0, at_ms - self._work_ms[name]))

    def _carry_out(self, action: Action) -> None:
        """Do what was decided."""
        now_ms = self.now_ms
        match action:
            case Bind():
                job = self.cluster.jobs[action.job]
                self._begin(job, action.waves[-1].after_ms if action.waves else 0)
                self.measures.bound(job, action, now_ms)
            case Preempt(stage="ask"):
                job = self.cluster.jobs[action.job]
                self.measures.asked(action)
                if job.kind == "training" and self.habits.write_ms < action.by_ms - now_ms:
                    heapq.heappush(self._ends, (now_ms + self.habits.write_ms, self._turn[job.id], "left", job.id))
            case Preempt():
                job = self.cluster.jobs[action.job]
                kept_ms = job.kept_ms(now_ms) - self._work_ms[job.id] if job.kind == "training" else 0
                self.measures.evicted(action)
                self._leave(job, now_ms, done_ms=max(0, kept_ms))
            case Stop():
                self._stop(action)
            case Wait():
                self.measures.waits(action, now_ms)
            case Replace() | Resize():
                self._disturbed(action)
            case RunTest() if self.failures is not None:
                heapq.heappush(self._ends, (now_ms + self.failures.test_ms, action.node, f"test {action.program}", ""))
            case Ticket() if self.failures is not None:
                self.measures.tickets.append(action)
                heapq.heappush(self._ends, (now_ms + self.failures.repair_ms, action.node, "repaired", ""))
            case _:
                pass

    def _node_event(self, at_ms: int, number: int, what: str) -> None:
        """Let a node fail, be tested or be repaired."""
        assert self.failures is not None
        node = self.cluster.pool.nodes[number]
        if what == "failed":
            if node.state is not NodeState.READY:
                return
            self._failed += 1
            seen = NodeEvidence("silent", at_ms, "fatal", "no heartbeat")
        elif what == "repaired":
            seen = repaired(at_ms)
        else:
            program = what.removeprefix("test ")
            passed = program != "diagnose" or not self.failures.found_again(self._failed)
            seen = report(program, at_ms, passed=passed)
        self.cluster.put(witnessed(node, seen), at_ms)

    def _begin(self, job: Job, delay_ms: int) -> None:
        turn = self._turn.get(job.id, 0) + 1
        self._turn[job.id] = turn
        restore_ms = self.habits.restore_ms if job.preemptions and job.kind == "training" else 0
        self._work_ms[job.id] = self.now_ms + delay_ms + restore_ms
        heapq.heappush(self._ends, (self._work_ms[job.id] + self._left_ms[job.id], turn, "done", job.id))

    def _leave(self, job: Job, at_ms: int, *, done_ms: int) -> None:
        """Let a job go back to the queue; `done_ms` of its work is safe."""
        self._freed = True
        self._turn[job.id] += 1
        self._left_ms[job.id] = max(1, self._left_ms[job.id] - done_ms)
        after = stopped(job, at_ms)
        self.measures.freed(job, at_ms)
        self.measures.requeued(after, at_ms)
        self.cluster.put(after, at_ms)

    def _stop(self, action: Stop) -> None:
        """End a job that was asked to end; one that waited is already over in the state."""
        job = self.cluster.jobs.get(action.job)
        if job is None:
            self._over += 1
            self.measures.never_ran(action.job, self.now_ms)
        else:
            self._finish(stopped(job, self.now_ms), job, self.now_ms)

    def _finish(self, after: Job, job: Job, at_ms: int) -> None:
        self._freed = True
        self._turn[job.id] += 1
        self._over += 1
        self.measures.freed(job, at_ms)
        self.measures.finished(after, at_ms)
        self.cluster.put(after, at_ms)

    def _disturbed(self, action: Replace | Resize) -> None:
        """Let a gang go on from its last checkpoint on other nodes, or at another width."""
        job = self.cluster.jobs[action.job]
        kept_ms = max(0, job.kept_ms(self.now_ms) - self._work_ms[job.id])
        self.measures.disturbed(job, self.now_ms)
        self._left_ms[job.id] = max(1, self._left_ms[job.id] - kept_ms)
        turn = self._turn[job.id] + 1
        self._turn[job.id] = turn
        self._work_ms[job.id] = self.now_ms + self.habits.restore_ms
        width = job.gang.nodes / len(job.placement.nodes) if job.placement else 1
        heapq.heappush(self._ends, (self._work_ms[job.id] + round(self._left_ms[job.id] * width), turn, "done", job.id))
