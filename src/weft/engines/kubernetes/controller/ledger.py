"""What the engine has in mind for each job, and the status that says it: the intent, written before it is carried out.

A `JobEntry` joins what the server holds (`seen`) with what was decided (`record`, `placed`). They differ until the
status has been written; nothing is done for a job meanwhile. Pure but for the entries themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.cluster.records.actions import Bind, Replace, Resize
from weft.cluster.records.job import ENDED, HOLDING, Job, JobState, Placement
from weft.engines.kubernetes.controller.gangs import PodCounts
from weft.engines.kubernetes.controller.observed import (
    ObservedJob,
    Placed,
    moving_part,
    placed_from,
    record_of,
    timestamp,
)

NOTHING = PodCounts(0, 0, 0, 0, (), 0)


@dataclass
class JobEntry:
    """One job."""

    seen: ObservedJob
    """The newest that the server is known to hold."""
    record: Job
    """What was decided."""
    placed: Placed | None
    """Where, by names."""
    saved: Job
    """The record that the server holds."""
    counts: PodCounts = NOTHING
    """How its pods were last seen to stand."""
    why: str = ""
    """Why it waits, in words."""
    expected_ms: int | None = None
    """When it is thought to start."""
    restarts: int = 0
    """Times that it was started again after it failed by itself."""
    writing: bool = False
    """Whether its status is on its way."""
    shown_at: float = 0.0
    """When its status was last written."""
    looked_at: float = 0.0
    """When its pods were last counted."""
    moved_at: float = 0.0
    """When its pods were last compared with what is wanted."""
    failures: int = 0
    """Writes for it that failed one after the other."""
    again_at: float = 0.0
    """Until when nothing is tried for it, because something has failed."""
    explained: Mapping[str, Any] | None = None
    """The answer to the last question why it waits; none where nothing new was asked."""
    rejected: str = ""
    """Why the server takes none of its pods, where it said so."""
    busy: set[str] = field(default_factory=set)
    """Pods for which something is on its way."""
    made: dict[str, float] = field(default_factory=dict)
    """Pods that were made and have not been seen yet, and when."""

    @property
    def durable(self) -> bool:
        """Return whether the server holds what was decided."""
        same = self.record is self.saved or self.record == self.saved
        return same and (self.placed is self.seen.placed or self.placed == self.seen.placed)

    @property
    def stands_in(self) -> bool:
        """Return whether it stands for a workload, whose pods are made by another controller."""
        return self.seen.body is not None and self.seen.body.workload is not None

    @property
    def attempt(self) -> int:
        """Return the number of the last placement that the job had."""
        return int(self.seen.status.get("attempt") or 0)


def restore(seen: ObservedJob, numbers: Mapping[str, int]) -> JobEntry:
    """Return the entry of a job as its status tells it."""
    record = record_of(seen)
    placed = seen.placed
    if record.state in HOLDING:
        assert placed is not None, f"{seen.id} holds nodes but its status names none"
        nodes = tuple(numbers[name] for name in placed.nodes)
        record = replace(record, placement=Placement(nodes, placed.gpus_per_node, placed.devices))
    status = seen.status
    return JobEntry(
        seen, record, placed, record, why=str(status.get("why") or ""), restarts=int(status.get("restarts") or 0)
    )


def placed_by(action: Bind | Replace | Resize, record: Job, entry: JobEntry, names: Sequence[str]) -> Placed:
    """Return where a job runs after an action, by names; `names` are those of all nodes."""
    placement = record.placement
    assert placement is not None, "who was placed has a placement"
    nodes = tuple(names[number] for number in placement.nodes)
    attempt = max(entry.attempt, entry.placed.attempt if entry.placed else 0) + 1
    old = entry.placed
    if isinstance(action, Bind) or old is None:
        waves = tuple((wave.after_ms, wave.nodes) for wave in action.waves) if isinstance(action, Bind) else ()
        return Placed(nodes, placement.gpus_per_node, placement.devices, attempt, attempt, waves=waves)
    if nodes[0] != old.nodes[0] or len(nodes) != len(old.nodes):
        # Everybody has to know where the first one is and how many there are: all pods are made anew.
        return Placed(nodes, placement.gpus_per_node, placement.devices, attempt, attempt)
    moved = dict(old.moved)
    for place, name in enumerate(nodes):
        if old.nodes[place] != name:
            moved[place] = attempt
    return Placed(nodes, placement.gpus_per_node, placement.devices, attempt, old.first, moved)


def condition(kind: str, *, true: bool, reason: str, message: str, now_ms: int) -> dict[str, Any]:
    """Return a condition as Kubernetes writes it."""
    return {"type": kind, "status": "True" if true else "False", "reason": reason, "message": message,
            "lastTransitionTime": timestamp(now_ms)}  # fmt: skip


def _merged(old: Sequence[Mapping[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the time of a condition whose truth has not changed."""
    before = {one["type"]: one for one in old}
    for one in new:
        was = before.get(one["type"])
        if was is not None and was["status"] == one["status"]:
            one["lastTransitionTime"] = was["lastTransitionTime"]
    return list(new)


_REASONS = {
    JobState.WAITING: "Waiting", JobState.STARTING: "Starting", JobState.RUNNING: "Running", JobState.ASKED: "Leaving",
    JobState.STOPPING: "Stopping", JobState.DONE: "Done", JobState.FAILED: "Failed", JobState.CANCELLED: "Cancelled",
}  # fmt: skip


def status_of(entry: JobEntry, now_ms: int) -> dict[str, Any]:
    """Return the status that says what was decided for a job and how it stands."""
    record, counts = entry.record, entry.counts
    reason = _REASONS[record.state]
    holds = record.state in HOLDING
    running = record.state in (JobState.RUNNING, JobState.ASKED)
    over = record.state in ENDED
    waits = record.state is JobState.WAITING
    where = f"{len(entry.placed.nodes)} nodes" if entry.placed else ""
    conditions = [
        condition("Accepted", true=True, reason="Valid", message="", now_ms=now_ms),
        condition("Placed", true=holds, reason=reason, message=entry.why if waits else where, now_ms=now_ms),
        condition("Running", true=running, reason=reason, message="", now_ms=now_ms),
        condition("Finished", true=over, reason=reason, message=entry.why if over else "", now_ms=now_ms),
    ]
    return {
        "state": str(record.state),
        "why": entry.why if waits or over else "",
        "expected": timestamp(entry.expected_ms) if waits and entry.expected_ms else None,
        "bound": counts.bound if holds else 0,
        "running": counts.running if holds else 0,
        "restarts": entry.restarts,
        "attempt": entry.placed.attempt if entry.placed else entry.attempt,
        "observedGeneration": entry.seen.generation,
        "conditions": _merged(entry.seen.status.get("conditions") or (), conditions),
        "record": moving_part(record),
        "placement": entry.placed.as_json() if entry.placed else None,
        **({"explained": dict(entry.explained)} if entry.explained is not None else {}),
    }


def refused(seen: ObservedJob, now_ms: int) -> dict[str, Any]:
    """Return the status of a job that cannot be read."""
    new = condition("Accepted", true=False, reason="InvalidSpec", message=seen.problem, now_ms=now_ms)
    conditions = _merged(seen.status.get("conditions") or (), [new])
    return {"state": "refused", "why": seen.problem, "observedGeneration": seen.generation, "conditions": conditions}


def difference(status: Mapping[str, Any], seen: ObservedJob) -> dict[str, Any]:
    """Return the part of a status that the server does not hold yet, as a merge patch."""
    held: dict[str, Any] = {**seen.status, "record": seen.record}
    # A merge patch joins tables; a record is meant as a whole, so what has gone from it is named.
    changed = {name: value for name, value in status.items() if name != "placement" and held.get(name) != value}
    if "record" in changed:
        gone = {name: None for name in seen.record if name not in status["record"]}
        changed["record"] = {**gone, **status["record"]}
    if "placement" in status and placed_from(status) != seen.placed:
        wanted = status["placement"]
        if wanted is not None and seen.placed is not None:
            gone_places = {str(place): None for place in seen.placed.moved if str(place) not in wanted["moved"]}
            wanted = {**wanted, "moved": {**gone_places, **wanted["moved"]}}
        changed["placement"] = wanted
    return changed


def bind_reason(action: Bind | Replace | Resize) -> str:
    """Return in a few words why a job gets nodes."""
    match action:
        case Bind():
            return action.why or "order"
        case Replace():
            return f"{len(action.lost)} replaced"
        case Resize():
            return action.reason


def newer(version: str, than: str) -> bool:
    """Say whether a version of an object may be newer than another."""
    return not (version.isdigit() and than.isdigit()) or int(version) > int(than)


def asked_now(record: Job, seen: ObservedJob) -> Job:
    """Return a record with what its owner asks for now, as far as that may change while it lives."""
    fresh = record_of(seen)
    return replace(record, priority=fresh.priority, limit_ms=fresh.limit_ms, team=fresh.team, after=fresh.after,
                   gang=fresh.gang if record.state not in HOLDING else record.gang)  # fmt: skip
