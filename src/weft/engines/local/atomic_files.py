"""Files that appear whole or not at all, also when the process or the machine ends in between.

A disk that is full or fails for a while is not a wrong request: what must be written in the end is tried again.
Standard library only: the runner of a job starts quickly because of it.
"""

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from weft.core.input_files import json_of, read_bytes

Value = TypeVar("Value")

_PRIVATE = 0o600
_OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
PASSING = _OUT_OF_ROOM | {errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
"""What the machine lacks, and may have again in a while: no fault of a job or of who submitted it."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


def is_passing(error: OSError) -> bool:
    """Return whether an error is the machine's, and may be over in a while."""
    return error.errno in PASSING


def is_full(error: OSError) -> bool:
    """Return whether there was no room on the disk."""
    return error.errno in _OUT_OF_ROOM


def patiently(action: Callable[[], Value]) -> Value:
    """Return what `action` returns, trying again for as long as the machine cannot do it."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return action()
        except OSError as error:
            if not is_passing(error):
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that readers see the old text or the new one."""
    part = _part(path, text)
    part.replace(path)
    _sync_folder(path.parent)


def claim(path: Path, text: str) -> bool:
    """Write a file that must not exist yet, and return whether it was this call that wrote it."""
    part = _part(path, text)
    try:
        os.link(part, path)
    except FileExistsError:
        # It may be ours, from a try whose end failed.
        return path.read_text(encoding="utf-8") == text
    finally:
        part.unlink()
    _sync_folder(path.parent)
    return True


def read_document(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; none where there is no such file or no object in it.

    A file that cannot be read just now is not taken for one that is not there: that raises.
    """
    try:
        found = json_of(read_bytes(path))
    except OSError as error:
        if is_passing(error):
            raise
        return None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all."""
    write_whole(path, json.dumps(document, ensure_ascii=False) + "\n")


def _part(path: Path, text: str) -> Path:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return part


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
