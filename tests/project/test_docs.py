"""The documentation is true: its code runs, its links lead somewhere, its pages are in the menu."""

import re
import tomllib
from pathlib import Path

import pytest

from weft.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    found = [(page, match) for page in PAGES for match in BLOCK.finditer(page.read_text()) if match[1] == language]
    return [
        (f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}", match[2])
        for page, match in found
    ]


@pytest.mark.parametrize(("place", "block"), blocks("sh"))
def test_commands_in_the_docs_work(place: str, block: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    for line in block.splitlines():
        if line.startswith("weft "):
            assert main(line.partition("#")[0].split()[1:]) == 0, f"{place}: {line}"


@pytest.mark.parametrize(("place", "block"), blocks("python"))
def test_python_in_the_docs_runs(place: str, block: str):
    exec(compile(block, place, "exec"), {})


@pytest.mark.parametrize(("place", "block"), blocks("toml"))
def test_toml_in_the_docs_is_toml(place: str, block: str):
    assert tomllib.loads(block), place


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_is_in_the_menu_or_in_the_list_of_decisions():
    menu = (ROOT / "zensical.toml").read_text() + (ROOT / "docs" / "decisions" / "index.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.name in menu, page
