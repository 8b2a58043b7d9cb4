"""Object code: what it fits, that it computes what the rule does, and that running it needs no compiler."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.compile import cache
from weft.core.compile.cache import digest_of, listed_digest, put, sources_of
from weft.core.compile.objects import Flat, file_name, layout_of, load, make, shape_of, store, stored
from weft.core.compile.rules import rule, target


class _Pair(NamedTuple):
    wide: np.ndarray
    narrow: np.ndarray


@rule
def _weighed(columns: _Pair, row: int, negative: bool) -> int:
    total = 0
    for k in range(columns.wide.shape[1]):
        total += columns.wide[row, k] * columns.narrow[k]
    columns.wide[row, 0] += 1
    return -total if negative else total


@rule
def _refused(number: int) -> int:
    # As an assertion compiles; in a test's own file pytest writes those anew.
    if number <= 0:
        raise AssertionError
    return number


def _spread(rows: int, width: int, gap: int) -> np.ndarray:
    """Return columns whose rows lie `gap` numbers apart, also where there is one row."""
    memory = np.arange(rows * (width + gap), dtype=np.int64)
    return np.ndarray((rows, width), np.int64, memory.data, 0, (8 * (width + gap), 8))


@settings(max_examples=5)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.booleans(), st.lists(st.integers(-9, 9), min_size=5))
def test_object_code_computes_what_the_rule_does(
    rows: int, width: int, gap: int, negative: bool, numbers: list[int]
) -> None:
    plain, linked = (_Pair(_spread(rows, width, gap), np.array(numbers[:width], np.int16)) for _ in ("plain", "linked"))
    call = load(make(_weighed, None, (linked, 0, negative)))
    flat = Flat()
    for row in range(rows):
        flat.fill((linked, row, negative))
        assert call(flat) == _weighed(plain, row, negative)
    assert (plain.wide == linked.wide).all()


def test_columns_that_come_again_are_taken_apart_once_and_others_anew() -> None:
    one, other = np.array([[5, 6]]), np.array([[7, 8]])
    weights = np.array([1, 10], np.int16)
    call = load(make(_weighed, None, (_Pair(one, weights), 0, False)))
    flat, same = Flat(), _Pair(one, weights)
    for columns, expected in ((same, 65), (same, 66), (_Pair(other, weights), 87), (same, 67)):
        flat.fill((columns, 0, False))
        assert call(flat) == expected


def test_an_assertion_that_does_not_hold_is_an_error() -> None:
    call = load(make(_refused, None, (1,)))
    flat = Flat()
    flat.fill((3,))
    assert call(flat) == 3
    flat.fill((0,))
    with pytest.raises(AssertionError, match="an assertion of a compiled rule"):
        call(flat)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 4))
def test_one_row_has_the_shape_of_many(rows: int, width: int, gap: int) -> None:
    assert layout_of(_spread(rows, width, gap)) == ("A" if gap else "C")
    assert shape_of((_spread(1, width, gap),)) == shape_of((_spread(rows + 1, width, gap),))


@pytest.mark.parametrize(
    "other",
    [
        (np.zeros(3, np.int32), 1),
        (np.zeros((3, 1), np.int64), 1),
        (np.zeros(6, np.int64)[::2], 1),
        (np.zeros(3, np.int64), True),
        (np.zeros(3, np.dtype([("a", "i8")])), 1),
        ((np.zeros(3, np.int64),), 1),
    ],
)
def test_other_kinds_of_arguments_have_other_shapes(other: tuple[object, ...]) -> None:
    assert shape_of((np.zeros(5, np.int64), 7)) == shape_of((np.zeros(3, np.int64), 1)) != shape_of(other)


def test_empty_columns_have_the_shape_of_full_ones() -> None:
    assert [layout_of(np.zeros(shape)) for shape in ((2, 0), (0, 3), (2, 3))] == ["C", "C", "C"]


@rule
def _halved(number: int) -> float:
    return number / 2


def test_what_does_not_fit_a_word_is_neither_taken_nor_returned() -> None:
    with pytest.raises(AssertionError, match="returns float64, which does not fit a word"):
        make(_halved, None, (1,))
    with pytest.raises(AssertionError, match="whole numbers"):
        file_name(_halved, None, (1.5,))


def test_stored_code_runs_without_the_compiler(tmp_path: Path) -> None:
    store(tmp_path / "code.o", make(_refused, None, (1,)))
    program = (
        "import sys; from pathlib import Path; from weft.core.compile.objects import Flat, load, stored;"
        "flat = Flat(); flat.fill((42,)); call = load(stored(Path(sys.argv[1])));"
        "print(call(flat), 'numba' in sys.modules)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "code.o")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == ["42", "False"]


@given(st.binary(min_size=1, max_size=99), st.data())
def test_a_file_that_is_damaged_cut_longer_or_moved_is_not_loaded(code: bytes, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "rules-1" / "rule.o"
        place.parent.mkdir()
        store(place, code)
        assert stored(place) == code
        whole = place.read_bytes()
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        for content in (bytes(damaged), whole[:at], whole + b"x"):
            place.write_bytes(content)
            assert stored(place) is None
        # Code made from other sources, by another compiler or for another processor lies in another folder.
        for moved in (place.with_name("other.o"), Path(folder) / "rule.o", Path(folder) / "none.o"):
            if moved.name != "none.o":
                moved.write_bytes(whole)
            assert stored(moved) is None


@pytest.mark.parametrize("changed", ["python", "numba", "llvmlite", "processor", "features", "maker"])
def test_another_compiler_or_processor_gives_another_digest(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of("weft.netsim")
    real, made_for = cache.version, target()
    if changed == "python":
        monkeypatch.setattr(cache.sys.implementation, "cache_tag", "cpython-399")
    elif changed == "maker":
        monkeypatch.setattr(cache, "_MAKER", Path(__file__))
    elif changed in ("numba", "llvmlite"):
        monkeypatch.setattr(cache, "version", lambda name: "0.0" if name == changed else real(name))
    else:
        other = (made_for[0], "+more") if changed == "features" else ("another", made_for[1])
        monkeypatch.setattr(cache, "target", lambda: other)
    assert digest_of("weft.netsim") != before


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the list of sources beside stored code; whoever looks for them all is told so by a failure."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "none")
    # Rules of others, such as those of this file, are never on a list.
    monkeypatch.setattr(cache, "rules", dict)
    home = tmp_path / "weft" / f"rules-{digest_of('weft.netsim')}"
    home.mkdir(parents=True)
    put(home / cache.LIST, " ".join(sources_of("weft.netsim")).encode())
    monkeypatch.setattr(cache, "sources_of", lambda _: pytest.fail("all were looked for"))
    return home / cache.LIST


def test_the_digest_is_found_by_the_list_of_sources(listed: Path) -> None:
    assert f"rules-{listed_digest('weft.netsim', 'rules')}" == listed.parent.name


@pytest.mark.parametrize(
    "content", [b"", b"weft.mrc.columns", b"\xff\x00 .. weft.. os", b"weft.core.compile.rules " * 9]
)
def test_a_list_that_leads_elsewhere_is_not_believed(
    listed: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(listed, content)
    monkeypatch.setattr(cache, "sources_of", sources_of)
    assert f"rules-{listed_digest('weft.netsim', 'rules')}" == listed.parent.name


def test_a_list_without_a_module_that_has_a_rule_is_not_believed(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A rule in a new file changes no source that was listed, and its own edits would never be noticed.
    before = cache._with_rules
    monkeypatch.setattr(cache, "_with_rules", lambda package: [*before(package), "weft.netsim.new"])
    with pytest.raises(pytest.fail.Exception, match="all were looked for"):
        listed_digest("weft.netsim", "rules")
