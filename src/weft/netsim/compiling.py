"""Where compiled rules are kept between runs: a folder named by a digest of every source that they are made from."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.mrc.compiled import Swap, compiled, keep_compiled

RULES = (
    "mrc",
    "netsim/beginnings.py",
    "netsim/foresight.py",
    "netsim/halves.py",
    "netsim/hosts.py",
    "netsim/reps.py",
    "netsim/roce.py",
    "netsim/transports/routing.py",
    "netsim/waiting.py",
    *(f"netsim/engine/{name}.py" for name in ("kernel", "layout", "nics", "queues", "switches", "uplinks", "wires")),
)
"""What rules are made of, below the package: their own files, and every constant that they freeze."""
_DIGITS = 16
_PRIVATE = 0o700


def sources_digest() -> str:
    """Return a digest of all sources that compiled rules are made from, and of the compiler's version."""
    from importlib.metadata import version

    package = Path(__file__).parents[1]
    digest = hashlib.sha256(version("numba").encode())
    for place in RULES:
        for file in sorted([package / place, *(package / place).rglob("*.py")]):
            if file.is_dir():
                continue
            digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:_DIGITS]


def can_compile() -> bool:
    """Return whether the compiler is installed."""
    return find_spec("numba") is not None


class Fixed:
    """A compiled rule for a caller whose arguments always have the same types: they are looked at once.

    To tell the types of some seventy columns takes longer than most calls do.
    """

    def __init__(self, function: Callable[..., Any], swap: Swap | None = None) -> None:
        self._function, self._swap = function, swap
        self._entry: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the rule."""
        if self._entry is not None:
            return self._entry(*arguments)
        from numba import typeof

        made = compiled(self._function, self._swap)
        found = made(*arguments)
        self._entry = made.overloads[tuple(typeof(each) for each in arguments)].entry_point
        return found


def _homes(folder: Path | None, *, make: bool = False) -> Iterator[Path]:
    """Give the places where compiled rules may be kept, the best first.

    Code is loaded from there, so a place that others can write to is none: the one among temporary files is our own.
    """
    name = f"rules-{sources_digest()}"
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


def is_compiled(folder: Path | None = None) -> bool:
    """Return whether compiled rules are kept already, below `folder` or where they are by default."""
    return can_compile() and any(any(home.rglob("*.nbc")) for home in _homes(folder))


def prepare(folder: Path | None = None, say: Callable[[str], None] | None = None) -> None:
    """Make ready to compile: keep compiled rules where that is possible; `say` when there are none yet."""
    if not can_compile():
        raise UsageError("compiled rules need numba; install weft[sim], or leave them plain")
    known = is_compiled(folder)
    kept = False
    for home in _homes(folder, make=True):
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
        kept = os.access(home, os.W_OK)
        if kept:
            keep_compiled(str(home))
            break
    if say is None or (known and kept):
        return
    again = "once" if kept else "every time: no folder can be written to keep them; XDG_CACHE_HOME names another one"
    say(f"compiling the protocol's rules; this takes about a minute, {again}")
