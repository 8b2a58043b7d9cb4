"""Compiled code is found again wherever the same sources lie, and code that came with weft is used, once copied."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from weft.core.compile import cache

RULE = """
from weft.core.compile.rules import rule

@rule
def doubled(number: int) -> int:
    return 2 * number
"""
PROGRAM = """
import sys
from pathlib import Path
from weft.core.compile import cache
from weft.core.compile.rules import compiled

shipped, home, sources = map(Path, sys.argv[1:])
sys.path.insert(0, str(sources))
cache.SHIPPED = shipped
from counting import doubled

assert cache.cache_under("rules", home)
made = compiled(doubled)
assert made(21) == 42
print(sum(made.stats.cache_hits.values()))
"""


def hits(shipped: Path, home: Path, sources: Path) -> int:
    """Return how often stored code was found by a new process that calls the rule."""
    words = [sys.executable, "-c", PROGRAM, *map(str, (shipped, home, sources))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=True)
    return int(done.stdout)


@pytest.mark.slow
def test_compiled_code_moves_with_its_folder_and_not_with_its_sources(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "counting.py").write_text(RULE)
    shutil.copytree(here, there)
    os.utime(there / "counting.py", (1, 1))
    none, made = tmp_path / "none", tmp_path / "made"
    assert hits(none, made, here) == 0
    assert hits(none, made, there) == 1
    # The folder as one that came with an installation, and an empty cache of a user's.
    assert hits(made, tmp_path / "user", there) == 1
    assert any((tmp_path / "user" / "rules").glob("*.nbi"))


def test_what_came_with_weft_counts_as_compiled_and_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shipped, home = tmp_path / "shipped", tmp_path / "home"
    monkeypatch.setattr(cache, "SHIPPED", shipped)
    monkeypatch.setattr(cache, "use_cache", lambda folder: None)
    assert not cache.is_cached("rules-1", home)
    (shipped / "rules-1").mkdir(parents=True)
    (home / "rules-1").mkdir(parents=True)
    for name in ("a.1.nbc", "a.nbi", "lock"):
        (shipped / "rules-1" / name).write_text("came")
    (home / "rules-1" / "a.nbi").write_text("own")
    assert cache.is_cached("rules-1", home)
    assert cache.cache_under("rules-1", home)
    assert {file.name: file.read_text() for file in (home / "rules-1").iterdir()} == {"a.1.nbc": "came", "a.nbi": "own"}
