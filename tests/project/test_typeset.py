"""Formulas of the pages: all of them are TeX that can be drawn, and what is code stays as it is."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts.typeset import formulas, typeset

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if formulas(page.read_text())]
_LETTERS = st.text("abx (1)+.,", min_size=1, max_size=12).map(str.strip).filter(bool)
_DRAWN = re.compile(r"<math.*?</math>", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_formula_of_a_page_is_drawn(page: Path):
    text = page.read_text()
    drawn = _DRAWN.findall(typeset(text))
    assert len(drawn) == len(formulas(text))
    for each in drawn:
        words = "".join(ElementTree.fromstring(each).itertext())
        assert "\\" not in words, "a command of TeX that is not known"


def test_pages_with_mathematics_have_formulas():
    names = {page.stem for page in PAGES}
    assert {"scaling", "explain", "planning"} <= names


@given(st.lists(st.tuples(st.sampled_from(["prose", "line", "code", "fence", "block"]), _LETTERS), max_size=8))
def test_formulas_are_drawn_and_code_is_left(parts: list[tuple[str, str]]):
    written = {"prose": "{}", "line": "${}$", "code": "`${}$`", "fence": "```sh\n${}$\n```", "block": "$$\n{}\n$$"}
    text = "\n\n".join(written[kind].format(words) for kind, words in parts)
    made = typeset(text)
    drawn = [words for kind, words in parts if kind in {"line", "block"}]
    assert formulas(text) == drawn
    assert len(_DRAWN.findall(made)) == len(drawn)
    for kind, words in parts:
        if kind in {"code", "fence"}:
            assert written[kind].format(words) in made


@pytest.mark.parametrize("text", ["`$HOME` and `$WEFT`", "costs 5$ or 6$", "${XDG}", "a \\$b$ c", "$ a $"])
def test_a_dollar_is_no_formula(text: str):
    assert typeset(text) == text
