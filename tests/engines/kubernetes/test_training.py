import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.stage import Theatre, engine, running, until

from weft.cluster.records.node import NodeState
from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.resources import HEALTH
from weft.specs import JobSpec, load_job
from weft.testing.kubelets import Kubelets
from weft.testing.pod_processes import PodProcesses
from weft.training import run_dir

_STEPS = 24

pytestmark = [pytest.mark.kube, pytest.mark.timeout(280)]


def _job() -> JobSpec:
    job = load_job("tiny-gpt")
    plan = job.plan
    assert plan != "auto"
    return job.model_copy(
        update={
            "steps": _STEPS,
            "plan": plan.model_copy(update={"dp": 2, "pp": 1}),
            "checkpoint": job.checkpoint.model_copy(update={"every": 5}),
            # The run is short: it would be over on one rank before a spare node is there.
            "recovery": job.recovery.model_copy(update={"policy": "wait"}),
        }
    )


def test_a_training_loses_a_node_gets_a_spare_and_ends_with_the_same_bits(theatre: Theatre, tmp_path: Path, capsys):
    times, digests = asyncio.run(_train(theatre, tmp_path))
    with capsys.disabled():
        for stage, seconds in times.items():
            sys.stdout.write(f"\n  {seconds:6.1f} s  {stage}")
        sys.stdout.write("\n")
    assert digests["hit"] == digests["calm"]


async def _train(theatre: Theatre, folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    stage = theatre.stage(3, gpus=1)
    spec: dict[str, Any] = {
        "command": [],
        "training": _job().as_written(),
        "kind": "training",
        "gpusPerNode": 1,
        "volumes": [{"path": "/runs", "claim": "shared"}],
        "grace": "5 s",
    }
    async with theatre.open(8) as client, ApiClient(theatre.plane.access(), agent="actor") as acting:
        actor = Kubelets(acting, stage)
        processes = PodProcesses(folder, acting)
        actor.run_in(processes)
        await actor.register()
        async with running(actor.run()), engine(theatre) as one:
            await theatre.submit(client, "calm", 2, **spec)
            await until(_ended(theatre, client, "calm"), 120.0)
            await theatre.submit(client, "hit", 2, **spec)
            root = folder / "claims" / theatre.name / "shared"

            async def trains() -> bool:
                return _steps(root, "hit") > 7

            await until(trains, 120.0)
            status = await theatre.status(client, "hit")
            lost = status["placement"]["nodes"][1]
            begun = time.monotonic()
            times: dict[str, float] = {}
            actor.silence([lost])

            async def note(what: str, question: Any) -> None:
                await until(question, 90.0)
                times[what] = time.monotonic() - begun

            number = one.state.node_index.numbers[lost]
            await note("the node is missed", _asked(lambda: not one.cache.nodes.items[lost].ready))
            await note(
                "it is out of service", _asked(lambda: one.cluster.pool.nodes[number].state is not NodeState.READY)
            )
            await note("a spare is bound", _placed_elsewhere(theatre, client, lost))
            reached = _steps(root, "hit")
            await note("the training goes on", _asked(lambda: _steps(root, "hit") > reached))
            await note("it has ended", _ended(theatre, client, "hit"))
            health = await client.get(HEALTH, lost)
            assert health["status"]["state"] != "ready"
            assert (await theatre.status(client, "hit"))["state"] == "done"
            return times, {name: _digest(root, name) for name in ("calm", "hit")}


def _runs(root: Path, job: str) -> list[run_dir.RunRecord]:
    return [one for path in root.glob(f"{job}-*") for one in run_dir.records(path)]


def _steps(root: Path, job: str) -> int:
    found = [one.folder / run_dir.METRICS for one in _runs(root, job)]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in found if path.exists())


def _digest(root: Path, job: str) -> str:
    (record,) = _runs(root, job)
    result = record.result()
    assert result is not None, f"{job} has left no result"
    return result["weights_digest"]


def _asked(question):
    async def asked() -> bool:
        return bool(question())

    return asked


def _ended(theatre: Theatre, client: ApiClient, name: str):
    async def ended() -> bool:
        state = (await theatre.states(client)).get(name)
        assert state not in ("failed", "refused"), await theatre.status(client, name)
        return state == "done"

    return ended


def _placed_elsewhere(theatre: Theatre, client: ApiClient, lost: str):
    async def placed() -> bool:
        status = await theatre.status(client, "hit")
        nodes = (status.get("placement") or {}).get("nodes") or [lost]
        return lost not in nodes and status.get("bound") == 2

    return placed
