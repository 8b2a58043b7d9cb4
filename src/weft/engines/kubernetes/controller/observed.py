"""What is kept of the server's objects: small frozen records, and the way from a job's status to a record and back.

A cache of 7,500 nodes and their pods has to be small and quick to compare; so only what decisions and the engine read
is kept. The status of a `WeftJob` is the engine's memory: `weft.cluster`'s record of the job and where its ranks were
put, by the names of nodes. After a crash the engine knows nothing else, and needs nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from weft.cluster.records.encoding import as_plain, from_plain
from weft.cluster.records.exit_status import UNFIT
from weft.cluster.records.job import Gang, Job
from weft.cluster.records.node import NodeEvidence
from weft.core.errors import SpecError
from weft.core.specfile import validate
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.engines.health.fault_data import shipped_catalogue
from weft.engines.kubernetes.api.crds import BODIES, NAME_LETTERS, HealthBody, JobBody, TeamBody
from weft.engines.kubernetes.api.resources import (
    ATTEMPT_LABEL,
    GPU,
    HEALTH,
    JOB_LABEL,
    JOBS,
    OWNER_LABEL,
    POOL_TAINT,
    RANK_LABEL,
    SICK_TAINT,
    TEAMS,
    Resource,
)
from weft.engines.kubernetes.api.workload_kinds import WantedPlaces, wanted_places
from weft.engines.kubernetes.pod.preflight import CONTAINER

_PS_PER_MS = PICOSECONDS_PER_SECOND // 1000
_MOST_TEXT = 500
_SEVERITIES = ("note", "warning", "fatal")
WHY = "cluster.weft/why"
"""Annotation of a job by which somebody asks why it waits; its value names the question."""
CANCEL = "cluster.weft/cancel"
"""Annotation of a job that somebody cancels; its value says who."""
_TOLERATED = (POOL_TAINT, SICK_TAINT, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node of the pool as its object describes it."""

    name: str
    """Its name."""
    uid: str
    """Tells it from another of the same name."""
    gpus: int
    """GPUs that it offers."""
    ready: bool
    """Whether it is heard: the condition Ready is true."""
    barred: str
    """Why an operator, or somebody else's taint, keeps work away; empty where nothing does."""
    address: str
    """Its own address."""
    labels: tuple[tuple[str, str], ...]
    """Labels that may say where it stands."""
    taints: tuple[tuple[str, str, str], ...]
    """Its taints: key, value and effect."""
    version: str = field(compare=False)
    """The version of its object; a new one alone is no news."""
    conditions: tuple[tuple[str, str], ...] = ()
    """Conditions that others have set and that the catalogue of faults knows: type and message."""

    @property
    def sick(self) -> bool:
        """Return whether it carries our taint of quarantine."""
        return any(key == SICK_TAINT for key, _, _ in self.taints)


def observe_node(item: Mapping[str, Any]) -> ObservedNode:
    """Keep what is needed of a Node."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    addresses = {one["type"]: one["address"] for one in status.get("addresses") or ()}
    taints = spec.get("taints") or ()
    foreign = [one["key"] for one in taints if one.get("effect") != "PreferNoSchedule" and one["key"] not in _TOLERATED]
    barred = f"taint {foreign[0]}" if foreign else ("cordoned" if spec.get("unschedulable") else "")
    offered = (status.get("allocatable") or {}).get(GPU, "0")
    return ObservedNode(
        name=meta["name"],
        uid=meta["uid"],
        gpus=int(offered),
        ready=conditions.get("Ready") == "True",
        barred=barred,
        address=addresses.get("InternalIP", ""),
        labels=tuple(sorted((meta.get("labels") or {}).items())),
        taints=tuple((one["key"], one.get("value", ""), one["effect"]) for one in taints),
        version=meta["resourceVersion"],
        conditions=tuple(
            (one["type"], str(one.get("message", ""))[:_MOST_TEXT])
            for one in status.get("conditions") or ()
            if one["status"] == "True" and one["type"] in shipped_catalogue().conditions
        ),
    )


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod of ours."""

    namespace: str
    name: str
    uid: str
    owner: str
    """Uid of its job."""
    job: str
    """Name of its job."""
    rank: int
    attempt: int
    node: str
    """Where it is bound; empty where it is not."""
    phase: str
    leaving: bool
    """Whether it is being deleted."""
    code: int | None
    """How its program ended, where it has."""
    reason: str
    """What the node says about it."""
    gpus: int = 0
    """GPUs that it holds on its node."""
    gates: tuple[str, ...] = ()
    """Gates that keep it from being scheduled."""
    places: WantedPlaces | None = None
    """Where in its gang it may stand, if it is a pod of another controller's."""
    placed: bool = True
    """Whether it was given its place."""
    unfit: str = ""
    """What its preflight found wrong with its node; empty where nothing was, or none ran."""

    @property
    def over(self) -> bool:
        """Return whether nothing of it runs any more."""
        return self.phase in ("Succeeded", "Failed")


def observe_pod(item: Mapping[str, Any]) -> ObservedPod:
    """Keep what is needed of a Pod."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels = meta.get("labels") or {}
    owners = meta.get("ownerReferences") or ({"uid": ""},)
    ended = [
        one["state"]["terminated"] for one in status.get("containerStatuses") or () if "terminated" in one["state"]
    ]
    rank, attempt = labels.get(RANK_LABEL, "0"), labels.get(ATTEMPT_LABEL, "0")
    return ObservedPod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        owner=labels.get(OWNER_LABEL) or owners[0]["uid"],
        job=labels.get(JOB_LABEL, ""),
        rank=int(rank) if rank.isdigit() else 0,
        attempt=int(attempt) if attempt.isdigit() else 0,
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        leaving="deletionTimestamp" in meta,
        code=ended[0].get("exitCode") if ended else None,
        reason=status.get("reason") or "",
        gpus=sum(_gpus(one) for one in spec.get("containers") or ()),
        gates=tuple(one["name"] for one in spec.get("schedulingGates") or ()),
        places=wanted_places(meta),
        placed=RANK_LABEL in labels,
        unfit=_unfit(status),
    )


def _unfit(status: Mapping[str, Any]) -> str:
    """Return the last words of a preflight that failed."""
    for one in status.get("initContainerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if one.get("name") == CONTAINER and ended.get("exitCode") == UNFIT:
            return str(ended.get("message") or "preflight: the node failed its preflight")[:_MOST_TEXT]
    return ""


def _gpus(container: Mapping[str, Any]) -> int:
    return int(((container.get("resources") or {}).get("limits") or {}).get(GPU, "0"))


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose pods are meant."""

    namespace: str
    """Where they live."""
    job: str
    """Name of their job."""
    uid: str
    """Which job of that name."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the ranks of a job were put, by names."""

    nodes: tuple[str, ...]
    """The node of each place in the gang."""
    gpus_per_node: int
    """GPUs on each."""
    devices: tuple[tuple[int, ...], ...] = ()
    """Numbers of GPUs on each node, where nodes are shared."""
    attempt: int = 1
    """Counts the times that the job was given nodes, or other ones."""
    first: int = 1
    """The attempt in which the places that never moved were made."""
    moved: Mapping[int, int] = field(default_factory=dict)
    """Places that moved to other nodes since, and in which attempt."""
    waves: tuple[tuple[int, int], ...] = ()
    """When how many places may begin, in milliseconds from the start; empty for all of them at once."""

    def made(self, place: int) -> int:
        """Return the attempt in which the pod of a place was made."""
        return self.moved.get(place, self.first)

    def begun(self, elapsed_ms: int) -> int:
        """Return how many places may have begun by then."""
        return sum(count for after_ms, count in self.waves if after_ms <= elapsed_ms) if self.waves else len(self.nodes)

    def as_json(self) -> dict[str, Any]:
        """Return it as the status holds it."""
        return {
            "nodes": list(self.nodes), "gpusPerNode": self.gpus_per_node, "attempt": self.attempt, "first": self.first,
            "devices": [list(each) for each in self.devices],
            "moved": {str(place): attempt for place, attempt in self.moved.items()},
            "waves": [list(wave) for wave in self.waves],
        }  # fmt: skip


def placed_from(status: Mapping[str, Any]) -> Placed | None:
    """Return where a job's ranks were put, as its status says."""
    held = status.get("placement")
    if not held:
        return None
    return Placed(
        nodes=tuple(held["nodes"]),
        gpus_per_node=held["gpusPerNode"],
        devices=tuple(tuple(each) for each in held.get("devices") or ()),
        attempt=held["attempt"],
        first=held["first"],
        moved={int(place): attempt for place, attempt in (held.get("moved") or {}).items()},
        waves=tuple((after_ms, count) for after_ms, count in held.get("waves") or ()),
    )


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A WeftJob: what was asked, and what the engine has written down about it."""

    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    body: JobBody | None
    """What was asked; none where it cannot be read."""
    problem: str
    """Why it cannot be read."""
    submit_ms: int
    cancelled: str
    """Who called it off; empty where nobody did."""
    leaving: bool
    record: Mapping[str, Any]
    """The moving part of the record, plain."""
    placed: Placed | None
    status: Mapping[str, Any]
    """Everything that is written in the status but record and placement."""
    question: str = ""
    """Which question about its wait was asked last; empty where none was."""

    @property
    def owner(self) -> Owner:
        """Return what its pods belong to."""
        return Owner(self.namespace, self.name, self.uid)

    @property
    def id(self) -> str:
        """Return its name in the queue."""
        return f"{self.namespace}/{self.name}"


def observe_job(item: Mapping[str, Any]) -> ObservedJob:
    """Keep what is needed of a WeftJob."""
    meta, status = item["metadata"], dict(item.get("status") or {})
    body, problem = read_body(item, JOBS)
    if len(meta["name"]) > NAME_LETTERS:
        body, problem = None, f"its name has {len(meta['name'])} letters; the most is {NAME_LETTERS}"
    made = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    record, placed = status.pop("record", None) or {}, placed_from(status)
    status.pop("placement", None)
    return ObservedJob(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=meta["resourceVersion"],
        generation=meta.get("generation", 1),
        body=body if isinstance(body, JobBody) else None,
        problem=problem,
        submit_ms=int(made * 1000),
        cancelled=(meta.get("annotations") or {}).get(CANCEL, ""),
        leaving="deletionTimestamp" in meta,
        record=record,
        placed=placed,
        status=status,
        question=(meta.get("annotations") or {}).get(WHY, ""),
    )


def read_body(item: Mapping[str, Any], resource: Resource) -> tuple[Any, str]:
    """Return what an object of ours says, or nothing and why it cannot be read."""
    try:
        return validate(item.get("spec") or {}, BODIES[resource], item["metadata"]["name"]), ""
    except SpecError as error:
        first = error.mistakes[0]
        more = f" (and {len(error.mistakes) - 1} more)" if len(error.mistakes) > 1 else ""
        return None, f"spec.{first.key}: {first.problem}{more}"


def _asked(seen: ObservedJob, body: JobBody) -> dict[str, Any]:
    """Return the fields of a job's record that its spec gives."""
    gang = Gang(body.nodes, body.gpus_per_node, body.min_nodes, body.step, within=body.within or "",
                slice_nodes=body.slice_nodes, apart=body.apart or "")  # fmt: skip
    return {
        "id": seen.id, "gang": gang,
        "submit_ms": seen.submit_ms, "kind": body.kind, "team": body.team, "priority": body.priority,
        "limit_ms": None if body.time_limit is None else body.time_limit // _PS_PER_MS,
        "after": tuple(f"{seen.namespace}/{name}" for name in body.after),
        "grace_ms": body.grace // _PS_PER_MS, "min_run_ms": body.min_run // _PS_PER_MS,
    }  # fmt: skip


# The names stand once, above: an empty job gives them.
_ANY = ObservedJob(
    "", "", "", "", 1, None, "", 0, cancelled="", leaving=False, record={}, placed=None, status={}
)  # fmt: skip
_GIVEN = frozenset({"placement", *_asked(_ANY, JobBody.model_construct())})
_MOVING = frozenset(field.metadata.get("key", field.name) for field in fields(Job)) - _GIVEN
"""All other fields change while it lives and are kept in its status; where it runs is kept by the names of nodes."""


def record_of(seen: ObservedJob) -> Job:
    """Return the record of a job: what was asked, and how it stands; its placement is not in it."""
    body = seen.body
    assert body is not None, "only a job that can be read has a record"
    asked = Job(**_asked(seen, body))
    # What an older or newer controller has written down and this one does not know is not taken up.
    kept = {name: value for name, value in seen.record.items() if name in _MOVING}
    return from_plain(Job, {**as_plain(asked), **kept})


def moving_part(job: Job) -> dict[str, Any]:
    """Return the part of a record that the status keeps."""
    return {name: value for name, value in as_plain(job).items() if name in _MOVING}


@dataclass(frozen=True, slots=True)
class ObservedTeam:
    """A Team."""

    name: str
    version: str
    body: TeamBody | None
    problem: str
    status: Mapping[str, Any]


def observe_team(item: Mapping[str, Any]) -> ObservedTeam:
    """Keep what is needed of a Team."""
    body, problem = read_body(item, TEAMS)
    meta = item["metadata"]
    return ObservedTeam(meta["name"], meta["resourceVersion"], body, problem, item.get("status") or {})


@dataclass(frozen=True, slots=True)
class ObservedHealth:
    """A NodeHealth: an operator's word, and what the engine has written down about the node."""

    name: str
    version: str
    override: str
    override_by: str
    record: Mapping[str, Any]


def observe_health(item: Mapping[str, Any]) -> ObservedHealth:
    """Keep what is needed of a NodeHealth."""
    body, _ = read_body(item, HEALTH)
    said = body if isinstance(body, HealthBody) else HealthBody()
    meta = item["metadata"]
    record = (item.get("status") or {}).get("record") or {}
    return ObservedHealth(meta["name"], meta["resourceVersion"], said.override, said.override_by, record)


@dataclass(frozen=True)
class PodReport:
    """What the program inside one pod says."""

    job: str
    """Namespace and name of its job."""
    uid: str
    """Uid of its job."""
    node: str
    """Where it runs."""
    checkpoint_ms: int | None = None
    """When the newest checkpoint was complete."""
    seen: tuple[NodeEvidence, ...] = ()
    """What was seen of the node."""


def read_report(document: Any, now_ms: int) -> PodReport:
    """Return a report as it came; raises ValueError where it is none."""
    try:
        seen = tuple(
            NodeEvidence(str(one["check"])[:_MOST_TEXT], now_ms, one["severity"], str(one.get("text", ""))[:_MOST_TEXT])
            for one in document.get("seen", ())
            if one["severity"] in _SEVERITIES
        )
        checkpoint = document.get("checkpoint_ms")
        # A clock that runs ahead must not make a job look safer than it is.
        kept = None if checkpoint is None else min(int(checkpoint), now_ms)
        return PodReport(str(document["job"]), str(document["uid"]), str(document["node"]), kept, seen)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError("a report has job, uid, node, and what is new") from None


def timestamp(at_ms: int) -> str:
    """Return a time in milliseconds since 1970 as Kubernetes writes it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
