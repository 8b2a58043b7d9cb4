"""Every example plugin works from installed wheels, outside the repository."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build weft and its example plugins as wheels and install them into a folder of their own."""
    place = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]
    sources = [str(ROOT), str(ROOT / "examples" / "plugins")]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", place / "built", *sources], check=True)
    wheels = sorted((place / "built").glob("*.whl"))
    assert [wheel.name.split("-")[0] for wheel in wheels] == ["weft", "weft_example_plugins"]
    subprocess.run([*pip, "install", "--no-deps", "--target", place / "site", *wheels], check=True)
    return place / "site"


def weft(installed: Path, folder: Path, *words: str) -> str:
    """Run `weft` as installed, in a folder that holds nothing of the repository."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "weft", *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_runs_is_the_wheel(installed: Path, tmp_path: Path):
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import weft, weft_example_plugins as p; print(weft.__file__); print(p.__file__)"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert all(Path(line).is_relative_to(installed) for line in where.stdout.split())


def test_a_transport_in_one_file_is_simulated_beside_mrc(installed: Path, tmp_path: Path):
    found = json.loads(weft(installed, tmp_path, "simulate", "permutation", "--transport", "mrc,one-path", "--json"))
    sprayed, single = (found if isinstance(found, list) else found["reports"])[:2]
    assert (sprayed["transport"], single["transport"]) == ("mrc", "one-path")
    assert single["completed"] == sprayed["completed"]
    assert single["makespan_us"] > sprayed["makespan_us"], "a single path cannot use the other planes"


def test_a_reader_of_ones_own_is_asked_by_the_doctor(installed: Path, tmp_path: Path):
    (tmp_path / "times.txt").write_text("# step times\n" + "1.0\n" * 20 + "2.0\n" * 20)
    found = json.loads(weft(installed, tmp_path, "doctor", "times.txt", "--json"))
    assert found["files"][0]["reader"] == "plain step times"
    assert found["findings"][0]["since_step"] == 20


@pytest.mark.parametrize("plan", ["dp=2", "tp=2", "pp=2", "dp=2,shard=2"])
def test_a_model_of_ones_own_is_trained(installed: Path, tmp_path: Path, plan: str):
    settings = [word for part in plan.split(",") for word in ("--set", f"plan.{part}")]
    blank = [word for axis in ("dp", "pp") if f"{axis}=" not in plan for word in ("--set", f"plan.{axis}=1")]
    train = ["train", "tiny-gpt", "--model", "token-mixer", "--folder", "runs", "--json", "--set", "steps=6"]
    weft(installed, tmp_path, *train, "--set", "checkpoint.every=3", *blank, *settings)
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert len(losses) == 6
    assert losses[-1] < losses[0]


def test_a_sink_gets_every_step(installed: Path, tmp_path: Path):
    weft(
        installed, tmp_path, "train", "tiny-gpt", "--folder", "runs", "--json", "--set", "steps=4", "--set", "plan.dp=1"
    )
    (written,) = (tmp_path / "runs").glob("*/metrics.csv")
    rows = list(csv.DictReader(written.read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4]


def test_a_collective_in_one_file_is_simulated(installed: Path, tmp_path: Path):
    words = ["simulate", "--collective", "all-reduce/star", "--ranks", "8", "--size", "1MiB", "--transport", "mrc"]
    star = json.loads(weft(installed, tmp_path, *words, "--json"))
    words[2] = "ring"
    ring = json.loads(weft(installed, tmp_path, *words, "--json"))

    def time_us(found: object) -> float:
        times = [value for key, value in _leaves(found) if key.endswith("time_us")]
        assert times
        return times[0]

    assert time_us(star) > time_us(ring), "rank 0 receives seven buffers, a rank of a ring less than two"


def test_a_policy_in_one_file_is_replayed(installed: Path, tmp_path: Path):
    weft(installed, tmp_path, "cluster", "generate", "t.csv", "--jobs", "200", "--nodes", "16", "--load", "1.1")
    replay = ["cluster", "replay", "t.csv", "--nodes", "16", "--policy", "weft,smallest-first", "--json"]
    text = weft(installed, tmp_path, *replay)
    assert "smallest-first" in text


def test_a_health_check_in_one_file_is_run(installed: Path, tmp_path: Path):
    found = json.loads(weft(installed, tmp_path, "nodes", "test", "disk-space", "--json"))
    assert "disk-space" in json.dumps(found)
    assert any(key.endswith("free_share") for key, _ in _leaves(found))


def _leaves(value: object, key: str = "") -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [leaf for name, inner in value.items() for leaf in _leaves(inner, f"{key}.{name}")]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in _leaves(inner, key)]
    return [(key, value)] if isinstance(value, int | float) else []
