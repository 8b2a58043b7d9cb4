"""What is written down: incidents with their cost, and where every second of the run went.

The job's time is one ledger: while ranks run, what they report of their steps is booked by class and the rest stays
idle; from a failure to the next step it is detection, re-forming, restoring and verifying. It sums to the wall time by
construction. Incidents go to `incidents.jsonl` in the run folder, one line each, when they are over.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.cluster.recovery.events import Cause, StartGeneration
from weft.cluster.recovery.recovery_state import RecoveryState
from weft.core.clock import Clock
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.training.metrics.ledger import Ledger, TimeClass
from weft.training.run_dir import INCIDENTS

_CLASSES = {
    RecoveryState.SUSPECT: TimeClass.DETECT,
    RecoveryState.REPLACING: TimeClass.REFORM,
    RecoveryState.FENCING: TimeClass.REFORM,
    RecoveryState.REFORMING: TimeClass.REFORM,
    RecoveryState.RESTORING: TimeClass.RESTORE,
    RecoveryState.VERIFYING: TimeClass.VERIFY,
    RecoveryState.WAITING: TimeClass.REFORM,
}
_USEFUL = (TimeClass.COMPUTE, TimeClass.EXPOSED_COMMUNICATION, TimeClass.BUBBLE, TimeClass.INPUT)


def _seconds(span: int) -> float:
    return span / PICOSECONDS_PER_SECOND


@dataclass
class Incident:
    """Something that went wrong, while it is being put right."""

    number: int
    """Counts the incidents of a run."""
    cause: Cause
    """What was seen, and who is blamed."""
    ranks: int
    """How many ranks were running."""
    at: str
    """When it was known, by the wall clock."""
    action: str = ""
    kept: int = 0
    """Ranks that kept their processes and their state."""
    because: str | None = None
    """Why none did."""
    restored_from: str | None = None
    """The tier that served."""
    restored_step: int | None = None
    """Steps done in what was restored."""
    notes: list[str] = field(default_factory=list)
    """What had to be passed over."""
    resumed_ps: Picoseconds | None = None
    """When the first step after it was done."""
    regained_ps: Picoseconds | None = None
    """When the run was as far as before."""

    def as_json(self, now: Picoseconds, outcome: str) -> dict[str, Any]:
        """Return it as a line."""
        cause = self.cause
        last = self.resumed_ps if self.resumed_ps is not None else now
        lost = (self.regained_ps if self.regained_ps is not None else now) - cause.phase_since_ps
        return {
            "incident": self.number,
            "at": self.at,
            "kind": cause.kind,
            "seen": cause.text,
            "step": cause.step,
            "rank": cause.rank,
            "slot": None if cause.slot is None else cause.slot.number,
            "node": None if cause.slot is None else cause.slot.node,
            "action": self.action,
            "ranks_kept": self.kept,
            "all_restarted_because": self.because,
            "restored_from": self.restored_from,
            "restored_step": self.restored_step,
            "passed_over": self.notes,
            "outcome": outcome,
            "detect_seconds": _seconds(cause.detected_ps - cause.phase_since_ps),
            "recovery_seconds": _seconds(last - cause.detected_ps),
            "seconds_lost": _seconds(lost),
            "gpu_seconds_lost": _seconds(lost) * self.ranks,
            "steps_repeated": 0 if self.restored_step is None else max(0, cause.step - self.restored_step),
        }


def _what_was_done(opened: Incident, start: StartGeneration) -> str:
    before, slot = opened.ranks, opened.cause.slot
    if start.kept:
        assert slot is not None, "who is replaced is known"
        place = "in the same slot" if slot in start.slots else f"in place of slot {slot.number}"
        return f"rank {opened.cause.rank} was replaced {place}, the other {len(start.kept)} ranks went on"
    if len(start.slots) != before:
        verb = "shrank" if len(start.slots) < before else "grew"
        return f"{verb} from {before} to {len(start.slots)} ranks"
    if slot is not None and slot not in start.slots:
        return f"slot {slot.number} was left out and a spare took over"
    return "all ranks were restarted in place"


class IncidentLog:
    """The ledger and the incidents of a run."""

    def __init__(self, clock: Clock) -> None:
        """Begin now."""
        self._clock = clock
        self._ledger = Ledger(clock)
        self._inside = True
        # Until the first step nothing is wrong and nothing is trained yet.
        self._ledger.enter(TimeClass.START_UP)
        self._folder: Path | None = None
        self._unwritten: list[dict[str, Any]] = []
        self.incidents: list[dict[str, Any]] = []
        self.open: Incident | None = None

    def kept(self) -> dict[str, Any]:
        """Return what another process needs to go on with this log."""
        spent = {kind.value: span for kind, span in self._ledger.total().by_class.items()}
        return {"now": self._clock.now(), "spent": spent, "incidents": self.incidents, "open": self.open}

    def go_on(self, kept: Mapping[str, Any]) -> None:
        """Go on with another process's log; what has passed since it was last kept went into seeing that it is gone."""
        spent = {TimeClass(name): int(span) for name, span in kept["spent"].items()}
        since = self._clock.now() - kept["now"]
        spent[TimeClass.DETECT] = spent.get(TimeClass.DETECT, 0) + since
        self._ledger = Ledger(self._clock, spent)
        # As after the start of a log: what comes first is left at the first turn.
        self._ledger.enter(TimeClass.DETECT)
        self._inside = True
        self.incidents, self.open = list(kept["incidents"]), kept["open"]

    def use(self, folder: Path) -> None:
        """Write into `folder` from now on."""
        self._folder = folder
        for line in self._unwritten:
            self._append(line)
        self._unwritten = []

    def turn(self, state: RecoveryState) -> None:
        """Book the time from now on as `state` says; a first start-up is no recovery."""
        if self._inside:
            self._ledger.leave()
        kind = _CLASSES.get(state)
        if self.open is None and kind is not None and state is not RecoveryState.SUSPECT:
            kind = TimeClass.START_UP
        self._inside = kind is not None
        if kind is not None:
            self._ledger.enter(kind)

    def stepped(self, seconds: Mapping[str, float]) -> None:
        """Book what the average rank says of a step."""
        for name, spent in seconds.items():
            if name != TimeClass.IDLE.value:
                span = Picoseconds(int(spent * PICOSECONDS_PER_SECOND))
                self._ledger.move(TimeClass.IDLE, TimeClass(name), span)

    def begin(self, cause: Cause, ranks: int) -> Incident:
        """Open an incident; one that is still open is overtaken by it."""
        if self.open is not None:
            self.end("overtaken by another failure")
        self._ledger.move(TimeClass.IDLE, TimeClass.DETECT, Picoseconds(cause.detected_ps - cause.phase_since_ps))
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.open = Incident(len(self.incidents) + 1, cause, ranks, at)
        return self.open

    def acted(self, start: StartGeneration) -> None:
        """Note what is done about the open incident."""
        if self.open is not None:
            self.open.action = _what_was_done(self.open, start)
            self.open.kept, self.open.because = len(start.kept), start.because

    def end(self, outcome: str) -> None:
        """Close the open incident and write it down."""
        assert self.open is not None, "only an open incident can end"
        line = self.open.as_json(self._clock.now(), outcome)
        self.open = None
        self.note(line)

    def restored(self, tier: str, step: int, notes: list[str]) -> None:
        """Note which tier served, and what had to be passed over."""
        if self.open is not None:
            self.open.restored_from, self.open.restored_step = tier, step
            self.open.notes += notes
        elif notes:
            self.trouble(None, "passed-over", step, "; ".join(notes))

    def resumed(self) -> None:
        """Note that the first step after the open incident is done."""
        if self.open is not None:
            self.open.resumed_ps = self._clock.now()
        self.end_if_over()

    def regained(self) -> None:
        """Note that the run is as far as before the open incident."""
        if self.open is not None:
            self.open.regained_ps = self._clock.now()
        self.end_if_over()

    def end_if_over(self) -> None:
        """Close the open incident once the run steps again and is as far as before."""
        if self.open is not None and self.open.resumed_ps is not None and self.open.regained_ps is not None:
            self.end("recovered")

    def trouble(self, rank: int | None, kind: str, step: int, text: str, seconds: float = 0.0) -> None:
        """Write down something that went wrong, stopped nothing, and cost `seconds`."""
        now = self._clock.now()
        since = Picoseconds(now - int(seconds * PICOSECONDS_PER_SECOND))
        cause = Cause(kind, rank, text, detected_ps=now, phase_since_ps=since, step=step)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        incident = Incident(len(self.incidents) + 1, cause, 0, at, "the run went on", resumed_ps=now, regained_ps=now)
        self.note(incident.as_json(now, "noted"))

    def note(self, line: dict[str, Any]) -> None:
        """Write down an incident that is over."""
        self.incidents.append(line)
        if self._folder is None:
            self._unwritten.append(line)
        else:
            self._append(line)

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._folder is not None
        encoded = json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        # A supervisor that cannot write its notes goes on: the run matters more.
        try:
            handle = os.open(self._folder / INCIDENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(handle, encoded)
            os.close(handle)
        except OSError:
            return

    def recoveries(self) -> list[dict[str, Any]]:
        """Return the failures that the run came back from."""
        return [
            {
                "step": line["step"],
                "cause": line["kind"],
                "rank": line["rank"],
                "seconds": line["detect_seconds"] + line["recovery_seconds"],
                "restored_from": line["restored_from"],
            }
            for line in self.incidents
            if line["outcome"] == "recovered"
        ]

    def goodput(self) -> dict[str, Any]:
        """Return where the time went; the classes sum to the wall time."""
        total = self._ledger.total()
        useful = sum(total.by_class.get(kind, 0) for kind in _USEFUL)
        return {
            "seconds": total.seconds(),
            "wall_s": _seconds(total.wall_ps),
            "share": useful / total.wall_ps if total.wall_ps else 0.0,
        }
