"""What is still to be done so that a workload of another controller stands as its job's record says. Pure.

As in `gangs`, what is written is compared with what exists. To start: the workload's templates are marked with the
placement and gated (`Prepare`), then it is let go (`Release`), then each pod that its controller makes is given its
node (`PlacePod`). To stop: the workload is suspended (`Suspend`), and its controller takes the pods away. Each step
shows in the objects themselves, so that whoever comes after a crash goes on from there.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from weft.cluster.records.effects import ended, stopped
from weft.cluster.records.job import HOLDING, Job, JobState
from weft.engines.kubernetes.api.resources import GATE
from weft.engines.kubernetes.api.workload_kinds import PlacementMark
from weft.engines.kubernetes.controller.gangs import PodCounts, Remove
from weft.engines.kubernetes.controller.ledger import JobEntry
from weft.engines.kubernetes.controller.observed import ObservedPod, Owner, Placed
from weft.engines.kubernetes.controller.workloads import ObservedWorkload

_RUNS = frozenset({JobState.STARTING, JobState.RUNNING})


@dataclass(frozen=True, slots=True)
class PlacePod:
    """Give a pod its place in the gang and its node."""

    name: str
    """What it is called."""
    pod: str
    """Its uid: another of that name is another pod."""
    place: int
    """Its place."""
    node: str
    """Where it goes."""
    gates: tuple[str, ...]
    """Gates of others, which stay."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Mark a workload's templates with a placement."""

    workload: ObservedWorkload
    mark: PlacementMark
    pod: str = "workload"
    """What is busy meanwhile."""


@dataclass(frozen=True, slots=True)
class Release:
    """Let a workload run."""

    workload: ObservedWorkload
    pod: str = "workload"
    """What is busy meanwhile."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Let a workload wait, which takes its pods away."""

    workload: ObservedWorkload
    pod: str = "workload"
    """What is busy meanwhile."""


WorkloadStep = PlacePod | Prepare | Release | Suspend | Remove


@dataclass(frozen=True, slots=True)
class GangView:
    """What was decided for the job that stands for a workload."""

    owner: Owner
    record: Job
    placed: Placed | None
    elapsed_ms: int = 0
    """Since its start."""


def _own(owner: Owner, placed: Placed | None, pods: Iterable[ObservedPod]) -> list[ObservedPod]:
    """Return the pods of the present placement."""
    return [] if placed is None else [one for one in pods if one.owner == owner.uid and one.attempt == placed.attempt]


def count_gang(owner: Owner, placed: Placed | None, pods: Collection[ObservedPod]) -> PodCounts:
    """Count the pods of a workload; those that failed are its controller's business."""
    own = [one for one in _own(owner, placed, pods) if one.placed]
    return PodCounts(
        wanted=len(placed.nodes) if placed is not None else 0,
        bound=sum(bool(one.node) for one in own),
        running=sum(one.phase == "Running" and not one.leaving for one in own),
        succeeded=sum(one.phase == "Succeeded" for one in own),
        failed=(),
        left=sum(not one.over for one in pods),
    )


def gang_after(record: Job, workload: ObservedWorkload, count: PodCounts, now_ms: int) -> Job:
    """Return the record of a job after a look at its workload and its pods; the same where nothing has changed."""
    if workload.ending and not (record.state in HOLDING and count.left):
        return ended(record, JobState.DONE if workload.ending == "done" else JobState.FAILED)
    if workload.ending == "failed" and record.state in HOLDING and record.ending != "failed":
        return replace(record, state=JobState.STOPPING, ending="failed", leave_by_ms=now_ms)
    match record.state:
        case JobState.ASKED | JobState.STOPPING if workload.suspended and not count.left:
            return stopped(record, now_ms)
        case JobState.STARTING if count.running + count.succeeded >= count.wanted > 0:
            return replace(record, state=JobState.RUNNING)
        case _:
            return record


def gang_observed(
    entry: JobEntry, workload: ObservedWorkload, pods: Collection[ObservedPod], now_ms: int
) -> Job | None:
    """Count the pods of a workload and return its job's new record, where it has changed."""
    count = entry.counts = count_gang(entry.seen.owner, entry.placed, pods)
    there = {pod.uid: pod for pod in pods}
    entry.made = {uid: at for uid, at in entry.made.items() if uid in there and not there[uid].placed}
    after = gang_after(entry.record, workload, count, now_ms)
    if after == entry.record:
        return None
    entry.why = workload.text if workload.ending == "failed" else ""
    return after


def workload_steps(
    gang: GangView, workload: ObservedWorkload, pods: Collection[ObservedPod], silent: Collection[str]
) -> list[WorkloadStep]:
    """Return what is to be done for a workload; `silent` are the nodes of its pods that are not heard."""
    owner, placed = gang.owner, gang.placed
    runs = gang.record.state in _RUNS and placed is not None
    own = _own(owner, placed, pods) if runs else []
    kept = {one.uid for one in own}
    # Nobody is left on a silent node to end a pod that has to leave, and its controller would wait for ever.
    todo: list[WorkloadStep] = [
        Remove(one.name, one.uid, at_once=True)
        for one in pods
        if one.node in silent and not one.over and (one.uid not in kept or one.leaving)
    ]
    if workload.ending or workload.leaving:
        return todo
    if not runs:
        return todo if workload.suspended else [*todo, Suspend(workload)]
    assert placed is not None, "a job that runs has a placement"
    mark = PlacementMark(owner.job, owner.uid, placed.attempt)
    if workload.mark != mark.text:
        if not workload.suspended:
            return [*todo, Suspend(workload)]
        # The pods of the last placement have to be gone, and no more may come, before there are others.
        left = not workload.acknowledged or any(not one.over for one in pods)
        return todo if left else [*todo, Prepare(workload, mark)]
    if workload.suspended:
        return [*todo, Release(workload)]
    return [*todo, *_places(placed, own, placed.begun(gang.elapsed_ms))]


def _places(placed: Placed, own: list[ObservedPod], begun: int) -> list[PlacePod]:
    """Give free places to pods that have none: the one that a pod's index names, or any of its Job."""
    held = {one.rank: one for one in own if one.placed and not one.over}
    found: list[PlacePod] = []
    for one in sorted(own, key=lambda pod: pod.name):
        if one.placed or one.leaving or one.places is None or GATE not in one.gates:
            continue
        wanted = one.places
        there = held.get(wanted.best)
        if there is not None and there.leaving:
            # The one before it leaves; its order in the gang is kept.
            continue
        order = [wanted.best, *range(wanted.start, wanted.stop)]
        place = next((each for each in order if 0 <= each < len(placed.nodes) and each not in held), begun)
        if place >= begun:
            continue
        held[place] = one
        gates = tuple(gate for gate in one.gates if gate != GATE)
        found.append(PlacePod(one.name, one.uid, place, placed.nodes[place], gates))
    return found
