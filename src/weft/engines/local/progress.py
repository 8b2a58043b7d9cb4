"""What a training says of itself while it runs, turned into what decisions can use: checkpoints, forecasts, evidence.

Reads `progress.json` in the job's folder; the training writes it now and then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.cluster.records.effects import checkpointed
from weft.cluster.records.job import Job
from weft.cluster.records.node import NodeEvidence, Severity
from weft.engines.local.atomic_files import read_document
from weft.engines.local.home import Home
from weft.engines.local.launches import PROGRESS
from weft.engines.local.store import StoredJob

_WEIGHTS: dict[str, Severity] = {"diverged": "warning", "hung": "warning", "stopped": "warning"}
"""What weighs more than a note: wrong answers and silence; a process that was killed says little about its node."""


@dataclass(frozen=True, slots=True)
class News:
    """What is new about a training."""

    job: Job
    """Its record, with checkpoint and forecast."""
    seen: tuple[tuple[int, NodeEvidence], ...]
    """What was seen of which nodes."""
    incidents: int
    """Incidents that are known now."""


def news_of(home: Home, entry: StoredJob, now_ms: int) -> News | None:
    """Return what a training has said since it was last looked at; none where that is nothing."""
    said = read_document(home.job(entry.job.id) / PROGRESS)
    if said is None or entry.job.placement is None:
        return None
    job = entry.job
    kept_ms = said.get("checkpoint_ms")
    start_ms = job.start_ms or 0
    if isinstance(kept_ms, int) and kept_ms >= start_ms and kept_ms != job.checkpoint_ms:
        job = checkpointed(job, kept_ms)
        job = replace(job, predicted_ms=_forecast(said, start_ms, now_ms))
    incidents = [line for line in said.get("incidents") or [] if isinstance(line, Mapping)]
    seen = [
        (node, _evidence(line, job, now_ms))
        for line in incidents[entry.noted :]
        if (node := _node_of(line, job)) is not None
    ]
    if job == entry.job and len(incidents) <= entry.noted:
        return None
    return News(job, tuple(seen), max(entry.noted, len(incidents)))


def _forecast(said: Mapping[str, Any], start_ms: int, now_ms: int) -> int | None:
    done, all_steps = int(said.get("step") or 0), int(said.get("steps") or 0)
    return None if done <= 0 else now_ms + (now_ms - start_ms) * (all_steps - done) // done


def _node_of(line: Mapping[str, Any], job: Job) -> int | None:
    slot = line.get("slot")
    assert job.placement is not None, "only a job that runs has news"
    if not isinstance(slot, int):
        return None
    at = slot // job.placement.gpus_per_node
    return job.placement.nodes[at] if at < len(job.placement.nodes) else None


def _evidence(line: Mapping[str, Any], job: Job, now_ms: int) -> NodeEvidence:
    kind = str(line.get("kind"))
    text = f"{kind} after step {line.get('step')} of {job.id}: {str(line.get('seen')).splitlines()[0]}"
    return NodeEvidence("trainer", now_ms, _WEIGHTS.get(kind, "note"), text, job.id)
