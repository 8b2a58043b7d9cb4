"""A job's own pod template laid over the pod that weft makes: what may be said, and how both are joined. Pure.

Everything that a GPU job needs of its pods passes through: requests, shared memory, RDMA, secrets, volumes, sidecars,
dynamic resource claims. What weft decides itself (where a pod runs, by which scheduler, how often) is refused with the
reason. The container that runs the job's command is the one called "job".
"""

from collections.abc import Mapping, Sequence
from typing import Any

JOB_CONTAINER = "job"
_PLACED = "weft places its pods; use a pool, or a Topology, in place of it"
_REFUSED = {
    "nodeName": _PLACED, "affinity": _PLACED, "topologySpreadConstraints": _PLACED, "schedulerName": _PLACED,
    "schedulingGates": _PLACED, "restartPolicy": "a pod of a gang is not restarted by itself; write restarts",
    "terminationGracePeriodSeconds": "write grace", "priorityClassName": "write priorityClass",
    "hostNetwork": "write hostNetwork of the job", "activeDeadlineSeconds": "write timeLimit",
    "ephemeralContainers": "they are added to pods that run",
}  # fmt: skip
_ALLOWED = frozenset({
    "containers", "initContainers", "volumes", "nodeSelector", "tolerations", "imagePullSecrets", "serviceAccountName",
    "automountServiceAccountToken", "securityContext", "runtimeClassName", "resourceClaims", "hostIPC", "hostPID",
    "shareProcessNamespace", "dnsPolicy", "dnsConfig", "hostAliases", "enableServiceLinks", "overhead", "os",
    "hostname", "subdomain", "setHostnameAsFQDN", "preemptionPolicy", "readinessGates", "resources",
})  # fmt: skip
_OURS = ("command", "args", "image")
_BY_NAME = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath",
    "ports": "containerPort", "resourceClaims": "name", "imagePullSecrets": "name", "claims": "name",
}  # fmt: skip
"""Lists whose entries are known by a key, as in Kubernetes' strategic merge patch; others are appended."""
_LABELS = "cluster.weft/"
_OWN = "weft-"


def overlay_problem(template: Any, gpu: str) -> str | None:
    """Return what is wrong with a pod template, or nothing; `gpu` is the resource that weft counts."""
    if template is None:
        return None
    strange = sorted(set(template) - {"metadata", "spec"})
    if strange:
        return f"a pod template has metadata and spec, not {strange[0]}"
    return _metadata_problem(template.get("metadata") or {}) or _spec_problem(template.get("spec") or {}, gpu)


def _metadata_problem(meta: Any) -> str | None:
    if not isinstance(meta, Mapping) or set(meta) - {"labels", "annotations"}:
        return "metadata of a pod template has labels and annotations"
    for name in meta.get("labels") or {}:
        if str(name).startswith(_LABELS):
            return f"label {name}: labels of {_LABELS}* are weft's own"
    return None


def _spec_problem(spec: Any, gpu: str) -> str | None:
    if not isinstance(spec, Mapping):
        return "spec of a pod template is a table"
    for name in spec:
        if name in _REFUSED:
            return f"spec.{name}: {_REFUSED[name]}"
        if name not in _ALLOWED:
            return f"spec.{name}: no field of a pod that may be given; may be: {', '.join(sorted(_ALLOWED))}"
    for name in ("containers", "initContainers", "volumes"):
        entries = spec.get(name) or []
        if not isinstance(entries, Sequence) or any(
            not isinstance(one, Mapping) or not one.get("name") for one in entries
        ):
            return f"spec.{name} is a list of tables that each have a name"
        names = [one["name"] for one in entries]
        if len(set(names)) < len(names):
            return f"spec.{name}: {next(one for one in names if names.count(one) > 1)} stands twice"
    return _containers_problem(spec, gpu)


def _containers_problem(spec: Mapping[str, Any], gpu: str) -> str | None:
    for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        asked = one.get("resources") or {}
        for kind in ("requests", "limits"):
            if gpu in (asked.get(kind) or {}):
                return f"container {one['name']}: {gpu} is asked for by gpusPerNode"
        if str(one["name"]).startswith(_OWN):
            return f"container {one['name']}: containers called {_OWN}* are weft's own"
        if one["name"] == JOB_CONTAINER:
            ours = [name for name in _OURS if name in one]
            if ours:
                return f"container {JOB_CONTAINER}: write {ours[0]} of the job in place of the container's"
    return None


def overlaid(pod: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod with a template laid over it; what weft has set itself stays."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    own = pod["metadata"]
    labels = {**(meta.get("labels") or {}), **own.get("labels", {})}
    annotations = {**(meta.get("annotations") or {}), **own.get("annotations", {})}
    metadata = {**own, "labels": labels, **({"annotations": annotations} if annotations else {})}
    return {**pod, "metadata": metadata, "spec": _joined(pod["spec"], spec)}


def _joined(ours: Any, given: Any) -> Any:
    """Join two values: tables by key, known lists by their entries' names, everything else as it is given."""
    if isinstance(ours, Mapping) and isinstance(given, Mapping):
        made = dict(ours)
        for key, value in given.items():
            made[key] = (
                _lists(key, made[key], value)
                if isinstance(value, list) and key in made
                else (_joined(made[key], value) if key in made else value)
            )
        return made
    return given


def _lists(key: str, ours: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    by = _BY_NAME.get(key)
    if by is None:
        return [*ours, *(one for one in given if one not in ours)]
    known = {one[by]: one for one in ours if by in one}
    added = {one.get(by): one for one in given}
    joined = [_joined(one, added[name]) if name in added else one for name, one in known.items()]
    return [*joined, *(one for one in given if one.get(by) not in known)]
