"""Where compiled rules are kept between runs: a folder named by a digest of every source that they are made from."""

import hashlib
import os
from collections.abc import Callable
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


def _home(folder: Path | None) -> Path:
    root = Path.home() / ".cache" / "weft" if folder is None else folder
    return root / f"rules-{sources_digest()}"


def is_compiled(folder: Path | None = None) -> bool:
    """Return whether compiled rules are kept below `folder` already."""
    return can_compile() and any(_home(folder).rglob("*.nbc"))


def prepare(folder: Path | None = None, say: Callable[[str], None] | None = None) -> None:
    """Make ready to compile: keep compiled rules below `folder` where it can be written; `say` when that is new."""
    if not can_compile():
        raise UsageError("compiled rules need numba; install weft[sim], or leave them plain")
    home = _home(folder)
    known = is_compiled(folder)
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    if os.access(home, os.W_OK):
        keep_compiled(str(home))
    if say is not None and not known:
        say("compiling the protocol's rules; this takes about a minute, once")
