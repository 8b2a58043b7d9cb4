"""An environment with the wheel and its required packages alone: every command works, or names the extra it lacks."""

import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.cli.invocations import attempts, leaves

ROOT = Path(__file__).parents[2]
_FOUND_WRONG: dict[tuple[str, ...], set[int]] = {("nodes", "test", "kernel", "gpus"): {1}, ("nodes", "test"): {1}}
"""Commands that end with 1 where they find this machine wrong."""
_DRIVER = """
import json, sys, traceback
from weft.cli.main import main
for words in json.load(open(sys.argv[1])):
    print("###", json.dumps(words), file=sys.stderr, flush=True)
    try:
        status = main(words)
    except SystemExit as ending:
        status = ending.code
    except BaseException:
        traceback.print_exc()
        status = -1
    sys.stdout.flush()
    print("status", status, file=sys.stderr, flush=True)
"""


def required(name: str, found: dict[str, Path] | None = None) -> dict[str, Path]:
    """Return the distributions that `name` cannot do without, itself excluded, and where each lies."""
    found = {} if found is None else found
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if key not in found:
            try:
                found[key] = Path(str(distribution(key).locate_file("")))
            except PackageNotFoundError:
                continue
            required(key, found)
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment that holds the wheel, and links to what it requires."""
    folder = tmp_path_factory.mktemp("base")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True, env=outside)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    wheel = next(folder.glob("weft-*.whl"))
    install = [*pip, "--python", str(python), "install", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, env=outside)
    (place,) = (folder / "venv/lib").glob("python*/site-packages")
    for name, home in required("weft").items():
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files if not file.parts[0].startswith("..")} - {"__pycache__"}:
            if not (place / top).exists():
                (place / top).symlink_to(home / top)
    return python


def run(base: Path, folder: Path, lines: list[list[str]]) -> dict[tuple[str, ...], tuple[int, str]]:
    """Run command lines, one after another; return the status of each and what it wrote to standard error."""
    (folder / "lines.json").write_text(json.dumps(lines))
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WEFT"))}
    done = subprocess.run(
        [str(base), "-c", _DRIVER, "lines.json"], cwd=folder, env={**outside, "HOME": str(folder)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    parts = re.findall(r"^### (.*)\n((?:.*\n)*?)status (-?\w+)\n", done.stderr, re.MULTILINE)
    found = {tuple(json.loads(words)): (int(status or 0), text) for words, text, status in parts}
    assert len(found) == len({tuple(line) for line in lines})
    return found


@pytest.mark.slow
def test_every_command_works_or_names_its_extra(base: Path, tmp_path: Path):
    began = time.monotonic()
    first = subprocess.run(
        [str(base.with_name("weft")), "rehearse", "gb200-8x100g-131k", "gpt-1t"], cwd=tmp_path, capture_output=True,
        text=True, check=False, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (first.returncode, first.stderr) == (0, "")
    assert "gpt-1t on gb200-8x100g-131k" in first.stdout
    assert time.monotonic() - began < 60, "a person waits for it"
    probe = [str(base), "-I", "-c", "import importlib.util as u; print([bool(u.find_spec(n)) for n in "
             "('torch', 'numba', 'starlette', 'aiohttp', 'pynvml', 'polars', 'weft_lab')])"]  # fmt: skip
    assert "True" not in subprocess.run(probe, capture_output=True, text=True, check=True).stdout

    commands = [words for words in leaves() if words[0] != "lab"]
    helps = run(base, tmp_path, [[*words, "--help"] for words in commands])
    # Help is what a person reads before they install anything.
    assert {words: text for words, (status, text) in helps.items() if status != 0} == {}

    lines = [list(line) for words in commands for line in attempts(words) if words != ("pod",)]
    tried = run(base, tmp_path, [*lines, ["lab"], ["lab", "up"]])
    bad = {
        words: text for words, (status, text) in tried.items()
        if "Traceback" in text or "No module named" in text or status not in {0, 2} | _FOUND_WRONG.get(words, set())
    }  # fmt: skip
    assert bad == {}
    lacking = {words: text for words, (_, text) in tried.items() if "not installed" in text or "extra" in text}
    assert all("pip install" in text for text in lacking.values()), lacking
    named = {extra for _, text in tried.values() for extra in re.findall(r"weft\[(\w+)\]", text)}
    assert {"train", "cluster", "kubernetes", "lab"} <= named
    for words in (
        ("design", "laptop"),
        ("simulate", "pair"),
        ("completion", "bash"),
        ("rehearse", "laptop", "tiny-gpt"),
    ):
        assert tried[words][0] == 0, tried[words]
