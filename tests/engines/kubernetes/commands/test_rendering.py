import asyncio
import importlib
from typing import Any

import pytest
import yaml
from tests.engines.kubernetes.stage import Theatre

from weft.cli.main import main
from weft.engines.kubernetes.api.resources import PODS


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
    # Generated from JobSet's own definition. Reading checks types; a field that is not in it would not come back.
    schema = importlib.import_module("kubeflow_trainer_api.models.jobset_v1alpha2_job_set").JobsetV1alpha2JobSet
    assert schema.from_dict(made).to_dict() == made
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
