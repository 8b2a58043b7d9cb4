"""A stock PyTorch job: torchrun, unchanged, finds its gang, runs, and survives a lost node. Real processes."""

import asyncio
import base64
import hashlib
import io
import shutil
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.stage import running

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.resources import CONFIG_MAPS, JOBS, PODS, RANK_LABEL, TEAMS
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.settings import Settings
from weft.testing.api_server import FakeApiServer
from weft.testing.kubelets import Kubelets, SimulatedNodes
from weft.testing.pod_processes import PodProcesses

_TRAIN = """
import os, pathlib, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
folder = pathlib.Path(os.environ["OUT"])
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
name = f"sum-{dist.get_rank()}-{os.environ['WEFT_ATTEMPT']}"
(folder / name).write_text(f"{total.item():g} of {dist.get_world_size()}")
while not (folder / "end").exists():
    dist.all_reduce(torch.zeros(1))
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


async def _until(question: Callable[[], Any], patience_s: float = 150.0) -> None:
    end = time.monotonic() + patience_s
    while not question():
        assert time.monotonic() < end, f"not so after {patience_s:.0f} s"
        await asyncio.sleep(0.1)


def _packed(name: str, text: str) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as packed:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        packed.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()


@pytest.mark.slow
def test_torchrun_unchanged_runs_as_a_gang_and_survives_a_lost_node(tmp_path: Path) -> None:
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if torchrun is None:
        pytest.skip("torchrun is not installed")
    out = tmp_path / "out"
    out.mkdir()
    archive = _packed("train.py", _TRAIN)
    spec = {
        "nodes": 2, "gpusPerNode": 2, "team": "team", "image": "pytorch/pytorch", "command": [torchrun, "train.py"],
        "environment": {"OUT": str(out), "OMP_NUM_THREADS": "1"}, "grace": "2 s",
        "folder": {"configMap": "folder", "digest": hashlib.sha256(archive).hexdigest()},
    }  # fmt: skip

    async def life() -> None:
        server = FakeApiServer()
        async with server.listening(), server.client("engine") as mine, server.client("kubelets") as theirs:
            kubelets = Kubelets(theirs, SimulatedNodes(3, 2, "pool", prefix="n", least_period_s=1.0))
            kubelets.run_in(PodProcesses(tmp_path / "acted", theirs))
            one = KubernetesEngine(mine, Settings(pool="pool", heart_s=0.5, resync_s=1.0), server.now_ms)
            async with running(one.run(), kubelets.run(), server.monitor_nodes(3.0)):
                await kubelets.register()
                await _submit(theirs, spec, archive)
                await _until(lambda: len(list(out.glob("sum-*-1"))) == 4)
                assert {path.read_text() for path in out.glob("sum-*-1")} == {"10 of 4"}
                pods = list(server.store.objects(PODS).values())
                ranks = {pod["metadata"]["labels"][RANK_LABEL]: pod["spec"]["nodeName"] for pod in pods}
                lost = ranks["1"]
                kubelets.silence([lost])
                state = lambda: server.store.objects(JOBS)["default/stock"]["status"]["state"]  # noqa: E731
                await _until(lambda: len([path for path in out.glob("sum-*") if not path.name.endswith("-1")]) >= 4)
                (out / "end").write_text("")
                await _until(lambda: state() == "done")

    asyncio.run(life())


async def _submit(client: ApiClient, spec: dict[str, Any], archive: bytes) -> None:
    await client.create(TEAMS, {"metadata": {"name": "team"}, "spec": {"quota": 100}})
    data = {"folder.tar.gz": base64.b64encode(archive).decode()}
    await client.create(CONFIG_MAPS, {"metadata": {"name": "folder"}, "binaryData": data}, "default")
    await client.create(JOBS, {"metadata": {"name": "stock"}, "spec": spec}, "default")
