"""The house rules that a machine can see."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_FILE, LONGEST_FUNCTION = 500, 70
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "stuff"}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


SOURCES = [path for path in tracked() if path.suffix == ".py"]
TEXTS = [path for path in tracked() if path.suffix in {".py", ".md", ".toml", ".sh", ""} and path.name != "LICENSE"]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_a_file_is_short_and_its_functions_too(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name


@pytest.mark.parametrize("path", [path for path in SOURCES if "src" in path.parts], ids=shown)
def test_a_module_says_what_it_is(path: Path):
    assert path.stem not in DRAWERS
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":"))


@pytest.mark.parametrize("path", TEXTS, ids=shown)
def test_nothing_is_left_half_done_or_speaks_of_the_workshop(path: Path):
    if path == Path(__file__):
        return
    text = path.read_text()
    unfinished = re.search(r"\b(TODO|FIXME|XXX)\b|NotImplementedError", text)
    assert unfinished is None, unfinished
    elsewhere = re.search(r"/work/|/tmp/wt|/root/|pythonhosted|npmjs|deb\.debian", text)
    assert elsewhere is None, elsewhere


def test_the_tests_mirror_the_tree():
    packages = {path.name for path in (ROOT / "src" / "weft").iterdir() if (path / "__init__.py").exists()}
    rooms = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert packages <= rooms
