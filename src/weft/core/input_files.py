"""Reads files that people name: plain files of a bounded size, and JSON and TOML whose shape is bounded too.

A pipe that nobody writes to, a device without an end, numbers of thousands of digits and brackets a million deep are no
input of ours, and whoever names one gets an answer at once. What is wrong is raised as `OSError` or `ValueError` with
words for a sentence; what a file means is its reader's business. Standard library only.
"""

import errno
import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

LARGEST_BYTES = 256 * 2**20
_DEEPEST, _MOST_VALUES = 64, 50_000
_LARGEST_SIGNED, _LARGEST_UNSIGNED = 2**63, 2**64
_DEEP_KEY = re.compile(rf"^[\s\[]*(?:[\w-]+[ \t]*\.[ \t]*){{{_DEEPEST}}}", re.MULTILINE)
_PIECE_BYTES = 2**20
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def read_bytes(path: Path, most: int = LARGEST_BYTES) -> bytes:
    """Return what the file at `path` holds; raises `OSError` where it is no plain file, or larger than `most`."""
    # Not to wait: the other end of a pipe may never come.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something')}, not a file", str(path))
        pieces: list[bytes] = []
        left = most + 1
        # The size that was stated is not believed: files of the kernel state none.
        while left > 0 and found.st_size <= most and (piece := os.read(handle, min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        if left <= 0 or found.st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
        return b"".join(pieces)
    finally:
        os.close(handle)


def read_text(path: Path, most: int = LARGEST_BYTES, encoding: str = "utf-8") -> str:
    """Return the text in the file at `path`; raises `OSError`, or `UnicodeDecodeError` where it is not text."""
    content = read_bytes(path, most)
    zero = content.find(b"\0")
    if zero >= 0:
        raise UnicodeDecodeError("utf-8", content[zero : zero + 1], 0, 1, f"byte {zero} is zero, so this is not text")
    return content.decode(encoding)


def json_of(content: bytes | str, most_values: int | None = None) -> Any:
    """Return what a JSON text says; raises `ValueError` in one line where it is none, or nobody's."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(_in_words(error)) from None
    _check(found, most_values, _LARGEST_UNSIGNED)
    return found


def toml_of(text: str, most_values: int = _MOST_VALUES) -> dict[str, Any]:
    """Return what a TOML text says; raises `ValueError` in one line where it is none, or nobody's."""
    # Each table costs the parser much more than it costs whoever writes the file.
    if text.count("\n[") > most_values:
        raise ValueError(f"it has more than {most_values:,} tables")
    if _DEEP_KEY.search(text):
        raise ValueError(f"a key in it is more than {_DEEPEST} deep")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(_in_words(error)) from None
    _check(found, most_values, _LARGEST_SIGNED)
    return found


def _in_words(error: ValueError) -> str:
    text = str(error)
    return "a number in it has thousands of digits" if "integer string conversion" in text else text


def _check(found: Any, most_values: int | None, largest: int) -> None:
    """Raise where a document is deeper or larger than any of ours, or holds what no later step could work with."""
    level: list[Any] = [found]
    values = 0
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, int) and not -_LARGEST_SIGNED <= value < largest:
                raise ValueError("a number in it has more than 64 bits")
            elif isinstance(value, str) and not value.isascii():
                # Half of a pair of surrogates can be written in JSON, but never be printed.
                value.encode()
        values += len(below)
        if most_values is not None and values > most_values:
            raise ValueError(f"it holds more than {most_values:,} keys and values")
        if not below:
            return
        level = below
    raise ValueError(f"it is nested more than {_DEEPEST} deep")
