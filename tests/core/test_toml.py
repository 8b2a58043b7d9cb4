"""TOML: what is written reads back as it was, and rewriting a file loses no comment of what stays."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.toml import rewritten, value_of, written

KEYS = st.text("abcdefghij_", min_size=1, max_size=6)
PLAIN = (
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
)
VALUES = st.recursive(
    PLAIN | st.lists(PLAIN, max_size=3), lambda below: st.dictionaries(KEYS, below, max_size=3), max_leaves=8
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=5)


@given(TABLES)
def test_what_is_written_reads_back_as_it_was(table: dict[str, Any]):
    assert tomllib.loads(written(table)) == table


@given(st.lists(st.dictionaries(KEYS, PLAIN, min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_list_of_tables_reads_back_as_it_was(rows: list[dict[str, Any]]):
    assert tomllib.loads(written({"seed": 0, "faults": rows, "last": 1})) == {"seed": 0, "faults": rows, "last": 1}


def test_plain_keys_stand_before_tables_in_the_order_given():
    table = {"z": 1, "inner": {"b": 2, "deeper": {"c": 3}, "a": 4}, "name": "it's"}
    assert written(table).split("\n") == [
        "z = 1", 'name = "it\'s"', "", "[inner]", "b = 2", "a = 4", "", "[inner.deeper]", "c = 3",
    ]  # fmt: skip


@given(TABLES, TABLES)
def test_a_rewritten_file_says_what_the_new_table_says(old: dict[str, Any], new: dict[str, Any]):
    assert tomllib.loads(rewritten(written(old), new)) == new


OWN = """# my machine
name = 'here' # not "there"
planes = 4

[fabric] # from the vendor's sheet
gpus = 1_024
# slow cables
rate = "100 Gb/s"
"""


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, ("# my machine", "name = 'here' # not", "[fabric] # from the vendor's sheet", "gpus = 1_024")),
        ({"rate": "200 Gb/s"}, ("# slow cables", 'rate = "200 Gb/s"', "gpus = 1_024")),
        ({"gpus": 2048}, ("gpus = 2048", "# slow cables", "# my machine")),
        ({"deeper": {"more": 1}}, ("[fabric.deeper]", "more = 1", "# slow cables")),
    ],
)
def test_comments_and_the_way_that_equal_values_are_written_stay(change: dict[str, Any], kept: tuple[str, ...]):
    before = tomllib.loads(OWN)
    text = rewritten(OWN, {**before, "fabric": {**before["fabric"], **change}})
    assert all(piece in text for piece in kept), text


def test_a_key_that_is_gone_is_gone_from_the_file():
    text = rewritten(OWN, {"name": "here"})
    assert tomllib.loads(text) == {"name": "here"}
    assert "# my machine" in text


def test_a_value_that_becomes_a_table_is_replaced_by_it():
    assert tomllib.loads(rewritten("plan = 'auto'\n", {"plan": {"dp": 2}})) == {"plan": {"dp": 2}}
    assert tomllib.loads(rewritten("[plan]\ndp = 2\n", {"plan": "auto"})) == {"plan": "auto"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("3.5", 3.5), ("true", True), ("word", "word"), ('"3"', "3"), ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}), ("800 Gb/s", "800 Gb/s"), ("", ""), ("a = b", "a = b"),
    ],
)  # fmt: skip
def test_words_on_a_command_line_need_no_quotes(text: str, value: Any):
    assert value_of(text) == value
