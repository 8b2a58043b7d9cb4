"""Workloads of other projects that weft queues and places: what they ask for, how they wait, how they end. Pure.

Job (batch/v1), JobSet (jobset.x-k8s.io/v1alpha2), TrainJob (trainer.kubeflow.org/v1alpha1) and PyTorchJob
(kubeflow.org/v1) can all be suspended, and all make pods from templates. What weft needs to know of a kind is one row
of `KINDS`: where it says `suspend`, which condition means success, and where its pod templates stand.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.engines.kubernetes.api.resources import (
    ATTEMPT_LABEL,
    BATCH_JOBS,
    EACH_LABEL,
    FIRST_LABEL,
    GATE,
    GPU,
    JOB_LABEL,
    OWNER_LABEL,
    POOL_TAINT,
    Resource,
)

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
RUNTIMES = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_RUNTIMES = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_MOST_NODES, _MOST_GPUS = 100_000, 1024
_MANAGER = "cluster.weft/manager"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_KUEUE = "kueue.x-k8s.io/queue-name"
_CONTROLLERS = ("jobset.sigs.k8s.io/jobset-controller", "trainer.kubeflow.org/trainjob-controller",
                "kubernetes.io/job-controller", "kubeflow.org/training-operator")  # fmt: skip
_PLACED = "weft places its pods"
_REFUSED = {"nodeName": _PLACED, "nodeSelector": _PLACED, "affinity": _PLACED, "topologySpreadConstraints": _PLACED}
_INDEXES = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
_JOBSET_NAME, _TRAINING_NAME = "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
TOLERATED = (
    {"key": POOL_TAINT, "operator": "Exists"},
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
)
"""What every pod on our nodes tolerates: the pool, and silent nodes, which are weft's decision alone."""

Object = Mapping[str, Any]
Runtimes = Mapping[str, Object]
"""Specs of training runtimes: by name those of the cluster, by namespace/name the others."""


class WorkloadProblemError(ValueError):
    """A workload says something that weft cannot honour."""


@dataclass(frozen=True)
class PodGroup:
    """Pods of a workload that are made from one template."""

    name: str
    """How its controller calls the group."""
    path: tuple[str | int, ...]
    """Where the template stands in the object; empty where it stands in another one."""
    template: Object
    """Metadata and spec of its pods."""
    jobs: int
    """Jobs that make its pods; 1 where the controller makes them itself."""
    each: int
    """Pods of each of them."""
    gpus: int
    """GPUs of each pod."""


@dataclass(frozen=True)
class WorkloadKind:
    """One kind of workload."""

    resource: Resource
    """Group, version and names."""
    suspend: tuple[str, ...]
    """Where it says that it waits."""
    succeeded: str
    """The condition that means that it has ended well; Failed means the contrary for all."""
    pods: str
    """The label that its pods bear, with its name as the value."""
    groups: Callable[[Object, Runtimes], Iterator[PodGroup]]
    """Reads its groups of pods."""

    def suspended(self, item: Object) -> bool:
        """Return whether it waits."""
        return bool(_at(item, self.suspend))

    def acknowledged(self, item: Object) -> bool:
        """Return whether its controller has seen that it waits: it makes no more pods then."""
        conditions = (item.get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Suspended" and one["status"] == "True" for one in conditions)

    def hold(self, *, suspended: bool) -> dict[str, Any]:
        """Return the merge patch that lets it wait, or run."""
        patch: Any = suspended
        for key in reversed(self.suspend):
            patch = {key: patch}
        return patch

    def ending(self, item: Object) -> tuple[str, str]:
        """Return how it has ended ("done", "failed" or nothing) and what its controller says about it."""
        for one in (item.get("status") or {}).get("conditions") or ():
            if one["status"] == "True" and one["type"] in (self.succeeded, "Failed"):
                return ("failed" if one["type"] == "Failed" else "done"), str(one.get("message") or "")
        return "", ""


@dataclass(frozen=True)
class GangShape:
    """What a workload needs together."""

    groups: tuple[PodGroup, ...]
    """Groups whose pods have GPUs; the others are left to Kubernetes."""

    @property
    def nodes(self) -> int:
        """Return how many pods there are, each on a node of its own."""
        return sum(one.jobs * one.each for one in self.groups)

    @property
    def gpus(self) -> int:
        """Return the GPUs of each pod."""
        return self.groups[0].gpus

    @property
    def grace_s(self) -> int:
        """Return how long its pods may take to end."""
        return max(int(_at(one.template, ("spec", "terminationGracePeriodSeconds")) or 30) for one in self.groups)


def gang_shape(kind: WorkloadKind, item: Object, runtimes: Runtimes) -> GangShape:
    """Return what a workload needs together; raises WorkloadProblemError for what weft cannot honour."""
    try:
        shape = _shape(kind, item, runtimes)
        # What is written when it starts is tried now: what has no such form can be written down, and must stop nobody.
        _ = shape.grace_s, prepared(item, shape, PlacementMark("", "", 0))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, WorkloadProblemError):
            raise
        raise WorkloadProblemError(f"its spec cannot be read: {error!r}") from None
    return shape


def _shape(kind: WorkloadKind, item: Object, runtimes: Runtimes) -> GangShape:
    meta = item["metadata"]
    if _KUEUE in (meta.get("labels") or {}):
        raise WorkloadProblemError(f"the label {_KUEUE} queues it elsewhere; keep one of the two")
    if (manager := _at(item, ("spec", "managedBy"))) not in (None, "", *_CONTROLLERS):
        raise WorkloadProblemError(f"spec.managedBy: {manager} runs it, and nobody else may start it")
    if _EXCLUSIVE in (meta.get("annotations") or {}):
        raise WorkloadProblemError(f"annotation {_EXCLUSIVE}: {_PLACED}; a Topology says what stands together")
    groups = [one for one in kind.groups(item, runtimes) if _counted(one) and one.gpus and one.jobs * one.each]
    if not groups:
        raise WorkloadProblemError(f"none of its pods asks for {GPU}, and only such pods are queued")
    sizes = sorted({one.gpus for one in groups})
    if len(sizes) > 1:
        raise WorkloadProblemError(
            f"its pods ask for {' and '.join(map(str, sizes))} GPUs; those of a gang ask for the same"
        )
    for one in groups:
        _check_template(one)
    shape = GangShape(tuple(groups))
    if shape.nodes > _MOST_NODES or shape.gpus > _MOST_GPUS:
        raise WorkloadProblemError(f"{shape.nodes:,} pods of {shape.gpus:,} GPUs are more than any cluster has")
    return shape


def _counted(group: PodGroup) -> bool:
    """Return whether a group has counts; raises where one is none, or is below zero."""
    for what, count in (("Jobs", group.jobs), ("pods", group.each)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise WorkloadProblemError(f"the number of {what} of {group.name} is {count!r}; write a whole number")
    return True


def _check_template(group: PodGroup) -> None:
    spec = group.template.get("spec") or {}
    for field, why in _REFUSED.items():
        if spec.get(field):
            raise WorkloadProblemError(f"{field} of the pods of {group.name}: {why}; use a pool or a Topology")
    if _EXCLUSIVE in (_at(group.template, ("metadata", "annotations")) or {}):
        raise WorkloadProblemError(f"annotation {_EXCLUSIVE} of {group.name}: {_PLACED}")


def _at(item: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        if isinstance(item, Mapping):
            item = item.get(key)
        elif isinstance(item, list) and isinstance(key, int) and key < len(item):
            item = item[key]
        else:
            return None
    return item


def _gpus(resources: Iterator[Object]) -> int:
    total = 0
    for one in resources:
        asked = (one.get("limits") or {}).get(GPU, (one.get("requests") or {}).get(GPU, 0))
        if not str(asked).isdigit():
            raise WorkloadProblemError(f"{GPU}: {asked} is no whole number")
        total += int(asked)
    return total


def _pod_gpus(template: Object) -> int:
    return _gpus(one.get("resources") or {} for one in _at(template, ("spec", "containers")) or ())


def _job_pods(spec: Object) -> int:
    at_once = spec.get("parallelism", 1)
    return min(at_once, spec.get("completions") or at_once)


def _of_job(item: Object, _: Runtimes) -> Iterator[PodGroup]:
    spec = item["spec"]
    template = spec["template"]
    yield PodGroup("the Job", ("spec", "template"), template, 1, _job_pods(spec), _pod_gpus(template))


def _of_jobset(item: Object, _: Runtimes) -> Iterator[PodGroup]:
    for number, one in enumerate(item["spec"].get("replicatedJobs") or ()):
        if _EXCLUSIVE in (_at(one, ("template", "metadata", "annotations")) or {}):
            raise WorkloadProblemError(f"annotation {_EXCLUSIVE} of {one['name']}: {_PLACED}")
        spec = one["template"]["spec"]
        path = ("spec", "replicatedJobs", number, "template", "spec", "template")
        yield PodGroup(
            one["name"], path, spec["template"], one.get("replicas", 1), _job_pods(spec), _pod_gpus(spec["template"])
        )


def _of_pytorch_job(item: Object, _: Runtimes) -> Iterator[PodGroup]:
    if _at(item, ("spec", "elasticPolicy", "metrics")):
        raise WorkloadProblemError("spec.elasticPolicy.metrics changes the number of workers; a gang keeps its own")
    replicas = item["spec"]["pytorchReplicaSpecs"]
    # The master is rank 0, whatever the order in the object.
    for name in sorted(replicas, key=lambda one: one != "Master"):
        template = replicas[name]["template"]
        path = ("spec", "pytorchReplicaSpecs", name, "template")
        yield PodGroup(name, path, template, 1, replicas[name].get("replicas", 1), _pod_gpus(template))


def _of_train_job(item: Object, runtimes: Runtimes) -> Iterator[PodGroup]:
    spec = item["spec"]
    reference, trainer = spec["runtimeRef"], spec.get("trainer") or {}
    inside = reference.get("kind", CLUSTER_RUNTIMES.kind) == RUNTIMES.kind
    name = f"{item['metadata']['namespace']}/{reference['name']}" if inside else reference["name"]
    runtime = runtimes.get(name)
    if runtime is None:
        raise WorkloadProblemError(f"spec.runtimeRef: there is no runtime {name}")
    if _at(runtime, ("mlPolicy", "mpi", "runLauncherAsNode")):
        raise WorkloadProblemError("spec.runtimeRef: a launcher that is a node as well (mlPolicy.mpi) is not supported")
    for one in _at(runtime, ("template", "spec", "replicatedJobs")) or ():
        job = one["template"]["spec"]
        template, gpus, pods = job["template"], _pod_gpus(job["template"]), _job_pods(job)
        if (_at(one, ("template", "metadata", "labels")) or {}).get(_STEP) == "trainer":
            pods = trainer.get("numNodes") or _at(runtime, ("mlPolicy", "numNodes")) or pods
            gpus = _gpus(iter([trainer["resourcesPerNode"]])) if trainer.get("resourcesPerNode") else gpus
        yield PodGroup(one["name"], (), template, one.get("replicas", 1), pods, gpus)


KINDS = {
    one.resource.kind: one
    for one in (
        WorkloadKind(BATCH_JOBS, ("spec", "suspend"), "Complete", "job-name", _of_job),
        WorkloadKind(JOBSETS, ("spec", "suspend"), "Completed", _JOBSET_NAME, _of_jobset),
        WorkloadKind(TRAIN_JOBS, ("spec", "suspend"), "Complete", _JOBSET_NAME, _of_train_job),
        WorkloadKind(PYTORCH_JOBS, ("spec", "runPolicy", "suspend"), "Succeeded", _TRAINING_NAME, _of_pytorch_job),
    )
}
"""Every kind that can be queued, by its name."""


@dataclass(frozen=True)
class PlacementMark:
    """For which placement of which job pods are made."""

    job: str
    """Name of the WeftJob that stands for the workload."""
    uid: str
    """Its uid."""
    attempt: int
    """The placement's number."""

    @property
    def text(self) -> str:
        """Return what the workload is annotated with."""
        return f"{self.attempt}.{self.uid}"


def prepared(item: Object, shape: GangShape, mark: PlacementMark) -> dict[str, Any]:
    """Return the merge patch by which a workload's pods wait for their nodes: marked and gated."""
    spec: dict[str, Any] = deepcopy(dict(item["spec"]))
    first = 0
    changed: set[str] = set()
    for group in shape.groups:
        labels = {
            JOB_LABEL: mark.job, OWNER_LABEL: mark.uid, ATTEMPT_LABEL: str(mark.attempt), FIRST_LABEL: str(first),
            EACH_LABEL: str(group.each),
        }  # fmt: skip
        first += group.jobs * group.each
        if group.path:
            _gate(_at({"spec": spec}, group.path), labels)
            changed.add(str(group.path[1]))
        else:
            changed |= _overridden(spec, group, labels)
    return {
        "metadata": {"annotations": {GATE: mark.text}, "resourceVersion": item["metadata"]["resourceVersion"]},
        "spec": {name: spec[name] for name in sorted(changed)},
    }


def _gate(template: dict[str, Any], labels: Mapping[str, str]) -> None:
    """Add our labels, tolerations and gate to a pod template; those of others stay."""
    meta = template["metadata"] = dict(template.get("metadata") or {})
    meta["labels"] = {**(meta.get("labels") or {}), **labels}
    spec = template["spec"] = dict(template.get("spec") or {})
    tolerations = list(spec.get("tolerations") or ())
    spec["tolerations"] = tolerations + [one for one in TOLERATED if one not in tolerations]
    gates = [one for one in spec.get("schedulingGates") or () if one["name"] != GATE]
    spec["schedulingGates"] = [*gates, {"name": GATE}]


def _overridden(spec: dict[str, Any], group: PodGroup, labels: Mapping[str, str]) -> set[str]:
    """Add our overrides to a TrainJob, in the words of its older and its newer servers: each drops the other's."""
    template: dict[str, Any] = {"spec": {"tolerations": list(_at(group.template, ("spec", "tolerations")) or ())}}
    _gate(template, labels)
    older = [one for one in spec.get("podTemplateOverrides") or () if not _ours(one, group)]
    spec["podTemplateOverrides"] = [*older, {"targetJobs": [{"name": group.name}], **template}]
    patches = [one for one in spec.get("runtimePatches") or () if one.get("manager") != _MANAGER]
    mine = [one for one in spec.get("runtimePatches") or () if one.get("manager") == _MANAGER]
    jobs = _at(mine, (0, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")) or []
    jobs = [one for one in jobs if one["name"] != group.name]
    jobs.append({"name": group.name, "template": {"spec": {"template": template}}})
    patch = {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    spec["runtimePatches"] = [*patches, patch]
    return {"podTemplateOverrides", "runtimePatches"}


def _ours(override: Object, group: PodGroup) -> bool:
    targets = [one.get("name") for one in override.get("targetJobs") or ()]
    return targets == [group.name] and JOB_LABEL in (_at(override, ("metadata", "labels")) or {})


def is_prepared(item: Object) -> bool:
    """Return whether a server has kept what `prepared` wrote; one that is too old for a field drops it silently."""
    return GATE in str(item["spec"])


class WantedPlaces(NamedTuple):
    """Where in its gang a pod may stand."""

    start: int
    """The first place of its Job."""
    stop: int
    """One after the last."""
    best: int
    """The place that its index names; -1 where it has none."""


def wanted_places(meta: Object) -> WantedPlaces | None:
    """Return where in its gang the pod with this metadata may stand; nothing where it is no pod of a workload."""
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    numbers = [labels.get(FIRST_LABEL, ""), labels.get(EACH_LABEL, ""), labels.get(_JOB_INDEX, "0")]
    if not all(one.isdigit() for one in numbers):
        return None
    first, each, job = map(int, numbers)
    index = next((text for name in _INDEXES if (text := notes.get(name, labels.get(name)))), "")
    start = first + job * each
    # A Job of more completions than pods at once has indexes that are no places.
    best = start + int(index) if index.isdigit() and int(index) < each else -1
    return WantedPlaces(start, start + each, best)
