"""What to do when something breaks: the life of a run as a table of states and events.

Events go in with the time at which they were seen, actions come out; whoever owns processes (an engine, or a simulated
world) carries them out. Every start of the ranks is a generation, and an event of another generation than the present
one is nothing but an echo. Everything has a limit: phases by `limits`, restarts and waits by `Policy`. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from weft.cluster.recovery.blame import GRACE_PS, blame
from weft.cluster.recovery.events import (
    Asked,
    Cause,
    Committed,
    Conclude,
    Died,
    Disagreed,
    Done,
    Examine,
    Examined,
    Fenced,
    Joined,
    Kill,
    LetGo,
    Lost,
    Obstacle,
    Phase,
    Raised,
    RankSlot,
    RecoveryAction,
    RecoveryEvent,
    RecoveryPolicy,
    Refused,
    Regained,
    Released,
    Resumed,
    Returned,
    StartGeneration,
    StateRestored,
    Stepped,
    Tick,
    Verified,
    Verify,
)
from weft.cluster.recovery.limits import LearnedLimit
from weft.cluster.recovery.recovery_state import ACTIVE, OPEN, RecoveryState
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds

ZERO = Picoseconds(0)
VICTIM_PS = Picoseconds(5 * PICOSECONDS_PER_SECOND)
"""How long the death is waited for of which a neighbour speaks: on a busy machine it is known late."""
FENCE_PS = Picoseconds(30 * PICOSECONDS_PER_SECOND)
"""How long killed processes may take to be gone."""
RELEASE_PS = Picoseconds(30 * PICOSECONDS_PER_SECOND)
"""How long survivors may take at least to let go: they finish what they compute of the present step first."""
_LOSSES = ("killed", "exited", "stopped", "hung", "lost")
"""Causes that say nothing about the state of the ranks which are left."""


_ASKED = "it was asked to stop"
_UNSAID = "the ranks have not said that they outlive one another"

Handler = Callable[[Any, RecoveryEvent, Picoseconds], tuple[RecoveryAction, ...]]


@dataclass
class RecoveryMachine:
    """The state of one run and the rules by which it changes; one owner, no clock."""

    policy: RecoveryPolicy
    """What may be done."""
    slots: tuple[RankSlot, ...]
    """Every place where a rank can run, the spare ones last."""
    began_ps: Picoseconds = ZERO
    """When the run began."""
    state: RecoveryState = RecoveryState.REFORMING
    """Where it stands."""
    generation: int = -1
    """Counts the starts of the ranks."""
    width: int = 0
    """Data-parallel replicas at present."""
    assigned: tuple[RankSlot, ...] = ()
    """Who runs where: rank number r in slot number r."""
    reached: int = 0
    """Steps that any generation has finished on all of its ranks."""
    learned: dict[str, LearnedLimit] = field(default_factory=dict)
    """What is known of each phase's duration."""
    cause: Cause | None = None
    """What is being recovered from."""
    asked: bool = False
    """Whether somebody wants it to stop."""
    restarts: int = 0
    """Restarts after a failure, in all."""
    futile: int = 0
    """Restarts in a row that got no further."""
    _since_ps: Picoseconds = ZERO
    _phase: str = "start"
    _phase_since_ps: Picoseconds = ZERO
    _lost: set[int] = field(default_factory=set)
    _last: list[int] = field(default_factory=list)
    _seen: dict[str, set[int]] = field(default_factory=dict)
    _steps: dict[int, int] = field(default_factory=dict)
    _begins_at: int = 0
    _said: str | None = None
    _resumed: bool = True
    _obstacle: str | None = _UNSAID
    _because: str | None = None

    def start(self, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Begin the first generation."""
        self.began_ps = now
        return self._place(now)

    def handle(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Take in one event and return what is to be done; an event of another generation changes nothing."""
        generation = getattr(event, "generation", None)
        if generation is not None and generation != self.generation:
            return ()
        handler, states = self.TABLE[type(event)]
        return handler(self, event, now) if self.state in states else ()

    def deadline_ps(self) -> Picoseconds | None:
        """Return when a `Tick` must come if nothing else does, or nothing where no limit runs."""
        if self.state not in OPEN:
            return None
        return Picoseconds(self._limit_from() + self._limit_ps())

    def available(self) -> list[RankSlot]:
        """Return the slots that can be used: those that were blamed last come last."""
        usable = [slot for slot in self.slots if slot.number not in self._lost]
        return sorted(usable, key=lambda slot: self._last.index(slot.number) + 1 if slot.number in self._last else 0)

    @property
    def keeps_survivors(self) -> bool:
        """Return whether, as far as is known, ranks outlive one of them that is lost."""
        return self.policy.restart_all is None and self._obstacle is None

    def limit_ps(self, phase: str) -> Picoseconds:
        """Return how long `phase` may take."""
        return self.learned.get(phase, LearnedLimit(self.policy.rule)).limit_ps

    def _limit_from(self) -> Picoseconds:
        return self._phase_since_ps if self.state is RecoveryState.RUNNING else self._since_ps

    def _limit_ps(self) -> Picoseconds:
        fixed = {
            RecoveryState.SUSPECT: GRACE_PS,
            RecoveryState.FENCING: FENCE_PS,
            RecoveryState.WAITING: self.policy.patience_ps,
        }
        if self.state is RecoveryState.SUSPECT and self.cause is not None and self.cause.victim:
            return VICTIM_PS
        if self.state in fixed:
            return fixed[self.state]
        if self.state is RecoveryState.REPLACING:
            return max(RELEASE_PS, self.limit_ps(self._phase))
        return self.limit_ps(self._phase if self.state is RecoveryState.RUNNING else "start")

    def _go(self, state: RecoveryState, now: Picoseconds) -> None:
        self.state, self._since_ps = state, now

    def _mark(self, kind: str, rank: int) -> bool:
        """Note that `rank` has got as far as `kind`; returns whether all have."""
        self._seen.setdefault(kind, set()).add(rank)
        return len(self._seen[kind]) == len(self.assigned)

    # Starting a generation.

    def _place(self, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Choose slots and start the next generation, or wait for hardware."""
        usable = self.available()
        width = self.policy.width_for(len(usable))
        if width is None:
            self._go(RecoveryState.WAITING, now)
            return ()
        ranks = width * self.policy.replica
        # Neighbours in number stay neighbours in place: ranks follow the numbers of their slots.
        self.assigned = tuple(sorted(usable[:ranks], key=lambda slot: slot.number))
        self.width, self._obstacle = width, _UNSAID
        return self._next_generation(now)

    def _next_generation(self, now: Picoseconds, kept: frozenset[int] = frozenset()) -> tuple[RecoveryAction, ...]:
        because = None if kept or self.cause is None else self._because
        self.generation += 1
        self._seen.clear()
        self._steps.clear()
        self._phase = "start"
        self._phase_since_ps = now
        self._go(RecoveryState.REFORMING, now)
        return (StartGeneration(self.generation, self.width, self.assigned, kept, because),)

    def _joined(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Joined)
        if self._mark("joined", event.rank) and self.state is RecoveryState.REFORMING:
            self._go_on_with_start(RecoveryState.RESTORING)
        return self._after_restore(now)

    def _restored(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, StateRestored)
        self._mark("restored", event.rank)
        self._begins_at = event.step
        return self._after_restore(now)

    def _go_on_with_start(self, state: RecoveryState) -> None:
        # The limit of a start-up runs from the start of the processes: its parts are not judged one by one.
        self.state = state

    def _after_restore(self, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        done = len(self._seen.get("restored", ())) == len(self.assigned)
        if self.state is not RecoveryState.RESTORING or not done:
            return ()
        self._go_on_with_start(RecoveryState.VERIFYING)
        del now
        return (Verify(self.generation),)

    def _verified(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        del event
        self._learn("start", Picoseconds(now - self._since_ps))
        self._phase, self._phase_since_ps = "step", now
        self._go(RecoveryState.RUNNING, now)
        self._resumed = self.cause is None
        return (*self._regain(self._begins_at), *self._when_done(now))

    def _refused(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Refused)
        return self._fence(Cause("refused", event.rank, event.text), now)

    # Running.

    def _learn(self, phase: str, duration: Picoseconds) -> None:
        self.learned[phase] = self.learned.get(phase, LearnedLimit(self.policy.rule)).with_duration(duration)

    def _stepped(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Note a rank's progress; the job is as far as its last rank."""
        assert isinstance(event, Stepped)
        self._steps[event.rank] = event.step
        if len(self._steps) < len(self.assigned) or self.state not in (RecoveryState.RUNNING, RecoveryState.SUSPECT):
            return ()
        step = min(self._steps.values())
        if step <= self._begins_at:
            return ()
        self._begins_at = step
        self._learn(self._phase, Picoseconds(now - self._phase_since_ps))
        self._phase, self._phase_since_ps = "step", now
        if self.state is RecoveryState.SUSPECT and self.cause is not None and self.cause.kind == "hung":
            # It was only slow; the limit has just learned so.
            self._go(RecoveryState.RUNNING, now)
            self.cause = None
        return (*self._resume(step), *self._regain(step))

    def _resume(self, step: int) -> tuple[RecoveryAction, ...]:
        if self._resumed:
            return ()
        self._resumed = True
        return (Resumed(self.generation, step),)

    def _regain(self, step: int) -> tuple[RecoveryAction, ...]:
        if step > self.reached:
            self.reached, self.futile, self._said = step, 0, None
            self.learned = {phase: known.with_wait(ZERO) for phase, known in self.learned.items()}
        if step < self.reached or self.cause is None or self.state is not RecoveryState.RUNNING:
            return ()
        self.cause = None
        return (Regained(self.generation, step),)

    def _phased(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Phase)
        if self._phase != event.name:
            self._learn(self._phase, Picoseconds(now - self._phase_since_ps))
            self._phase, self._phase_since_ps = event.name, now
        return ()

    def _committed(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Grow back right after a snapshot, when nothing but a part of a step is lost by it."""
        del event
        wider = self.policy.width_for(len(self.available()))
        if wider is None or wider <= self.width or self.cause is not None:
            return ()
        return self._fence(Cause("grow", None, f"hardware is back: from {self.width} to {wider} replicas"), now)

    def _done(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Done)
        self._mark("done", event.rank)
        if self.state is RecoveryState.REPLACING:
            return self._kill_all(f"rank {event.rank} had done its work already", now)
        return self._when_done(now)

    def _when_done(self, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        finished = len(self._seen.get("done", ())) == len(self.assigned)
        if not finished or self.state not in (RecoveryState.RUNNING, RecoveryState.SUSPECT):
            return ()
        self._go(RecoveryState.FINISHED, now)
        closing: tuple[RecoveryAction, ...] = (Regained(self.generation, self._begins_at),) if self.cause else ()
        return (*closing, Conclude(None))

    # When something is wrong.

    def give_up_generation(self, cause: Cause, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """End the present generation for a reason that no event speaks of."""
        return self._fence(cause, now)

    def _died(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Died)
        if event.rank in self._seen.get("done", ()):
            return ()
        if self.state is RecoveryState.REPLACING:
            return self._lose_another(event.rank, now)
        return self._fence(Cause(event.kind, event.rank, event.text), now)

    def _raised(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Take an exception as a sign: the rank that speaks first is often only the neighbour of a dead one."""
        assert isinstance(event, Raised)
        cause = Cause("error", event.rank, event.text, victim=event.victim)
        if self.state is RecoveryState.REPLACING:
            return () if event.stands_by else self._lose_another(event.rank, now)
        if event.fatal:
            return self._fence(replace(cause, fatal=True), now)
        if self.state is not RecoveryState.SUSPECT:
            self.cause = cause
            self._go(RecoveryState.SUSPECT, now)
        elif self.cause is not None and (self.cause.kind == "hung" or (self.cause.victim and not event.victim)):
            self.cause = cause
        return ()

    def _disagreed(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Disagreed)
        return self._fence(Cause("diverged", event.rank, event.text), now)

    def _examined(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Examined)
        if self.cause is None or self.cause.kind != "hung":
            return ()
        found = blame(event.evidence, self.cause.text)
        if found.kind == "hung":
            known = self.learned.get(self._phase, LearnedLimit(self.policy.rule))
            self.learned[self._phase] = known.with_wait(Picoseconds(now - self._phase_since_ps))
        return self._fence(found, now)

    def _tick(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Act on a limit that has been reached, if one has."""
        del event
        deadline = self.deadline_ps()
        if deadline is None or now < deadline:
            return ()
        over = self._limit_ps() / PICOSECONDS_PER_SECOND
        if self.state is RecoveryState.WAITING:
            return self._fail(f"no hardware came back within {over:,.0f} s", now)
        if self.state is RecoveryState.FENCING:
            return self._fail(f"processes that were killed were still there after {over:,.0f} s", now)
        if self.state is RecoveryState.SUSPECT:
            assert self.cause is not None, "a suspicion has a reason"
            return self._fence(self.cause, now)
        if self.state is RecoveryState.REPLACING:
            return self._kill_all(f"some rank did not let go of its groups within {over:,.0f} s", now)
        what = self._phase if self.state is RecoveryState.RUNNING else "start"
        self.cause = Cause("hung", None, f"no progress in the phase {what!r} for {over:.1f} s, the limit learned")
        self._go(RecoveryState.SUSPECT, now)
        return (Examine(self.generation),)

    def _fence(self, cause: Cause, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """End every process of the generation; what happens then is decided when they are gone."""
        slot = None if cause.rank is None else self.assigned[cause.rank]
        self.cause = replace(
            cause, slot=slot, detected_ps=now, step=self._begins_at, phase_since_ps=self._phase_since_ps
        )
        because = self._why_all(self.cause)
        if because is None:
            self._go(RecoveryState.REPLACING, now)
            return (LetGo(self.generation, self.cause),)
        return self._kill_all(because, now)

    def _why_all(self, cause: Cause) -> str | None:
        """Return why all ranks must be started again, or nothing where the survivors can go on as they are."""
        others = [slot for rank, slot in enumerate(self.assigned) if rank != cause.rank]
        reasons = {
            "the ranks were still starting": self._phase == "start",
            "somebody wants the run to stop": self.asked,
            f"a rank that is {cause.kind} says nothing good about the others": cause.kind not in _LOSSES,
            "nobody knows which rank is lost": cause.rank is None,
            "more than one rank is lost": any(slot.number in self._lost for slot in others),
            "other ranks had done their work already": bool(self._seen.get("done")),
            "the number of ranks changes": self.policy.width_for(len(self.available())) != self.width,
        }
        return self.policy.restart_all or self._obstacle or next((why for why, so in reasons.items() if so), None)

    def _kill_all(self, because: str, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert self.cause is not None, "nothing is fenced without a reason"
        self._because = because
        self._go(RecoveryState.FENCING, now)
        return (Kill(self.generation, self.cause),)

    def _lose_another(self, rank: int, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Give up replacing one rank where a second one is lost meanwhile."""
        assert self.cause is not None, "nothing is replaced without a reason"
        return () if rank == self.cause.rank else self._kill_all(f"rank {rank} was lost too", now)

    def _obstructed(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Obstacle)
        del now
        self._obstacle = event.text
        return ()

    def _released(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Put another rank in the lost one's place; everybody else keeps place, process and state."""
        del event
        cause = self.cause
        assert cause is not None, "nothing is replaced without a reason"
        assert cause.rank is not None, "who is replaced is known"
        over = self._count(cause)
        if over is not None:
            return self._fail(over, now)
        taken = {slot.number for rank, slot in enumerate(self.assigned) if rank != cause.rank}
        instead = next((slot for slot in self.available() if slot.number not in taken), None)
        if instead is None:
            return self._kill_all("the number of ranks changes", now)
        self.assigned = tuple(instead if rank == cause.rank else slot for rank, slot in enumerate(self.assigned))
        return self._next_generation(now, frozenset(range(len(self.assigned))) - {cause.rank})

    def _count(self, cause: Cause) -> str | None:
        """Count a restart; returns why it was one too many, where it was."""
        if cause.slot is not None:
            self._last = [*(number for number in self._last if number != cause.slot.number), cause.slot.number]
        if cause.kind == "grow":
            return None
        self._said = cause.text if cause.kind == "error" else None
        self.restarts, self.futile = self.restarts + 1, self.futile + 1
        return self._over_budget(cause)

    def _fenced(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Decide how to go on, now that nothing of the generation is left."""
        del event
        cause = self.cause
        assert cause is not None, "nothing is fenced without a reason"
        if self.asked:
            return self._fail(_ASKED, now)
        if cause.fatal or (cause.kind == "error" and not cause.victim and cause.text == self._said):
            return self._fail(cause.text, now)
        over = self._count(cause)
        return self._place(now) if over is None else self._fail(over, now)

    def _over_budget(self, cause: Cause) -> str | None:
        if self.futile > self.policy.futile:
            return (
                f"crash loop: {self.policy.futile} restarts in a row got no further than step {self.reached};"
                f" the last cause was: {cause.text}"
            )
        if self.restarts > self.policy.restarts:
            return f"the budget of {self.policy.restarts} restarts is used up; the last cause was: {cause.text}"
        return None

    def _lose(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Lost)
        self._lost.update(event.slots)
        hit = [rank for rank, slot in enumerate(self.assigned) if slot.number in event.slots]
        if self.state not in ACTIVE or not hit:
            return ()
        if self.state is RecoveryState.REPLACING:
            others = [rank for rank in hit if self.cause is None or rank != self.cause.rank]
            return self._lose_another(others[0], now) if others else ()
        return self._fence(Cause("lost", hit[0], event.text), now)

    def _return(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        assert isinstance(event, Returned)
        self._lost.difference_update(event.slots)
        return self._place(now) if self.state is RecoveryState.WAITING else ()

    def _asked(self, event: RecoveryEvent, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        """Stop where no rank is there to be asked, and start none again."""
        del event
        self.asked = True
        return () if self.state in ACTIVE else self._fail(_ASKED, now)

    def _fail(self, text: str, now: Picoseconds) -> tuple[RecoveryAction, ...]:
        self._go(RecoveryState.FAILED, now)
        return (Conclude(text),)

    TABLE: ClassVar[dict[type[RecoveryEvent], tuple[Handler, frozenset[RecoveryState]]]] = {
        Joined: (_joined, frozenset({RecoveryState.REFORMING})),
        StateRestored: (_restored, frozenset({RecoveryState.REFORMING, RecoveryState.RESTORING})),
        Verified: (_verified, frozenset({RecoveryState.VERIFYING})),
        Refused: (_refused, frozenset({RecoveryState.VERIFYING})),
        Stepped: (_stepped, ACTIVE),
        Phase: (_phased, frozenset({RecoveryState.RUNNING})),
        Committed: (_committed, frozenset({RecoveryState.RUNNING})),
        Done: (_done, ACTIVE),
        Died: (_died, ACTIVE),
        Raised: (_raised, ACTIVE),
        Disagreed: (_disagreed, frozenset({RecoveryState.RUNNING, RecoveryState.SUSPECT})),
        Examined: (_examined, frozenset({RecoveryState.SUSPECT})),
        Fenced: (_fenced, frozenset({RecoveryState.FENCING})),
        Released: (_released, frozenset({RecoveryState.REPLACING})),
        Obstacle: (_obstructed, OPEN),
        Lost: (_lose, OPEN),
        Returned: (_return, OPEN),
        Asked: (_asked, OPEN),
        Tick: (_tick, OPEN),
    }
    """What each event does, and in which states; everywhere else it is an echo and changes nothing."""
