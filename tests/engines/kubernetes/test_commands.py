import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.engines.kubernetes.stage import BARE, NOBODY, Theatre, engine, running, until

from weft.cli.main import main
from weft.engines.kubernetes.api.api_client import ApiClient
from weft.testing.control_plane import ADMIN
from weft.testing.kubelets import Kubelets
from weft.testing.pod_processes import PodProcesses

_LONG = "x" * 60


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one message of a command that was asked wrongly."""
    text = capsys.readouterr().err.strip()
    assert text.startswith("error: "), text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cluster", "install", "--kubeconfig", "/no/such"], "no kubeconfig at /no/such"),
        (["cluster", "act", "--nodes", "0", "--kubeconfig", "/no/such"], "--nodes 0"),
        (["cluster", "act", "--silence", "2", "--kubeconfig", "/no/such"], "--silence 2"),
        (["jobs", "--on", "nowhere"], "no kubeconfig"),
        (["submit", "--render", "jobset", "--name", _LONG, "--", "true"], "has 60 letters"),
        (["submit", "--render", "jobset", "--volume", "here", "--", "true"], "write PATH=CLAIM"),
        (["submit", "--render", "kueue", "--sweep", "a=1,2", "--", "echo", "{a}"], "a sweep runs on the local cluster"),
        (["pod", "--", "true"], "the program inside a pod"),
    ],
)
def test_bad_input_is_one_message_and_status_2(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert main(arguments) == 2
    assert message in _said(capsys)


@pytest.mark.kube
def test_a_server_that_does_not_know_our_kinds_or_us_is_told_in_one_message(theatre: Theatre, monkeypatch, capsys):
    status, text = BARE[0]
    assert status == 2
    assert "weft cluster install" in text
    assert "Traceback" not in text
    monkeypatch.setenv("KUBECONFIG", str(theatre.plane.kubeconfig(NOBODY)))
    assert main(["jobs", "--on", "."]) == 2
    assert "a permission is missing" in _said(capsys)
    monkeypatch.setenv("KUBECONFIG", str(theatre.plane.kubeconfig(ADMIN)))
    assert main(["submit", "--on", ".", "--name", _LONG, "--no-snapshot", "--", "true"]) == 2
    assert "has 60 letters" in _said(capsys)
    assert main(["jobs", "nothing", "--on", "."]) == 2
    assert "there is no job 'nothing'" in _said(capsys)
    assert main(["jobs", "--on", "elsewhere"]) == 2
    assert "no context 'elsewhere'; it knows local" in _said(capsys)


@pytest.mark.kube
def test_the_same_commands_work_on_a_cluster_and_the_folder_goes_along(theatre: Theatre, tmp_path: Path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "hello.py").write_text(
        "import os; print('hello from', os.environ['WEFT_NODE_RANK'], open('data.txt').read())"
    )
    (work / "data.txt").write_text("with data")
    asyncio.run(_commands(theatre, work, tmp_path / "acted"))


async def _commands(theatre: Theatre, work: Path, folder: Path) -> None:
    config = theatre.plane.folder / f"{theatre.name}.kubeconfig"
    document = yaml.safe_load(theatre.plane.kubeconfig().read_text())
    document["contexts"][0]["context"]["namespace"] = theatre.name
    config.write_text(yaml.safe_dump(document))

    given = {**os.environ, "KUBECONFIG": str(config), "WEFT_POOL": theatre.name}

    async def weft(*arguments: str) -> str:
        command = [sys.executable, "-c", "from weft.cli.main import run; run()", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, env=given, cwd=work, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    async with theatre.open(24) as client, ApiClient(theatre.plane.access(), agent="actor") as acting:
        actor = Kubelets(acting, theatre.stage(2))
        processes = PodProcesses(folder, acting)
        actor.run_in(processes)
        await actor.register()
        common = ("--on", ".", "--team", theatre.name, "--gpus", "8")
        async with running(actor.run()), engine(theatre):
            out = await weft(
                "submit", *common, "--nodes", "2", "--name", "hello", "--json", "--", sys.executable, "hello.py"
            )
            assert json.loads(out)["jobs"][0]["id"] == "hello-1"

            async def done() -> bool:
                return (await theatre.states(client)).get("hello-1") == "done"

            await until(done, 90.0)
            logs = [processes.log(theatre.name, f"hello-1-1-{rank}").read_text().strip() for rank in (0, 1)]
            assert logs == ["hello from 0 with data", "hello from 1 with data"]
            await weft("submit", *common, "--nodes", "2", "--name", "long", "--no-snapshot", "--", "sleep", "1000")
            await weft("submit", *common, "--nodes", "1", "--name", "next", "--no-snapshot", "--", "sleep", "1000")

            async def runs() -> bool:
                return (await theatre.states(client)).get("long-1") == "running"

            await until(runs, 90.0)
            why = json.loads(await weft("why", "next-1", "--on", ".", "--json"))
            assert why["state"] == "waiting"
            assert f"{theatre.name}/long-1" in why["holds"]
            assert "next-1" in await weft("jobs", "--on", ".")
            await weft("cancel", "long-1", "next-1", "--on", ".")

            async def cancelled() -> bool:
                states = await theatre.states(client)
                return states["long-1"] == states["next-1"] == "cancelled"

            await until(cancelled, 90.0)
