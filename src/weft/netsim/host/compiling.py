"""What compiled rules of a simulation are made of, and how they are kept and called."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.compile.cache import cache_under, can_compile, digest_of, is_cached
from weft.core.compile.rules import Specialisation, compiled
from weft.core.errors import UsageError

_log = logging.getLogger("weft.netsim")


class Fixed:
    """A compiled rule for a caller whose arguments always have the same types: they are looked at once.

    To tell the types of some seventy columns takes longer than most calls do.
    """

    def __init__(self, function: Callable[..., Any], specialisation: Specialisation | None = None) -> None:
        self._function, self._specialisation = function, specialisation
        self._entry: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the rule."""
        if self._entry is None:
            made = compiled(self._function, self._specialisation)
            kinds = tuple(_kind_of(each) for each in arguments)
            made.compile(kinds)
            self._entry = made.overloads[kinds].entry_point
        return self._entry(*arguments)


def layout_of(array: np.ndarray) -> str:
    """Return "C" where rows follow each other without a gap, else "A"; the strides say it of a column of one row.

    Numpy calls every such column contiguous. What is compiled for it then would fit no other number of rows.
    """
    wanted = array.itemsize
    for length, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        # The strides of an empty column say nothing.
        if stride != wanted and array.size:
            return "A"
        wanted *= length
    return "C"


def _kind_of(argument: Any) -> Any:
    """Return numba's type of an argument, with a column's layout as we tell it."""
    from numba import typeof
    from numba import types as known

    types: Any = known
    kind: Any = typeof(argument)
    if isinstance(argument, np.ndarray):
        return kind.copy(layout=layout_of(argument))
    if isinstance(argument, tuple):
        return types.BaseTuple.from_types([_kind_of(each) for each in argument], type(argument))
    return kind


def is_compiled(folder: Path | None = None) -> bool:
    """Return whether compiled rules are kept already, below `folder` or where they are by default."""
    return can_compile() and is_cached(_name(), folder)


def prepare(folder: Path | None = None, say: Callable[[str], None] | None = None) -> None:
    """Make ready to compile: keep compiled rules where that is possible; `say` when there are none yet."""
    if not can_compile():
        raise UsageError("compiled rules need numba; install weft[sim], or leave them plain")
    known = is_compiled(folder)
    if not known:
        _log.info("compiling the rules of the protocol")
    kept = cache_under(_name(), folder)
    if say is None or (known and kept):
        return
    again = "once" if kept else "every time: no folder can be written to keep them; XDG_CACHE_HOME names another one"
    say(f"compiling the protocol's rules; this takes about a minute, {again}")


def _name() -> str:
    return f"rules-{digest_of('weft.netsim')}"
