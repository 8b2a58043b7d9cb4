"""Compiled rules are kept under a digest of everything they are made from."""

import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.core.compile import cache
from weft.core.compile.cache import sources_of
from weft.netsim.host.compiling import layout_of, prepare


def test_every_file_with_a_rule_of_the_simulator_is_in_the_digest() -> None:
    package = Path(weft.__file__).parent
    with_rules = {
        file
        for folder in ("mrc/rules", "netsim")
        for file in (package / folder).rglob("*.py")
        if "\n@rule\n" in file.read_text(encoding="utf-8")
    }
    assert with_rules
    # No simulation makes a journal's calls again.
    assert with_rules - set(sources_of("weft.netsim").values()) == {package / "mrc/rules/replay.py"}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Watch which folder is chosen, with no home and with temporary files in a folder of the test's own."""
    chosen: list[str] = []
    monkeypatch.setattr(cache, "use_cache", chosen.append)
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "file").write_text("no folder can be made below a file")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    # An installation that carries compiled code has nothing to compile, and would say nothing.
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "shipped")
    return chosen


def test_a_user_without_a_home_gets_a_private_folder(kept: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    prepare(say=said.append)
    private = tmp_path / "tmp" / f"weft-{os.getuid()}"
    assert [Path(home).parent for home in kept] == [private]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert said == ["compiling the protocol's rules; this takes about a minute, once"]


def test_code_is_not_loaded_from_a_folder_that_others_can_write(kept: list[str], tmp_path: Path) -> None:
    private = tmp_path / "tmp" / f"weft-{os.getuid()}"
    private.mkdir()
    private.chmod(0o777)
    said: list[str] = []
    prepare(say=said.append)
    assert kept == []
    assert "every time: no folder can be written" in said[0]


def test_the_cache_that_the_environment_names_comes_first(
    kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    prepare()
    assert [Path(home).parent for home in kept] == [tmp_path / "caches" / "weft"]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 4))
def test_one_row_is_compiled_for_as_many_rows_are(rows: int, width: int, gap: int) -> None:
    memory = np.arange(rows * (width + gap), dtype=np.int64)
    for count in (1, rows):
        column = np.ndarray((count, width), np.int64, memory.data, 0, (8 * (width + gap), 8))
        assert layout_of(column) == ("A" if gap else "C")


def test_empty_columns_are_compiled_as_full_ones_are() -> None:
    assert [layout_of(np.zeros(shape)) for shape in ((2, 0), (0, 3), (2, 3))] == ["C", "C", "C"]
