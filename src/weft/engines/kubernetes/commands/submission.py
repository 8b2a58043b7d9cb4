"""From what is submitted to the body of a `WeftJob`. Pure: `remote` sends it, `rendering` prints it."""

import re
from collections.abc import Mapping
from typing import Any

from weft.core.errors import UsageError
from weft.core.specfile import validate
from weft.engines.kubernetes.api.crds import NAME_LETTERS
from weft.specs.job import JobSpec
from weft.training.parallel.auto_plan import planned

_NUMBER_LETTERS = 4
_LOCAL = ("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")
"""Variables of the submitter's machine that mean nothing in a pod."""
_MOST = NAME_LETTERS - _NUMBER_LETTERS


def fitting_name(text: str) -> str:
    """Return a name that pods can be called after."""
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    if not name or len(name) > _MOST:
        raise UsageError(f"the name {text!r} has {len(text)} letters; on Kubernetes a job's name has 1 to {_MOST}")
    return name


def body_of(
    table: Mapping[str, Any], image: str | None, volumes: tuple[str, ...], folder: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return the spec of the WeftJob that a submission asks for, as Kubernetes writes it."""
    if table.get("sweep"):
        raise UsageError("a sweep runs on the local cluster; on Kubernetes submit its jobs one by one")
    if table.get("faults"):
        raise UsageError("--faults are for the local cluster; on Kubernetes silence simulated nodes instead")
    job = table.get("job")
    given: dict[str, Any] = {
        "kind": table.get("kind"), "team": table.get("team") or (job or {}).get("team"),
        "priority": table.get("priority", (job or {}).get("priority")),
        "timeLimit": table.get("time_limit", (job or {}).get("time_limit")), "nodes": table.get("nodes"),
        "gpusPerNode": table.get("gpus_per_node"), "minNodes": table.get("min_nodes"),
        "within": table.get("within"), "sliceNodes": table.get("slice_nodes"), "apart": table.get("apart"),
        "after": list(table.get("after") or ()), "image": image, "folder": dict(folder) if folder else None,
        "command": list(table.get("command") or ()), "volumes": [_volume(text) for text in volumes],
        "environment": {key: value for key, value in (table.get("environment") or {}).items() if key not in _LOCAL},
    }  # fmt: skip
    if job is not None:
        training = planned(validate(job, JobSpec, "the job"))
        given |= {"training": training.as_written(), **_spread(training, int(table.get("gpus_per_node") or 1))}
    return {key: value for key, value in given.items() if value not in (None, [], {}, "")}


def _spread(job: JobSpec, gpus: int) -> dict[str, int]:
    """Return over how many nodes a training's ranks are spread."""
    assert job.plan != "auto", "a training is planned before it is submitted"
    ranks = job.plan.ranks
    if ranks % gpus:
        raise UsageError(
            f"the plan has {ranks} ranks, which {gpus} GPUs on each node do not divide; give another --gpus"
        )
    return {"nodes": ranks // gpus, "gpusPerNode": gpus}


def _volume(text: str) -> dict[str, str]:
    path, equals, source = text.partition("=")
    if not equals or not path.startswith("/") or not source:
        raise UsageError(f"--volume {text}: write PATH=CLAIM, or PATH=/FOLDER of the node")
    return {"path": path, ("hostPath" if source.startswith("/") else "claim"): source}
