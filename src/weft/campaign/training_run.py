"""One gang's progress: what its GPU-time was, checkpoint by checkpoint, in integers.

A gang is always in one phase, and all of its GPUs are. While it trains, work and checkpoints alternate; a failure takes
back what no checkpoint kept. Nothing is stepped through: a stretch of any length is accounted for in one go when it
ends. Who fails and what is done about it are decided elsewhere.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from weft.campaign.gpu_time import GpuTime

PPM = 1_000_000
_SLOWED = ("network", "cooling", "power cap")


class GangPhase(StrEnum):
    """What all GPUs of a gang do."""

    WAITING = "no room"
    RUNNING = "training"
    DETECTING = "detection"
    RESTARTING = "restart"
    IN_STEP = "in-step recovery"
    SCREENING = "screening"
    PLANNED = "planned"
    CURTAILED = "power cap"


@dataclass
class TrainingRun:
    """The state of one gang; one owner."""

    name: str
    ledger: GpuTime
    interval_ms: int
    """Time of training between two checkpoints."""
    write_ms: int
    """Time that one takes."""
    wanted_gpus: int
    """GPUs that it asks for."""
    gpus: int = 0
    """GPUs that it has."""
    phase: GangPhase = GangPhase.WAITING
    turn: int = 0
    """Counts the phases: what was to end an earlier one is an echo."""
    speed_ppm: dict[str, int] = field(default_factory=dict)
    """Share of its speed that each cause leaves."""
    kept: int = 0
    """GPU-milliseconds of steps in its last checkpoint."""
    pending: int = 0
    """GPU-milliseconds of steps since."""
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Steps done, and the time, when each unit that computes wrongly began to, by unit."""
    lost_by: dict[str, int] = field(default_factory=dict)
    """GPU-milliseconds that it lost, by class of fault."""
    cause: str = ""
    """The class of fault that it is recovering from."""
    stops: dict[str, int] = field(default_factory=dict)
    """How often each class stopped it."""
    kept_wrong: int = 0
    """GPU-milliseconds of steps in which a unit computed wrongly and that were not thrown away."""
    held_ms: int = 0
    """How long it has had its nodes."""
    _pending_wrong: int = 0
    _since_ms: int = 0
    _at_ms: int = 0
    """Where it is between two checkpoints."""

    def accrue(self, now_ms: int) -> None:
        """Account for the time since the last call."""
        span_ms = now_ms - self._since_ms
        self._since_ms = now_ms
        if span_ms <= 0 or not self.gpus:
            return
        self.held_ms += span_ms
        if self.phase is not GangPhase.RUNNING:
            spent = span_ms * self.gpus
            self.ledger.add(str(self.phase), spent)
            if self.cause:
                self.lost_by[self.cause] = self.lost_by.get(self.cause, 0) + spent
            return
        cycle_ms = self.interval_ms + self.write_ms
        work, written = self._parts(self._at_ms + span_ms)
        before, written_before = self._parts(self._at_ms)
        commits = (self._at_ms + span_ms) // cycle_ms
        safe = max(0, commits * self.interval_ms - before) if commits else 0
        self._at_ms = (self._at_ms + span_ms) % cycle_ms
        self.ledger.add("checkpoints", (written - written_before) * self.gpus)
        done = work - before
        if commits:
            now_safe = self._steps(safe)
            self.kept += self.pending + now_safe
            self.pending = self._pending_wrong = 0
            self.kept_wrong += now_safe if self.marks else 0
        steps = self._steps(done - safe)
        self.pending += steps
        if self.marks:
            self.kept_wrong += steps
            self._pending_wrong += steps

    def _parts(self, at_ms: int) -> tuple[int, int]:
        """Return work and writing up to a moment, counted from the last checkpoint."""
        whole, rest = divmod(at_ms, self.interval_ms + self.write_ms)
        work = min(rest, self.interval_ms)
        return whole * self.interval_ms + work, whole * self.write_ms + rest - work

    def _steps(self, work_ms: int) -> int:
        """Return the GPU-time of so much work that ends in steps; the rest goes to what slows it down."""
        left = work_ms * self.gpus
        for cause in _SLOWED:
            share = self.speed_ppm.get(cause, PPM)
            if share < PPM:
                after = left * share // PPM
                self.ledger.add(cause, left - after)
                left = after
        self.ledger.add("training", left)
        return left

    def go(self, phase: GangPhase, now_ms: int, cause: str = "") -> int:
        """Enter a phase, and return its turn."""
        self.accrue(now_ms)
        self.phase, self.cause = phase, cause
        self.turn += 1
        return self.turn

    def resize(self, gpus: int, now_ms: int) -> None:
        """Go on with another number of GPUs."""
        self.accrue(now_ms)
        self.gpus = gpus

    def slow(self, cause: str, speed_ppm: int, now_ms: int) -> None:
        """Let a cause leave so much of the speed from now on."""
        self.accrue(now_ms)
        self.speed_ppm[cause] = speed_ppm

    def roll_back(self, now_ms: int, cause: str) -> None:
        """Lose what no checkpoint has kept."""
        self.accrue(now_ms)
        self._give_back("rolled back", self.pending, cause)
        self.kept_wrong -= self._pending_wrong
        self._pending_wrong = 0
        self.pending = self._at_ms = 0
        self._cut_marks()

    def commit(self, now_ms: int) -> None:
        """Keep everything: a checkpoint is written before a planned stop."""
        self.accrue(now_ms)
        self.kept += self.pending
        self.pending = self._pending_wrong = self._at_ms = 0

    def poison(self, unit: int, now_ms: int) -> None:
        """Let a unit compute wrongly from now on."""
        self.accrue(now_ms)
        self.marks.setdefault(unit, (self.kept + self.pending, now_ms))

    def poison_found(self, unit: int, now_ms: int, cause: str, most_ms: int) -> None:
        """Go back to before a unit began to compute wrongly, if that is no longer than `most_ms` ago."""
        self.accrue(now_ms)
        mark, since_ms = self.marks.pop(unit, (self.kept + self.pending, now_ms))
        wrong = max(0, self.kept + self.pending - mark)
        if now_ms - since_ms > most_ms:
            return
        self._give_back("poisoned", wrong, cause)
        # Every step since was counted as wrong when it was made.
        self.kept_wrong -= wrong
        self.kept, self.pending, self._pending_wrong, self._at_ms = self.kept + self.pending - wrong, 0, 0, 0
        self._cut_marks()

    def poison_left(self, unit: int, now_ms: int) -> None:
        """Let a unit that nobody has found leave."""
        self.accrue(now_ms)
        self.marks.pop(unit, None)

    def _cut_marks(self) -> None:
        """Forget wrong steps that were taken back."""
        for unit, (mark, since_ms) in self.marks.items():
            self.marks[unit] = (min(mark, self.kept), since_ms)

    def _give_back(self, bucket: str, gpu_ms: int, cause: str) -> None:
        self.ledger.add("training", -gpu_ms)
        self.ledger.add(bucket, gpu_ms)
        self.lost_by[cause] = self.lost_by.get(cause, 0) + gpu_ms
