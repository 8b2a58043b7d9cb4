"""Which keys of a job may differ between a run and its resumption, and what becomes of those that do. Free of torch.

Every key is of one kind. One that changes no bit is free. One that changes the numbers from the resumed step on is
refused unless `recovery.accept` names it. One without which nothing that is stored has a meaning (the model, the data
and their order, what an optimizer keeps) is refused. The schedule's horizon is stored with the run: more or fewer steps
never bend a schedule that has begun.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.errors import UsageError
from weft.specs import JobSpec

FREE = frozenset({
    "steps", "description", "team", "priority", "time_limit", "sinks", "faults", "checkpoint", "evaluation", "recovery",
    "guard", "plan.dp", "plan.shard",
})  # fmt: skip
"""Keys and tables that change no bit of the steps that both trainings have."""
ASKED = frozenset({
    "model.dropout", "model.experts.balance", "model.weights",
    "data.corpus", "data.column", "data.tokenizer", "data.integers", "batch.micro",
    "optimizer.momentum", "optimizer.learning_rate", "optimizer.betas", "optimizer.epsilon", "optimizer.weight_decay",
    "optimizer.clip", "optimizer.warmup", "optimizer.schedule", "optimizer.horizon", "optimizer.final_share",
    "plan.tp", "plan.pp", "plan.cp", "plan.ep", "plan.schedule", "plan.chunks", "plan.zero", "plan.recompute",
    "plan.precision", "plan.exact", "plan.compile", "software", "backend",
})  # fmt: skip
"""Keys that hold from the resumed step on where `recovery.accept` names them. The corpus must hold the same tokens."""
FIXED = frozenset({
    "name", "seed", "model", "data.held_out", "batch.sequences", "batch.length", "optimizer.kind", "optimizer.state",
})  # fmt: skip
"""Keys and tables that cannot change."""


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """A key whose value is another one than the run was made with."""

    key: str
    there: Any
    here: Any

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{self.key} is {json.dumps(self.there)} there and {json.dumps(self.here)} here"


def kind_of(key: str) -> frozenset[str]:
    """Return `FREE`, `ASKED` or `FIXED`: what the longest part of the dotted `key` that is listed is."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        for kind in (FREE, ASKED, FIXED):
            if ".".join(parts[:end]) in kind:
                return kind
    return FIXED


def begun(job: JobSpec) -> JobSpec:
    """Return `job` as a run keeps it: with the horizon of its schedule spelled out."""
    if job.optimizer.schedule == "constant" or job.optimizer.horizon is not None:
        return job
    return _with_horizon(job, job.steps)


def identity(job: JobSpec) -> dict[str, Any]:
    """Return what makes two jobs the same training: everything but the keys that are free."""
    return _without_free(begun(job).as_written())


def gone_on(there: JobSpec, job: JobSpec, where: str) -> tuple[JobSpec, list[ChangedKey]]:
    """Return `job` as it goes on with what was made by `there`, and what it changes from here on.

    `where` names what was made. Raises, with what differs and what to do, where `job` is another training.
    """
    kept = begun(there)
    if job.optimizer.horizon is None and job.optimizer.schedule == kept.optimizer.schedule:
        job = _with_horizon(job, kept.optimizer.horizon)
    accepted = _accepted(job)
    before, now = kept.as_written(), begun(job).as_written()
    if "auto" in (before["plan"], now["plan"]):
        del before["plan"], now["plan"]
    if job.optimizer.schedule != kept.optimizer.schedule:
        # Another schedule has a horizon of its own.
        for table in (before, now):
            table["optimizer"].pop("horizon", None)
    differing = [one for one in _differences(before, now) if kind_of(one.key) is not FREE]
    refused = [one for one in differing if one.key not in accepted]
    if refused:
        raise UsageError(_refusal(refused, where))
    return begun(job), differing


def notes(there: JobSpec, job: JobSpec, changed: list[ChangedKey]) -> list[str]:
    """Return what people should know of a run that goes on as `job`, in sentences."""
    said = [
        f"{one.key} is {json.dumps(one.here)} from here on, {json.dumps(one.there)} before, as recovery.accept says"
        for one in changed
    ]
    horizon = job.optimizer.horizon
    if job.steps != there.steps and horizon is not None and horizon == begun(there).optimizer.horizon != job.steps:
        said.append(
            f"the {job.optimizer.schedule} schedule still falls over the {horizon:,} steps that the run was begun with,"
            f" not over {job.steps:,}; for another one set optimizer.horizon, and name it in recovery.accept"
        )
    return said


def _with_horizon(job: JobSpec, horizon: int | None) -> JobSpec:
    return job.model_copy(update={"optimizer": job.optimizer.model_copy(update={"horizon": horizon})})


def _accepted(job: JobSpec) -> frozenset[str]:
    for key in job.recovery.accept:
        if kind_of(key) is not ASKED:
            why = "changes no bit and needs no leave" if kind_of(key) is FREE else "cannot change in a run that goes on"
            raise UsageError(f"recovery.accept names {key!r}, which {why}; leave it out")
    return frozenset(job.recovery.accept)


def _refusal(refused: list[ChangedKey], where: str) -> str:
    fixed = [one for one in refused if kind_of(one.key) is FIXED]
    first = (fixed or refused)[0]
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    what = f"{where} is the run folder of another job: {first}{more}; "
    if fixed:
        return what + "start a new run, or resume with the job that it was made by"
    keys = json.dumps([one.key for one in refused])
    return what + f"resume with the job that it was made by, or go on with other numbers by recovery.accept = {keys}"


def _without_free(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            if inner := _without_free(value, f"{key}."):
                found[name] = inner
        elif kind_of(key) is not FREE:
            found[name] = value
    return found


def _differences(there: object, here: object, key: str = "") -> Iterator[ChangedKey]:
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in [*there, *(name for name in here if name not in there)]:
            yield from _differences(there.get(name), here.get(name), f"{key}.{name}" if key else name)
    elif there != here:
        yield ChangedKey(key, there, here)
