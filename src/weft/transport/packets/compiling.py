"""The compiled thread of the endpoint: what it is made of, and how it is kept between runs."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

from weft.core.compile.cache import cache_under, can_compile, digest_of, home_of, is_cached
from weft.core.compile.rules import compiled
from weft.core.errors import UsageError
from weft.transport.memory.layout import EndpointState


class Pump(Protocol):
    """The loop of the thread, plain or compiled."""

    def __call__(self, state: EndpointState, rounds: int, wait_ns: int) -> int:
        """Drive the endpoint for at most `rounds` turns; return the turns taken."""
        ...


@cache
def _name() -> str:
    return f"wire-{digest_of('weft.transport')}"


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one process of this user compile at a time: the others find what it kept."""
    home = home_of(_name())
    if home is None:
        yield
        return
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def compiled_pump(say: Callable[[str], None] | None = None) -> Pump:
    """Return the compiled form of `weft.transport.packets.pump.pump`, kept on disk where that can be written."""
    if not can_compile():
        raise UsageError("MRC on sockets needs numba; install weft[sim]")
    known = is_cached(_name())
    kept = cache_under(_name())
    if say is not None and not (known and kept):
        say(f"compiling the endpoint; this takes about a minute, {'once' if kept else 'every time'}")
    from weft.transport.packets.pump import pump

    return compiled(pump)
