"""Spec files: every mistake at once, each with its place and its remedy."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from weft.core.errors import SpecError, UsageError
from weft.core.spec import Check, Rate, Spec
from weft.core.specfile import Library, line_of, load, schema, validate


class Inner(Spec):
    """A table."""

    rate: Rate
    """How fast."""
    count: Annotated[int, Field(ge=1)] = 2
    """How many."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("count", "rate"), lambda s: "too much; write less" if s.count * s.rate > 10**9 else None),
    )


class Outer(Spec):
    """A file."""

    name: str
    """What it is called."""
    inner: Inner
    """A table in it."""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    folder = tmp_path / "builtin"
    folder.mkdir()
    (folder / "base.toml").write_text('name = "base"\n[inner]\nrate = "1 Mb/s"\n')
    return Library("thing", folder)


def mistakes(library: Library, tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load(str(path), Outer, library)
    return {mistake.key: f"{mistake.line}: {mistake.problem}; {mistake.remedy}" for mistake in caught.value.mistakes}


def test_every_mistake_is_reported_at_once(library, tmp_path):
    found = mistakes(library, tmp_path, 'nam = "x"\n[inner]\nrate = "1 GB"\ncount = 0\ncuont = 3\n')
    assert set(found) == {"name", "nam", "inner.rate", "inner.count", "inner.cuont"}
    assert "did you mean 'count'" in found["inner.cuont"]
    assert found["inner.rate"].startswith("3: ")


def test_a_rule_over_several_fields_is_tried_beside_other_mistakes(library, tmp_path):
    found = mistakes(library, tmp_path, '[inner]\nrate = "1 Gb/s"\ncount = 2\nother = 1\n')
    assert "too much; write less" in found["inner.count"]
    assert "inner.other" in found
    assert "name" in found


def test_a_rule_is_not_tried_on_fields_that_are_wrong(library, tmp_path):
    assert set(mistakes(library, tmp_path, 'name = "n"\n[inner]\nrate = "1 Gb/s"\ncount = -2\n')) == {"inner.count"}


def test_a_file_builds_on_another(library, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('extends = "base"\n[inner]\ncount = 5\n')
    spec = load(str(path), Outer, library)
    assert (spec.name, spec.inner.rate, spec.inner.count) == ("base", 10**6, 5)


def test_a_mistake_is_blamed_on_the_file_that_has_it(library, tmp_path):
    (library.folder / "bad.toml").write_text('name = "bad"\n[inner]\nrate = "7"\n')
    path = tmp_path / "x.toml"
    path.write_text('extends = "bad"\n[inner]\ncount = 0\n')
    with pytest.raises(SpecError) as caught:
        load(str(path), Outer, library)
    assert {(m.key, m.file) for m in caught.value.mistakes} == {("inner.rate", "bad"), ("inner.count", str(path))}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('extends = "bas"', "did you mean 'base'"),
        ("extends = 3", "name of a built-in file"),
        ('extends = "x.toml"', "circle"),
        ("= 1", "not TOML"),
        ("a" * 5 + "[[[[", "not TOML"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(library, tmp_path, text, hint):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=hint):
        load(str(path), Outer, library)


@pytest.mark.parametrize("kind", ["missing", "folder", "binary", "unknown", "huge"])
def test_what_is_no_file_of_ours_is_refused(library, tmp_path, kind):
    path = tmp_path / "x.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(bytes(range(256)))
    elif kind == "huge":
        path.write_bytes(b"#" * (5 * 2**20))
    with pytest.raises(UsageError):
        load("nothing" if kind == "unknown" else str(path), Outer, library)


@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_spec_or_a_clear_refusal(tmp_path_factory, content: bytes):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        load(str(path), Outer, Library("thing", path.parent / "none"))


tables: Any = st.dictionaries(
    st.sampled_from(["name", "inner", "innr", "x"]),
    st.one_of(st.integers(), st.text(max_size=3), st.dictionaries(st.sampled_from(["rate", "count"]), st.integers())),
)


@given(table=tables)
def test_any_table_is_a_spec_or_a_list_of_mistakes(table: dict[str, Any]):
    with pytest.raises(SpecError) as caught:
        validate(table, Outer, "given")
    assert all(mistake.problem for mistake in caught.value.mistakes)


def test_the_line_of_a_key_is_found():
    text = "a = 1\n\n[b]\nc = 2\n[b.d]\ne = 3\n[[f]]\ng = 4\n"
    assert line_of(text, ("a",)) == 1
    assert line_of(text, ("b", "c")) == 4
    assert line_of(text, ("b", "d", "e")) == 6
    assert line_of(text, ("b", "missing")) == 3
    assert line_of(text, ("f", 0, "g")) == 8
    assert line_of(text, ("z",)) is None


def test_the_schema_names_every_field_with_its_meaning():
    described = schema(Outer)
    assert described["properties"]["name"]["description"] == "What it is called."
    assert "extends" in described["properties"]
    assert described["additionalProperties"] is False
