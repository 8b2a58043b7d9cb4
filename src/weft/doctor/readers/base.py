"""What a reader is, and a file as readers see it: its beginning, its lines, its bytes, unpacked where it is packed."""

import gzip
import io
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from weft.core.errors import UsageError
from weft.doctor.readers.evidence import Evidence

_HEAD_BYTES = 64 * 2**10
_LONGEST_LINE = 2**20
_GZIP = b"\x1f\x8b"
_MOST_UNPACKED = 64 * 2**30


class UnreadableError(UsageError):
    """A file that looked right and is not; the text says why."""


@dataclass(frozen=True)
class FileToRead:
    """One file. Nothing of it is held but its beginning."""

    path: Path

    @cached_property
    def head(self) -> bytes:
        """Return its first bytes, unpacked."""
        with self.open() as stream:
            return stream.read(_HEAD_BYTES)

    @property
    def name(self) -> str:
        """Return its name without the ending of a packed file."""
        return self.path.name.removesuffix(".gz")

    @property
    def rank(self) -> int | None:
        """Return the rank that its name speaks of, as in `rank3.json`, `trace_rank_3` or `dump.3`."""
        found = re.search(r"(?:rank|node|host|gpu|^|[._-])[._-]?(\d{1,7})(?=\.|_|-|$)", self.name, re.IGNORECASE)
        explicit = re.search(r"rank[._-]?(\d{1,7})", self.name, re.IGNORECASE)
        chosen = explicit or found
        return int(chosen.group(1)) if chosen else None

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Give its bytes, unpacked."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise UnreadableError(f"{self.path} is not a regular file")
            with self.path.open("rb") as raw:
                packed = raw.read(2) == _GZIP
                raw.seek(0)
                if not packed:
                    yield raw
                    return
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", unpacked), 2**20))
        except (gzip.BadGzipFile, EOFError) as error:
            raise UnreadableError(f"{self.path} is damaged: {error}") from None
        except OSError as error:
            raise UnreadableError(f"{self.path} cannot be read: {error.strerror or error}") from None

    def lines(self) -> Iterator[str]:
        """Yield its lines as text; what is no text is replaced, and lines that never end are cut."""
        with self.open() as stream:
            while line := stream.readline(_LONGEST_LINE):
                yield line.decode("utf-8", "replace").rstrip("\r\n")

    @cached_property
    def text_head(self) -> str:
        """Return its beginning as text."""
        return self.head.decode("utf-8", "replace")

    @property
    def is_text(self) -> bool:
        """Return whether it begins like text."""
        return b"\0" not in self.head


class Reader(Protocol):
    """Knows the files of one tool."""

    name: str
    """The kind of file in a few words, for people."""

    def recognises(self, file: FileToRead) -> bool:
        """Return whether a file is of this kind, from its name and its beginning."""
        ...

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Add what is in the file to `evidence`; return what was found, in a few words."""
        ...
