"""From paths to evidence: finds the files, asks each reader, and goes on where one of them cannot be read."""

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from weft.core import plugins
from weft.core.errors import UsageError
from weft.diagnosis.collective_calls import listed
from weft.doctor.readers.base import FileToRead, Reader, UnreadableError
from weft.doctor.readers.chakra import ChakraReader
from weft.doctor.readers.device_counters import DeviceCounterReader
from weft.doctor.readers.evidence import Evidence, SourceFile
from weft.doctor.readers.flight_recorder import FlightRecorderReader
from weft.doctor.readers.kineto import KinetoReader
from weft.doctor.readers.nccl_ras import NcclRasReader
from weft.doctor.readers.nccl_text import NcclLogReader, NcclTestsReader
from weft.doctor.readers.operation_table import OperationTableReader
from weft.doctor.readers.training_log import MlperfReader, RunFolderReader, TrainingLogReader

GROUP = "weft.readers"
MOST_FILES = 20_000
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_READERS: tuple[Callable[[], Reader], ...] = (
    # Those that know their files for certain first; a training's log may quote anything.
    ChakraReader, FlightRecorderReader, NcclRasReader, KinetoReader, RunFolderReader, MlperfReader,
    NcclTestsReader, DeviceCounterReader, OperationTableReader, NcclLogReader, TrainingLogReader,
)  # fmt: skip


def readers() -> list[Reader]:
    """Return all readers; those of other distributions are asked first."""
    added = [cast("Callable[[], Reader]", point)() for point in plugins.entry_points(GROUP).values()]
    return added + [make() for make in _READERS]


def gather(paths: Sequence[str | Path], watch: Callable[[str, int, int], None] | None = None) -> Evidence:
    """Read all files below `paths`; a file that cannot be read is named and the rest is still read."""
    files = list(find_files(paths))
    known = readers()
    evidence = Evidence()
    for number, path in enumerate(files):
        if watch is not None:
            watch("reading", number, len(files))
        evidence.sources.append(read_file(path, known, evidence))
    if watch is not None:
        watch("reading", len(files), len(files))
    return evidence


def read_file(path: Path, known: Iterable[Reader], evidence: Evidence) -> SourceFile:
    """Read one file with the first reader that recognises it."""
    file = FileToRead(path)
    try:
        if not file.head:
            return SourceFile(str(path), "", "is empty")
        reader = next((reader for reader in known if reader.recognises(file)), None)
        if reader is None:
            return SourceFile(str(path), "", "is in no format that weft reads")
        read = Evidence()
        found = reader.read(file, read)
    except UnreadableError as error:
        return SourceFile(str(path), "", str(error).removeprefix(f"{path} "))
    except _MALFORMED as error:
        # Readers look for what their tools write; what a file holds in its place may be anything.
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        return SourceFile(str(path), "", f"is damaged: {reason}")
    if isinstance(reader, FlightRecorderReader):
        if twice := sorted(read.heard & evidence.dumped):
            return SourceFile(
                str(path), "", f"is not the first dump of {listed(twice)}; name the dumps of one job at a time"
            )
        evidence.dumped |= read.heard
    evidence.add(read)  # nothing of a file that broke in the middle
    return SourceFile(str(path), reader.name, "; ".join([found, *file.trouble]))


def find_files(paths: Sequence[str | Path]) -> Iterator[Path]:
    """Yield the files that are meant: files, everything below folders, and what patterns match."""
    seen: set[Path] = set()
    for given in paths:
        # pathlib's own globbing wants a folder to begin in; what is given may be absolute.
        matches = sorted(glob.glob(str(given), recursive=True)) if glob.has_magic(str(given)) else [given]  # noqa: PTH207
        found = [Path(one) for one in matches]
        if not found:
            raise UsageError(f"no file matches {given}")
        for path in found:
            if not path.exists():
                raise UsageError(f"there is no file or folder {path}")
            below = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
            for file in below:
                if file not in seen:
                    seen.add(file)
                    if len(seen) > MOST_FILES:
                        raise UsageError(f"there are more than {MOST_FILES:,} files; name fewer folders")
                    yield file
    if not seen:
        raise UsageError(f"there is no file in {', '.join(map(str, paths))}")
