"""Where compiled rules are kept between runs: folders named by a digest of every source that they are made from."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from weft.core.compile.rules import keep_compiled

_DIGITS = 16
_PRIVATE = 0o700


def can_compile() -> bool:
    """Return whether the compiler is installed."""
    return find_spec("numba") is not None


def digest_of(places: Sequence[str]) -> str:
    """Return a digest of all sources below some places of the package, and of the compiler's version."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256(version("numba").encode())
    for place in places:
        for file in sorted([package / place, *(package / place).rglob("*.py")]):
            if file.is_dir():
                continue
            digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:_DIGITS]


def homes(name: str, folder: Path | None = None, *, make: bool = False) -> Iterator[Path]:
    """Give the places where what is compiled under a name may be kept, the best first.

    Code is loaded from there, so a place that others can write to is none: the one among temporary files is our own.
    """
    if folder is not None:
        yield folder / name
        return
    caches = os.environ.get("XDG_CACHE_HOME")
    yield (Path(caches) if caches else Path.home() / ".cache") / "weft" / name
    private = Path(tempfile.gettempdir()) / f"weft-{os.getuid()}"
    with suppress(OSError):
        if make:
            private.mkdir(mode=_PRIVATE, exist_ok=True)
        found = private.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == _PRIVATE:
            yield private / name


def is_kept(name: str, folder: Path | None = None) -> bool:
    """Return whether anything compiled is kept under a name already."""
    return any(any(home.rglob("*.nbc")) for home in homes(name, folder))


def home_of(name: str, folder: Path | None = None) -> Path | None:
    """Return the folder in which what is compiled under a name is kept, made if need be; None where none can be."""
    for home in homes(name, folder, make=True):
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home
    return None


def keep_under(name: str, folder: Path | None = None) -> bool:
    """Keep what is compiled from now on under a name; return whether there is a place for it."""
    home = home_of(name, folder)
    if home is not None:
        keep_compiled(str(home))
    return home is not None
