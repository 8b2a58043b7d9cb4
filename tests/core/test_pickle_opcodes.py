"""Pickles read as descriptions: plain values come back, names are refused, and no file makes the reader run or hang."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.pickle_opcodes import Described, StrangePickleError, described, plain_values

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    | st.tuples(inner, inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN, st.sampled_from([2, 3, 4]))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert plain_values(pickle.dumps(value, protocol=protocol), "a dump") == value


@given(PLAIN, st.data())
def test_a_cut_file_is_refused_or_read_but_raises_nothing_else(value: Any, data: st.DataObject) -> None:
    whole = pickle.dumps(value, protocol=2)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(StrangePickleError):
        plain_values(cut, "a dump")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_name_is_refused_and_nothing_runs(tmp_path: Path, protocol: int) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    with pytest.raises(StrangePickleError):
        plain_values(pickle.dumps({"a": [Hostile()]}, protocol=protocol), "a dump")
    assert not (tmp_path / "ran").exists()


def test_a_known_name_is_described_and_not_made() -> None:
    # Python 3.13 writes the name of a module of its own.
    name = f"{type(Path()).__module__}.PosixPath"
    found = described(pickle.dumps(Path("a"), protocol=4), (name,), "a dump")
    assert isinstance(found, Described)
    assert found.name == name


def test_a_list_that_holds_itself_is_refused_at_once() -> None:
    circle: list[Any] = []
    circle.extend([circle] * 8)
    with pytest.raises(StrangePickleError, match="itself"):
        plain_values(pickle.dumps(circle, protocol=2), "a dump")


def test_values_that_are_shared_many_times_over_are_made_once() -> None:
    value: list[Any] = [1]
    for _ in range(50):
        value = [value, value]
    assert len(plain_values(pickle.dumps(value, protocol=2), "a dump")) == 2
