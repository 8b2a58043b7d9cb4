"""Where the compiled thread is kept between runs: a folder named by a digest of every source that it is made from."""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.mrc.compiled import compiled, keep_compiled

_SOURCES = (
    "mrc",
    *(f"wire/{name}.py" for name in ("native", "arithmetic", "layout", "journal", "departures", "arrivals")),
    *(f"wire/{name}.py" for name in ("tables", "transfers", "running", "pump")),
)
"""What the thread is made of, below the package."""
_DIGITS = 16


@cache
def sources_digest() -> str:
    """Return a digest of all sources that the thread is made from, and of the compiler's version."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(version("numba").encode())
    for place in _SOURCES:
        for file in sorted([package / place, *(package / place).rglob("*.py")]):
            if file.is_dir():
                continue
            digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:_DIGITS]


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one process of this user compile at a time: the others find what it kept."""
    folder = _kept_in()
    try:
        lock = (folder / "lock").open("w")
    except OSError:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _kept_in() -> Path:
    """Return the folder for what is made from the sources as they are."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "weft" / f"wire-{sources_digest()}"


@cache
def compiled_pump(say: Callable[[str], None] | None = None) -> Any:
    """Return the compiled form of `weft.wire.pump.pump`, kept on disk where that can be written."""
    if find_spec("numba") is None:
        raise UsageError("MRC on sockets needs numba; install weft[sim]")
    home = _kept_in()
    known = home.is_dir()
    try:
        home.mkdir(parents=True, exist_ok=True)
        keep_compiled(str(home))
    except OSError:
        known = False
    if say is not None and not known:
        say("compiling the endpoint; this takes about a minute, once")
    from weft.wire.pump import pump

    return compiled(pump)
