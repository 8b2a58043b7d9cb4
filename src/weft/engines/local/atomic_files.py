"""Files that appear whole or not at all, also when the process or the machine ends in between.

Standard library only: the runner of a job starts quickly because of it.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PRIVATE = 0o600


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
        return False
    finally:
        part.unlink()
    _sync_folder(path.parent)
    return True


def read_document(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; none where there is no such file or no object in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all."""
    write_whole(path, json.dumps(document, ensure_ascii=False) + "\n")


def _part(path: Path, text: str) -> Path:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return part


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
