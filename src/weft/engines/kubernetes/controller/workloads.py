"""Workloads of other controllers in weft's queue: what is seen of them, and the WeftJob that stands for each. Pure.

A Job, JobSet, TrainJob or PyTorchJob with the label `cluster.weft/queue` is kept suspended until its gang has nodes. A
WeftJob of its own stands for it in the queue: there its state, its place and its reasons are written down, as those of
any other job, so a controller that dies at any point finds them again.
"""

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from weft.cluster.records.job import HOLDING
from weft.cluster.records.job import KINDS as JOB_KINDS
from weft.engines.kubernetes.api.crds import NAME_LETTERS, JobBody
from weft.engines.kubernetes.api.resources import GATE, GROUP, JOBS, PRIORITY_LABEL, QUEUE_LABEL
from weft.engines.kubernetes.api.workload_kinds import (
    KINDS,
    GangShape,
    Runtimes,
    WorkloadKind,
    WorkloadProblemError,
    gang_shape,
)
from weft.engines.kubernetes.controller.ledger import JobEntry
from weft.engines.kubernetes.controller.observed import ObservedJob

_KIND_LABEL = f"{GROUP}/kind"
_DIGITS = 8
_MOST_PRIORITY = 1000


@dataclass(frozen=True)
class ObservedWorkload:
    """A workload with the queue label."""

    kind: WorkloadKind
    """Which kind."""
    namespace: str
    name: str
    uid: str
    version: str
    """Of its object: whoever writes it has to name the newest."""
    suspended: bool
    """Whether it waits."""
    acknowledged: bool
    """Whether its controller has seen that."""
    mark: str
    """The placement that its pods are made for; empty before the first."""
    started: bool
    """Whether its controller says when it was started; a Job's template may not change while it does."""
    ending: str
    """How it has ended: "done", "failed" or nothing yet."""
    text: str
    """What its controller says about that."""
    leaving: bool
    """Whether it is being deleted."""
    strange: str
    """The version that this server offers, where it is none that we know."""
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    item: Mapping[str, Any] = field(compare=False, repr=False)
    """All of it."""

    @property
    def id(self) -> str:
        """Return the name in the queue of the job that stands for it."""
        return f"{self.namespace}/{stand_in_name(self.kind.resource.kind, self.name)}"


def observe_workload(kind: WorkloadKind, item: Mapping[str, Any], strange: str = "") -> ObservedWorkload:
    """Keep what is needed of a workload; `strange` is the version that it comes in, if that is unknown."""
    meta = item["metadata"]
    ending, text = ("", "") if strange else kind.ending(item)
    return ObservedWorkload(
        kind=kind,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=meta["resourceVersion"],
        suspended=not strange and kind.suspended(item),
        acknowledged=not strange and kind.acknowledged(item),
        mark=(meta.get("annotations") or {}).get(GATE, ""),
        started=kind.resource.group == "batch" and bool((item.get("status") or {}).get("startTime")),
        ending=ending,
        text=text,
        leaving="deletionTimestamp" in meta,
        strange=strange,
        labels=meta.get("labels") or {},
        spec=item.get("spec") or {},
        item=item,
    )


def is_child(item: Mapping[str, Any]) -> bool:
    """Return whether another workload has made this one: then that one is queued."""
    owners = item["metadata"].get("ownerReferences") or ()
    return any(one.get("controller") and one["kind"] in KINDS for one in owners)


def stand_in_name(kind: str, name: str) -> str:
    """Return the name of the WeftJob that stands for a workload."""
    full = f"{kind.lower()}-{name}"
    if len(full) <= NAME_LETTERS:
        return full
    digest = hashlib.sha256(full.encode()).hexdigest()[:_DIGITS]
    return f"{full[: NAME_LETTERS - _DIGITS - 1].rstrip('-.')}-{digest}"


@dataclass(frozen=True)
class WorkloadsView:
    """The workloads that are seen, and what is known of the server that keeps them."""

    items: Mapping[str, ObservedWorkload] = field(default_factory=dict)
    """By the name in the queue of the job that stands for each."""
    kinds: Set[str] = frozenset()
    """Kinds of which all are seen; what is missing of them is gone."""
    runtimes: Runtimes = field(default_factory=dict)
    """Runtimes of TrainJobs."""
    gates: bool = True
    """Whether this server keeps scheduling gates (from Kubernetes 1.27 on)."""


@dataclass(frozen=True)
class MakeStandIn:
    """Make the WeftJob that stands for a workload, or correct it."""

    id: str
    body: dict[str, Any]
    uid: str
    """The job that is corrected; empty where there is none yet."""

    @property
    def key(self) -> str:
        """Return what tells it from other writes."""
        return f"make {self.id} {self.body}"


@dataclass(frozen=True)
class DropStandIn:
    """Remove a WeftJob whose workload has gone, or is another now."""

    seen: ObservedJob

    @property
    def id(self) -> str:
        """Return the name in the queue of the job that is meant."""
        return self.seen.id

    @property
    def key(self) -> str:
        """Return what tells it from other writes."""
        return f"drop {self.seen.uid}"


@dataclass(frozen=True)
class HoldWorkload:
    """Let a workload wait."""

    workload: ObservedWorkload

    @property
    def id(self) -> str:
        """Return the name in the queue of the job that is meant."""
        return self.workload.id

    @property
    def key(self) -> str:
        """Return what tells it from other writes."""
        return f"hold {self.workload.uid}"


@dataclass(frozen=True)
class RefuseWorkload:
    """Say once why a workload cannot be queued."""

    workload: ObservedWorkload
    message: str

    @property
    def id(self) -> str:
        """Return the name in the queue of the job that is meant."""
        return self.workload.id

    @property
    def key(self) -> str:
        """Return what tells it from other writes."""
        return f"refuse {self.workload.uid} {self.message}"


WorkloadWrite = MakeStandIn | DropStandIn | HoldWorkload | RefuseWorkload


def shape_of(workload: ObservedWorkload, view: WorkloadsView) -> GangShape:
    """Return what a workload needs together; raises WorkloadProblemError for what weft cannot honour."""
    resource = workload.kind.resource
    if workload.strange:
        raise WorkloadProblemError(f"{resource.kind} {workload.strange} is not known; weft reads {resource.version}")
    if not view.gates:
        raise WorkloadProblemError("this API server has no scheduling gates, which come with Kubernetes 1.27")
    return gang_shape(workload.kind, workload.item, view.runtimes)


def stand_in(workload: ObservedWorkload, shape: GangShape) -> dict[str, Any]:
    """Return the WeftJob that stands for a workload."""
    kind, labels = workload.kind.resource, workload.labels
    priority = labels.get(PRIORITY_LABEL, "100")
    if not priority.isdigit() or int(priority) > _MOST_PRIORITY:
        raise WorkloadProblemError(f"label {PRIORITY_LABEL}: {priority!r} is no number from 0 to {_MOST_PRIORITY}")
    job_kind = labels.get(_KIND_LABEL, "experiment")
    if job_kind not in JOB_KINDS:
        raise WorkloadProblemError(f"label {_KIND_LABEL}: {job_kind!r} is none of {', '.join(JOB_KINDS)}")
    owner = {"apiVersion": kind.api_version, "kind": kind.kind, "name": workload.name, "uid": workload.uid,
             "controller": True, "blockOwnerDeletion": False}  # fmt: skip
    spec = {
        "kind": job_kind, "team": labels[QUEUE_LABEL], "priority": int(priority), "nodes": shape.nodes,
        "gpusPerNode": shape.gpus, "grace": f"{shape.grace_s}s",
        "workload": {"kind": kind.kind, "name": workload.name, "uid": workload.uid},
    }  # fmt: skip
    name = stand_in_name(kind.kind, workload.name)
    meta = {"name": name, "namespace": workload.namespace, "ownerReferences": [owner]}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": meta, "spec": spec}


def adopted(
    workload: ObservedWorkload | None, job: ObservedJob | None, entry: JobEntry | None, view: WorkloadsView
) -> list[WorkloadWrite]:
    """Return what is to be written so that the right WeftJob stands for a workload, and the workload waits for it."""
    stands = job.body.workload if job is not None and job.body is not None else None
    if job is not None and not job.leaving and stands is not None:
        # Its workload has gone, or another one of that name is there now.
        gone = stands.kind in view.kinds if workload is None else stands.uid != workload.uid
        if gone:
            return [DropStandIn(job)]
    if workload is None or workload.leaving or workload.ending or (job is not None and job.leaving):
        return []
    if job is not None and stands is None:
        return [RefuseWorkload(workload, f"a WeftJob called {job.name} is in its way; rename one of the two")]
    try:
        return _stood_for(workload, job, entry, stand_in(workload, shape_of(workload, view)))
    except WorkloadProblemError as problem:
        return _refused(workload, job, entry, str(problem))


def _stood_for(
    workload: ObservedWorkload, job: ObservedJob | None, entry: JobEntry | None, body: dict[str, Any]
) -> list[WorkloadWrite]:
    """Return what is missing until the WeftJob `body` stands for a workload."""
    if job is None:
        held = [] if workload.suspended else [HoldWorkload(workload)]
        return [*held, MakeStandIn(workload.id, body, "")]
    holds = entry is not None and entry.record.state in HOLDING
    # What runs already goes on as it was placed; a change of it counts when it waits again.
    same = holds or JobBody.model_validate(body["spec"]) == job.body
    return [] if same else [MakeStandIn(workload.id, body, job.uid)]


def _refused(
    workload: ObservedWorkload, job: ObservedJob | None, entry: JobEntry | None, message: str
) -> list[WorkloadWrite]:
    """Say why a workload cannot be queued; what runs already goes on as it was placed."""
    found: list[WorkloadWrite] = []
    if entry is not None and entry.record.state in HOLDING:
        return found
    found.append(RefuseWorkload(workload, message))
    if job is not None:
        found.append(DropStandIn(job))
    if not workload.suspended and not workload.strange:
        found.append(HoldWorkload(workload))
    return found


def stood_for(entry: JobEntry, view: WorkloadsView) -> ObservedWorkload | None:
    """Return the workload that a job stands for, where it is seen."""
    stands = entry.seen.body.workload if entry.seen.body is not None else None
    found = view.items.get(entry.seen.id)
    return found if stands is not None and found is not None and found.uid == stands.uid else None
