"""What makes a checkpoint whole: the list of its files with sizes and digests, sealed by a digest of its own.

Text in and out, plus a few functions that look at folders and hold them against their manifests. Free of torch, so
that `weft runs` can read them. Who writes a manifest, and when, is `checkpoint`'s business.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.core.input_files import read_bytes

MANIFEST = "MANIFEST"
_FORMAT = 2
"""Those of format 1 could lack optimizer state of sharded runs."""
_NAME = re.compile(r"step-\d{8,}(?:\.\d+)?")


class ManifestError(ValueError):
    """The text is not a whole manifest; the message says in what way."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint."""

    bytes: int
    """Its size."""
    sha256: str
    """Digest of its content."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a checkpoint as a whole, however it was cut."""

    shape: tuple[int, ...]
    """Its global shape."""
    dtype: str
    """Its element type, as torch names it."""
    digest: str
    """`digests.tensor_digest` of the whole tensor: the same for every way to shard it."""


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """Everything that a complete checkpoint consists of."""

    step: int
    """Steps done when it was taken."""
    sequence: int
    """Counts the checkpoints of a folder in the order in which they were completed: the highest is the newest."""
    extra: Mapping[str, Any]
    """Plain values that the caller gave."""
    files: Mapping[str, FileEntry]
    """Every file but the manifest, by its name."""
    tensors: Mapping[str, TensorEntry]
    """Every tensor, by its dotted name, in the order of the state that was saved."""

    def encode(self) -> bytes:
        """Return the manifest as a JSON document with a seal below it."""
        document = {
            "format": _FORMAT,
            "step": self.step,
            "sequence": self.sequence,
            "extra": dict(self.extra),
            "files": {name: asdict(entry) for name, entry in sorted(self.files.items())},
            "tensors": {name: asdict(entry) for name, entry in self.tensors.items()},
        }
        body = json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"
        return body + b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"

    @property
    def bytes(self) -> int:
        """Return the size of all its files."""
        return sum(entry.bytes for entry in self.files.values())


def decode(text: bytes) -> CheckpointManifest:
    """Return the manifest that `text` holds, or raise where a single byte of it is missing or changed."""
    body, mark, seal = text.rpartition(b"sha256 ")
    if not mark or not seal.endswith(b"\n"):
        raise ManifestError("the manifest is cut off")
    if hashlib.sha256(body).hexdigest().encode() + b"\n" != seal:
        raise ManifestError("the manifest is damaged: its own digest does not match")
    try:
        # Whole numbers of any size may be among what a training keeps of itself.
        return _described(json.loads(body))
    except ManifestError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # Its digest fits, so nobody's disk did this: another program wrote it.
        raise ManifestError(f"the manifest is none of ours ({type(error).__name__})") from None


def _described(document: Any) -> CheckpointManifest:
    if document["format"] != _FORMAT:
        raise ManifestError(f"the manifest has format {document['format']}; this version reads format {_FORMAT}")
    return CheckpointManifest(
        step=document["step"],
        sequence=document["sequence"],
        extra=document["extra"],
        files={name: FileEntry(**entry) for name, entry in document["files"].items()},
        tensors={
            name: TensorEntry(tuple(entry["shape"]), entry["dtype"], entry["digest"])
            for name, entry in document["tensors"].items()
        },
    )


def read(folder: Path) -> CheckpointManifest:
    """Return the manifest of the checkpoint in `folder`."""
    try:
        return decode(read_bytes(folder / MANIFEST))
    except FileNotFoundError:
        raise ManifestError("there is no manifest: it was never completed") from None
    except OSError as error:
        raise ManifestError(f"the manifest cannot be read: {error.strerror}") from None


def file_entry(path: Path) -> FileEntry:
    """Return size and digest of the file at `path`."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileEntry(stream.tell(), digest)


def problems(folder: Path, manifest: CheckpointManifest, names: Iterable[str] | None = None) -> list[str]:
    """Return what is wrong with the files called `names` (all of them where none are given), each in a few words."""
    found: list[str] = []
    for name in sorted(manifest.files if names is None else names):
        wanted = manifest.files[name]
        try:
            size = (folder / name).stat().st_size
            if size != wanted.bytes:
                found.append(f"{name} has {size:,} bytes instead of {wanted.bytes:,}")
            elif file_entry(folder / name) != wanted:
                found.append(f"{name} is damaged: its digest does not match")
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except OSError as error:
            found.append(f"{name} cannot be read: {error.strerror}")
    return found


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that is not used, and why."""

    path: Path
    """Its folder."""
    reason: str
    """What is wrong with it, in words."""

    def __str__(self) -> str:
        """Return it as a sentence for the user."""
        return f"{self.path} is not used: {self.reason}"


def complete(folder: Path) -> list[tuple[Path, CheckpointManifest]]:
    """Return the checkpoints in `folder` that have a whole manifest, newest first; their other files are not read."""
    found: list[tuple[Path, CheckpointManifest]] = []
    for path in _folders(folder):
        with contextlib.suppress(ManifestError):
            found.append((path, read(path)))
    return sorted(found, key=lambda entry: entry[1].sequence, reverse=True)


def broken(folder: Path) -> list[Skipped]:
    """Return the checkpoints in `folder` that have no whole manifest, latest step first."""
    found: list[Skipped] = []
    for path in _folders(folder):
        try:
            read(path)
        except ManifestError as error:
            found.append(Skipped(path, str(error)))
    return found


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
