"""Our four kinds: what a `WeftJob`, a `Team`, a `NodeHealth` and a `Topology` may say, and their definitions.

What people write is a spec like those of files; the definitions that a server needs are generated from it (`openapi`).
What controllers write down (status) is kept as it is: it is the plain form of `weft.cluster`'s records, and the engine
reads nothing else after a crash.
"""

from typing import Annotated, Any, ClassVar

import yaml
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from weft.cluster.records.job import Kind
from weft.core.spec import Check, Duration, Spec
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.kubernetes.api.openapi import structural
from weft.engines.kubernetes.api.pod_overlay import overlay_problem
from weft.engines.kubernetes.api.resources import GPU, HEALTH, JOBS, OURS, TEAMS, TOPOLOGIES, Resource
from weft.specs import JobSpec
from weft.specs.submission import Shared, shape_problem

_SECOND_PS = PICOSECONDS_PER_SECOND
NAME_LETTERS = 51
"""Longest name of a job: its pods add an attempt and a rank and still have to be host names."""
_Path = Annotated[str, Field(pattern=r"^/", max_length=1024)]
_ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


class _Body(Spec):
    """A spec that is written the way Kubernetes writes: camelCase."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, alias_generator=to_camel,
        populate_by_name=True,
    )  # fmt: skip


class VolumeBody(_Body):
    """Something to mount."""

    path: _Path
    """Where the job sees it."""
    claim: _ObjectName | None = None
    """A PersistentVolumeClaim in the job's namespace."""
    host_path: _Path | None = None
    """A folder of the node."""
    read_only: bool = False
    """Whether the job may only read it."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("claim", "host_path"),
            lambda s: (
                None if (s.claim is None) != (s.host_path is None) else "a volume has either a claim or a hostPath"
            ),
        ),
    )


class FolderBody(_Body):
    """The submitter's folder as it was when the job was handed in."""

    config_map: _ObjectName
    """An immutable ConfigMap that holds it as a compressed archive."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
    """What the archive's SHA-256 begins with."""


class PreflightBody(_Body):
    """Health checks of exactly the job's nodes, before its command starts on them."""

    suites: Annotated[tuple[_ObjectName, ...], Field(max_length=20, strict=False)] = ("preflight",)
    """Checks or suites, as `weft nodes test` takes them."""
    expect: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """What figures a healthy node reaches, by CHECK.FIGURE; below 90 % of it a node is unfit."""
    seconds: Annotated[float, Field(gt=0, le=3600)] = 2.0
    """How long each active check works."""


class WorkloadBody(_Body):
    """A workload of another controller that a job stands for; weft writes it for objects with its queue label."""

    kind: Annotated[str, Field(max_length=63)]
    """Job, JobSet, TrainJob or PyTorchJob."""
    name: _ObjectName
    """What it is called."""
    uid: Annotated[str, Field(max_length=128)]
    """Which one of that name."""


def _has_work(body: Any) -> str | None:
    if body.workload is not None:
        return "a workload brings its own work" if body.command or body.training is not None else None
    given = bool(body.command) + (body.training is not None)
    return None if given == 1 else "a job has either a command or a training; write one of them"


def _fits_gang(body: Any) -> str | None:
    if body.min_nodes <= body.nodes:
        return None
    return f"minNodes = {body.min_nodes} is more than nodes = {body.nodes}; write at most {body.nodes}"


def _ranks_fit(body: Any) -> str | None:
    if body.training is None or body.training.plan == "auto":
        return None if body.training is None or body.nodes == 1 else "a training on several nodes names its plan"
    ranks, room = body.training.plan.ranks, body.nodes * body.gpus_per_node
    return None if ranks == room else f"the plan has {ranks} ranks, but nodes x gpusPerNode is {room}"


def _gang_has_network(body: Any) -> str | None:
    if body.nodes == 1 or body.host_network or body.workload is not None:
        return None
    return "a gang of several nodes needs hostNetwork: its ranks find each other by the nodes' addresses"


def _fits_pods(body: Any) -> str | None:
    return overlay_problem(body.template, GPU)


_Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$", max_length=32)]
DEFAULT_IMAGE = "weft:latest"
"""The image that has weft in it."""


class JobBody(_Body):
    """One job: what it runs, what it needs together, and its place in the queue."""

    kind: Kind = "experiment"
    """A training, any command that ends, or a server that runs on."""
    team: _ObjectName = "default"
    """Team whose quota is charged."""
    priority: Annotated[int, Field(ge=0, le=1000)] = 100
    """Higher goes first."""
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Nodes that it wants together."""
    min_nodes: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Fewest that it can run on; 0 where it needs all."""
    step: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Between the fewest and the wanted it takes multiples of this."""
    within: Shared | None = None
    """What its nodes must share; it waits until they can."""
    slice_nodes: Annotated[int, Field(ge=0, le=100_000)] = 0
    """How many nodes, in rank order, must share it (16 trays of a domain's 18); 0 for all."""
    apart: Shared | None = None
    """What no two of its nodes may share."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 8
    """GPUs on each node."""
    time_limit: Duration | None = None
    """Longest that it may run."""
    grace: Duration = Picoseconds(60 * _SECOND_PS)
    """What it needs to write a checkpoint and leave, when asked."""
    min_run: Duration = Picoseconds(0)
    """What it is promised once started."""
    restarts: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Times that it is started again after it failed by itself; nodes that are lost do not count."""
    after: Annotated[tuple[_ObjectName, ...], Field(max_length=100, strict=False)] = ()
    """Jobs of the same namespace that must be done before it."""
    image: Annotated[str, Field(max_length=1024)] = DEFAULT_IMAGE
    """The container image of its pods. A command runs in any image; a training needs weft and torch in it."""
    command: Annotated[tuple[str, ...], Field(max_length=1000, strict=False)] = ()
    """What every pod runs; torchrun finds nodes, rank and address in its environment."""
    requests: dict[str, _Quantity] = Field(default_factory=dict)
    """What each pod asks for beside its GPUs: cpu, memory, ephemeral-storage."""
    limits: dict[str, _Quantity] = Field(default_factory=dict)
    """What each pod may have at most; of extended resources such as rdma/hca, what it gets."""
    shm: _Quantity | None = None
    """Size of /dev/shm: NCCL and data loaders need more than the 64 MiB that a container has."""
    rdma: Annotated[str, Field(max_length=316, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")] | None = None
    """The device plugin's resource for RDMA, such as rdma/hca: each pod gets one, and may lock memory (IPC_LOCK)."""
    template: dict[str, Any] | None = None
    """A pod template laid over the pods: secrets, volumes, sidecars, tolerations, resource claims. The container that
    runs the command is called job."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that every pod gets."""
    preflight: PreflightBody | None = None
    """Health checks of its nodes before the command starts; a node that fails goes out, and the gang is placed anew."""
    folder: FolderBody | None = None
    """A folder that becomes the working directory, in place of the image's."""
    volumes: Annotated[tuple[VolumeBody, ...], Field(max_length=100, strict=False)] = ()
    """What is mounted."""
    runs: _Path = "/runs"
    """The folder of runs and checkpoints; on a volume, so that it outlives a pod."""
    training: JobSpec | None = None
    """A job file, as `weft train` reads it."""
    workload: WorkloadBody | None = None
    """The workload of another controller that this job stands for."""
    priority_class: _ObjectName | None = None
    """The PriorityClass of its pods, where one is wanted."""
    host_network: bool = True
    """Whether its pods use the node's own network, as RDMA needs; ranks then know each other's addresses at once."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("command", "training", "workload"), _has_work),
        Check(("min_nodes", "nodes"), _fits_gang),
        Check(("within", "slice_nodes", "apart", "nodes", "min_nodes", "step"), shape_problem),
        Check(("training", "nodes", "gpus_per_node"), _ranks_fit),
        Check(("host_network", "nodes", "workload"), _gang_has_network),
        Check(("template",), _fits_pods),
    )


class TeamBody(_Body):
    """A team and its quota."""

    quota: Annotated[int, Field(ge=0, le=10_000_000)]
    """GPUs that are its own."""
    most: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Most that it may have with what it borrows; the whole pool where absent."""


class HealthBody(_Body):
    """What an operator says about a node; what is known of it stands in the status."""

    override: Annotated[str, Field(pattern="^(|keep|out)$")] = ""
    """"keep": never take it out by yourself; "out": never return it by yourself."""
    override_by: Annotated[str, Field(max_length=200)] = ""
    """Whose word that is, and why."""


class TopologyBody(_Body):
    """Which labels of a node say where it stands."""

    pool: Annotated[str, Field(max_length=63)] = "weft"
    """The pool whose nodes are meant."""
    domain: Annotated[str, Field(max_length=316)] = "nvidia.com/gpu.clique"
    """Label of the scale-up domain."""
    rack: Annotated[str, Field(max_length=316)] = "topology.kubernetes.io/rack"
    """Label of the rack."""
    t0: Annotated[str, Field(max_length=316)] = "cluster.weft/t0"
    """Label of the first-tier switch."""
    pod: Annotated[str, Field(max_length=316)] = "cluster.weft/block"
    """Label of the block of switches."""
    feeder: Annotated[str, Field(max_length=316)] = "cluster.weft/feeder"
    """Label of the power feeder."""


BODIES: dict[Resource, type[_Body]] = {
    JOBS: JobBody, TEAMS: TeamBody, HEALTH: HealthBody, TOPOLOGIES: TopologyBody,
}  # fmt: skip

_COLUMNS: dict[Resource, tuple[tuple[str, str, str], ...]] = {
    JOBS: (
        ("Team", ".spec.team", "string"), ("Kind", ".spec.kind", "string"), ("Nodes", ".spec.nodes", "integer"),
        ("State", ".status.state", "string"), ("Bound", ".status.bound", "integer"),
        ("Running", ".status.running", "integer"), ("Why", ".status.why", "string"),
        ("Age", ".metadata.creationTimestamp", "date"),
    ),
    TEAMS: (
        ("Quota", ".spec.quota", "integer"), ("Most", ".spec.most", "integer"), ("Using", ".status.gpus", "integer"),
        ("Waiting", ".status.waiting", "integer"),
    ),
    HEALTH: (
        ("State", ".status.state", "string"), ("Since", ".status.since", "date"),
        ("Reason", ".status.reason", "string"), ("Override", ".spec.override", "string"),
    ),
    TOPOLOGIES: (("Pool", ".spec.pool", "string"), ("Nodes", ".status.nodes", "integer")),
}  # fmt: skip
_SHORT = {JOBS: ["wj"], TEAMS: [], HEALTH: ["nh"], TOPOLOGIES: []}

_CONDITION = {
    "type": "object", "required": ["type", "status"],
    "properties": {
        "type": {"type": "string"}, "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string"}, "message": {"type": "string"},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64"},
    },
}  # fmt: skip
_STATUS = {
    "type": "object", "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "state": {"type": "string"}, "why": {"type": "string"}, "bound": {"type": "integer"},
        "running": {"type": "integer"},
        "conditions": {
            "type": "array", "items": _CONDITION,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        },
    },
}  # fmt: skip


def definition(resource: Resource) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one of our kinds."""
    columns = [
        {"name": name, "jsonPath": path, "type": kind, **({"priority": 1} if name in ("Kind", "Override") else {})}
        for name, path, kind in _COLUMNS[resource]
    ]
    schema = {
        "type": "object",
        "description": (BODIES[resource].__doc__ or "").splitlines()[0],
        "required": ["spec"],
        "properties": {"spec": structural(BODIES[resource]), "status": _STATUS},
    }
    version: dict[str, Any] = {
        "name": resource.version, "served": True, "storage": True, "subresources": {"status": {}},
        "additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": schema},
    }  # fmt: skip
    names = {
        "plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind,
        "shortNames": _SHORT[resource], "categories": ["weft"],
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def manifest() -> str:
    """Return the definitions of all our kinds as YAML."""
    head = "# Generated from weft's specs: weft cluster install --print > deploy/kubernetes/kinds.yaml\n"
    return head + yaml.safe_dump_all(definitions(), sort_keys=False, width=120)


def definitions() -> list[dict[str, Any]]:
    """Return the definitions of all our kinds."""
    return [definition(resource) for resource in OURS]
