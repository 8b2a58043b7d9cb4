"""What is refused at once: requests that no waiting could ever satisfy.

A job that does not fit into the whole cluster, names a team that nobody knows, or is written wrongly is answered with
one sentence that says what would be right, before anything is created. Pure.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from weft.cluster.records.job import KINDS, Gang, Job, Team
from weft.cluster.records.node import Node, NodeState
from weft.cluster.scheduling.pool import Pool
from weft.cluster.scheduling.topology import places, shape_of
from weft.core.errors import UsageError
from weft.specs.submission import shape_problem

HIGHEST_PRIORITY = 1000
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def admit(job: Job, nodes: Sequence[Node], teams: Sequence[Team], known: Collection[str] = ()) -> None:
    """Raise `UsageError` where a job can never run here; `known` holds the names of jobs that it may come after."""
    mistake = (
        _name(job.id, "a job") or _name(job.team, "a team") or _numbers(job) or _team(job, teams) or _size(job, nodes)
    )
    if mistake:
        raise UsageError(f"job {job.id!r}: {mistake}")
    strangers = [each for each in job.after if each not in known]
    if strangers:
        raise UsageError(f"job {job.id!r}: it comes after {strangers[0]!r}, which is no job here")


def admit_team(team: Team, others: Sequence[Team], nodes: Sequence[Node]) -> None:
    """Raise `UsageError` where a team's quota is not there to be given."""
    mistake = _name(team.name, "a team")
    pool = sum(node.gpus for node in nodes if node.state is not NodeState.RETIRED)
    given = sum(other.quota_gpus for other in others if other.name != team.name)
    if not mistake and not 0 <= team.quota_gpus <= pool - given:
        mistake = f"a quota of {team.quota_gpus:,} GPUs; {max(0, pool - given):,} of {pool:,} are not yet given away"
    if not mistake and team.most_gpus is not None and team.most_gpus < team.quota_gpus:
        mistake = f"at most {team.most_gpus:,} GPUs is less than its quota of {team.quota_gpus:,}"
    if mistake:
        raise UsageError(f"team {team.name!r}: {mistake}")


def _name(name: str, what: str) -> str | None:
    if _NAME.fullmatch(name):
        return None
    return f"{name!r} cannot name {what}; write up to 63 small letters, digits, dots, dashes or underscores"


def _numbers(job: Job) -> str | None:
    gang = job.gang
    rules = (
        (job.kind in KINDS, f"{job.kind!r} is no kind of job; write one of {', '.join(KINDS)}"),
        (
            0 <= job.priority <= HIGHEST_PRIORITY,
            f"a priority of {job.priority}; write one from 0 to {HIGHEST_PRIORITY}",
        ),
        (
            gang.nodes >= 1 and gang.gpus_per_node >= 1,
            f"{gang.nodes} nodes with {gang.gpus_per_node} GPUs each; write at least 1 of both",
        ),
        (
            0 <= gang.min_nodes <= gang.nodes and gang.step >= 1,
            f"it wants {gang.nodes} nodes and can run on {gang.min_nodes} by steps of {gang.step}; that does not fit",
        ),
        (not (shape := shape_problem(gang)), shape or ""),
        (
            job.limit_ms is None or job.limit_ms >= 1,
            f"a time limit of {(job.limit_ms or 0) / 1000:g} s; write a longer one, or none",
        ),
        (
            min(job.grace_ms, job.min_run_ms, job.array_at_once, job.submit_ms) >= 0,
            "grace, minimum run time, submission and members at once cannot be negative",
        ),
    )
    return next((text for right, text in rules if not right), None)


def _team(job: Job, teams: Sequence[Team]) -> str | None:
    team = next((team for team in teams if team.name == job.team), None)
    if team is None:
        names = ", ".join(sorted(team.name for team in teams)) or "none"
        return f"there is no team {job.team!r}; there are: {names}"
    asked = job.gang.fewest * job.gang.gpus_per_node
    if team.most_gpus is not None and asked > team.most_gpus:
        return f"it needs {asked:,} GPUs; team {team.name!r} may have at most {team.most_gpus:,}"
    return None


def _size(job: Job, nodes: Sequence[Node]) -> str | None:
    here = [node for node in nodes if node.state is not NodeState.RETIRED]
    able = sum(node.gpus >= job.gang.gpus_per_node for node in here)
    if able >= job.gang.fewest:
        return _shape(job.gang, [node for node in here if node.gpus >= job.gang.gpus_per_node])
    largest = max((node.gpus for node in here), default=0)
    return (
        f"it needs {job.gang.fewest:,} nodes with {job.gang.gpus_per_node:,} GPUs each; the cluster has {able:,} such "
        f"nodes of {len(here):,} (the largest has {largest:,} GPUs)"
    )


def _shape(gang: Gang, able: Sequence[Node]) -> str | None:
    """Return what is wrong where no nodes have the shape that a gang requires, were they all empty."""
    if not (gang.within or gang.apart):
        return None
    shape = shape_of(Pool([replace(node, number=at) for at, node in enumerate(able)]), gang)
    widest = gang.fewest if shape is None else shape.capacity(np.arange(len(able)))
    if widest >= gang.fewest:
        return None
    return f"it needs {gang.fewest:,} nodes{places(gang)}; the cluster has room for {widest:,} such nodes"
