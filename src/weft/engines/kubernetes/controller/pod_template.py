"""The pod of one place in a gang: what it runs, where, and what its ranks know of each other. Pure.

Where everybody runs is known before the first pod is made, so a rank finds the others by its environment alone: its
place, how many there are, and the address of the first node. Nobody asks the API server, no name has to be resolved.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.engines.kubernetes.api.crds import DEFAULT_IMAGE, JobBody, PreflightBody
from weft.engines.kubernetes.api.pod_overlay import overlaid
from weft.engines.kubernetes.api.resources import ATTEMPT_LABEL, GPU, JOB_LABEL, JOBS, POOL_TAINT, RANK_LABEL, SCHEDULER
from weft.engines.kubernetes.controller.gangs import pod_name
from weft.engines.kubernetes.controller.observed import Owner, Placed
from weft.engines.kubernetes.pod.pod_variables import variables_of
from weft.engines.kubernetes.pod.preflight import CONTAINER, asked

_FIRST_PORT = 20_000
_PORTS = 12_000
_USER = 65_532
FOLDER = "/weft/folder"
"""Where the archive of the submitter's folder is mounted."""
WORK = "/weft/work"
"""Where it is unpacked."""
_NOT_EVICTED = (
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
)
"""A silent node is our decision: without these, Kubernetes would end the pods on it after five minutes by itself."""


@dataclass(frozen=True)
class PodContext:
    """What pods of this cluster get beside what their job says."""

    addresses: Mapping[str, str]
    """Address of every node."""
    aggregator: str = ""
    """Where the programs inside pods report; empty where nobody listens."""
    image: str = DEFAULT_IMAGE
    """The image that has weft in it: it unpacks a submitter's folder for images that have not."""


def port_of(uid: str) -> int:
    """Return the port at which the ranks of a job meet: one of many, so that jobs that share a node do not."""
    return _FIRST_PORT + zlib.crc32(uid.encode()) % _PORTS


def is_foreign(body: JobBody) -> bool:
    """Say whether a job's image is not ours: its command is run as it is, and nothing of weft is expected in it."""
    return body.image != DEFAULT_IMAGE and body.training is None


def environment(owner: Owner, body: JobBody, placed: Placed, place: int, around: PodContext) -> dict[str, str]:
    """Return what the program of a place must know; `pod_main.spelled_out` makes the variables of it that jobs read."""
    gpus = placed.gpus_per_node
    first = placed.nodes[0]
    short = {
        "job": owner.job, "space": owner.namespace, "uid": owner.uid, "attempt": placed.attempt,
        "node": placed.nodes[place], "place": place, "nodes": len(placed.nodes), "gpus": gpus,
        "address": around.addresses.get(first) or first, "port": port_of(owner.uid),
    }  # fmt: skip
    # One variable in place of a dozen: the server keeps a record of each, in every pod; `pod_main` spells them out.
    if is_foreign(body):
        # Nobody in that image spells one variable out.
        return {**body.environment, **variables_of(short), "WEFT_RUNS": body.runs}
    known = {"WEFT_POD": json.dumps(short, separators=(",", ":")), "WEFT_RUNS": body.runs}
    if body.training is not None:
        known["WEFT_TRAINING"] = json.dumps(body.training.as_written())
    if body.folder is not None:
        known |= {"WEFT_FOLDER": FOLDER, "WEFT_WORK": WORK, "WEFT_FOLDER_DIGEST": body.folder.digest}
    if around.aggregator and body.training is not None and place == 0:
        known["WEFT_AGGREGATOR"] = around.aggregator
    return {**body.environment, **known}


def pod(owner: Owner, body: JobBody, placed: Placed, place: int, around: PodContext) -> dict[str, Any]:
    """Return the pod of a place."""
    name = pod_name(owner.job, placed, place)
    labels = {JOB_LABEL: owner.job, RANK_LABEL: str(place), ATTEMPT_LABEL: str(placed.made(place))}
    reference = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "name": owner.job, "uid": owner.uid,
                 "controller": True, "blockOwnerDeletion": False}  # fmt: skip
    variables = environment(owner, body, placed, place, around)
    mounts, volumes = _volumes(body)
    container = {
        "name": "job",
        "image": around.image if body.image == DEFAULT_IMAGE else body.image,
        **_command(body),
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": _resources(body, placed.gpus_per_node),
        "volumeMounts": mounts,
        "securityContext": _capabilities(body),
    }
    spec = {
        # Its place is known before it exists, so it is made there: one write where making and binding would be two.
        "nodeName": placed.nodes[place],
        "schedulerName": SCHEDULER,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        # Programs of a job have no business with the API server.
        "automountServiceAccountToken": False,
        "hostNetwork": body.host_network,
        "dnsPolicy": "ClusterFirstWithHostNet" if body.host_network else "ClusterFirst",
        "terminationGracePeriodSeconds": max(1, body.grace // 10**12),
        "tolerations": [{"key": POOL_TAINT, "operator": "Exists"}, *_NOT_EVICTED],
        # Which user an image runs as is its own business; ours says so in its Containerfile.
        "securityContext": {} if is_foreign(body) else {"runAsNonRoot": True, "fsGroup": _USER},
        **({"initContainers": first} if (first := _before(body, placed.gpus_per_node, around.image)) else {}),
        "containers": [container],
        "volumes": volumes,
        **({"priorityClassName": body.priority_class} if body.priority_class else {}),
    }
    meta = {"name": name, "namespace": owner.namespace, "labels": labels, "ownerReferences": [reference]}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    return made if body.template is None else overlaid(made, body.template)


def _command(body: JobBody) -> dict[str, Any]:
    """Return what the container runs: the command itself in a foreign image, weft's entry point in ours."""
    if is_foreign(body):
        return {"command": list(body.command), **({"workingDir": WORK} if body.folder is not None else {})}
    return {"command": ["weft", "pod"], "args": ["--", *body.command] if body.command else []}


def _resources(body: JobBody, gpus: int) -> dict[str, Any]:
    fixed = {GPU: str(gpus), **({} if body.rdma is None else {body.rdma: "1"})}
    # Of extended resources requests and limits are the same, or the server refuses the pod.
    extended = {name: value for name, value in body.limits.items() if "/" in name}
    return {"requests": {**body.requests, **extended, **fixed}, "limits": {**body.limits, **fixed}}


def _capabilities(body: JobBody) -> dict[str, Any]:
    if is_foreign(body):
        return {} if body.rdma is None else {"capabilities": {"add": ["IPC_LOCK"]}}
    lock = {} if body.rdma is None else {"add": ["IPC_LOCK"]}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **lock}}


def _before(body: JobBody, gpus: int, image: str) -> list[dict[str, Any]]:
    """Return the containers that run before the job's own: its node's test, then the unpacking of its folder."""
    first = [_preflight(body.preflight, gpus, image)] if body.preflight is not None else []
    return first + ([_unpacker(body, image)] if is_foreign(body) and body.folder is not None else [])


def _preflight(body: PreflightBody, gpus: int, image: str) -> dict[str, Any]:
    """Return the container that tests the node with the job's GPUs; both have them, one after the other."""
    wanted = asked(body.suites, body.expect, body.seconds)
    return {
        "name": CONTAINER, "image": image, "command": ["weft", "pod"],
        "env": [{"name": "WEFT_PREFLIGHT", "value": wanted}],
        "resources": {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip


def _unpacker(body: JobBody, image: str) -> dict[str, Any]:
    """Return the container that unpacks the submitter's folder before a foreign image's command runs in it."""
    assert body.folder is not None, "only a folder is unpacked"
    given = {
        "WEFT_UNPACK_ONLY": "1",
        "WEFT_FOLDER": FOLDER,
        "WEFT_WORK": WORK,
        "WEFT_FOLDER_DIGEST": body.folder.digest,
    }
    return {
        "name": "weft-folder", "image": image, "command": ["weft", "pod"],
        "env": [{"name": key, "value": value} for key, value in given.items()],
        "volumeMounts": [
            {"name": "folder", "mountPath": FOLDER, "readOnly": True}, {"name": "work", "mountPath": WORK},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip


def _volumes(body: JobBody) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    for number, one in enumerate(body.volumes):
        name = f"volume{number}"
        mounts.append({"name": name, "mountPath": one.path, "readOnly": one.read_only})
        source: dict[str, Any] = (
            {"hostPath": {"path": one.host_path}}
            if one.claim is None
            else {"persistentVolumeClaim": {"claimName": one.claim, "readOnly": one.read_only}}
        )
        volumes.append({"name": name, **source})
    if body.shm is not None:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - the pod's own shared memory
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": body.shm}})
    if body.folder is not None:
        mounts += [{"name": "folder", "mountPath": FOLDER, "readOnly": True}, {"name": "work", "mountPath": WORK}]
        volumes += [
            {"name": "folder", "configMap": {"name": body.folder.config_map}},
            {"name": "work", "emptyDir": {}},
        ]
    return mounts, volumes
