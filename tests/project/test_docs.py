"""The documentation is true: its code runs, its links lead somewhere, its pages are in the menu."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from scripts import generated_pages, pictures, shown_output

import weft
from weft.cli.main import app
from weft.specs.files import KINDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    found = [(page, match) for page in PAGES for match in BLOCK.finditer(page.read_text()) if match[1] == language]
    return [
        (f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}", match[2])
        for page, match in found
    ]


def shown_blocks() -> list[tuple[str, shown_output.ShownBlock]]:
    return [
        (f"{page.relative_to(ROOT)}:{block.line}", block)
        for page in PAGES
        for block in shown_output.blocks_of(page.read_text())
        if block.commands
    ]


@pytest.mark.parametrize(("place", "block"), shown_blocks(), ids=[place for place, _ in shown_blocks()])
def test_commands_in_the_docs_work_and_print_what_is_shown(
    place: str, block: shown_output.ShownBlock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    (ROOT / "build").mkdir(exist_ok=True)
    output, statuses = shown_output.printed(block.commands)
    assert set(statuses) == {0}, place
    if block.shown is not None:
        name = place.partition(":")[0]
        hint = f"{place} shows another output; python scripts/shown_output.py {name} renews it\n{output}"
        assert shown_output.agrees(block.shown, output, loose=block.loose), hint


def test_every_block_of_commands_is_found():
    found = sum(page.read_text().count("```sh\n") for page in PAGES)
    assert found == sum(1 for page in PAGES for _ in shown_output.blocks_of(page.read_text()))


@pytest.mark.parametrize(
    ("shown", "output", "loose", "same"),
    [
        ("a 1\n", "a 1\n", False, True),
        ("a 1\n", "a 2\n", False, False),
        ("a 1\n", "a 2\n", True, True),
        ("a 1\n", "b 2\n", True, False),
        ("a\n...\n", "a\nb\nc\n", False, True),
        ("a\n...\nd\n", "a\nb\nc\n", False, False),
        ("a\n", "a\nb\n", False, False),
        ("x   1,000 s\n───\n", "x  20.5 s\n──\n", True, True),
    ],
)
def test_shown_output_is_held_against_what_is_printed(shown: str, output: str, loose: bool, same: bool):
    assert shown_output.agrees(shown, output, loose=loose) == same


def test_tutorials_show_output():
    tutorials = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    assert len(tutorials) == 6
    for page in tutorials:
        assert any(block.shown is not None for block in shown_output.blocks_of(page.read_text())), page.name


def test_generated_pages_name_everything_there_is():
    made = {place: make() for place, make in generated_pages.PAGES.items()}
    for words in generated_pages.leaves(app):
        assert f"## weft {' '.join(words)}\n" in made["reference/commands.md"]
    for name in set(weft.__all__) - {"__version__"}:
        assert f"## weft.{name}\n" in made["reference/python.md"]
    for kind, spec in KINDS.items():
        for key in spec.model_fields:
            assert f"| `{key}` |" in made["reference/files.md"], kind
    for name, *_ in generated_pages.families():
        assert f"`{name}`" in made["reference/metrics.md"]
    assert made["reference/http.md"].count("\n## ") > 10
    assert "None |" not in made["reference/files.md"]


def test_results_are_those_of_the_recorded_pages():
    text = generated_pages.results()
    for name in ("verification", "rivals"):
        page = (ROOT / "docs" / f"{name}.md").read_text()
        lost = page.count("| **no**")
        counted = [(int(a), int(b)) for a, b in re.findall(r"\| (\d+) of (\d+) \|", page)]
        assert sum(every - held for held, every in counted) == lost
        assert f"**{sum(a for a, _ in counted)} of {sum(b for _, b in counted)} rows hold**" in text
    assert text.count("why") >= 1


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
    for place in generated_pages.PAGES:
        assert f'"{place}"' in (ROOT / "zensical.toml").read_text(), place
    menu = (ROOT / "zensical.toml").read_text() + (ROOT / "docs" / "decisions" / "index.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.name in menu, page


def test_pictures_are_made_by_a_program_and_shown():
    there = {path.stem for path in (ROOT / "docs/pictures").iterdir()}
    shown = {
        name for page in PAGES for name in re.findall(r"!\[[^\]]+\]\([^)]*pictures/([\w-]+)\.\w+\)", page.read_text())
    }
    made = {*pictures.every()} | {name for name in there if name.startswith("verification-")}
    assert there == made, "scripts/pictures.py and python -m verification make all of them"
    assert shown == there


def test_what_makes_a_picture_is_a_command():
    every = {**pictures.PLOTTED, **pictures.TRAINED, **pictures.PRINTED}
    for words in every.values():
        parsed = app.parse_args(shlex.split(words), exit_on_error=False, print_error=False)
        assert parsed[0] is not None, words
