"""Compiled rules are kept under a digest of everything they are made from."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

import weft
from weft.core.compile import cache
from weft.core.compile.cache import sources_of
from weft.core.compile.rules import rule
from weft.netsim.host import compiling
from weft.netsim.host.compiling import Fixed, is_compiled, prepare


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
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path | None]:
    """Watch which folder is chosen, with no home and with temporary files in a folder of the test's own."""
    chosen: list[Path | None] = []
    monkeypatch.setattr(compiling, "_HOMES", chosen)
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "file").write_text("no folder can be made below a file")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    # An installation that carries compiled code has nothing to compile, and would say nothing.
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "shipped")
    return chosen


def test_a_user_without_a_home_gets_a_private_folder(kept: list[Path | None], tmp_path: Path) -> None:
    said: list[str] = []
    prepare(say=said.append)
    private = tmp_path / "tmp" / f"weft-{os.getuid()}"
    assert [home and home.parent for home in kept] == [private]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert said == ["compiling the protocol's rules; this takes about a minute, once"]


def test_code_is_not_loaded_from_a_folder_that_others_can_write(kept: list[Path | None], tmp_path: Path) -> None:
    private = tmp_path / "tmp" / f"weft-{os.getuid()}"
    private.mkdir()
    private.chmod(0o777)
    said: list[str] = []
    prepare(say=said.append)
    assert kept == [None]
    assert "every time: no folder can be written" in said[0]


def test_the_cache_that_the_environment_names_comes_first(
    kept: list[Path | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    prepare()
    assert [home and home.parent for home in kept] == [tmp_path / "caches" / "weft"]


def test_code_of_the_compiled_simulator_is_none_of_the_reference(
    kept: list[Path | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    said: list[str] = []
    prepare(say=said.append)
    assert len(said) == 1
    (home,) = kept
    assert home is not None
    (home / "weft.netsim.kernel.scheduler.advance.1.o").touch()
    assert (is_compiled(), is_compiled(compiling.REFERENCE)) == (True, False)
    prepare(say=said.append)
    assert len(said) == 1
    prepare(say=said.append, part=compiling.REFERENCE)
    assert len(said) == 2
    (home / "weft.netsim.host.mrc_host.take_in.2.o").touch()
    assert is_compiled(compiling.REFERENCE)


@rule
def _twice(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("shipped", [False, True])
def test_stored_code_is_used_and_damaged_code_is_compiled_anew(
    kept: list[Path | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shipped: bool
) -> None:
    made: list[bytes] = []
    make = compiling.make
    monkeypatch.setattr(compiling, "make", lambda *what: made.append(make(*what)) or made[-1])
    home = tmp_path / "home" / "rules-1"
    home.mkdir(parents=True)
    kept.append(home)

    def twice(number: int) -> int:
        monkeypatch.setattr(compiling, "_LINKED", {})
        return Fixed(_twice)(number)

    assert [twice(4), twice(-5), len(made)] == [8, -10, 1]
    (file,) = home.glob("*.o")
    if shipped:
        (tmp_path / "shipped").mkdir()
        home.rename(tmp_path / "shipped" / home.name)
        home.mkdir()
        assert [twice(6), len(made), [*home.iterdir()]] == [12, 1, []]
        file = tmp_path / "shipped" / home.name / file.name
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert [twice(7), twice(8), len(made)] == [14, 16, 2]
    assert (home / file.name).read_bytes() == whole
