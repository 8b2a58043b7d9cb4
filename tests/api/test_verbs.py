"""`import weft` has the verbs of the command line, and says the same."""

import inspect
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import weft
from weft import api
from weft.cli.main import main
from weft.core.errors import UsageError
from weft.engines.local.client import LocalClient
from weft.engines.local.home import Home

ROOT = Path(__file__).parents[2]
VERBS = ("design", "explain", "simulate", "plan", "rehearse", "scale", "replay", "submit")
"""Commands that are functions of the same name; `doctor` is `diagnose`, for `weft.doctor` is a package."""


@pytest.mark.parametrize("name", [*VERBS, "compare", "diagnose"])
def test_a_verb_is_a_public_documented_function(name: str):
    found = getattr(weft, name)
    assert name in weft.__all__
    assert name in api.__all__
    assert (inspect.getdoc(found) or "").endswith((".", ")"))
    assert inspect.signature(found).return_annotation is not inspect.Signature.empty


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_explain_says_what_the_command_says(capsys: pytest.CaptureFixture[str]):
    assert json.loads(json.dumps(weft.explain("planes", "laptop", seed=3).as_json())) == printed(
        capsys, "explain", "planes", "laptop", "--seed", "3"
    )
    with pytest.raises(UsageError, match="did you mean"):
        weft.explain("plane")


def test_rehearse_says_what_the_command_says(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    document = printed(capsys, "rehearse", "h100-400g-16k", "llama3-405b", "--no-simulate", "--folder", str(tmp_path))
    found = weft.rehearse("h100-400g-16k", "llama3-405b", simulate=False)
    assert found.report is not None
    assert json.loads(json.dumps(found.as_json())) == document
    assert weft.rehearse("laptop", "gpt-1t").report is None


def test_scale_says_what_the_command_says(capsys: pytest.CaptureFixture[str]):
    points = str(ROOT / "examples" / "points.csv")
    words = ("scale", "predict", points, "--params", "7e10", "--tokens", "1.4e12")
    found = weft.scale(points, params=7e10, tokens=1.4e12, flops=1e21)
    assert found.prediction is not None
    assert found.optimum is not None
    assert found.prediction.loss == printed(capsys, *words)["loss"]
    assert weft.scale(points).prediction is None
    with pytest.raises(UsageError, match="go together"):
        weft.scale(points, params=1e9)


def test_replay_says_what_the_command_says(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    trace = str(tmp_path / "trace.csv")
    assert main(["cluster", "generate", trace, "--jobs", "30", "--nodes", "16", "--seed", "2"]) == 0
    capsys.readouterr()
    document = printed(capsys, "cluster", "replay", trace, "--nodes", "16", "--policy", "weft,fifo")
    found = weft.replay(trace, nodes=16, policies=("weft", "fifo"))
    assert list(found) == ["weft", "fifo"]
    lines = document["policies"]
    assert isinstance(lines, list)
    for line in lines:
        measured = found[line["policy"]]
        assert (measured.end_ms - measured.first_ms) / 1000 == pytest.approx(line["makespan_s"])


def test_diagnose_reads_a_run_and_wants_both_or_neither(tmp_path: Path):
    with pytest.raises(UsageError, match="go together"):
        weft.diagnose(str(tmp_path), job="tiny-gpt")
    log = tmp_path / "train.log"
    log.write_text("".join(
        f" iteration {step:8d}/ 100 | consumed samples: {8 * step} | elapsed time per iteration (ms): 1000.0 | "
        "throughput per GPU (TFLOP/s/GPU): 400.0 | learning rate: 1E-4 | global batch size: 8 | lm loss: 2.5E+00 |\n"
        for step in range(1, 40)
    ))  # fmt: skip
    assert weft.diagnose(str(log)).verdict()


@pytest.mark.slow
def test_submit_hands_a_command_to_the_cluster_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "cluster"
    started = [sys.executable, "-m", "weft", "cluster", "up", "--home", str(home), "--nodes", "1"]
    assert subprocess.run(started, check=False, timeout=60).returncode == 0
    client = LocalClient(Home(home))
    try:
        monkeypatch.chdir(tmp_path)
        (job,) = weft.submit(["sh", "-c", "echo out"], home=home, name="greeting", snapshot=False)
        deadline = time.monotonic() + 60
        while client.get("v1", "jobs", job["id"])["state"] != "done":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with pytest.raises(UsageError):
            weft.submit(["true"], home=home, gpus=3)
    finally:
        process = client.process()
        if process is not None:
            process.signal(signal.SIGTERM)
