"""The engine: it sees what has become of processes, asks `cluster.decide`, writes that down, and does it.

Nothing here decides. Every change is in the database before anything is done about it, and everything that is done can
be done again: an attempt is claimed once whoever starts it, signals may come twice, an end is a file that stays. So the
engine may die between any two lines and the next one goes on (`_recover`). One thread; callers take turns.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from weft.cluster import lifecycle
from weft.cluster.health.node_life import NodeEvent, after, allowed
from weft.cluster.invariants import InvariantSampler
from weft.cluster.lifecycle import ProcessEnd
from weft.cluster.log import RecordedState
from weft.cluster.records import actions
from weft.cluster.records.effects import ended, node_after, witnessed
from weft.cluster.records.encoding import action_as_plain, as_plain
from weft.cluster.records.job import ENDED, Job, JobState
from weft.cluster.records.node import Node, NodeEvidence
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.scheduling.admission import admit
from weft.core.errors import UsageError
from weft.engines.local.attempts import Attempts
from weft.engines.local.curves import Curves
from weft.engines.local.home import Home
from weft.engines.local.launches import prepared
from weft.engines.local.progress import news_of
from weft.engines.local.site_state import SiteState
from weft.engines.local.store import StoredJob
from weft.engines.local.test_processes import TestProcesses
from weft.engines.policy_file import PolicyFile, with_policy
from weft.specs.submission import SubmissionSpec

Pulse = Callable[[str], None]

_LONGEST_NAME = 48
_PLAN_EVERY_MS = 1_000
_HEAR_EVERY_MS = 1_000


def wall_ms() -> int:
    """Return the time of day in milliseconds."""
    return time.time_ns() // 1_000_000


class NotThereError(UsageError):
    """There is no job or node of that name."""


class LocalEngine:
    """A cluster of slots on this machine."""

    def __init__(self, home: Home, *, clock: Callable[[], int] = wall_ms, pulse: Pulse = lambda _: None) -> None:
        """Open the state in `home` and take up what runs; `pulse` is called before each step that can be torn apart."""
        self.memory = SiteState(home)
        self.attempts = Attempts(home, pulse)
        self.trials = TestProcesses()
        self.curves = Curves(home)
        self._home, self._clock, self._pulse = home, clock, pulse
        self._policy = PolicyFile(home.policy, lambda text: self.memory.store.note(self.now(), text))
        self._latest, self._heard_ms = 0, 0
        self._entries: dict[str, StoredJob] = {}
        self.cluster = RecordedState(self.memory.snapshot([]))
        """What decisions are made on."""
        self.reopen()

    def reopen(self) -> None:
        """Believe the database alone: at the start, and after a stumble between a decision and its writing."""
        self.memory.store.reopen()
        self.reread()
        self._recover()

    def reread(self) -> None:
        """Hold in memory what is written down, and nothing else; reads only, so it works on a full disk."""
        self._entries = {entry.job.id: entry for entry in self.memory.store.open()}
        self._record(self.memory.snapshot([entry.job for entry in self._entries.values()]))
        self._dirty = True

    def _record(self, snapshot: Snapshot) -> None:
        """Decide on `snapshot` from now on; the next pass begins a log with it."""
        self.cluster = RecordedState(snapshot)
        self._invariants = InvariantSampler()

    def close(self) -> None:
        """Let go of the state; jobs go on."""
        self.attempts.close()
        self.trials.close()
        self.memory.store.close()

    def now(self) -> int:
        """Return the time in milliseconds; never less than before, whatever somebody does to the machine's clock."""
        self._latest = max(self._latest, self._clock(), self.cluster.planned_ms or 0)
        return self._latest

    # What people ask for

    def submit(self, submission: SubmissionSpec) -> list[StoredJob]:
        """Write down new jobs, all of a submission or none, and return them; a key that is known returns its jobs."""
        if submission.key is not None and (known := self.memory.store.with_key(submission.key)):
            return known
        found = self.admitted(submission)
        now = self.now()
        self._pulse("submit")
        with self.memory.store.transaction():
            for entry in found:
                self.memory.store.add(entry)
                self.memory.store.note(now, "submitted", job=entry.job.id)
        self._pulse("submitted")
        for entry in found:
            self._entries[entry.job.id] = entry
            self.cluster.put(entry.job, now)
        self._dirty = True
        return found

    def admitted(self, submission: SubmissionSpec) -> list[StoredJob]:
        """Return the jobs that a submission would make, or raise why they could never run; nothing is made."""
        if submission.snapshot is not None and not (self._home.snapshots / submission.snapshot).is_dir():
            raise UsageError(f"there is no working folder {submission.snapshot}; upload it first")
        now = self.now()
        first = self.memory.store.next_number()
        given = submission.job.name if submission.job else submission.name
        name = f"{given[:_LONGEST_NAME]}-{first}"
        found: list[StoredJob] = []
        for offset, (job, launch) in enumerate(prepared(submission, now)):
            named = replace(job, id=name + job.id, array=name if job.id else "")
            found.append(StoredJob(first + offset, named, launch, key=submission.key))
        for entry in found:
            admit(entry.job, self.cluster.pool.nodes, self.cluster.shares.records(), self._known(entry.job.after))
        return found

    def cancel(self, name: str) -> list[StoredJob]:
        """Cancel a job, or every job of an array, and return them."""
        entries = [self.find(name)] if self.memory.store.find(name) else self.memory.store.of_array(name)
        if not entries:
            raise NotThereError(f"there is no job {name!r}; weft jobs lists them")
        self._cancel({entry.job.id: "" for entry in entries if entry.job.id in self._entries}, self.now())
        return [self.find(entry.job.id) for entry in entries]

    def _cancel(self, names: Mapping[str, str], now: int) -> None:
        """Cancel open jobs, given with the reason where that is not somebody's wish."""
        live = [(self._entries[name], why) for name, why in names.items()]
        with self.memory.store.transaction():
            for entry, why in live:
                job, entry.text = entry.job, why
                if job.holds:
                    gone = replace(job, state=JobState.STOPPING, ending="cancelled")
                    self._change(entry, gone, why or "cancelled", now)
                else:
                    self._finish(entry, ended(job, JobState.CANCELLED), why or "cancelled before it ran", now)
        self._pulse("cancelled")
        for entry, _ in live:
            if entry.job.holds:
                self.attempts.ask(entry)
        self._dirty = True

    def _stop_early(self, now: int) -> bool:
        """Stop those of each sweep that others have outpaced; returns whether there are any."""
        sweeps = {entry.job.array for entry in self._entries.values() if entry.launch.early_stop and entry.job.holds}
        names = {
            each.member: f"stopped early, at step {each.step} in place {each.place} of {each.of}: {each.keep} go on"
            for array in sorted(sweeps)
            for each in self.curves.outpaced(self.memory.store.of_array(array))
            if each.member in self._entries and self._entries[each.member].job.state is not JobState.STOPPING
        }
        if names:
            self._cancel(names, now)
        return bool(names)

    def drain(self, name: str, *, back: bool, by: str = "operator", reason: str = "") -> Node:
        """Cordon a node, or return it to service; the word of the one who asks is remembered."""
        node = self.node(name)
        now = self.now()
        event = NodeEvent.UNDRAIN if back else NodeEvent.DRAIN
        if not allowed(node.state, event):
            raise UsageError(f"{name} is {node.state} and cannot be {event}ed; weft nodes shows where each stands")
        word = ("", "") if back else ("out", f"{by}: {reason}" if reason else by)
        if back:
            changed = node_after(node, actions.Move(node.number, after(node.state, event), str(event), reason), now)
        else:
            changed = node_after(node, actions.Drain(node.number, reason or f"drained by {by}"), now)
        changed = replace(changed, override=word[0], override_by=word[1])
        self._put_node(changed, f"{'undrained' if back else 'drained'} by {by}{f': {reason}' if reason else ''}")
        return changed

    def report(self, name: str, evidence: NodeEvidence) -> Node:
        """Take in what a health check or a job has seen of a node."""
        node = self.node(name)
        changed = witnessed(node, evidence)
        self._put_node(changed, f"{evidence.check}: {evidence.text}")
        return changed

    def find(self, name: str) -> StoredJob:
        """Return the job called `name`, running or long over."""
        found = self._entries.get(name) or self.memory.store.find(name)
        if found is None:
            raise NotThereError(f"there is no job {name!r}; weft jobs lists them")
        return found

    def node(self, name: str) -> Node:
        """Return the node called `name`."""
        found = next((node for node in self.cluster.pool.nodes if node.name == name), None)
        if found is None:
            raise NotThereError(f"there is no node {name!r}; weft nodes lists them")
        return found

    @property
    def entries(self) -> Iterable[StoredJob]:
        """Return the jobs that have not ended."""
        return self._entries.values()

    # The loop

    def tick(self) -> bool:
        """See what has happened, decide if there is reason to, and act; returns whether anything was done."""
        now = self.now()
        self.attempts.reap()
        changed = self._observe(now)
        for node, text in self.trials.finished(self.cluster.pool.nodes, now):
            self._put_node(node, text)
        if now - self._heard_ms >= _HEAR_EVERY_MS:
            changed = self._read_policy(now) or changed
            changed = self._hear(now) or changed
            changed = self._stop_early(now) or changed
        planned = self.cluster.planned_ms
        busy = bool(self.cluster.jobs or self.cluster.pool.watched)
        if self._dirty or changed or planned is None or (busy and now - planned >= _PLAN_EVERY_MS):
            return self._decide(now) or changed
        return False

    def _read_policy(self, now: int) -> bool:
        """Take up a policy file that has changed; returns whether it has."""
        spec = self._policy.changed()
        if spec is None:
            return False
        self._record(with_policy(self.cluster.snapshot(), spec))
        with self.memory.store.transaction():
            self.memory.store.save_fact("policy", as_plain(self.cluster.policy))
            self.memory.save_standing(self.cluster)
            self.memory.store.note(now, f"policy read: {spec.description or self._policy.path}")
        return True

    def _recover(self) -> None:
        """Start what an engine before this one meant to start; whom it asked to leave is asked again by `_observe`."""
        for entry in list(self._entries.values()):
            if entry.job.holds:
                self.attempts.resume(entry)
        for node in self.cluster.pool.nodes:
            self.trials.resume(node, self.now())

    def _observe(self, now: int) -> bool:
        """Take in how processes have fared."""
        changed = False
        for entry in [entry for entry in self._entries.values() if entry.job.holds]:
            if entry.job.state in (JobState.ASKED, JobState.STOPPING) or entry.moved:
                self.attempts.ask(entry)
            found = self.attempts.look(entry)
            if found is None:
                continue
            changed = True
            self._pulse("seen")
            with self.memory.store.transaction():
                if isinstance(found, ProcessEnd):
                    self._exited(entry, found, now)
                else:
                    state = JobState.RUNNING if entry.job.state is JobState.STARTING else entry.job.state
                    self._change(entry, replace(entry.job, state=state), "", now)
            self._pulse("noted")
        return changed

    def _hear(self, now: int) -> bool:
        """Take in what trainings say of themselves: checkpoints, forecasts, and what they saw of their nodes."""
        self._heard_ms = now
        changed = False
        for entry in [one for one in self._entries.values() if one.launch.training is not None and one.job.holds]:
            news = news_of(self._home, entry, now)
            if news is None:
                continue
            changed, entry.noted = True, news.incidents
            with self.memory.store.transaction():
                self._change(entry, news.job, "", now)
                for number, evidence in news.seen:
                    self.memory.store.note(now, evidence.text, job=entry.job.id, node=number)
            for number, evidence in news.seen:
                self.report(self.cluster.pool.nodes[number].name, evidence)
        return changed

    def _exited(self, entry: StoredJob, end: ProcessEnd, now: int) -> None:
        """Write down how an attempt ended and what follows."""
        entry.status = end.status
        entry.result = self.attempts.result(entry) or entry.result
        entry.lost += end.lost
        rules = lifecycle.COMMAND if entry.launch.training is None else lifecycle.TRAINING
        outcome = lifecycle.outcome_of(entry.job, end, rules, lifecycle.Tries(entry.lost, moved=entry.moved))
        job = lifecycle.record_after(entry.job, outcome.verdict, now)
        if outcome.verdict == "moved":
            entry.moved = False
            entry.attempt += 1
            self.attempts.prepare(job, entry)
        why = (outcome.verdict == "stopped" and entry.text) or outcome.text
        text = f"{why}; it goes on from its newest state" if outcome.verdict == "requeue" else why
        if job.state in ENDED:
            self._finish(entry, job, text, now)
        else:
            self._change(entry, job, text, now)

    def _change(self, entry: StoredJob, job: Job, text: str, now: int) -> None:
        entry.job = job
        self.memory.store.save(entry)
        if text:
            self.memory.store.note(now, text, job=job.id)
        self.cluster.put(job, now)

    def _finish(self, entry: StoredJob, job: Job, text: str, now: int) -> None:
        entry.text, entry.ended_ms = text, now
        self._change(entry, job, text or str(job.state), now)
        del self._entries[job.id]

    def _put_node(self, node: Node, text: str) -> None:
        now = self.now()
        with self.memory.store.transaction():
            self.memory.store.save_node(node)
            self.memory.store.note(now, text, node=node.number)
        self.cluster.put(node, now)
        self._dirty = True

    # Decisions

    def _decide(self, now: int) -> bool:
        """Ask for a pass, write it down whole, and carry it out."""
        decided, lines = self.cluster.decided(now)
        if self.memory.decisions.take(lines, now):
            self.cluster.begin_log()
        for text in self._invariants.after_pass(self.cluster):
            with self.memory.store.transaction():
                self.memory.store.note(now, f"invariant violated: {text}")
        # What a pass does may call for another: a node that was taken out is tested by the next one.
        self._dirty = any(not isinstance(action, actions.Wait) for action in decided)
        if not decided:
            return False
        self._pulse("decided")
        bound = [action.job for action in decided if isinstance(action, actions.Bind)]
        for name in bound:
            entry = self._entries[name]
            entry.attempt += 1
            self.attempts.prepare(self.cluster.jobs[name], entry)
        with self.memory.store.transaction():
            for action in decided:
                self._write(action, now)
            self.memory.save_standing(self.cluster)
        self._pulse("written")
        for action in decided:
            self._carry_out(action)
            self._pulse("carried out")
        return True

    def _write(self, action: actions.Action, now: int) -> None:
        """Write down what an action has changed in the state."""
        store = self.memory.store
        match action:
            case (
                actions.Bind()
                | actions.Preempt()
                | actions.Stop()
                | actions.Replace()
                | actions.Resize()
                | actions.Wait()
            ):
                entry = self._entries[action.job]
                entry.job = self.cluster.jobs.get(action.job) or ended(entry.job, self.cluster.ended[action.job])
                if isinstance(action, actions.Wait):
                    entry.wait = action_as_plain(action)
                if isinstance(action, actions.Replace | actions.Resize):
                    entry.moved = True
                if isinstance(action, actions.Bind) and entry.began_ms is None:
                    entry.began_ms = now
                if entry.job.state in ENDED:
                    entry.text, entry.ended_ms = f"stopped: {getattr(action, 'reason', '')}", now
                    del self._entries[action.job]
                store.save(entry)
                store.note(now, _in_words(action, self.cluster.pool.nodes), job=action.job)
            case (
                actions.Quarantine() | actions.Drain() | actions.Degrade() | actions.Move() | actions.RunTest()
                | actions.Ticket()
            ):  # fmt: skip
                store.save_node(self.cluster.pool.nodes[action.node])
                store.note(now, _in_words(action, self.cluster.pool.nodes), node=action.node)
            case actions.Alarm():
                store.note(now, _in_words(action, self.cluster.pool.nodes))
            case _:
                pass

    def _carry_out(self, action: actions.Action) -> None:
        match action:
            case actions.Bind():
                self.attempts.begin(self._entries[action.job])
            case actions.Preempt(stage="ask"):
                self.attempts.ask(self._entries[action.job])
            case actions.Preempt():
                self.attempts.end(self._entries[action.job])
            case actions.Stop() if action.job in self._entries:
                self.attempts.ask(self._entries[action.job])
            case actions.Replace() | actions.Resize():
                self.attempts.ask(self._entries[action.job])
            case actions.RunTest():
                self.trials.start(action, self.now())
            case _:
                pass

    def _known(self, names: tuple[str, ...]) -> set[str]:
        return {name for name in names if name in self._entries or self.memory.store.find(name) is not None}


def _in_words(action: actions.Action, nodes: list[Node]) -> str:
    """Return an action as a line of history."""
    match action:
        case actions.Bind():
            return f"started on {', '.join(nodes[number].name for number in action.placement.nodes)}"
        case actions.Wait():
            return f"waits: {action.text}"
        case actions.Preempt():
            verb = "asked to leave" if action.stage == "ask" else "ended"
            return f"{verb} ({action.reason}{f', for {action.for_job}' if action.for_job else ''})"
        case _:
            plain: Mapping[str, Any] = action_as_plain(action)
            return json.dumps({key: value for key, value in plain.items() if key not in ("job", "evidence")})
