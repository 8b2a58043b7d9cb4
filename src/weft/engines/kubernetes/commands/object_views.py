"""Jobs and nodes of a cluster as plain values, with the keys that the local engine uses (docs/json.md)."""

from datetime import datetime
from typing import Any

from weft.cluster.records.encoding import as_plain
from weft.cluster.records.node import Node
from weft.cluster.scheduling.state import ClusterState
from weft.engines.kubernetes.controller.observed import ObservedJob


def job_view(seen: ObservedJob) -> dict[str, Any]:
    """Return one line of the list of jobs."""
    body, status = seen.body, seen.status
    return {
        "id": seen.name, "kind": body.kind if body else "", "team": body.team if body else "",
        "priority": body.priority if body else 0, "state": str(status.get("state") or "waiting"),
        "nodes": body.nodes if body else 0, "gpus_per_node": body.gpus_per_node if body else 0,
        "submit_ms": seen.submit_ms, "start_ms": seen.record.get("start_ms"), "ended_ms": None,
        "attempt": int(status.get("attempt") or 0), "status": None, "text": str(status.get("why") or ""), "array": "",
        "sweep": {}, "on": _some(seen), "score": None,
    }  # fmt: skip


def _some(seen: ObservedJob) -> list[str]:
    """Return the first nodes of a placement; a gang may have thousands."""
    most = 8
    nodes = list(seen.placed.nodes) if seen.placed else []
    return nodes if len(nodes) <= most else [*nodes[:most], f"and {len(nodes) - most:,} more"]


def detail(seen: ObservedJob) -> dict[str, Any]:
    """Return everything about one job."""
    body = seen.body
    training = body.training.as_written() if body is not None and body.training is not None else None
    history = [{"at_ms": seen.submit_ms, "text": "submitted"}]
    for one in seen.status.get("conditions") or ():
        at_ms = int(datetime.fromisoformat(one["lastTransitionTime"]).timestamp() * 1000)
        text = f"{one['type']} {one['status']}: {one['reason']} {one['message']}".strip()
        history.append({"at_ms": at_ms, "text": text})
    history.sort(key=lambda one: one["at_ms"])
    return {
        **job_view(seen), "command": list(body.command) if body else [], "training": training,
        "snapshot": body.folder.digest if body and body.folder else None,
        "limit_ms": None if body is None or body.time_limit is None else body.time_limit // 10**9,
        "after": list(body.after) if body else [], "preemptions": int(seen.record.get("preemptions") or 0),
        "result": None, "history": history, "incidents": [],
    }  # fmt: skip


def node_view(book: ClusterState, node: Node) -> dict[str, Any]:
    """Return one node."""
    on = [name for name, numbers in book.nodes_of.items() if node.number in numbers]
    return {
        "name": node.name, "gpus": node.gpus, "usable_gpus": node.usable_gpus, "state": str(node.state),
        "since_ms": node.since_ms, "jobs": sorted(on), "override": node.override, "override_by": node.override_by,
        "tested_ms": node.tested_ms, "evidence": [as_plain(one) for one in node.evidence],
    }  # fmt: skip
