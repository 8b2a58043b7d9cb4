"""Working folders as they were when a job was submitted: packed by the client, kept by their digest, unpacked once.

What git ignores stays out; without git, what every build leaves behind does. There is a limit on everything, because a
folder may hold a disk's worth of data by accident.
"""

import contextlib
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from weft.core.errors import UsageError
from weft.engines.local.atomic_files import is_passing

MOST_BYTES = 64 * 2**20
MOST_FILES = 10_000
MOST_PACKED_BYTES = MOST_BYTES + MOST_FILES * 2048
_FOLDER, _READ_BYTES = 0o755, 2**20
_DEEPEST, _LONGEST_NAME = 64, 1024
_LEFT_OUT = frozenset({
    ".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".hypothesis", "runs",
})  # fmt: skip
_PATIENCE_S = 30


def pack(folder: Path) -> bytes:
    """Return the files of `folder` as a tar archive: the same files give the same bytes."""
    names = _listed_by_git(folder)
    if names is None:
        names = list(_walked(folder))
    total = 0
    kept: list[str] = []
    for name in sorted(names):
        path = folder / name
        try:
            found = path.lstat()
        except OSError:
            continue
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            continue
        total += found.st_size
        kept.append(name)
        if total > MOST_BYTES or len(kept) > MOST_FILES:
            raise UsageError(
                f"{folder} holds more than {MOST_BYTES >> 20} MiB or {MOST_FILES:,} files that git does not ignore"
                f" ({name} is one); ignore data with .gitignore, choose another --directory, or give --no-snapshot"
            )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in kept:
            archive.add(folder / name, arcname=name, recursive=False, filter=_plain)
    return buffer.getvalue()


def keep(snapshots: Path, packed: BinaryIO) -> str:
    """Unpack an archive below `snapshots`, once, and return its digest; several threads may do so at once."""
    packed.seek(0)
    whole = hashlib.sha256()
    while part := packed.read(_READ_BYTES):
        whole.update(part)
    digest = whole.hexdigest()
    target = snapshots / digest
    if target.exists():
        return digest
    place = Path(tempfile.mkdtemp(prefix=f".{digest}.", suffix=".part", dir=snapshots))
    place.chmod(_FOLDER)
    try:
        packed.seek(0)
        with tarfile.open(fileobj=packed, mode="r:") as archive:
            _check(archive)
            archive.extractall(place, filter="data")
        with contextlib.suppress(FileExistsError):
            place.rename(target)
    except OSError as error:
        if is_passing(error):
            raise
        raise _unusable(error) from None
    except (tarfile.TarError, ValueError, EOFError, LookupError, OverflowError, RecursionError, MemoryError) as error:
        raise _unusable(error) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return digest


def _unusable(error: Exception) -> UsageError:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UsageError(f"the working folder is no usable tar archive: {text[:200]}")


def _check(archive: tarfile.TarFile) -> None:
    """Raise where an archive holds what no working folder does, before anything of it is on the disk."""
    total = 0
    for count, member in enumerate(archive, start=1):
        total += max(0, member.size)
        if total > MOST_BYTES or count > MOST_FILES:
            raise UsageError(f"a working folder holds at most {MOST_BYTES >> 20} MiB in {MOST_FILES:,} files")
        if member.name.count("/") > _DEEPEST or len(member.name) > _LONGEST_NAME:
            raise UsageError(f"{member.name[:40]!r}... lies more than {_DEEPEST} folders deep; leave it out")
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise UsageError(f"{member.name[:200]!r} is no file, folder or link; others are not taken along")


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out what differs between machines and minutes."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def _listed_by_git(folder: Path) -> list[str] | None:
    """Return the files that git knows or would take; none where `folder` is in no repository."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - whichever git is there
            cwd=folder, capture_output=True, timeout=_PATIENCE_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]


def _walked(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in files:
            yield os.path.relpath(Path(place) / name, folder)
