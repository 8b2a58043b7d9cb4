"""What compiled rules of a simulation are made of, and how they are kept and called."""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import local
from typing import Any

from weft.core.compile import cache
from weft.core.compile.cache import OBJECT, can_compile
from weft.core.compile.objects import Flat, file_name, load, make, store, stored
from weft.core.compile.rules import Specialisation, replaced
from weft.core.errors import UsageError

ENGINE, REFERENCE = "weft.netsim.kernel.", "weft.netsim.host.*.take_in."
"""How the names begin of what the compiled simulator and the reference compile; both also use other rules of hosts."""
_log = logging.getLogger("weft.netsim")
_NO_PLACE = "no folder can be written to keep them; XDG_CACHE_HOME names another one"
_HOMES: list[Path | None] = []
"""Where what is compiled is stored, the last one of these; None where there is no place."""
_LINKED: dict[str, Callable[[Flat], int]] = {}
"""What this process has loaded already."""


class Fixed:
    """A compiled rule for a caller whose arguments always have the same types: they are looked at once."""

    def __init__(self, function: Callable[..., Any], specialisation: Specialisation | None = None) -> None:
        self._function, self._specialisation = replaced(function, specialisation)
        self._call: Callable[[Flat], int] | None = None
        self._own = local()

    def __call__(self, *arguments: Any) -> int:
        """Call the rule; what gives no value gives 0."""
        # Threads of a run call the same rule at the same time.
        flat: Flat = self._own.__dict__.setdefault("flat", Flat())
        flat.fill(arguments)
        if self._call is None:
            self._call = _linked(self._function, self._specialisation, arguments)
        return self._call(flat)


def _linked(
    function: Callable[..., Any], specialisation: Specialisation | None, arguments: tuple[Any, ...]
) -> Callable[[Flat], int]:
    """Return what calls a compiled rule, from where object code is stored or compiled now."""
    name = file_name(function, specialisation, arguments)
    if name not in _LINKED:
        home = _HOMES[-1] if _HOMES else None
        shipped = cache.SHIPPED / (home.name if home is not None else _name()) / name
        code = (stored(home / name) if home is not None else None) or stored(shipped)
        if code is None:
            code = make(function, specialisation, arguments)
            if home is not None:
                store(home / name, code)
                cache.put(home / cache.LIST, " ".join(cache.sources_of("weft.netsim")).encode())
        _LINKED[name] = load(code)
    return _LINKED[name]


def is_compiled(part: str = ENGINE, folder: Path | None = None) -> bool:
    """Return whether compiled rules of a part are kept already, below `folder` or where they are by default."""
    return can_compile() and cache.is_cached(_name(), folder, f"{part}*{OBJECT}")


def prepare(folder: Path | None = None, say: Callable[[str], None] | None = None, part: str = ENGINE) -> None:
    """Make ready to compile: keep compiled rules where that is possible; `say` when a part has none yet."""
    if not can_compile():
        raise UsageError("compiled rules need numba; install weft[sim], or leave them plain")
    known = is_compiled(part, folder)
    if not known:
        _log.info("compiling the rules of the protocol")
    home = cache.home_of(_name(), folder)
    _HOMES.append(home)
    if say is None or (known and home is not None):
        return
    again = "once" if home is not None else f"every time: {_NO_PLACE}"
    say(f"compiling the protocol's rules; this takes about a minute, {again}")


def _name() -> str:
    return f"rules-{cache.listed_digest('weft.netsim', 'rules')}"
