"""ARCHITECTURE.md and the glossary are true: the rooms are the tree's, what they name is there, the tree is short."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "weft"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)
TOP_LEVEL = 11
"""Entries of a package that a newcomer still takes in at a glance."""


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table's rows, without its heading."""
    found = [[cell.strip() for cell in row.split(" | ")] for row in ROW.findall(text)]
    return [row for row in found[1:] if not set("".join(row)) <= set("-|")]


def packages() -> set[str]:
    """Return every package below src/weft, as its path."""
    return {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")} - {"."}


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return what a module defines: functions, classes, their methods, and names that are assigned."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


ROOMS = rows(section(ARCHITECTURE, "Rooms"))
PLACES = rows(section(ARCHITECTURE, "Find it"))


def room_of(cell: str) -> tuple[str, str]:
    """Return the text and the target of a link."""
    match = re.fullmatch(r"\[`([^`]+)`\]\(([^)]+)\)", cell)
    assert match is not None, cell
    return match[1], match[2]


def test_every_package_has_a_line_among_the_rooms():
    assert packages() - {room_of(row[0])[0] for row in ROOMS} == set()


def test_every_room_is_a_package():
    assert {room_of(row[0])[0] for row in ROOMS} - packages() == set()


def test_rooms_are_listed_once_in_order():
    listed = [room_of(row[0])[0] for row in ROOMS]
    assert listed == sorted(set(listed))


@pytest.mark.parametrize("row", ROOMS, ids=lambda row: room_of(row[0])[0])
def test_a_room_is_linked_and_described_in_one_line(row: list[str]):
    name, target = room_of(row[0])
    assert (ROOT / target).resolve() == SOURCE / name
    assert 20 <= len(row[1]) <= 160


def test_questions_are_asked_once():
    asked = [row[0] for row in PLACES]
    assert len(asked) == len(set(asked)) >= 40


@pytest.mark.parametrize("row", PLACES, ids=lambda row: row[0])
def test_what_is_to_be_found_is_there(row: list[str]):
    _, cell, name = row
    shown, target = room_of(cell)
    path = ROOT / target
    assert path == SOURCE / shown
    assert path.is_file(), target
    assert name.strip("`") in names_in(path), f"{name} is not in {target}"


@pytest.mark.parametrize("question", [
    "a SACK handled", "a gang placed", "a rank blamed", "a step timed", "a pod made", "a link fault injected",
    "a plan scored", "a checkpoint restored", "a packet forwarded", "a node cordoned",
])  # fmt: skip
def test_what_newcomers_ask_first_is_answered(question: str):
    assert any(row[0].startswith(question) for row in PLACES)


@pytest.mark.parametrize("page", [ROOT / "ARCHITECTURE.md", ROOT / "docs" / "glossary.md"], ids=lambda page: page.name)
def test_every_path_in_backquotes_exists(page: Path):
    text = page.read_text()
    for path in set(re.findall(r"`((?:[\w-]+/)+[\w-]+(?:\.\w+)?)`", text)):
        homes = (ROOT, SOURCE, SOURCE / "engines" / "kubernetes", ROOT / "packages" / "weft-lab" / "src" / "weft_lab")
        assert any((home / path).exists() for home in homes), path


TERMS = rows(GLOSSARY)


def test_the_glossary_is_sorted_by_the_fields_term():
    terms = [row[0].lower() for row in TERMS]
    assert terms == sorted(terms)
    assert len(set(terms)) == len(terms) >= 70


@pytest.mark.parametrize("row", TERMS, ids=lambda row: row[0])
def test_a_term_has_a_sentence_and_a_place(row: list[str]):
    assert len(row) == 4, row
    term, ours, meaning, where = row
    assert term
    assert ours != term
    assert 10 <= len(meaning) <= 170
    for path in re.findall(r"`([^`]+)`", where):
        assert (SOURCE / path).exists() or (ROOT / path).exists(), path
    assert where


def test_the_tree_shows_the_rooms_and_no_more():
    tree = section((ROOT / "ARCHITECTURE.md").read_text(), "The tree")
    lines = [line for line in tree.splitlines() if line.startswith("  ")]
    shown = {name for line in lines for name in re.findall(r"(\w+)/", line)}
    assert len(lines) <= TOP_LEVEL
    assert shown == {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_the_command_line_shows_what_it_is():
    entries = [path for path in (SOURCE / "cli").iterdir() if path.name not in ("__init__.py", "__pycache__")]
    assert len(entries) <= TOP_LEVEL
