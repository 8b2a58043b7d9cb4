"""The pod of one place in a gang: what it runs, where, and what its ranks know of each other. Pure.

Where everybody runs is known before the first pod is made, so a rank finds the others by its environment alone: its
place, how many there are, and the address of the first node. Nobody asks the API server, no name has to be resolved.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.engines.kubernetes.api.crds import JobBody
from weft.engines.kubernetes.api.resources import ATTEMPT_LABEL, GPU, JOB_LABEL, JOBS, POOL_TAINT, RANK_LABEL, SCHEDULER
from weft.engines.kubernetes.controller.gangs import pod_name
from weft.engines.kubernetes.controller.observed import Owner, Placed

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


def port_of(uid: str) -> int:
    """Return the port at which the ranks of a job meet: one of many, so that jobs that share a node do not."""
    return _FIRST_PORT + zlib.crc32(uid.encode()) % _PORTS


def environment(owner: Owner, body: JobBody, placed: Placed, place: int, around: PodContext) -> dict[str, str]:
    """Return what the program of a place must know; `pod_main.spelled_out` makes the variables of it that jobs read."""
    gpus = placed.gpus_per_node
    first = placed.nodes[0]
    short = {
        "job": owner.job, "space": owner.namespace, "uid": owner.uid, "attempt": placed.attempt,
        "node": placed.nodes[place], "place": place, "nodes": len(placed.nodes), "gpus": gpus,
        "address": around.addresses.get(first) or first, "port": port_of(owner.uid),
        "devices": list(placed.devices[place]) if placed.devices else [],
    }  # fmt: skip
    # One variable in place of a dozen: the server keeps a record of each, in every pod; `pod_main` spells them out.
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
    gpus = {GPU: str(placed.gpus_per_node)}
    variables = environment(owner, body, placed, place, around)
    mounts, volumes = _volumes(body)
    container = {
        "name": "job",
        "image": body.image,
        "command": ["weft", "pod"],
        "args": ["--", *body.command] if body.command else [],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": {"requests": gpus, "limits": gpus},
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
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
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "fsGroup": _USER},
        "containers": [container],
        "volumes": volumes,
        **({"priorityClassName": body.priority_class} if body.priority_class else {}),
    }
    meta = {"name": name, "namespace": owner.namespace, "labels": labels, "ownerReferences": [reference]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


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
    if body.folder is not None:
        mounts += [{"name": "folder", "mountPath": FOLDER, "readOnly": True}, {"name": "work", "mountPath": WORK}]
        volumes += [
            {"name": "folder", "configMap": {"name": body.folder.config_map}},
            {"name": "work", "emptyDir": {}},
        ]
    return mounts, volumes
