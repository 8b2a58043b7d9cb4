"""A submission as the objects of others, for clusters whose administrators own scheduling: JobSet, also under Kueue.

Nothing is sent. The pods are the same as ours but for what others decide: where they run is theirs, so a rank finds its
place by its completion index and the first pod by its host name in the JobSet's own subdomain.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import yaml
from typing_extensions import override

from weft.core.specfile import validate
from weft.engines.kubernetes.api.crds import JobBody
from weft.engines.kubernetes.commands.submission import body_of, fitting_name
from weft.engines.kubernetes.controller.observed import Owner, Placed
from weft.engines.kubernetes.controller.pod_template import PodContext, pod

_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_QUEUE = "kueue.x-k8s.io/queue-name"
_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
_RACK = "cloud.provider.com/topology-rack"


def rendered(table: Mapping[str, Any], kind: str, image: str | None, volumes: tuple[str, ...]) -> str:
    """Return a submission as YAML of `kind`: "jobset" or "kueue"."""
    name = fitting_name(str(table.get("name") or (table.get("job") or {}).get("name") or "job"))
    body = validate(body_of(table, image, volumes, None), JobBody, "the submission")
    made = jobset(name, body, queue=body.team if kind == "kueue" else None)
    return yaml.dump(made, Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice: people read it."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True


def jobset(name: str, body: JobBody, queue: str | None = None) -> dict[str, Any]:
    """Return a JobSet (jobset.x-k8s.io/v1alpha2); with a `queue`, suspended until Kueue admits it."""
    template = _template(name, body)
    limit = {} if body.time_limit is None else {"activeDeadlineSeconds": body.time_limit // 10**12}
    meta: dict[str, Any] = {"name": name}
    if queue is not None:
        meta["labels"] = {_QUEUE: queue}
        template["metadata"] = {"annotations": {_TOPOLOGY: _RACK}}
    job = {
        "parallelism": body.nodes, "completions": body.nodes, "completionMode": "Indexed", "backoffLimit": 0, **limit,
        "template": template,
    }  # fmt: skip
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {
            **({"suspend": True} if queue is not None else {}),
            "failurePolicy": {"maxRestarts": body.restarts},
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _template(name: str, body: JobBody) -> dict[str, Any]:
    """Return the pod template: our pod, without what only our engine knows."""
    uid = hashlib.sha256(name.encode()).hexdigest()
    placed = Placed(("",) * body.nodes, body.gpus_per_node)
    spec = pod(Owner("", name, uid), body, placed, 0, PodContext({}))["spec"]
    for key in ("nodeName", "schedulerName", "tolerations"):
        del spec[key]
    container = spec["containers"][0]
    given = {one["name"]: one["value"] for one in container["env"]}
    about = {**json.loads(given.pop("WEFT_POD")), "address": f"{name}-workers-0-0.{name}"}
    place = {"valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    # Where a pod stands is known to the JobSet alone; the variable before it holds the rest.
    container["env"] = [
        {"name": "WEFT_PLACE", **place},
        {"name": "WEFT_POD", "value": json.dumps({**about, "place": "$(WEFT_PLACE)", "node": ""})},
        *({"name": key, "value": value} for key, value in given.items()),
    ]
    return {"spec": spec}
