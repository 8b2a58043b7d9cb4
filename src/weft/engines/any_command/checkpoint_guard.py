"""Looks after the checkpoint files of a program that it knows nothing of: digests, copies, and what is torn goes away.

While ranks run, every file that has come to rest is read, its digest is written down and a copy is put beside the run
and read back. When no rank runs, every file is held against that: one that has changed by itself, or was still being
written when the ranks ended, is replaced by its copy or moved away, so that no program resumes from it.
"""

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from weft.core.errors import FailedError

Entry = TypeVar("Entry")
_LOOK_S = 1.0
_CHUNK = 1 << 20
_HEAD = 8
_RECORD, _COPIES, _DAMAGED, _LOOKED = "guard.json", "copies", "damaged", "looked.json"
_BEFORE_NS, _AFTER_NS = 2_500_000_000, 3_000_000_000
"""Around the last look before the ranks ended: what was written then may be half of what was meant."""
_SHARDS, _LIST = ".distcp", ".metadata"


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file as it was when it was last seen whole."""

    size: int
    mtime_ns: int
    sha256: str


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while part := stream.read(_CHUNK):
            found.update(part)
    return found.hexdigest()


def broken(path: Path) -> str | None:
    """Return what is wrong with a file by its own form, or nothing; most forms say nothing about themselves."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
        if path.suffix == ".safetensors":
            return _broken_tensors(path, int.from_bytes(head, "little"))
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif head.startswith(b"PK\x03\x04") and path.suffix != _SHARDS:
            with zipfile.ZipFile(path) as packed:
                bad = packed.testzip()
            return None if bad is None else f"{bad} in it has another checksum than was written"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, zipfile.BadZipFile, RuntimeError) as error:
        return f"it cannot be read: {error}"
    return None


def _broken_tensors(path: Path, length: int) -> str | None:
    size = path.stat().st_size
    if length > size:
        return f"its header says {length} bytes, the file has {size}"
    with path.open("rb") as stream:
        stream.seek(_HEAD)
        header = json.loads(stream.read(length))
    ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
    wanted = _HEAD + length + max(ends, default=0)
    return None if size == wanted else f"it has {size} bytes instead of {wanted}"


def _copied(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, part)
    part.replace(target)


class CheckpointGuard:
    """The guard of one folder."""

    def __init__(self, folder: Path, keep: Path, in_use: Callable[[], Collection[str]] = tuple) -> None:
        """Look after `folder` with copies in `keep`; `in_use` says which files some rank has open for writing."""
        self.folder, self._keep, self._in_use = folder, keep, in_use
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._seen: dict[str, tuple[int, int]] = {}
        self._known = self._read(_RECORD, lambda one: KnownFile(**one))
        self._open = self._read(_LOOKED, str)
        """Files that were open for writing at the last look, with the time of that look under the name ""."""
        self.stored = 0
        """Files that were found whole and put away, in all."""
        self.trouble: list[str] = []
        """What could not be put away, and why."""

    def _read(self, record: str, made: Callable[[Any], Entry]) -> dict[str, Entry]:
        try:
            found = json.loads((self._keep / record).read_bytes())
            return {name: made(one) for name, one in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            raise FailedError(
                f"{self._keep / record} is damaged, so nobody knows what was stored in {self.folder}; move"
                f" {self._keep} away to take the files there as they are"
            ) from None

    def _write(self, record: str, table: Mapping[str, Any]) -> None:
        self._keep.mkdir(parents=True, exist_ok=True)
        part = self._keep / f".{record}.part"
        part.write_text(json.dumps(table), encoding="utf-8")
        part.replace(self._keep / record)

    def _write_known(self) -> None:
        self._write(_RECORD, {name: asdict(one) for name, one in self._known.items()})

    def _files(self) -> dict[str, Path]:
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        return {path.relative_to(self.folder).as_posix(): path for path in found if self._keep not in path.parents}

    def begin(self) -> None:
        """Look again and again from now on, in a thread."""
        self._ended.clear()
        threading.Thread(target=self._watch, name="checkpoint guard", daemon=True).start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                self.look()
            except OSError as error:
                self.trouble.append(f"checkpoints were not looked after: {error}")

    def look(self) -> None:
        """Put away what has come to rest since the last look; ranks may run meanwhile."""
        with self._lock:
            written = set(self._in_use())
            files = self._files()
            self._open = {name: "" for name, path in files.items() if str(path.resolve()) in written}
            self._open[""] = str(time.time_ns())
            self._write(_LOOKED, self._open)
            for name, path in files.items():
                with contextlib.suppress(FileNotFoundError):
                    self._look_at(name, path, open_now=name in self._open)
            gone = self._known.keys() - files.keys()
            for name in gone:
                # A program clears its old checkpoints away.
                del self._known[name]
                (self._keep / _COPIES / name).unlink(missing_ok=True)
            if gone:
                self._write_known()

    def _look_at(self, name: str, path: Path, *, open_now: bool) -> None:
        stamp, before = _stamp(path), self._seen.get(name)
        self._seen[name] = stamp
        known = self._known.get(name)
        if open_now or stamp != before or (known is not None and (known.size, known.mtime_ns) == stamp):
            return
        if broken(path) is None:
            self._put_away(name, path, stamp)

    def _put_away(self, name: str, path: Path, stamp: tuple[int, int]) -> None:
        copy = self._keep / _COPIES / name
        digest = _digest(path)
        _copied(path, copy)
        if _stamp(path) != stamp or _digest(copy) != digest:
            # Written to meanwhile, or the copy is bad: the next look sees it again.
            self._seen.pop(name, None)
            return
        self._known[name] = KnownFile(*stamp, digest)
        self.stored += 1
        self._write_known()

    def settle(self, *, start_over: bool = False) -> list[str]:
        """Judge every file, with no rank running; returns what was done about which, in words.

        Raises where something was stored once and nothing of it is left, unless the program may `start_over`.
        """
        with self._lock:
            stored = bool(self._known)
            said: list[str] = []
            for name, path in self._files().items():
                bad = self._judged(name, path)
                if bad is not None:
                    said.append(self._mended(name, path, bad))
            said += [self._set_aside(path, "it was never finished") for path in self._unfinished()]
            files = self._files()
            self._known = {name: one for name, one in self._known.items() if name in files}
            self._seen = {name: _stamp(path) for name, path in files.items()}
            if stored and not files and not start_over:
                raise FailedError(
                    f"checkpoints were stored in {self.folder} and none of them is whole"
                    + "".join(f"\n  {one}" for one in said) + "\nput one back, or begin anew with --start-over"
                )  # fmt: skip
            for name, path in files.items():
                known, stamp = self._known.get(name), _stamp(path)
                if known is None or (known.size, known.mtime_ns) != stamp:
                    self._put_away(name, path, stamp)
            return said

    def _judged(self, name: str, path: Path) -> str | None:
        """Return what is wrong with a file now that nobody writes."""
        stamp, known = _stamp(path), self._known.get(name)
        if known is not None and (known.size, known.mtime_ns) == stamp:
            return None if _digest(path) == known.sha256 else "its bytes have changed since they were written"
        bad = broken(path)
        if bad is None and not _tells(path) and self._was_written(name, stamp[1]):
            return "it was being written when the ranks ended"
        return bad

    def _was_written(self, name: str, mtime_ns: int) -> bool:
        """Return whether a file may have been written to when the ranks ended; before and after it was at rest."""
        looked_ns = int(self._open.get("", "0"))
        return name in self._open or (looked_ns > 0 and looked_ns - _BEFORE_NS < mtime_ns < looked_ns + _AFTER_NS)

    def _mended(self, name: str, path: Path, bad: str) -> str:
        copy, known = self._keep / _COPIES / name, self._known.get(name)
        said = self._set_aside(path, bad)
        if known is None or not copy.exists() or _digest(copy) != known.sha256:
            return said
        _copied(copy, path)
        os.utime(path, ns=(known.mtime_ns, known.mtime_ns))
        return f"{said}; its last whole version was put back"

    def _set_aside(self, path: Path, bad: str) -> str:
        shelf = self._keep / _DAMAGED
        shelf.mkdir(parents=True, exist_ok=True)
        number = len(list(shelf.iterdir()))
        shutil.move(path, shelf / f"{number}-{path.name}")
        return f"{path}: {bad}; moved to {shelf / f'{number}-{path.name}'}"

    def _unfinished(self) -> list[Path]:
        """Return folders of torch's distributed checkpoints whose list, which is written last, is not there."""
        folders = {path.parent for path in self._files().values() if path.suffix == _SHARDS}
        return sorted(folder for folder in folders if folder != self.folder and not (folder / _LIST).exists())


def _tells(path: Path) -> bool:
    """Return whether a file's form says whether it is whole."""
    if path.suffix in (".safetensors", ".json"):
        return True
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04" and path.suffix != _SHARDS
