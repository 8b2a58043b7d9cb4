"""Slurm's queue: `squeue --json` and `sinfo --json` (or `scontrol show nodes --json`) as a foreign queue.

The shapes differ by version: up to 22.05 numbers are plain and states are words, from 23.02 on numbers are {set,
infinite, number}, states are lists, and `sinfo` groups nodes that are alike. Fields as in Slurm's OpenAPI schema
(slurm.schedmd.com/rest_api.html, data_parser v0.0.37 to v0.0.43).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from weft.campaign.advice.fields import (
    Plain,
    count,
    gpus_in,
    hosts,
    items,
    mapping,
    moment_ms,
    node_gpus,
    number,
    text,
    words,
)
from weft.campaign.advice.foreign_queue import ForeignQueue, PoolNode, QueuedJob, UnreadableQueueError
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy

_MINUTE_MS = 60_000
_NO_LIMIT = 0xFFFFFFF0
"""Numbers from here on are Slurm's words for none and infinite in 32 bits (slurm.h: NO_VAL, INFINITE)."""
_OUT = frozenset({
    "DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "UNKNOWN",
    "POWERED_DOWN", "POWER_DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED", "ERROR", "FUTURE",
})  # fmt: skip
_RUNS = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "RESIZING", "STOPPED"})
_OF_ROOM = frozenset({"", "none", "priority", "resources", "dependency", "reqnodenotavail", "cleaning", "prolog"})
"""Reasons of squeue(1), JOB REASON CODES, that say nothing but that others are before it or nodes are missing."""


def slurm_queue(documents: Iterable[Any]) -> ForeignQueue:
    """Return the queue that documents of Slurm tell of, whichever of them comes first."""
    jobs: list[Any] = []
    nodes: dict[str, PoolNode] = {}
    left_out: Counter[str] = Counter()
    seen = False
    now_ms = 0
    for each in documents:
        document = mapping(each, "the document")
        now_ms = max(now_ms, moment_ms(document.get("last_update"), "last_update") or 0)
        if "jobs" in document:
            jobs += items(document["jobs"], "jobs")
            seen = True
        for node in _nodes(document):
            old = nodes.get(node.name)
            groups = node.groups if old is None else node.groups | old.groups
            nodes[node.name] = PoolNode(node.name, node.gpus, node.in_service, groups, node.models)
    if not seen:
        raise UnreadableQueueError("it has no `jobs`; write what `squeue --json` prints")
    if not nodes:
        raise UnreadableQueueError("it has no nodes; add what `sinfo --json` or `scontrol show nodes --json` prints")
    left_out["nodes without GPUs"] = sum(not node.gpus for node in nodes.values())
    found = list(_jobs(jobs, left_out))
    times = [now_ms, *(job.submit_ms for job in found), *(job.start_ms for job in found if job.start_ms is not None)]
    # Slurm's own order: priority, then submission. Backfill by declared limits; preemption depends on its settings.
    policy = SchedulingPolicy(fair=False, preempt=False, aged_ms=FAR_MS // 4)
    pool = tuple(node for node in nodes.values() if node.gpus)
    if not pool:
        raise UnreadableQueueError("none of its nodes has GPUs (gres)")
    return ForeignQueue("Slurm", max(times), pool, tuple(found), policy=policy, left_out=+left_out)


def _nodes(document: Plain) -> Iterator[PoolNode]:
    for at, each in enumerate(items(document.get("nodes"), "nodes")):
        where = f"nodes[{at}]"
        node = mapping(each, where)
        resources = text(node.get("gres"), f"{where}.gres") or text(node.get("tres"), f"{where}.tres")
        groups = frozenset(words(node.get("partitions"), f"{where}.partitions"))
        name = text(node.get("name"), f"{where}.name")
        if not name:
            raise UnreadableQueueError(f"{where} has no name")
        state = words(node.get("state"), f"{where}.state") + words(node.get("state_flags"), f"{where}.state_flags")
        yield _node(name, resources, state, groups)
    for at, each in enumerate(items(document.get("sinfo"), "sinfo")):
        where = f"sinfo[{at}]"
        group = mapping(each, where)
        resources = text(mapping(group.get("gres"), f"{where}.gres").get("total"), f"{where}.gres.total")
        partition = mapping(group.get("partition"), f"{where}.partition")
        groups = frozenset(words(partition.get("name"), f"{where}.partition.name"))
        state = words(mapping(group.get("node"), f"{where}.node").get("state"), f"{where}.node.state")
        for names in items(mapping(group.get("nodes"), f"{where}.nodes").get("nodes"), f"{where}.nodes.nodes"):
            for name in hosts(text(names, f"{where}.nodes.nodes")):
                yield _node(name, resources, state, groups)


def _node(name: str, resources: str, state: list[str], groups: frozenset[str]) -> PoolNode:
    gpus, model = gpus_in(resources)
    states = {word.strip("*~#!%$@^-").upper() for word in state}
    models = frozenset({model}) if model else frozenset()
    return PoolNode(
        name, node_gpus(gpus, name), not states & _OUT and not any(word.endswith("*") for word in state), groups, models
    )


def _jobs(documents: list[Any], left_out: Counter[str]) -> Iterator[QueuedJob]:
    for at, each in enumerate(documents):
        where = f"jobs[{at}]"
        job = mapping(each, where)
        states = {word.upper() for word in words(job.get("job_state"), f"{where}.job_state")}
        if not states:
            raise UnreadableQueueError(f"{where} has no job_state")
        runs = bool(states & _RUNS)
        if not runs and "PENDING" not in states:
            left_out["jobs that have ended"] += 1
            continue
        nodes = max(1, count(job.get("node_count"), f"{where}.node_count") or 1)
        gpus, model = _gpus(job, where, nodes, runs=runs)
        if not gpus:
            left_out["jobs without GPUs"] += 1
            continue
        yield _job(job, where, (nodes, gpus, model), runs=runs)


def _job(job: Plain, where: str, size: tuple[int, int, str], *, runs: bool) -> QueuedJob:
    nodes, gpus, model = size
    limit = number(job.get("time_limit"), f"{where}.time_limit")
    limited = limit is not None and 0 < limit < _NO_LIMIT
    start_ms = moment_ms(job.get("start_time"), f"{where}.start_time") if runs else None
    submit_ms = moment_ms(job.get("submit_time"), f"{where}.submit_time") or start_ms or 0
    said = text(job.get("state_reason"), f"{where}.state_reason")
    held = "" if said.partition(",")[0].lower() in _OF_ROOM or runs else said
    return QueuedJob(
        _name(job, where), submit_ms, gpus, 1, nodes, text(job.get("account"), f"{where}.account") or "all",
        number(job.get("priority"), f"{where}.priority") or 0, limit * _MINUTE_MS if limit and limited else None,
        (start_ms or submit_ms) if runs else None, _places(job, where, gpus) if runs else {},
        frozenset(words(job.get("partition"), f"{where}.partition")), model, _after(job, where), held, said,
    )  # fmt: skip


def _name(job: Plain, where: str) -> str:
    """Return what `squeue` calls it: its number, or that of its array and its place in it."""
    task = number(job.get("array_task_id"), f"{where}.array_task_id")
    array = number(job.get("array_job_id"), f"{where}.array_job_id")
    if array and task is not None and task < _NO_LIMIT:
        return f"{array}_{task}"
    found = number(job.get("job_id"), f"{where}.job_id")
    if found is None:
        raise UnreadableQueueError(f"{where} has no job_id")
    return str(found)


def _gpus(job: Plain, where: str, nodes: int, *, runs: bool) -> tuple[int, str]:
    """Return how many GPUs a job has or wants in all, and of which model."""
    keys = ("tres_alloc_str", "tres_req_str") if runs else ("tres_req_str",)
    for key in keys:
        found, model = gpus_in(text(job.get(key), f"{where}.{key}"))
        if found:
            return found, model
    tasks = count(job.get("tasks"), f"{where}.tasks") or nodes
    for key, times in (("tres_per_job", 1), ("tres_per_node", nodes), ("tres_per_task", tasks)):
        found, model = gpus_in(text(job.get(key), f"{where}.{key}"))
        if found:
            return found * times, model
    return 0, ""


def _places(job: Plain, where: str, gpus: int) -> dict[str, int]:
    """Return the GPUs that a running job has on each node; `gres_detail` has one entry for each of its nodes."""
    names = hosts(text(job.get("nodes"), f"{where}.nodes"))
    details = [text(each, f"{where}.gres_detail") for each in items(job.get("gres_detail"), f"{where}.gres_detail")]
    if len(details) == len(names):
        return {name: gpus_in(each)[0] for name, each in zip(names, details, strict=True)}
    return {name: -(-gpus // len(names)) for name in names}


def _after(job: Plain, where: str) -> tuple[str, ...]:
    """Return the jobs that one depends on: `afterok:12(unfulfilled),afterany:13_4`."""
    listed = text(job.get("dependency"), f"{where}.dependency")
    parts = (part for each in listed.replace("?", ",").split(",") for part in each.split(":")[1:])
    return tuple(part.partition("(")[0].partition("+")[0] for part in parts)
