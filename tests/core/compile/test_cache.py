"""Compiled code is stored under a digest of exactly the sources that it is made from."""

import stat
import sys
import tempfile
from pathlib import Path

import pytest

from weft.core.compile import cache
from weft.core.compile.cache import cache_under, digest_of, home_of, homes, is_cached, sources_of

RULES = """
from weft.core.compile.rules import rule
from {name}.limits import LIMIT
from {name}.kinds import Kind
from {name} import other, unused
LOCAL = other.OTHER

@rule
def capped(kind: Kind, number: int) -> int:
    return min(number, LIMIT, LOCAL)
"""
FILES = {
    "__init__": "",
    "limits": "from {name}.deeper import BASE\nLIMIT = BASE + 1\n",
    "deeper": "BASE = 3\n",
    "kinds": "class Kind: pass\n",
    "other": "OTHER = 9\n",
    "unused": "UNUSED = 1\n",
    "plain": "from {name}.limits import LIMIT\n\ndef no_rule(): return LIMIT\n",
    "rules": RULES,
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """Return the name and folder of a small distribution with one rule, which can be found but is not imported."""
    name = f"rules_of_{tmp_path.name}"
    folder = tmp_path / name
    folder.mkdir()
    for module, text in FILES.items():
        (folder / f"{module}.py").write_text(text.replace("{name}", name))
    monkeypatch.syspath_prepend(str(tmp_path))
    cache._imported.cache_clear()
    cache._file_of.cache_clear()
    return name, folder


def _own(name: str) -> set[str]:
    return {module.removeprefix(name + ".") for module in sources_of(name) if module.startswith(name)}


def test_sources_are_the_rules_and_every_module_that_gives_them_a_number(package: tuple[str, Path]) -> None:
    assert _own(package[0]) == {"rules", "limits", "deeper", "other"}


def test_the_compiler_itself_is_a_source_of_every_rule(package: tuple[str, Path]) -> None:
    assert {"weft.core.compile.rules", "weft.core.compile.intrinsics"} <= set(sources_of(package[0]))


def test_looking_for_sources_imports_none_of_them(package: tuple[str, Path]) -> None:
    sources_of(package[0])
    assert f"{package[0]}.rules" not in sys.modules


@pytest.mark.parametrize("module", ["rules", "limits", "deeper", "other"])
def test_an_edit_of_any_source_gives_another_digest(package: tuple[str, Path], module: str) -> None:
    name, folder = package
    before = digest_of(name)
    assert digest_of(name) == before
    file = folder / f"{module}.py"
    file.write_text(file.read_text() + "# edited\n")
    assert digest_of(name) != before


@pytest.mark.parametrize("module", ["kinds", "unused", "plain", "__init__"])
def test_an_edit_of_what_no_rule_uses_compiles_nothing_again(package: tuple[str, Path], module: str) -> None:
    name, folder = package
    before = digest_of(name)
    (folder / f"{module}.py").write_text("# another text\n")
    cache._imported.cache_clear()
    assert digest_of(name) == before


def test_another_version_of_the_compiler_gives_another_digest(
    package: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest_of(package[0])
    monkeypatch.setattr(cache, "version", lambda _: "0.0")
    assert digest_of(package[0]) != before


def test_rules_of_other_distributions_count_once_they_are_registered(
    package: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = package[0]
    before = digest_of("weft.mrc.rules.congestion")

    def theirs() -> None:
        """Stand for a rule of a plugin."""

    theirs.__module__ = f"{name}.rules"
    monkeypatch.setattr(cache, "rules", lambda: {f"{name}.rules.theirs": theirs})
    assert f"{name}.limits" in sources_of("weft.mrc.rules.congestion")
    assert digest_of("weft.mrc.rules.congestion") != before


@pytest.mark.parametrize("package_name", ["weft.netsim", "weft.transport"])
def test_everything_that_a_rule_of_ours_names_is_a_source(package_name: str) -> None:
    sources = sources_of(package_name)
    assert {"weft.mrc.columns", "weft.mrc.rules.numbers", "weft.mrc.rules.congestion.nscc"} <= set(sources)
    assert all(file.is_file() for file in sources.values())
    assert not [module for module in sources if module.startswith(("weft.cli", "weft.planning", "weft.cluster"))]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the user a home and temporary files below the test's own folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(cache, "use_cache", lambda _: None)
    return tmp_path


def test_a_folder_that_is_given_is_the_only_place(places: Path) -> None:
    assert list(homes("x", places / "given")) == [places / "given" / "x"]


def test_the_users_cache_comes_before_temporary_files(places: Path) -> None:
    found = list(homes("x", make=True))
    assert found[0] == places / "home" / ".cache" / "weft" / "x"
    assert len(found) == 2
    assert found[1].parent.parent == places / "tmp"
    assert stat.S_IMODE(found[1].parent.stat().st_mode) == 0o700


def test_looking_for_places_makes_none(places: Path) -> None:
    assert list(homes("x")) == [places / "home" / ".cache" / "weft" / "x"]
    assert list((places / "tmp").iterdir()) == []


def test_a_link_to_a_private_folder_is_not_trusted(places: Path) -> None:
    private = list(homes("x", make=True))[-1].parent
    moved = private.rename(places / "elsewhere")
    private.symlink_to(moved)
    assert len(list(homes("x"))) == 1


def test_nothing_is_cached_until_compiled_code_lies_there(places: Path) -> None:
    assert cache_under("x")
    home = home_of("x")
    assert home is not None
    assert not is_cached("x")
    (home / "deep").mkdir()
    (home / "deep" / "rule.1.nbc").write_bytes(b"")
    assert is_cached("x")
    assert not is_cached("y")
