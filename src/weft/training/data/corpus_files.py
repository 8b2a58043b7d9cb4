"""Which files a corpus is made of, in an order that every machine agrees on."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import UsageError

TOKEN_SUFFIXES = (".bin", ".npy")

# Tests are a third of the standard library and partly not text on purpose; what is installed beside it is not its own.
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
# Written by whoever built or installed this Python, so other machines have others.
_NOT_SHARED = ("_sysconfigdata", "sitecustomize", "usercustomize", "config-")
_NOT_TEXT = {"__pycache__"}
_LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "LICENCE.txt", "COPYING", "COPYING.txt")


@dataclass(frozen=True)
class Listing:
    """The files of a corpus, before anything is read."""

    name: str
    """Name for people."""
    root: Path
    """Folder that the paths are relative to."""
    paths: tuple[str, ...]
    """Paths with slashes, sorted."""
    tokens: bool
    """Whether the files hold tokens already."""
    licence: str | None = None
    """Licence of all files, where one is known beforehand."""

    def fingerprint(self) -> str:
        """Return text that changes when a file is added, removed, resized or written anew; it reads no file."""
        lines: list[str] = []
        for path in self.paths:
            state = (self.root / path).stat()
            lines.append(f"{state.st_size} {state.st_mtime_ns} {path}")
        return "\n".join([self.name, str(self.root.resolve()), *lines])

    def licence_of(self, path: str) -> str | None:
        """Return the licence of one file: the one known beforehand, or the licence file nearest above it."""
        if self.licence is not None:
            return self.licence
        folder = self.root / path
        while folder != self.root:
            folder = folder.parent
            for name in _LICENCES:
                if (folder / name).is_file():
                    return (folder / name).relative_to(self.root).as_posix()
        return None


def list_corpus(corpus: str, cache: Path) -> Listing:
    """Return the files of the corpus called `corpus`, "python", a folder, or one file; none of those in `cache`."""
    if corpus == "python":
        return _standard_library()
    place = Path(corpus)
    if place.is_file():
        return Listing(place.name, place.parent, (place.name,), tokens=place.suffix in TOKEN_SUFFIXES)
    if not place.is_dir():
        raise UsageError(f'there is no corpus folder {corpus}; name a folder of text or token files, or "python"')
    found = tuple(sorted(_walk(place, _NOT_TEXT, cache)))
    tokens = tuple(path for path in found if path.endswith(TOKEN_SUFFIXES))
    if tokens:
        # Folders of token files hold sidecars, tokenizers and notes too; those are not learned.
        return Listing(place.resolve().name, place, tokens, tokens=True)
    texts = tuple(path for path in found if Path(path).name not in (*_LICENCES, "tokenizer.json"))
    if not texts:
        raise UsageError(
            f'the corpus folder {corpus} is empty; put text or token files (.bin, .npy) there, or "python"'
        )
    return Listing(place.resolve().name, place, texts, tokens=False)


def _standard_library() -> Listing:
    root = Path(sysconfig.get_path("stdlib"))
    found = (path for path in _walk(root, _NOT_LIBRARY) if path.endswith(".py"))
    paths = tuple(sorted(path for path in found if not any(part.startswith(_NOT_SHARED) for part in Path(path).parts)))
    if not paths:
        raise UsageError(f"this Python has no sources of its standard library in {root}; name a folder as the corpus")
    version = ".".join(map(str, sys.version_info[:3]))
    return Listing(f"python-{version}", root, paths, tokens=False, licence="PSF-2.0")


def _walk(root: Path, left_out: set[str], cache: Path | None = None) -> Iterator[str]:
    def complain(error: OSError) -> None:
        raise UsageError(f"the corpus folder {error.filename} cannot be read: {error.strerror}")

    kept = cache.resolve() if cache else None
    for folder, below, names in os.walk(root, onerror=complain):
        if kept is not None and Path(folder).resolve() == kept:
            below.clear()
            continue
        below[:] = sorted(name for name in below if name not in left_out and not name.startswith("."))
        for name in names:
            path = Path(folder) / name
            if not name.startswith(".") and path.is_file():
                yield path.relative_to(root).as_posix()
