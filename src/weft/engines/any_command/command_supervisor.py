"""The shell around `cluster.recovery.machine` for a command that knows nothing of weft.

What ranks of weft say, a command shows by its files: a checkpoint that was found whole is progress. Who ends, is
stopped or is silent for too long is judged as there; all ranks start again, from what the guard has found whole.
"""

import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weft.cluster.recovery import events as recovery_events
from weft.cluster.recovery.events import RankSlot, RecoveryAction, RecoveryEvent, RecoveryPolicy
from weft.cluster.recovery.limits import LimitRule
from weft.cluster.recovery.machine import RecoveryMachine
from weft.cluster.recovery.recovery_state import RecoveryState
from weft.core.clock import SystemClock
from weft.core.errors import FailedError, LimitReachedError, UsageError
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.any_command.checkpoint_guard import CheckpointGuard
from weft.engines.any_command.command_ranks import CommandRanks
from weft.engines.supervisor.incidents import IncidentLog
from weft.engines.supervisor.rank_host import RankEnded
from weft.training.launch.rank_place import speaks_of_another
from weft.training.launch.ranks import how, stop_on_signal

_NAP_S = 0.1
_YEAR = Picoseconds(365 * 86_400 * PICOSECONDS_PER_SECOND)
_WRONG_USE = 2

Check = Callable[[], list[str]]
"""Tests this machine; returns what is wrong."""


@dataclass(frozen=True)
class CommandLimits:
    """How long a command may do what."""

    restarts: int = 100
    """Most restarts in all."""
    stall_s: float = 1800.0
    """Silence, without output and without a new checkpoint, after which it counts as hung."""
    grace_s: float = 30.0
    """Time to end by itself when it is asked to."""
    start_over: bool = False
    """Whether it may run though nothing of what it had stored is whole."""


class CommandSupervisor:
    """Runs a command on every rank until it has ended well."""

    def __init__(  # noqa: PLR0917 - made in one place
        self, ranks: CommandRanks, folder: Path, guard: CheckpointGuard | None, check: Check, limits: CommandLimits,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Prepare to run `ranks`, with incidents in `folder`; `check` is made before every start."""
        self._ranks, self._guard, self._check, self._limits, self._say = ranks, guard, check, limits, say
        self._clock = SystemClock()
        self.records = IncidentLog(self._clock)
        self.records.use(folder)
        slots = tuple(RankSlot(number, 0) for number in range(ranks.count))
        policy = RecoveryPolicy(
            "wait", ranks.count, restarts=limits.restarts, rule=LimitRule(first_ps=_YEAR, needed=1 << 60),
            restart_all="the program is not weft's own",
        )  # fmt: skip
        self._machine = RecoveryMachine(policy, slots)
        self._queue: deque[RecoveryEvent] = deque()
        self._stored = 0
        self._asked_s: float | None = None

    def run(self) -> None:
        """Run to the end, or raise what ended it."""
        failure: str | None = "it was interrupted"
        try:
            with stop_on_signal(self._ask):
                failure = self._loop()
        finally:
            self._ranks.end()
            if self._guard is not None:
                self._guard.end()
            if self.records.open is not None:
                self.records.end("recovered" if failure is None else f"failed: {failure.splitlines()[0]}")
        if failure is not None:
            raise self._error(failure)

    def _error(self, text: str) -> BaseException:
        if self._asked_s is not None:
            return KeyboardInterrupt()
        if self._machine.cause is not None and self._machine.cause.fatal:
            return UsageError(text)
        return LimitReachedError(text) if "crash loop" in text or "budget of" in text else FailedError(text)

    def _ask(self) -> None:
        self._asked_s = time.monotonic()
        self._ranks.signal(signal.SIGTERM)

    def _loop(self) -> str | None:
        actions: deque[RecoveryAction] = deque(self._machine.start(self._clock.now()))
        while True:
            while actions:
                action = actions.popleft()
                if isinstance(action, recovery_events.Conclude):
                    return action.failure
                self._carry_out(action)
            if self._asked_s is not None:
                return self._wait_for_the_end(self._asked_s)
            actions += self._look()
            while self._queue:
                actions += self._handle(self._queue.popleft())

    def _wait_for_the_end(self, since_s: float) -> str:
        """Give ranks that were asked to end the time to store what they have."""
        while self._ranks.running and time.monotonic() - since_s < self._limits.grace_s:
            list(self._ranks.hear(_NAP_S))
        return "it was asked to stop"

    def _handle(self, event: RecoveryEvent) -> tuple[RecoveryAction, ...]:
        before = self._machine.state
        actions = self._machine.handle(event, self._clock.now())
        if self._machine.state is not before:
            self.records.turn(self._machine.state)
        return actions

    def _look(self) -> tuple[RecoveryAction, ...]:
        """Turn what is seen into events; a silence that is too long ends the generation at once."""
        machine, generation = self._machine, self._machine.generation
        begun_s = self._ranks.heard_s
        for word in self._ranks.hear(_NAP_S):
            if isinstance(word, RankEnded):
                self._queue.append(self._end_of(generation, word))
            else:
                self._queue.append(
                    recovery_events.Died(generation, word.rank, "stopped", f"rank {word.rank} is stopped")
                )
        opened = self.records.open
        if self._ranks.heard_s > begun_s and opened is not None and opened.resumed_ps is None:
            self.records.resumed()
        if self._guard is not None and self._guard.stored > self._stored:
            self._stored, self._ranks.heard_s = self._guard.stored, time.monotonic()
            self._queue.extend(
                recovery_events.Stepped(generation, rank, self._stored) for rank in range(self._ranks.count)
            )
        self._queue.append(recovery_events.Tick())
        silent_s = time.monotonic() - self._ranks.heard_s
        if machine.state is RecoveryState.RUNNING and silent_s > self._limits.stall_s:
            text = f"no rank has printed or stored anything for {silent_s:.0f} s"
            return machine.give_up_generation(recovery_events.Cause("hung", None, text), self._clock.now())
        return ()

    def _end_of(self, generation: int, word: RankEnded) -> RecoveryEvent:
        if word.code == 0:
            return recovery_events.Done(generation, word.rank)
        if word.code is None or word.code < 0:
            text = f"rank {word.rank} died ({how(word.code)})"
            return recovery_events.Died(generation, word.rank, "killed", text)
        said = self._ranks.last_words(word.rank)
        # Without the rank's number: the same mistake is the same whoever makes it first.
        text = f"the command ended with status {word.code}" + (f": {said}" if said else "")
        victim = bool(said) and speaks_of_another(said)
        return recovery_events.Raised(
            generation, word.rank, text, victim=victim, fatal=word.code == _WRONG_USE and not self._stored
        )

    def _carry_out(self, action: RecoveryAction) -> None:
        generation = self._machine.generation
        match action:
            case recovery_events.StartGeneration():
                self._start(generation)
                self.records.acted(action)
            case recovery_events.Verify():
                self._queue.append(recovery_events.Verified(generation))
            case recovery_events.Kill(cause=cause):
                self.records.begin(cause, self._ranks.count)
                self.records.turn(RecoveryState.FENCING)
                self._say(f"weft: {cause.text.splitlines()[0]}")
                self._ranks.end()
                self._queue.append(recovery_events.Fenced(generation))
            case recovery_events.Resumed():
                self.records.resumed()
            case recovery_events.Regained():
                self.records.regained()
            case _:
                raise AssertionError(f"no way to carry out {action}")

    def _start(self, generation: int) -> None:
        """Start the ranks on a healthy machine, over checkpoints that are whole."""
        wrong = self._check()
        if wrong:
            raise FailedError(f"no rank was started: this machine has failed {'; '.join(wrong)}")
        if self._guard is not None:
            self._guard.end()
            for line in self._guard.settle(start_over=self._limits.start_over):
                self._say(f"weft: {line}")
                self.records.trouble(None, "checkpoint", self._stored, line)
            self._stored = self._guard.stored
        if generation:
            self._say("weft: all ranks start again")
        self._ranks.start(generation)
        if self._guard is not None:
            self._guard.begin()
        for rank in range(self._ranks.count):
            self._queue.append(recovery_events.Joined(generation, rank))
            self._queue.append(recovery_events.StateRestored(generation, rank, self._stored))
