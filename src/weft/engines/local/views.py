"""What an engine shows of itself: jobs, nodes, arrays and reasons as plain values.

The HTTP interface answers with these and the command line prints them; their keys are a contract (docs/json.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from weft.cluster.from_policy import as_tables
from weft.cluster.records.encoding import as_plain
from weft.cluster.records.job import JobState
from weft.cluster.records.node import Node
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.why import answer
from weft.engines.local.engine import LocalEngine
from weft.engines.local.store import StoredJob

_INCIDENT_KEYS = (
    "at", "step", "kind", "seen", "rank", "slot", "node", "action", "outcome", "restored_from", "seconds_lost",
    "gpu_seconds_lost", "steps_repeated",
)  # fmt: skip


def job_view(entry: StoredJob, nodes: Sequence[Node]) -> dict[str, Any]:
    """Return one line of the list of jobs."""
    job = entry.job
    placed = () if job.placement is None else job.placement.nodes
    return {
        "id": job.id, "kind": job.kind, "team": job.team, "priority": job.priority, "state": str(job.state),
        "nodes": job.gang.nodes, "gpus_per_node": job.gang.gpus_per_node, "submit_ms": job.submit_ms,
        "start_ms": entry.began_ms, "ended_ms": entry.ended_ms, "attempt": entry.attempt, "status": entry.status,
        "text": str(entry.wait.get("text", "")) if job.state is JobState.WAITING else entry.text,
        "array": job.array, "sweep": dict(entry.launch.sweep), "on": [nodes[number].name for number in placed],
        "score": score(entry),
    }  # fmt: skip


def job_detail(engine: LocalEngine, entry: StoredJob) -> dict[str, Any]:
    """Return everything about one job."""
    launch = entry.launch
    known = (entry.result or {}).get("incidents") or []
    incidents = [{key: line.get(key) for key in _INCIDENT_KEYS} for line in known if isinstance(line, Mapping)]
    return {
        **job_view(entry, engine.cluster.pool.nodes),
        "command": list(launch.command), "training": launch.training, "snapshot": launch.snapshot,
        "limit_ms": entry.job.limit_ms, "after": list(entry.job.after), "preemptions": entry.job.preemptions,
        "result": entry.result, "history": engine.memory.store.history(entry.job.id),
        "incidents": incidents,
    }  # fmt: skip


def score(entry: StoredJob) -> float | None:
    """Return the number by which a job is compared with the others of its array."""
    name = entry.launch.metric.rpartition(":")[2]
    found: Any = entry.result
    if isinstance(found, Mapping) and name == "loss" and "loss" not in found:
        return _loss(found)
    for part in (name,) if isinstance(found, Mapping) and name in found else name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _loss(result: Mapping[str, Any]) -> float | None:
    """Return the loss of a training: the newest held-out one where it was evaluated, the last step's otherwise."""
    for line in reversed(result.get("eval") or []):
        if isinstance(line, Mapping) and isinstance(line.get("held_out_loss"), float):
            return float(line["held_out_loss"])
    last = result.get("final_loss")
    return float(last) if isinstance(last, int | float) else None


def array_view(entries: Sequence[StoredJob], nodes: Sequence[Node]) -> dict[str, Any]:
    """Return an array as a comparison: those with a number first, the best of them at the top."""
    metric = entries[0].launch.metric
    sign = -1 if metric.startswith("max:") else 1
    views = [job_view(entry, nodes) for entry in entries]
    views.sort(key=lambda view: (view["score"] is None, sign * (view["score"] or 0.0)))
    return {"array": entries[0].job.array, "metric": metric.rpartition(":")[2], "members": views}


def node_view(cluster: ClusterState, node: Node) -> dict[str, Any]:
    """Return one node: its state, who is on it, and what was seen of it."""
    on = [name for name, numbers in cluster.nodes_of.items() if node.number in numbers]
    return {
        "name": node.name, "gpus": node.gpus, "usable_gpus": node.usable_gpus, "state": str(node.state),
        "since_ms": node.since_ms, "jobs": sorted(on), "override": node.override, "override_by": node.override_by,
        "tested_ms": node.tested_ms, "evidence": [as_plain(one) for one in node.evidence],
    }  # fmt: skip


def status_view(engine: LocalEngine) -> dict[str, Any]:
    """Return the cluster in one document."""
    cluster = engine.cluster
    teams = cluster.shares.records()
    held = dict.fromkeys((team.name for team in teams), 0)
    for job in cluster.jobs.values():
        if job.holds:
            held[job.team] = held.get(job.team, 0) + job.gpus
    return {
        "now_ms": engine.now(),
        "nodes": [node_view(cluster, node) for node in cluster.pool.nodes],
        "teams": [{"name": team.name, "quota_gpus": team.quota_gpus, "most_gpus": team.most_gpus,
                   "holds_gpus": held[team.name]} for team in teams],
        "jobs": engine.memory.store.counts(),
        "reservation": None if cluster.reservation is None else as_plain(cluster.reservation),
        "alarms": sorted(cluster.alarms),
        "policy": as_tables(cluster.policy),
        "happened": engine.memory.store.happenings(20),
    }  # fmt: skip


def why_view(engine: LocalEngine, entry: StoredJob) -> dict[str, Any]:
    """Return why a job waits: the rule, who is before it, and when it is expected to start."""
    now = engine.now()
    found = answer(engine.cluster, entry.job.id, now)
    document: dict[str, Any] = {
        "job": entry.job.id, "state": str(entry.job.state), "code": "", "text": _sentence(entry), "position": 0,
        "before": [], "holds": [], "expected_ms": None, "sooner": [],
        "early_ms": None, "late_ms": None,
    }  # fmt: skip
    if found is not None and entry.job.state is JobState.WAITING:
        document |= {**asdict(found), "before": list(found.before), "holds": list(found.holds),
                     "sooner": list(found.sooner)}  # fmt: skip
    return {**document, "now_ms": now, "history": engine.memory.store.history(entry.job.id)}


def _sentence(entry: StoredJob) -> str:
    match entry.job.state:
        case JobState.STARTING | JobState.RUNNING:
            return "it runs"
        case JobState.ASKED:
            return f"it was asked to leave{f' for {entry.job.asked_for}' if entry.job.asked_for else ''}"
        case JobState.STOPPING:
            return "it is ending"
        case _:
            return f"it has ended{f': {entry.text}' if entry.text else ''}"
