"""What becomes of a job whose processes have ended: every engine states what it saw, and the answer is found here.

An end is the job's own (it finished, it failed), somebody's wish (it was stopped, asked to leave, moved) or the
machine's (its node or its runner is gone). Only the job's own failures count against it. Pure: facts in, a verdict out.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from weft.cluster.records.effects import ended, requeued, stopped
from weft.cluster.records.exit_status import BY_SIGNAL, STOPPED, TRY_AGAIN
from weft.cluster.records.job import Job, JobState

_LEAVING = frozenset({TRY_AGAIN, BY_SIGNAL + signal.SIGTERM, BY_SIGNAL + signal.SIGKILL, STOPPED})
_FORGIVEN = 5

Verdict = Literal["done", "stopped", "moved", "requeue", "failed"]
"""It has finished; what it was stopped for happens; it starts on its new nodes; it waits again; it is given up."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How the processes of a job ended, as an engine saw it."""

    status: int | None
    """Exit status, 128 and more for a signal; none where nobody has it."""
    text: str
    """The same in words."""
    lost: bool = False
    """Whether the machine is to blame: its node is gone or sick, or its runner vanished."""


@dataclass(frozen=True, slots=True)
class RestartRules:
    """How often a job may be started again, and which statuses mean that it wants to be."""

    leaving: frozenset[int] = _LEAVING
    """Statuses with which it says that it can go on later."""
    resumes: bool = False
    """Whether it goes on from what it has written when its machine is lost."""
    losses: int | None = None
    """Losses after which it is given up all the same; none for no bound."""
    restarts: int = 0
    """Failures of its own after which it is started again."""


COMMAND = RestartRules()
"""A command on this machine: nobody knows whether it may run twice."""
TRAINING = RestartRules(resumes=True, losses=_FORGIVEN)
"""A training on this machine goes on from its newest checkpoint."""


def pod_rules(restarts: int) -> RestartRules:
    """Return the rules of a gang of pods that may fail `restarts` times; a pod killed for memory has failed itself."""
    return RestartRules(frozenset({TRY_AGAIN}), resumes=True, restarts=restarts)


@dataclass(frozen=True, slots=True)
class Tries:
    """What a job has behind it."""

    losses: int = 0
    """How often its machine was lost, this time included."""
    restarts: int = 0
    """How often it was started again after a failure of its own."""
    moved: bool = False
    """Whether it was asked to leave for other nodes, which it has already."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a job."""

    verdict: Verdict
    text: str = ""
    counts: bool = False
    """Whether the new start counts as one after a failure of its own."""


def outcome_of(job: Job, end: ProcessEnd, rules: RestartRules, tries: Tries) -> Outcome:  # noqa: PLR0911 - by end
    """Return what becomes of a job whose processes have ended."""
    left = end.lost or end.status in rules.leaving
    if job.state is JobState.STOPPING:
        return Outcome("stopped", "cancelled" if job.ending == "cancelled" else end.text)
    if end.status == 0:
        return Outcome("done")
    if left and tries.moved:
        return Outcome("moved", "restarted on other nodes")
    if left and job.state is JobState.ASKED:
        return Outcome("stopped", "left when asked; it waits again")
    if left and rules.resumes and (rules.losses is None or tries.losses <= rules.losses):
        return Outcome("requeue", end.text)
    if not left and tries.restarts < rules.restarts:
        return Outcome("requeue", end.text, counts=True)
    return Outcome("failed", end.text)


def record_after(job: Job, verdict: Verdict, now_ms: int) -> Job:
    """Return a job's record once its processes are gone."""
    match verdict:
        case "done":
            return ended(job, JobState.DONE)
        case "failed":
            return ended(job, JobState.FAILED)
        case "stopped":
            return stopped(job, now_ms)
        case "requeue":
            return requeued(job, now_ms)
        case "moved":
            return replace(job, state=JobState.STARTING, start_ms=now_ms)


def first_cause(ends: Iterable[tuple[int, int | None]]) -> int:
    """Return the rank to blame of those that ended badly, given with their statuses.

    A rank that only says that the others are gone (`TRY_AGAIN`) is blamed last; among equals the lowest rank is first.
    """
    return min(ends, key=lambda end: (end[1] == TRY_AGAIN, end[0]))[0]
