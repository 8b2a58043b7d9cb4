"""Files are plain, bounded and flat enough, whatever somebody names."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.input_files import json_of, read_bytes, read_text, toml_of

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3),
    max_leaves=9,
)


@given(value=plain)
def test_ordinary_documents_come_through(value: Any):
    assert json_of(json.dumps(value)) == value


@given(content=st.binary(max_size=3000))
def test_a_file_is_read_whole_and_never_beyond_its_limit(content: bytes, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("f") / "file"
    path.write_bytes(content)
    assert read_bytes(path, len(content)) == content
    if content:
        with pytest.raises(OSError, match="larger than"):
            read_bytes(path, len(content) - 1)


def test_what_has_no_size_is_read_to_its_end():
    assert read_bytes(Path("/proc/self/stat")).startswith(str(os.getpid()).encode())


@pytest.mark.parametrize(
    ("number", "fits"), [(2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)]
)
def test_numbers_of_toml_have_64_bits(number: int, fits: bool):
    if fits:
        assert toml_of(f"a = {number}") == {"a": number}
    else:
        with pytest.raises(ValueError, match="64 bits"):
            toml_of(f"a = {number}")


@pytest.mark.parametrize(("depth", "fits"), [(60, True), (65, False), (200, False)])
def test_documents_have_a_depth(depth: int, fits: bool):
    text = "[" * depth + "]" * depth
    if fits:
        json_of(text)
        toml_of(f"a = {text}")
        toml_of(".".join("a" * depth) + " = 1")
    else:
        for read, written in ((json_of, text), (toml_of, f"a = {text}"), (toml_of, ".".join("a" * depth) + " = 1")):
            with pytest.raises(ValueError, match="deep"):
                read(written)


def test_documents_have_a_number_of_values():
    json_of(json.dumps([0] * 100), most_values=100)
    with pytest.raises(ValueError, match="more than 100"):
        json_of(json.dumps([0] * 101), most_values=100)
    with pytest.raises(ValueError, match="more than 10 tables"):
        toml_of("".join(f"\n[t{number}]" for number in range(11)), most_values=10)


def test_no_text_and_no_files_are_told_apart(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"ab\0c")
    with pytest.raises(UnicodeDecodeError, match="byte 2 is zero"):
        read_text(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="named pipe") as found:
        read_bytes(tmp_path / "pipe")
    assert found.value.errno == errno.EINVAL
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")
