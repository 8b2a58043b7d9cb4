"""Stand-ins for the controllers of Job, JobSet, TrainJob and PyTorchJob, and for kube-scheduler, on a fake API server.

They do what weft leans on and no more: pods are made from the templates of what is not suspended and taken away when
it is; indexes, labels, restarts and conditions are those of the real ones; a template may change only while its
workload waits. Written from the published types and behaviour of batch/v1, jobset.x-k8s.io/v1alpha2,
trainer.kubeflow.org/v1alpha1 and kubeflow.org/v1.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from weft.core.errors import WeftError
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.resources import BATCH_JOBS, DEFINITIONS, GPU, HOST_LABEL, NODES, PODS, Resource
from weft.engines.kubernetes.api.workload_kinds import CLUSTER_RUNTIMES, JOBSETS, PYTORCH_JOBS, RUNTIMES, TRAIN_JOBS
from weft.testing.api_server import FakeApiServer
from weft.testing.api_store import Refusal

Object = dict[str, Any]
_OTHERS = (JOBSETS, TRAIN_JOBS, PYTORCH_JOBS, RUNTIMES, CLUSTER_RUNTIMES)
_OVER = ("Succeeded", "Failed")
_INDEX = "batch.kubernetes.io/job-completion-index"
_MUTABLE = ("nodeSelector", "tolerations", "schedulingGates")

_GROUP = "jobset.sigs.k8s.io/replicatedjob-name"


def serve_workloads(server: FakeApiServer, *kinds: Resource) -> None:
    """Let a server serve kinds of workloads (all where none is named), with the rules of their admission."""
    for one in kinds or _OTHERS:
        names = {"plural": one.plural, "kind": one.kind}
        version = {"name": one.version, "subresources": {"status": {}}}
        scope = "Namespaced" if one.namespaced else "Cluster"
        spec = {"group": one.group, "scope": scope, "names": names, "versions": [version]}
        body = {"metadata": {"name": f"{one.plural}.{one.group}"}, "spec": spec}
        server.store.create(server.store.target(DEFINITIONS.path()), body)
    server.store.rules.append(_frozen_templates)


def _frozen_templates(resource: Resource, old: Object, new: Object) -> None:
    """Refuse changes of templates where the real servers do."""
    before, after = old["spec"], new["spec"]
    if resource == BATCH_JOBS:
        waits = before.get("suspend") and not (old.get("status") or {}).get("startTime")
        _frozen(before["template"], after["template"], waits=bool(waits))
    elif resource == JOBSETS:
        waits = before.get("suspend") or after.get("suspend")
        for one, other in zip(before["replicatedJobs"], after["replicatedJobs"], strict=True):
            _frozen(one["template"]["spec"]["template"], other["template"]["spec"]["template"], waits=bool(waits))
            sizes = [(each.get("replicas"), {**each["template"]["spec"], "template": None}) for each in (one, other)]
            if sizes[0] != sizes[1]:
                raise Refusal(422, "Invalid", "spec.replicatedJobs: field is immutable")
    elif resource == TRAIN_JOBS and not after.get("suspend"):
        for field in ("podTemplateOverrides", "runtimePatches"):
            if before.get(field) != after.get(field):
                raise Refusal(422, "Invalid", f"spec.{field} can only be changed while the TrainJob is suspended")


def _frozen(before: Object, after: Object, *, waits: bool) -> None:
    parts = []
    for one in (before, after):
        spec = {name: value for name, value in (one.get("spec") or {}).items() if not waits or name not in _MUTABLE}
        parts.append((spec, None if waits else one.get("metadata")))
    if parts[0] != parts[1]:
        raise Refusal(422, "Invalid", "spec.template: field is immutable")


class WorkloadControllers:
    """Plays the controllers, looking again and again."""

    def __init__(self, client: ApiClient, period_s: float = 0.25) -> None:
        """Look every `period_s`."""
        self._client, self._period_s = client, period_s
        self._pods: list[Object] = []

    async def run(self) -> None:
        """Play until cancelled; who was quicker is right, and a fault is tried again."""
        while True:
            with contextlib.suppress(WeftError):
                await self._turn()
            await asyncio.sleep(self._period_s)

    async def _turn(self) -> None:
        for resource, work in (
            (TRAIN_JOBS, self._train_job), (JOBSETS, self._jobset), (BATCH_JOBS, self._job),
            (PYTORCH_JOBS, self._pytorch_job),
        ):  # fmt: skip
            self._pods = await self._client.list(PODS)
            for item in await self._found(resource):
                if "deletionTimestamp" not in item["metadata"]:
                    with contextlib.suppress(ApiError):
                        await work(item)
        await self._schedule()

    async def _found(self, resource: Resource) -> list[Object]:
        try:
            return await self._client.list(resource)
        except ApiError as error:
            if error.missing:
                return []
            raise

    async def _say(self, resource: Resource, item: Object, **status: Any) -> None:
        """Write a status where it is not so yet; conditions are given as types that are true."""
        if "conditions" in status:
            true = status["conditions"]
            known = {one["type"] for one in (item.get("status") or {}).get("conditions") or ()}
            status["conditions"] = [
                {"type": kind, "status": "True" if kind in true else "False", "message": true.get(kind, "")}
                for kind in sorted({*known, *true})
            ]
        held = item.get("status") or {}
        if any(held.get(name) != value for name, value in status.items()):
            meta = item["metadata"]
            await self._client.patch(resource, meta["name"], {"status": status}, meta["namespace"], part="status")

    def _mine(self, item: Object) -> list[Object]:
        uid = item["metadata"]["uid"]
        return [one for one in self._pods if _owner(one) == uid]

    async def _make(self, resource: Resource, item: Object, name: str, template: Object, marks: Object) -> None:
        """Make a pod from a template."""
        meta: Object = deepcopy(template.get("metadata") or {})
        for part in ("labels", "annotations"):
            meta[part] = {**(meta.get(part) or {}), **marks.get(part, {})}
        space = item["metadata"]["namespace"]
        body = {"metadata": {**meta, "name": name, "namespace": space, "ownerReferences": [_reference(resource, item)]},
                "spec": deepcopy(template["spec"])}  # fmt: skip
        await self._client.create(PODS, body, space)

    async def _remove(self, pods: Iterator[Object] | list[Object]) -> None:
        for one in pods:
            meta = one["metadata"]
            if "deletionTimestamp" not in meta and _phase(one) not in _OVER:
                await self._client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])

    async def _job(self, item: Object) -> None:
        """Play the controller of Jobs."""
        spec, status = item["spec"], item.get("status") or {}
        if _true(item, "Complete", "Failed"):
            return
        pods = self._mine(item)
        if spec.get("suspend"):
            await self._remove(pods)
            # Like the real one, it does not forget when it was started.
            await self._say(BATCH_JOBS, item, conditions={"Suspended": ""}, active=0)
            return
        at_once = spec.get("parallelism", 1)
        wanted = spec.get("completions") or at_once
        indexed = spec.get("completionMode") == "Indexed"
        phases = Counter(_phase(one) for one in pods)
        failed = [one for one in pods if _phase(one) == "Failed"]
        done = {one["metadata"]["annotations"].get(_INDEX) for one in pods if _phase(one) == "Succeeded"}
        finished = len(done) if indexed else phases["Succeeded"]
        if len(failed) > spec.get("backoffLimit", 6):
            await self._remove(pods)
            await self._say(BATCH_JOBS, item, conditions={"Failed": "BackoffLimitExceeded"}, active=0)
        elif finished >= wanted:
            await self._say(BATCH_JOBS, item, conditions={"Complete": ""}, active=0, succeeded=finished)
        else:
            live = [one for one in pods if _phase(one) not in _OVER]
            await self._fill(item, live, done, min(at_once, wanted - finished) - len(live))
            started = status.get("startTime") or item["metadata"]["creationTimestamp"]
            await self._say(BATCH_JOBS, item, conditions={}, active=len(live), startTime=started, failed=len(failed))

    async def _fill(self, item: Object, live: list[Object], done: set[Any], missing: int) -> None:
        spec, name = item["spec"], item["metadata"]["name"]
        held = {
            one["metadata"]["annotations"].get(_INDEX) for one in live if "deletionTimestamp" not in one["metadata"]
        }
        indexes = (str(number) for number in range(spec.get("completions") or spec.get("parallelism", 1)))
        free = [one for one in indexes if one not in done and one not in held]
        indexed = spec.get("completionMode") == "Indexed"
        made = {one["metadata"]["name"] for one in self._pods}
        for number in range(max(0, missing)):
            index = free[number] if indexed and number < len(free) else None
            if indexed and index is None:
                return
            notes: Object = {} if index is None else {_INDEX: index}
            marks = {"annotations": notes, "labels": {"job-name": name}}
            base = name if index is None else f"{name}-{index}"
            # Real ones end in random letters; numbers tell them apart as well.
            suffix = next(one for one in range(10**6) if f"{base}-{one}" not in made)
            made.add(f"{base}-{suffix}")
            await self._make(BATCH_JOBS, item, f"{base}-{suffix}", spec["template"], marks)

    async def _jobset(self, item: Object) -> None:
        """Play the controller of JobSets."""
        if _true(item, "Completed", "Failed"):
            return
        spec, meta, status = item["spec"], item["metadata"], item.get("status") or {}
        children = [one for one in await self._found(BATCH_JOBS) if _owner(one) == meta["uid"]]
        there = {one["metadata"]["name"]: one for one in children}
        restarts = status.get("restarts", 0)
        if any(_true(one, "Failed") for one in children):
            if restarts >= (spec.get("failurePolicy") or {}).get("maxRestarts", 0):
                await self._stop(children)
                await self._say(JOBSETS, item, conditions={"Failed": "jobset failed due to one or more job failures"})
                return
            for one in children:
                await self._client.delete(BATCH_JOBS, one["metadata"]["name"], meta["namespace"])
            await self._say(JOBSETS, item, restarts=restarts + 1)
            return
        wanted = list(_children(item))
        for body in wanted:
            child = there.get(body["metadata"]["name"])
            # What waits for others stands there suspended until they have come as far as it asks.
            body["spec"]["suspend"] = body["spec"]["suspend"] or not self._may_start(spec, body, children)
            if child is None:
                await self._client.create(BATCH_JOBS, body, meta["namespace"])
            else:
                await self._align(child, body)
        if children and len(children) == len(wanted) and all(_true(one, "Complete") for one in children):
            await self._say(JOBSETS, item, conditions={"Completed": "jobset completed successfully"})
        else:
            await self._say(JOBSETS, item, conditions={"Suspended": ""} if spec.get("suspend") else {})

    def _may_start(self, spec: Object, body: Object, children: list[Object]) -> bool:
        """Return whether those before a Job of a JobSet are ready, or complete, as `dependsOn` and the order ask."""
        names = [one["name"] for one in spec["replicatedJobs"]]
        place = names.index(body["metadata"]["labels"][_GROUP])
        waits_for = {one["name"]: one["status"] for one in spec["replicatedJobs"][place].get("dependsOn") or ()}
        if (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
            waits_for |= dict.fromkeys(names[:place], "Ready")
        return all(self._has_come(child, waits_for) for child in children)

    def _has_come(self, child: Object, waits_for: Mapping[str, str]) -> bool:
        status = waits_for.get(child["metadata"]["labels"][_GROUP])
        if status is None or _true(child, "Complete"):
            return True
        running = sum(_phase(pod) == "Running" for pod in self._mine(child))
        return status == "Ready" and running >= child["spec"].get("parallelism", 1)

    async def _align(self, child: Object, body: Object) -> None:
        """Let a child Job wait or run as its JobSet does; its template is brought up before it runs again."""
        name, space = child["metadata"]["name"], child["metadata"]["namespace"]
        waits = bool(body["spec"].get("suspend"))
        if bool(child["spec"].get("suspend")) == waits or _true(child, "Complete", "Failed"):
            return
        if not waits:
            if (child.get("status") or {}).get("startTime"):
                await self._client.patch(BATCH_JOBS, name, {"status": {"startTime": None}}, space, part="status")
            await self._client.patch(BATCH_JOBS, name, {"spec": {"template": body["spec"]["template"]}}, space)
        await self._client.patch(BATCH_JOBS, name, {"spec": {"suspend": waits}}, space)

    async def _stop(self, children: list[Object]) -> None:
        for one in children:
            if not _true(one, "Complete", "Failed"):
                await self._client.delete(BATCH_JOBS, one["metadata"]["name"], one["metadata"]["namespace"])

    async def _train_job(self, item: Object) -> None:
        """Play the controller of TrainJobs: a JobSet of its name from the runtime's template and its own overrides."""
        if _true(item, "Complete", "Failed"):
            return
        meta, spec = item["metadata"], item["spec"]
        reference = spec["runtimeRef"]
        inside = reference.get("kind") == RUNTIMES.kind
        runtime = await self._client.find(
            RUNTIMES if inside else CLUSTER_RUNTIMES, reference["name"], meta["namespace"] if inside else None
        )
        if runtime is None:
            return
        wanted = _train_spec(item, runtime["spec"])
        there = await self._client.find(JOBSETS, meta["name"], meta["namespace"])
        if there is None:
            body = {"metadata": {"name": meta["name"], "ownerReferences": [_reference(TRAIN_JOBS, item)]},
                    "spec": wanted}  # fmt: skip
            there = await self._client.create(JOBSETS, body, meta["namespace"])
        elif there["spec"] != wanted and (there["spec"].get("suspend") or wanted["suspend"]):
            held = {"suspend": wanted["suspend"]} if wanted["suspend"] else wanted
            await self._client.patch(JOBSETS, meta["name"], {"spec": held}, meta["namespace"])
        for theirs, ours in (("Completed", "Complete"), ("Failed", "Failed")):
            if _true(there, theirs):
                await self._say(TRAIN_JOBS, item, conditions={ours: "its JobSet has ended"})
                return
        await self._say(TRAIN_JOBS, item, conditions={"Suspended": ""} if spec.get("suspend") else {})

    async def _pytorch_job(self, item: Object) -> None:
        """Play the training operator's controller of PyTorchJobs."""
        if _true(item, "Succeeded", "Failed"):
            return
        pods, spec = self._mine(item), item["spec"]
        if (spec.get("runPolicy") or {}).get("suspend"):
            await self._remove(pods)
            await self._say(PYTORCH_JOBS, item, conditions={"Suspended": ""})
            return
        there = {one["metadata"]["name"]: one for one in pods}
        name = item["metadata"]["name"]
        ends = []
        for kind, replica in spec["pytorchReplicaSpecs"].items():
            for index in range(replica.get("replicas", 1)):
                pod = f"{name}-{kind.lower()}-{index}"
                phase = _phase(there[pod]) if pod in there else ""
                ends.append(phase)
                if phase == "Failed" and replica.get("restartPolicy", "OnFailure") == "Never":
                    await self._remove(pods)
                    await self._say(PYTORCH_JOBS, item, conditions={"Failed": f"{kind} {index} failed"})
                    return
                if phase == "Failed":
                    await self._client.delete(PODS, pod, item["metadata"]["namespace"])
                if pod not in there:
                    labels = {"training.kubeflow.org/replica-index": str(index), "training.kubeflow.org/job-name": name,
                              "training.kubeflow.org/replica-type": kind.lower()}  # fmt: skip
                    await self._make(PYTORCH_JOBS, item, pod, replica["template"], {"labels": labels})
        running = {"Running": ""} if "Running" in ends else {}
        await self._say(PYTORCH_JOBS, item, conditions={"Succeeded": ""} if set(ends) == {"Succeeded"} else running)

    async def _schedule(self) -> None:
        """Play kube-scheduler for pods that name their node by a selector."""
        nodes = {one["metadata"]["name"]: one for one in await self._client.list(NODES)}
        pods = await self._client.list(PODS)
        held: Counter[str] = Counter()
        for one in pods:
            if one["spec"].get("nodeName") and _phase(one) not in _OVER:
                held[one["spec"]["nodeName"]] += _gpus(one)
        for one in pods:
            spec, meta = one["spec"], one["metadata"]
            name = (spec.get("nodeSelector") or {}).get(HOST_LABEL)
            gated, taken = spec.get("schedulingGates"), spec.get("nodeName") or "deletionTimestamp" in meta
            if not _gpus(one) and not gated and not taken and _phase(one) == "Pending":
                # Pods without GPUs run on nodes that are not simulated, and are quick.
                body = {"status": {"phase": "Succeeded"}}
                await self._client.patch(PODS, meta["name"], body, meta["namespace"], part="status")
                continue
            if gated or taken or name not in nodes:
                continue
            if held[name] + _gpus(one) <= int(nodes[name]["status"]["allocatable"][GPU]):
                held[name] += _gpus(one)
                body = {"target": {"kind": "Node", "name": name}, "metadata": {"name": meta["name"]}}
                await self._client.request("POST", PODS.path(meta["namespace"], meta["name"], "binding"), body=body)


def _owner(item: Object) -> str:
    return next((one["uid"] for one in item["metadata"].get("ownerReferences") or () if one.get("controller")), "")


def _reference(resource: Resource, item: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "name": item["metadata"]["name"],
            "uid": item["metadata"]["uid"], "controller": True}  # fmt: skip


def _phase(pod: Object) -> str:
    return (pod.get("status") or {}).get("phase") or "Pending"


def _gpus(pod: Object) -> int:
    limits = [(one.get("resources") or {}).get("limits") or {} for one in pod["spec"]["containers"]]
    return sum(int(one.get(GPU, 0)) for one in limits)


def _true(item: Object, *kinds: str) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one["type"] in kinds and one["status"] == "True" for one in conditions)


def _children(item: Object) -> Iterator[Object]:
    """Yield the Jobs of a JobSet."""
    spec, name = item["spec"], item["metadata"]["name"]
    for group in spec["replicatedJobs"]:
        for index in range(group.get("replicas", 1)):
            job = deepcopy(group["template"]["spec"])
            labels = {"jobset.sigs.k8s.io/jobset-name": name, _GROUP: group["name"],
                      "jobset.sigs.k8s.io/job-index": str(index)}  # fmt: skip
            meta = job["template"]["metadata"] = dict(job["template"].get("metadata") or {})
            meta["labels"] = {**(meta.get("labels") or {}), **labels}
            job |= {"suspend": bool(spec.get("suspend")), "completionMode": job.get("completionMode", "Indexed")}
            yield {"metadata": {"name": f"{name}-{group['name']}-{index}", "labels": labels,
                                "ownerReferences": [_reference(JOBSETS, item)]}, "spec": job}  # fmt: skip


def _train_spec(item: Object, runtime: Mapping[str, Any]) -> Object:
    """Return the JobSet that a TrainJob asks for: the runtime's, with the trainer's numbers and the overrides."""
    spec = item["spec"]
    made = deepcopy(dict(runtime["template"]["spec"]))
    trainer = spec.get("trainer") or {}
    for group in made["replicatedJobs"]:
        job = group["template"]["spec"]
        labels = (group["template"].get("metadata") or {}).get("labels") or {}
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer":
            count = trainer.get("numNodes") or (runtime.get("mlPolicy") or {}).get("numNodes") or 1
            job |= {"parallelism": count, "completions": count}
            if trainer.get("resourcesPerNode"):
                job["template"]["spec"]["containers"][0]["resources"] = trainer["resourcesPerNode"]
        for override in _overrides(spec, group["name"]):
            meta = job["template"]["metadata"] = dict(job["template"].get("metadata") or {})
            meta["labels"] = {**(meta.get("labels") or {}), **(override.get("metadata") or {}).get("labels", {})}
            job["template"]["spec"] |= deepcopy(override["spec"])
    return {**made, "suspend": bool(spec.get("suspend"))}


def _overrides(spec: Object, name: str) -> Iterator[Object]:
    """Yield the overrides of a group, as newer servers read them."""
    for patch in spec.get("runtimePatches") or ():
        for one in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            if one["name"] == name:
                yield one["template"]["spec"]["template"]
