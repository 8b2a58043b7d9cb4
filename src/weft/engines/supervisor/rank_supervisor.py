"""The shell around `cluster.recovery.machine`: it waits on processes, pipes and the clock, and acts.

One thread, one loop: what is ready becomes events, events become actions, actions are carried out. Ranks
are reached through a `RankHost` alone: this machine's fork server unless another one is given. The store through which
ranks find each other has a prefix for each generation, so no generation reads another's addresses.
"""

import contextlib
import json
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal, assert_never

from weft.cluster.recovery import events as recovery_events
from weft.cluster.recovery.events import RecoveryAction, RecoveryEvent
from weft.cluster.recovery.machine import RecoveryMachine
from weft.cluster.recovery.recovery_state import RecoveryState
from weft.core.clock import SystemClock
from weft.core.errors import FailedError, LimitReachedError, UsageError
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.engines.supervisor.chaos import Chaos, damage_checkpoint, lose_store
from weft.engines.supervisor.fork_server_host import ForkServerHost, RankProgram
from weft.engines.supervisor.generation import Generation
from weft.engines.supervisor.incidents import IncidentLog
from weft.engines.supervisor.rank_host import (
    DomainBack,
    DomainLost,
    Heard,
    KeeperDied,
    RankHost,
    RankSaid,
    RankStart,
    SpareLost,
)
from weft.engines.supervisor.rank_layout import TRAIN, RankMain, checks_of, narrowed, policy_of, slots_of
from weft.engines.supervisor.replacement import Replacement
from weft.engines.supervisor.snapshots import SnapshotIndex
from weft.specs import JobSpec, load_job
from weft.specs.faults import Fault, FaultsSpec, refuse_planes, resolved
from weft.training import resumed_job, run_dir
from weft.training.launch.ranks import stop_on_signal
from weft.training.parallel.auto_plan import planned
from weft.training.recovery.agreement import agree, first_difference
from weft.training.recovery.orders import Candidate, Orders
from weft.training.recovery.piece import Piece

_NAP_S = 0.5
_LOCAL = "local"
_GRACE_S = 5.0

Tell = Callable[[Mapping[str, Any]], None]


class Supervisor:
    """Runs a job until it is finished, whatever happens to its ranks: on this machine, if it has no other hosts."""

    hosts = 1
    """Machines on which it runs."""

    def __init__(
        self, job: JobSpec, folder: Path, *, main: RankMain = TRAIN, resume: bool = False,
        faults: FaultsSpec | None = None, on_line: Tell | None = None,
    ) -> None:  # fmt: skip
        """Prepare to run `main` on every rank."""
        self._job = job
        plan = planned(job, ranks=main.ranks).plan
        assert plan != "auto"
        self._plan = plan
        given = {"job": job, "folder": str(folder), "resume": resume}
        arguments = given if main.arguments is None else main.arguments
        self._on_line = on_line
        recovery = job.recovery
        self._slots = slots_of(self._plan.ranks, recovery.spares, recovery.domains, self.hosts)
        wanted = FaultsSpec(seed=job.seed, faults=job.faults) if faults is None else faults
        refuse_planes(wanted, job.backend)
        self._chaos = Chaos(resolved(wanted, ranks=self._plan.ranks, nodes=self.nodes, steps=job.steps))
        self._clock = SystemClock()
        program = RankProgram(main.target, arguments, job.backend, checks_of(job))
        self.host = self._made_host(program)
        self._replacement = Replacement(self.host) if isinstance(self.host, ForkServerHost) else None
        self.survival = RecoveryMachine(policy_of(job, plan, main, self.hosts), self._slots)
        self.records = IncidentLog(self._clock)
        self._memory = SnapshotIndex()
        self._folder: Path | None = None
        self.start_over = False
        """Whether it may begin at step 0 again where something was stored and none of it can be restored."""
        self._queue: deque[RecoveryEvent] = deque()
        self._generation: Generation | None = None
        self._candidates: tuple[Candidate, ...] = ()
        self._asked = False
        self._lost_nodes: set[int] = set()
        if resume:
            self._take_up(run_dir.latest(folder, job))

    @property
    def nodes(self) -> int:
        """Return the number of failure domains."""
        return -(-self._job.recovery.domains // self.hosts) * self.hosts

    def _made_host(self, program: RankProgram) -> RankHost:
        return ForkServerHost(program, range(self.nodes), self._clock)

    def _take_up(self, record: run_dir.RunRecord | None) -> None:
        """Go on with an earlier run: its folder, and what was agreed about its checkpoints."""
        if record is None:
            return
        resumed_job.gone_on(record.job(), self._job.model_copy(update={"plan": self._plan}), str(record.folder))
        self._use(record.folder)
        self._memory.load(record.folder)

    def _use(self, folder: Path) -> None:
        self._folder = folder
        self.records.use(folder)

    @property
    def _checkpoints(self) -> Path | None:
        return None if self._folder is None else self._folder / run_dir.CHECKPOINTS

    def run(self) -> dict[str, Any]:
        """Run to the end; returns rank 0's result with recoveries, incidents and goodput, or raises what ended it."""
        self._store = self.host.open()
        if self._folder is not None:
            self.host.memory.use(self._folder / _LOCAL)
        failure: str | None = "it was interrupted"
        try:
            with stop_on_signal(self._ask):
                failure = self._loop()
        finally:
            if failure is not None:
                self.host.end()
            else:
                self.host.finish(_GRACE_S)
            self.host.close()
        if failure is not None and self._asked:
            raise KeyboardInterrupt
        if failure is not None:
            raise self._error(failure)
        return self._result()

    def _error(self, text: str) -> Exception:
        if self.records.open is not None:
            self.records.end(f"failed: {text.splitlines()[0]}")
        cause = self.survival.cause
        if cause is not None and cause.fatal:
            return FailedError(text) if "were not stored" in text else UsageError(text)
        limited = "crash loop" in text or "budget of" in text or "no hardware" in text
        return LimitReachedError(text) if limited else FailedError(text)

    def _result(self) -> dict[str, Any]:
        assert self._generation is not None, "a run that has ended well had ranks"
        result = self._generation.results[0]
        added: dict[str, Any] = {
            "recoveries": self.records.recoveries(),
            "incidents": self.records.incidents,
            "goodput": self.records.goodput(),
        }
        # The time of the whole run: what the last generation's ranks saw of it is only a part.
        added["seconds"] = added["goodput"]["seconds"]
        if isinstance(result, dict) and result.get("state") == "finished":
            self.host.memory.forget()
        whole = {**result, **added} if isinstance(result, dict) else {"result": result, **added}
        if self._folder is not None and (self._folder / run_dir.RESULT).exists():
            part = self._folder / f".{run_dir.RESULT}.part"
            with contextlib.suppress(OSError):
                part.write_text(json.dumps(whole, indent=2, default=str) + "\n", encoding="utf-8")
                part.replace(self._folder / run_dir.RESULT)
        return whole

    def _ask(self) -> None:
        """Pass on somebody's wish to stop: to the ranks where there are any."""
        self._asked = True
        self._queue.append(recovery_events.Asked())
        if self._generation is not None:
            for rank in range(len(self._generation.slots)):
                self.host.signal(rank, signal.SIGTERM)

    def _loop(self) -> str | None:
        """Wait, decide, do; returns why the run failed, or nothing."""
        actions: deque[RecoveryAction] = deque(self._first())
        while True:
            while actions:
                action = actions.popleft()
                if isinstance(action, recovery_events.Conclude):
                    return action.failure
                self._carry_out(action)
            self._wait()
            while self._queue:
                actions += self._handle(self._queue.popleft())

    def _first(self) -> tuple[RecoveryAction, ...]:
        return self.survival.start(self._clock.now())

    def _handle(self, event: RecoveryEvent) -> tuple[RecoveryAction, ...]:
        before = self.survival.state
        actions = self.survival.handle(event, self._clock.now())
        if self.survival.state is not before and not any(isinstance(one, recovery_events.Kill) for one in actions):
            self.records.turn(self.survival.state)
        if isinstance(event, recovery_events.Verified) and self.records.open is None:
            self._prepare()
        return actions

    def _wait(self) -> None:
        """Turn what happens next into events."""
        if self._queue:
            return
        ready = set(wait(self.host.watched(), self._patience_s()))
        for word in self.host.hear(ready):
            self._take(word)
        for fault in self._chaos.due(self.survival.reached, self._clock.now()):
            self._bring_about(fault)
        self._queue.append(recovery_events.Tick())

    def _patience_s(self) -> float:
        times = [time for time in (self.survival.deadline_ps(), self._chaos.next_ps()) if time is not None]
        left = [max(0.0, (time - self._clock.now()) / PICOSECONDS_PER_SECOND) for time in times]
        return min([_NAP_S, *left])

    def _take(self, word: Heard) -> None:
        """Take in one thing that the host has heard."""
        if isinstance(word, DomainLost):
            self._lose_node(word.node, word.text)
        elif isinstance(word, DomainBack):
            self._lost_nodes.discard(word.node)
            back = frozenset(slot.number for slot in self._slots if slot.node == word.node)
            self._queue.append(recovery_events.Returned(back))
        elif isinstance(word, KeeperDied):
            self._memory.lose_memory(word.node)
            self.records.trouble(None, "helper", self.survival.reached, word.text)
        elif isinstance(word, SpareLost):
            self._queue.append(recovery_events.Obstacle(word.text))
        elif self._generation is not None:
            self._queue += self._generation.events(word)
            if isinstance(word, RankSaid):
                self._hear(self._generation, word.rank, word.kind, word.content)

    def _hear(self, generation: Generation, rank: int, kind: str, content: Any) -> None:
        """Take in one message of one rank."""
        if kind in _EVENTS:
            self._queue.append(_EVENTS[kind](generation.number, rank, content))
        match kind:
            case "folder":
                self._use(Path(content))
                self.host.memory.use(Path(content) / _LOCAL)
            case "restored":
                generation.restored[rank] = content
            case "snapshot":
                self._vote(generation, rank, content)
            case "fault":
                self._came_true(rank, self._chaos.fired(content))
            case "step":
                self._line(content)
            case "trouble":
                self.records.trouble(rank, *content)
            case "done":
                generation.results[rank] = content
            case _:
                pass

    def _line(self, line: Mapping[str, Any]) -> None:
        if "seconds" in line:
            self.records.stepped(line["seconds"])
        if self._on_line is not None:
            self._on_line(line)

    def _vote(self, generation: Generation, rank: int, content: tuple[int, Any, Any, list[Piece]]) -> None:
        """Count a rank's vote on a snapshot, and act on the last one."""
        step, digests, stored, pieces = content
        number = generation.number
        self._memory.pieces.update({piece.key: piece for piece in pieces})
        agreement = self._memory.vote((number, step), rank, len(generation.slots), digests, stored)
        if agreement is None:
            return
        if agreement.dissent:
            first = agreement.dissent[0]
            who = first.ranks[0] if first.majority and len(first.ranks) == 1 else None
            self._queue.append(recovery_events.Disagreed(number, who, f"after step {step} {first}"))
            return
        commits = self._memory.commits
        self.host.memory.keep([commit.snapshot for commit in commits])
        every = self._job.checkpoint.every
        if step == self._job.steps or (every and step % every == 0):
            self._memory.remember(step, agreement.tensors)
            self._memory.save(self._folder)
        if commits and commits[-1].snapshot == (number, step):
            self._spill()
            self._queue.append(recovery_events.Committed(number, step))

    def _spill(self) -> None:
        every = self._job.recovery.disk * self._job.recovery.snapshots
        commit = self._memory.commits[-1]
        if not every or commit.step % every or self._folder is None:
            return
        nodes = self.host.memory.spill(commit.snapshot)
        if nodes:
            self._memory.on_disk = commit
            self._memory.save(self._folder)

    def _carry_out(self, action: RecoveryAction) -> None:
        match action:
            case recovery_events.StartGeneration():
                self._start(action)
            case recovery_events.Verify():
                self._queue.append(self._verdict(action.generation))
            case recovery_events.Examine():
                self._queue.append(recovery_events.Examined(action.generation, self.host.evidence()))
            case recovery_events.Kill():
                self._fence(action)
            case recovery_events.LetGo():
                self._begin_incident(action.cause, RecoveryState.REPLACING)
                assert self._replacement is not None, "only where ranks can be replaced one by one"
                assert self._generation is not None
                self._replacement.let_go(self._generation, action.cause)
            case recovery_events.Resumed():
                self.records.resumed()
                self._prepare()
            case recovery_events.Regained():
                self.records.regained()
            case _:
                raise AssertionError(f"no way to carry out {action}")

    def _start(self, action: recovery_events.StartGeneration) -> None:
        """Start the ranks of a generation, each with its orders."""
        self._memory.new_generation()
        self.host.memory.fence(action.generation)
        checkpoints = self._checkpoints
        anew = self.start_over or self._folder is None or not run_dir.stored_before(self._folder)
        # Once a checkpoint was complete, nothing silently begins at step 0 again, in no generation.
        self._candidates = self._memory.candidates(checkpoints, start=anew)
        if not self._candidates and not action.kept:
            assert checkpoints is not None, "something was stored"
            raise FailedError(self._memory.nothing_left(checkpoints))
        nodes = tuple(slot.node for slot in action.slots)
        keepers = self.host.memory.addresses()
        orders = Orders(
            nodes, keepers, self._job.recovery.snapshots, self._candidates,
            None if self._folder is None else str(self._folder), narrowed(self._plan, action.width),
            self.survival.reached, in_step=self.survival.policy.restart_all is None,
        )  # fmt: skip
        starts = [
            RankStart(
                rank, len(nodes), action.generation, self._store, replace(orders, faults=self._chaos.of_rank(rank))
            )
            for rank in range(len(nodes))
        ]
        if self._replacement is not None:
            self._replacement.remember(starts[0])
        if action.kept and self._replacement is not None:
            self._replacement.start(starts, action.kept)
        else:
            self.host.start(starts)
        self._generation = Generation(action.generation, action.slots)
        self.records.acted(action)

    def _prepare(self) -> None:
        spares = self._job.recovery.spares
        if spares and self.survival.keeps_survivors and self._replacement is not None and self._folder is not None:
            self._replacement.prepare(self._folder)

    def _begin_incident(self, cause: recovery_events.Cause, state: RecoveryState) -> None:
        # One that could not be put right by replacing a rank goes on as a restart of all.
        if self.records.open is None or self.records.open.cause != cause:
            self.records.begin(cause, len(self.survival.assigned))
            if self._on_line is not None and not cause.fatal:
                self._on_line({"incident": cause.text, "kind": cause.kind, "step": cause.step})
        self.records.turn(state)

    def _verdict(self, number: int) -> RecoveryEvent:
        """Hold what all ranks have restored against what was agreed about it."""
        generation = self._generation
        assert generation is not None
        reports = generation.restored
        tier, step = reports[0]["tier"], reports[0]["step"]
        pieces = {piece.key: piece for report in reports.values() for piece in report["pieces"]}
        agreement = agree({rank: report["digests"] for rank, report in reports.items()}, pieces)
        chosen = next((one for one in self._candidates if (one.tier, one.step) == (tier, step)), None)
        expected = None if chosen is None else self._memory.expected(chosen, self._checkpoints)
        self.records.restored(tier, step, reports[0]["notes"])
        if agreement.dissent:
            return recovery_events.Refused(number, None, f"the restored ranks are not equal: {agreement.dissent[0]}")
        differing = None if expected is None else first_difference(expected, agreement.tensors)
        if differing is None:
            return recovery_events.Verified(number)
        assert chosen is not None
        self._memory.refused.add(chosen.name)
        return recovery_events.Refused(number, None, f"{chosen} gave another {differing} than was agreed")

    def _fence(self, action: recovery_events.Kill) -> None:
        """End a generation, and read what it had still said."""
        self._begin_incident(action.cause, RecoveryState.FENCING)
        for word in self.host.end():
            if self._generation is not None:
                self._hear(self._generation, word.rank, word.kind, word.content)
        self._generation = None
        self._queue.append(recovery_events.Fenced(action.generation))

    def _came_true(self, rank: int, fault: Fault) -> None:
        """Act on what a fault inside a rank means outside: a lost rank takes its slot with it."""
        if fault.kind == "lose-rank" and self._generation is not None:
            slot = self._generation.slots[rank]
            self._queue.append(
                recovery_events.Lost(frozenset({slot.number}), f"slot {slot.number} with rank {rank} is lost")
            )

    def _lose_node(self, node: int, text: str) -> None:
        """Lose a failure domain: its memory, its disk, and the ranks in it."""
        self.host.memory.lose(node)
        self._memory.lose_node(node)
        self._lost_nodes.add(node)
        numbers = frozenset(slot.number for slot in self._slots if slot.node == node)
        if self._generation is not None:
            for rank, slot in enumerate(self._generation.slots):
                if slot.node == node:
                    self.host.signal(rank, signal.SIGKILL)
        self._queue.append(recovery_events.Lost(numbers, text))

    def _bring_about(self, fault: Fault) -> None:
        """Let a fault of the supervisor's own come true."""
        generation = self._generation
        match fault.kind:
            case "kill" | "stop" | "lose-rank":
                number = signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL
                if generation is not None and fault.rank is not None and fault.rank < len(generation.slots):
                    self._came_true(fault.rank, fault)
                    self.host.signal(fault.rank, number)
            case "lose-node":
                assert fault.node is not None, "a lost node has a number"
                self._lose_node(fault.node, f"node {fault.node} is lost")
            case "lose-store":
                if self._checkpoints is not None:
                    lose_store(self._checkpoints)
            case "return":
                self._give_back(fault)
            case "flip" | "nan" | "slow" | "slow-input" | "full-disk" | "plane-down" | "drop-link":
                self._damage(fault)
            case _:
                assert_never(fault.kind)

    def _give_back(self, fault: Fault) -> None:
        for node in sorted(self._lost_nodes):
            if fault.node in (None, node) and fault.rank is None:
                self.host.memory.start(node)
                self._lost_nodes.discard(node)
        back = frozenset(
            slot.number
            for slot in self._slots
            if slot.node not in self._lost_nodes
            and (fault.rank in (None, slot.number))
            and (fault.node in (None, slot.node))
        )
        self._queue.append(recovery_events.Returned(back))

    def _damage(self, fault: Fault) -> None:
        """Flip a bit in what is kept: the newest checkpoint, or a piece of the newest snapshot."""
        if fault.place == "checkpoint" and self._checkpoints is not None:
            damage_checkpoint(self._checkpoints, fault)
        elif fault.place == "snapshot" and self._memory.commits:
            commit = self._memory.commits[-1]
            keys = sorted(key for key in commit.pieces if fault.tensor is None or fault.tensor in key)
            for node in sorted(self.host.memory.addresses()):
                if fault.node in (None, node) and keys:
                    held = [key for key in keys if node in commit.pieces[key].nodes]
                    if held:
                        self.host.memory.damage(node, commit.snapshot, held[fault.word % len(held)], fault.word >> 8)


_EVENTS: dict[str, Callable[[int, int, Any], RecoveryEvent]] = {
    "joined": lambda generation, rank, _: recovery_events.Joined(generation, rank),
    "restored": lambda generation, rank, content: recovery_events.StateRestored(generation, rank, content["step"]),
    "stepped": recovery_events.Stepped,
    "phase": recovery_events.Phase,
    "diverged": lambda generation, _, content: recovery_events.Disagreed(generation, *content),
    "done": lambda generation, rank, _: recovery_events.Done(generation, rank),
    "survives": lambda _, __, content: recovery_events.Obstacle(content),
}
"""What a rank's message is to the one who decides, where it is anything."""


def survive(
    main: Callable[[str, str], Any], job: str, folder: str = "runs", *, ranks: int = 1,
    resume: bool | Literal["start-over"] = False, faults: FaultsSpec | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Keep a training loop of one's own alive: call `main(job, folder)` on every rank, again after every failure.

    `main` is a function at the top of a module and begins with `weft.start(job, folder=folder)`. `ranks` counts where
    the job leaves its plan open. With `resume = "start-over"` it begins at step 0, instead of being refused, where
    something was stored and nothing of it can be restored. Returns what rank 0 returned, with recoveries, incidents and
    goodput.
    """
    supervisor = Supervisor(
        load_job(job), Path(folder), resume=bool(resume), faults=faults,
        main=RankMain(
            "weft.training.launch.ranks:call", {"main": main, "job": job, "folder": folder}, ranks=ranks
        ),
    )  # fmt: skip
    supervisor.start_over = resume == "start-over"
    return supervisor.run()
