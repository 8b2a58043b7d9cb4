"""Kueue's queue: what `kubectl get workloads,clusterqueues,localqueues,resourceflavors,nodes,pods -A -o json` prints.

ClusterQueues are teams with quotas, admitted workloads hold the GPUs of their pods' nodes, the others wait. Fields as
in Kueue's API kueue.x-k8s.io/v1beta1 and v1beta2 (kueue.sigs.k8s.io/docs/reference).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from weft.campaign.advice.fields import Plain, count, items, mapping, moment_ms, node_gpus, number, text
from weft.campaign.advice.foreign_queue import ForeignQueue, PoolNode, QueuedJob, UnreadableQueueError
from weft.cluster.records.job import Team
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy

_S_MS = 1000
_MOST_S = 10**11
_VIRTUAL_GPUS = 8
"""GPUs of a node where nobody names nodes: the width of the servers that are common today."""
_KINDS = frozenset({"Workload", "ClusterQueue", "LocalQueue", "ResourceFlavor", "Node", "Pod"})
_NEVER = ("", "Never")


def kueue_queue(documents: Iterable[Any]) -> ForeignQueue:
    """Return the queue that objects of Kubernetes tell of: lists of any of the kinds, or single ones."""
    objects: dict[str, list[Plain]] = {kind: [] for kind in _KINDS}
    for each in documents:
        for found in _objects(mapping(each, "the document"), "the document"):
            kind = text(found.get("kind"), "kind")
            if kind in objects:
                objects[kind].append(found)
    if not objects["Workload"]:
        raise UnreadableQueueError("it has no Workload; write what `kubectl get workloads -A -o json` prints, too")
    queues = {_name(each): mapping(each.get("spec"), "ClusterQueue.spec") for each in objects["ClusterQueue"]}
    left_out: Counter[str] = Counter()
    nodes = tuple(_nodes(objects["Node"], _flavors(objects["ResourceFlavor"])))
    left_out["nodes without GPUs"] = len(objects["Node"]) - len(nodes)
    jobs = list(_workloads(objects, queues, left_out))
    teams = tuple(_teams(queues))
    if not nodes:
        nodes = _virtual(queues)
        left_out["nodes: none are named, quotas stand for them"] = 1
    times = [job.submit_ms for job in jobs] + [job.start_ms for job in jobs if job.start_ms is not None]
    times += [at for each in objects["Workload"] for at in _moments(each)]
    return ForeignQueue("Kueue", max(times, default=0), nodes, tuple(jobs), teams, _policy(queues), +left_out)


def _objects(document: Plain, where: str) -> Iterator[Plain]:
    kind = text(document.get("kind"), f"{where}.kind")
    if not kind:
        raise UnreadableQueueError(f"{where} has no kind; write what `kubectl get ... -o json` prints")
    if kind == "List" or (kind.endswith("List") and "items" in document):
        for at, each in enumerate(items(document.get("items"), "items")):
            found = mapping(each, f"items[{at}]")
            # Lists of one kind leave it out of their items.
            yield from _objects({"kind": kind.removesuffix("List")} | found, f"items[{at}]")
        return
    yield document


def _name(found: Plain) -> str:
    name = text(mapping(found.get("metadata"), "metadata").get("name"), "metadata.name")
    if not name:
        raise UnreadableQueueError(f"a {found.get('kind')} has no metadata.name")
    return name


def _full_name(found: Plain) -> str:
    space = text(mapping(found.get("metadata"), "metadata").get("namespace"), "metadata.namespace") or "default"
    return f"{space}/{_name(found)}"


def _gpus(resources: Plain, where: str) -> int:
    """Return the GPUs among resources: nvidia.com/gpu, amd.com/gpu and their like."""
    return sum(count(value, f"{where}.{key}") or 0 for key, value in resources.items() if key.endswith("/gpu"))


def _flavors(found: list[Plain]) -> dict[str, Plain]:
    return {_name(each): mapping(mapping(each.get("spec"), "ResourceFlavor.spec").get("nodeLabels"), "nodeLabels")
            for each in found}  # fmt: skip


def _nodes(found: list[Plain], flavors: dict[str, Plain]) -> Iterator[PoolNode]:
    for each in found:
        name = _name(each)
        status, spec = mapping(each.get("status"), f"{name}.status"), mapping(each.get("spec"), f"{name}.spec")
        gpus = _gpus(mapping(status.get("allocatable"), f"{name}.status.allocatable"), name)
        if not gpus:
            continue
        labels = mapping(mapping(each.get("metadata"), "metadata").get("labels"), f"{name}.metadata.labels")
        groups = frozenset(flavor for flavor, wanted in flavors.items() if wanted.items() <= labels.items())
        up = _condition(status, name, "Ready").get("status", "True") == "True" and not spec.get("unschedulable")
        yield PoolNode(name, node_gpus(gpus, name), up, groups)


def _condition(status: Plain, where: str, kind: str) -> Plain:
    conditions = (
        mapping(each, f"{where}.conditions") for each in items(status.get("conditions"), f"{where}.conditions")
    )
    return next((each for each in conditions if each.get("type") == kind), {})


def _moments(workload: Plain) -> Iterator[int]:
    for each in items(mapping(workload.get("status"), "status").get("conditions"), "status.conditions"):
        at = moment_ms(mapping(each, "condition").get("lastTransitionTime"), "lastTransitionTime")
        if at is not None:
            yield at


def _workloads(
    objects: dict[str, list[Plain]], queues: dict[str, Plain], left_out: Counter[str]
) -> Iterator[QueuedJob]:
    local = {_full_name(each): text(mapping(each.get("spec"), "LocalQueue.spec").get("clusterQueue"), "clusterQueue")
             for each in objects["LocalQueue"]}  # fmt: skip
    places = _places(objects["Pod"])
    for each in objects["Workload"]:
        name = _full_name(each)
        spec, status = mapping(each.get("spec"), f"{name}.spec"), mapping(each.get("status"), f"{name}.status")
        if _condition(status, name, "Finished").get("status") == "True":
            left_out["workloads that have ended"] += 1
            continue
        gpus, pieces = _pod_sets(spec, name)
        if not gpus:
            left_out["workloads without GPUs"] += 1
            continue
        reserved = _condition(status, name, "QuotaReserved")
        admission = mapping(status.get("admission"), f"{name}.status.admission")
        runs = bool(admission) and reserved.get("status", "True") == "True"
        queue = text(spec.get("queueName"), f"{name}.spec.queueName")
        team = text(admission.get("clusterQueue"), f"{name}.status.admission.clusterQueue") if runs else ""
        team = team or local.get(f"{name.partition('/')[0]}/{queue}", "")
        created_ms = moment_ms(
            mapping(each.get("metadata"), name).get("creationTimestamp"), f"{name}.creationTimestamp"
        )
        limit_s = count(spec.get("maximumExecutionTimeSeconds"), f"{name}.maximumExecutionTimeSeconds", _MOST_S)
        job = QueuedJob(
            name, created_ms or 0, gpus, pieces, None, team or "all",
            number(spec.get("priority"), f"{name}.priority") or 0,
            limit_s * _S_MS if limit_s else None, groups=_usable_flavors(queues.get(team, {}), admission, runs=runs),
            said=text(reserved.get("message"), f"{name}.message"),
        )  # fmt: skip
        if runs:
            began = moment_ms(reserved.get("lastTransitionTime"), f"{name}.lastTransitionTime")
            yield replace(job, start_ms=began or created_ms or 0, places=places.get(name, {}), said="it is admitted")
        else:
            yield replace(job, held=_held(spec, team, queue, queues))
    for name, held in places.items():
        if name.startswith("pod "):
            yield QueuedJob(name, 0, max(held.values()), 1, None, "pods", start_ms=0, places=held)


def _held(spec: Plain, team: str, queue: str, queues: dict[str, Plain]) -> str:
    """Return what Kueue holds a workload for that no room would change."""
    if spec.get("active") is False:
        return "it is deactivated (spec.active is false)"
    if queues and team not in queues:
        return f"there is no ClusterQueue behind its queue {queue!r}"
    stopped = text(queues.get(team, {}).get("stopPolicy"), "stopPolicy")
    return f"its ClusterQueue {team} is stopped ({stopped})" if stopped in ("Hold", "HoldAndDrain") else ""


def _pod_sets(spec: Plain, name: str) -> tuple[int, int]:
    """Return the GPUs of each pod that has some, and how many such pods; those of unequal pods as of the largest."""
    found: list[tuple[int, int]] = []
    for at, each in enumerate(items(spec.get("podSets"), f"{name}.spec.podSets")):
        where = f"{name}.spec.podSets[{at}]"
        pod_set = mapping(each, where)
        template = mapping(mapping(pod_set.get("template"), where).get("spec"), where)
        gpus = _pod_gpus(template, where)
        pods = count(pod_set.get("count"), f"{where}.count")
        if gpus and pods != 0:
            found.append((gpus, 1 if pods is None else pods))
    if not found:
        return 0, 0
    largest = max(gpus for gpus, _ in found)
    return largest, -(-sum(gpus * pods for gpus, pods in found) // largest)


def _pod_gpus(spec: Plain, where: str) -> int:
    """Return what a pod asks for: all its containers together, or its largest init container."""
    first, rest = 0, 0
    for key in ("containers", "initContainers"):
        for each in items(spec.get(key), f"{where}.{key}"):
            resources = mapping(mapping(each, where).get("resources"), f"{where}.resources")
            asked = mapping(resources.get("limits"), where) | mapping(resources.get("requests"), where)
            gpus = _gpus(asked, where)
            first, rest = (first, rest + gpus) if key == "containers" else (max(first, gpus), rest)
    return max(first, rest)


def _places(pods: list[Plain]) -> dict[str, dict[str, int]]:
    """Return the GPUs on each node by workload; pods that belong to none stand for themselves."""
    found: dict[str, dict[str, int]] = {}
    for each in pods:
        spec, meta = mapping(each.get("spec"), "Pod.spec"), mapping(each.get("metadata"), "Pod.metadata")
        node = text(spec.get("nodeName"), "Pod.spec.nodeName")
        gpus = _pod_gpus(spec, f"Pod {_name(each)}")
        phase = text(mapping(each.get("status"), "Pod.status").get("phase"), "Pod.status.phase")
        if not node or not gpus or phase in ("Succeeded", "Failed"):
            continue
        marks = mapping(meta.get("labels"), "labels") | mapping(meta.get("annotations"), "annotations")
        owner = text(marks.get("kueue.x-k8s.io/workload"), "kueue.x-k8s.io/workload")
        space = text(meta.get("namespace"), "Pod.metadata.namespace") or "default"
        name = f"{space}/{owner}" if owner else f"pod {_full_name(each)}"
        held = found.setdefault(name, {})
        held[node] = held.get(node, 0) + gpus
    return found


def _gpu_quotas(spec: Plain) -> Iterator[tuple[str, int, int | None]]:
    """Return the flavors of a ClusterQueue's GPUs: name, nominal quota, and what may be borrowed (none for all)."""
    for group in items(spec.get("resourceGroups"), "resourceGroups"):
        for flavor in items(mapping(group, "resourceGroups").get("flavors"), "flavors"):
            found = mapping(flavor, "flavors")
            for each in items(found.get("resources"), "flavors.resources"):
                resource = mapping(each, "flavors.resources")
                if text(resource.get("name"), "resources.name").endswith("/gpu"):
                    quota = count(resource.get("nominalQuota"), "nominalQuota") or 0
                    limit = count(resource.get("borrowingLimit"), "borrowingLimit")
                    yield text(found.get("name"), "flavors.name"), quota, limit


def _usable_flavors(spec: Plain, admission: Plain, *, runs: bool) -> frozenset[str]:
    if runs:
        sets = items(admission.get("podSetAssignments"), "podSetAssignments")
        flavors = (mapping(mapping(each, "podSetAssignments").get("flavors"), "flavors") for each in sets)
        return frozenset(str(flavor) for each in flavors for key, flavor in each.items() if key.endswith("/gpu"))
    return frozenset(name for name, _, _ in _gpu_quotas(spec))


def _teams(queues: dict[str, Plain]) -> Iterator[Team]:
    """Return ClusterQueues as teams: those of a cohort may have what it has in all, or as much as they may borrow."""
    nominal = {name: sum(quota for _, quota, _ in _gpu_quotas(spec)) for name, spec in queues.items()}
    cohorts = {name: text(spec.get("cohortName") or spec.get("cohort"), "cohort") for name, spec in queues.items()}
    for name, spec in queues.items():
        cohort = cohorts[name]
        together = sum(
            quota for other, quota in nominal.items() if other == name or (cohort and cohorts[other] == cohort)
        )
        limits = [limit for _, _, limit in _gpu_quotas(spec)]
        most = together if None in limits else min(together, nominal[name] + sum(limit or 0 for limit in limits))
        yield Team(name, nominal[name], most if cohort else nominal[name])


def _policy(queues: dict[str, Plain]) -> SchedulingPolicy:
    """Return rules like Kueue's: priority, then age; others leave where any ClusterQueue says that they may."""
    rights = (mapping(spec.get("preemption"), "preemption") for spec in queues.values())
    keys = ("withinClusterQueue", "reclaimWithinCohort")
    preempt = any(text(each.get(key), key) not in _NEVER for each in rights for key in keys)
    return SchedulingPolicy(fair=False, preempt=preempt, preempt_gap=1, patience_ms=0, aged_ms=FAR_MS // 4)


def _virtual(queues: dict[str, Plain]) -> tuple[PoolNode, ...]:
    """Return nodes that hold what quotas give away, where no nodes are named."""
    totals: Counter[str] = Counter()
    for spec in queues.values():
        for flavor, quota, _ in _gpu_quotas(spec):
            totals[flavor] += quota
    found: list[PoolNode] = []
    for flavor, gpus in sorted(totals.items()):
        whole, rest = divmod(gpus, _VIRTUAL_GPUS)
        sizes = [_VIRTUAL_GPUS] * whole + [rest] * bool(rest)
        found += [PoolNode(f"{flavor}-{at}", size, groups=frozenset({flavor})) for at, size in enumerate(sizes)]
    if not found:
        raise UnreadableQueueError("it has neither Nodes with GPUs nor ClusterQueues with a quota of GPUs")
    return tuple(found)
