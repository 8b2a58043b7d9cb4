import asyncio
from typing import Any

import jsonschema
import pytest
import yaml
from tests.engines.kubernetes.stage import Theatre

from weft.cli.main import main
from weft.engines.kubernetes.resources import PODS

_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


def _table(required: list[str], **fields: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": fields}


_JOB = _table(
    ["parallelism", "completions", "completionMode", "backoffLimit", "template"],
    parallelism=_COUNT,
    completions=_COUNT,
    completionMode={"enum": ["Indexed", "NonIndexed"]},
    backoffLimit=_COUNT,
    activeDeadlineSeconds=_COUNT,
    template=_table(["spec"], metadata={"type": "object"}, spec={"type": "object"}),
)
_JOBSET = _table(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=_table(["name"], name=_LABEL, labels={"type": "object", "additionalProperties": {"type": "string"}}),
    spec=_table(
        ["replicatedJobs"],
        suspend={"type": "boolean"},
        failurePolicy=_table([], maxRestarts=_COUNT),
        network=_table([], enableDNSHostnames={"type": "boolean"}, subdomain=_LABEL),
        replicatedJobs={
            "type": "array",
            "minItems": 1,
            "items": _table(["name", "template"], name=_LABEL, replicas=_COUNT, template=_table(["spec"], spec=_JOB)),
        },
    ),
)
"""The fields of a JobSet that we use: kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go; batch/v1 JobSpec."""


def _rendered(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["submit", "--render", *arguments]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["jobset", "kueue"])
@pytest.mark.parametrize(
    "what",
    [
        ["--nodes", "4", "--gpus", "8", "--time-limit", "2 h", "--volume", "/runs=claim", "--", "python", "train.py"],
        ["--gpus", "2", "tiny-gpt"],
    ],
    ids=["command", "training"],
)
def test_what_is_printed_is_a_jobset(kind, what, capsys):
    made = _rendered(capsys, kind, "--name", "mine", *what)
    jsonschema.validate(made, _JOBSET)
    queued = made["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
    assert (queued is not None) == (made["spec"].get("suspend") is True) == (kind == "kueue")


@pytest.mark.kube
def test_a_real_server_takes_the_pods_of_what_is_printed(theatre: Theatre, capsys):
    made = _rendered(capsys, "jobset", "--name", "mine", "--gpus", "2", "--volume", "/runs=claim", "tiny-gpt")
    spec = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]

    async def dry_run() -> None:
        async with theatre.open() as client:
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine"}, "spec": spec}
            await client.request("POST", PODS.path(theatre.name), query={"dryRun": "All"}, body=body)

    asyncio.run(dry_run())
