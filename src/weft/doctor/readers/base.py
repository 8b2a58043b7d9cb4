"""What a reader is, and a file as readers see it: its beginning, its lines, its bytes, unpacked where it is packed."""

import bz2
import gzip
import io
import lzma
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from weft.core.errors import UsageError
from weft.doctor.readers.evidence import Evidence

_HEAD_BYTES = 64 * 2**10
_LONGEST_LINE = 2**20
_PACKED: tuple[tuple[bytes, Callable[[BinaryIO], Any]], ...] = (
    (b"\x1f\x8b", lambda raw: gzip.GzipFile(fileobj=raw)), (b"BZh", bz2.BZ2File), (b"\xfd7zXZ\0", lzma.LZMAFile),
)  # fmt: skip
_REFUSED = (
    (b"\x28\xb5\x2f\xfd", "is packed by zstd; unpack it first, as with zstd -d"),
    (b"PK\x03\x04", "is packed by zip; unpack it first"),
    (b"\xff\xfe", "is text in UTF-16; write it in UTF-8, as with iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is text in UTF-16; write it in UTF-8, as with iconv -f UTF-16 -t UTF-8"),
)
"""What files begin with that are not read, and what would help."""
_UTF8_MARK = b"\xef\xbb\xbf"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LAUNCHER = re.compile(
    r"^(?:\s*(?:\d{1,7}: (?!\d)|\[rank\s?\d+\]: ?|\[default\d+\]: ?|\[\d+,\d+\]<std(?:out|err)>: ?|"
    r"\(\w[\w. ]*pid=\d+[^)]*\) ?|"
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ?))+"
)
"""What srun, torchrun, mpirun, Ray and container runtimes write before each line of a program."""
_MOST_UNPACKED = 64 * 2**30


class UnreadableError(UsageError):
    """A file that looked right and is not; the text says why."""


@dataclass(frozen=True)
class FileToRead:
    """One file. Nothing of it is held but its beginning."""

    path: Path
    trouble: list[str] = field(default_factory=list, compare=False)
    """Why not all of it could be read, as was found while reading."""

    @cached_property
    def head(self) -> bytes:
        """Return its first bytes, unpacked."""
        with self.open() as stream:
            return stream.read(_HEAD_BYTES)

    @property
    def name(self) -> str:
        """Return its name without the ending of a packed file."""
        return re.sub(r"\.(?:gz|bz2|xz)$", "", self.path.name)

    @property
    def rank(self) -> int | None:
        """Return the rank that its name speaks of, as in `rank3.json`, `trace_rank_3` or `dump.3`."""
        found = re.search(r"(?:rank|node|host|gpu|^|[._-])[._-]?(\d{1,7})(?=\.|_|-|$)", self.name, re.IGNORECASE)
        explicit = re.search(r"rank[._-]?(\d{1,7})", self.name, re.IGNORECASE)
        # torch's handler for tensorboard names host, process and time, of which none is a rank.
        chosen = explicit or (None if self.name.endswith(".pt.trace.json") else found)
        return int(chosen.group(1)) if chosen else None

    def note(self, trouble: str) -> None:
        """Take down, once, why not all of the file can be read."""
        if trouble not in self.trouble:
            self.trouble.append(trouble)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Give its bytes, unpacked."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise UnreadableError(f"{self.path} is not a regular file")
            with self.path.open("rb") as raw:
                begins = raw.read(8)
                for mark, why in _REFUSED:
                    if begins.startswith(mark):
                        raise UnreadableError(f"{self.path} {why}")
                raw.seek(0)
                unpacks = next((unpacks for mark, unpacks in _PACKED if begins.startswith(mark)), None)
                if unpacks is None:
                    yield _unmarked(raw)
                    return
                with unpacks(raw) as unpacked:
                    yield _unmarked(io.BufferedReader(_UntilDamage(unpacked, self.note), 2**20))
        except (gzip.BadGzipFile, lzma.LZMAError, EOFError) as error:
            raise UnreadableError(f"{self.path} is damaged: {error}") from None
        except OSError as error:
            raise UnreadableError(f"{self.path} cannot be read: {error.strerror or error}") from None

    def lines(self) -> Iterator[str]:
        """Yield its lines as text; what is no text is replaced, and lines that never end are cut."""
        with self.open() as stream:
            while line := stream.readline(_LONGEST_LINE):
                yield line.decode("utf-8", "replace").rstrip("\r\n")

    def log_lines(self) -> Iterator[str]:
        """Yield its lines as a program wrote them: without colours, launchers' marks, or bars in one line."""
        for line in self.lines():
            for part in line.split("\r") if "\r" in line else (line,):
                yield _LAUNCHER.sub("", _COLOURS.sub("", part))

    @cached_property
    def text_head(self) -> str:
        """Return its beginning as text."""
        return self.head.decode("utf-8", "replace")

    @cached_property
    def log_head(self) -> str:
        """Return the lines of its beginning as a program wrote them."""
        lines = re.split(r"[\r\n]+", _COLOURS.sub("", self.text_head))
        return "\n".join(_LAUNCHER.sub("", line) for line in lines)

    @property
    def is_text(self) -> bool:
        """Return whether it begins like text."""
        return b"\0" not in self.head


def _unmarked(stream: io.BufferedReader) -> BinaryIO:
    """Return a stream behind the mark that some editors and shells put before UTF-8."""
    if stream.peek(len(_UTF8_MARK)).startswith(_UTF8_MARK):
        stream.read(len(_UTF8_MARK))
    return cast("BinaryIO", stream)


class _UntilDamage(io.RawIOBase):
    """Unpacks a file as far as it goes: what stands before the place where it was cut off is whole."""

    def __init__(self, unpacked: Any, note: Callable[[str], None]) -> None:
        super().__init__()
        self.unpacked, self.note, self.got = unpacked, note, False

    def readable(self) -> bool:  # type: ignore[missing-override-decorator]
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # type: ignore[missing-override-decorator]
        """Fill a buffer; nothing where the file is damaged from here on."""
        try:
            data = self.unpacked.read1(len(buffer))
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            if not self.got:
                raise EOFError(str(error)) from None
            self.note("its packed form is cut off or damaged; what stands before that was read")
            return 0
        self.got = True
        buffer[: len(data)] = data
        return len(data)


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
