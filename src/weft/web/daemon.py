"""The daemon of a local cluster: one process, one loop, the engine and its HTTP interface.

Started by `weft cluster up`; holds a lock on the cluster's folder for as long as it lives, so there is never a second
one. It may be killed at any moment: the next one goes on.
"""

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from weft.core.errors import FailedError, WeftError
from weft.engines.local.atomic_files import write_document
from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home
from weft.engines.local.processes import Identity
from weft.web.cluster import ClusterInterface

_log = logging.getLogger("weft.cluster")
_BUSY_S, _IDLE_S, _TROUBLE_S = 0.1, 0.5, 1.0
_BACKLOG = 128
_GRACE_S = 2


@contextlib.contextmanager
def held(home: Home) -> Iterator[None]:
    """Hold the cluster's folder; raises where another daemon does."""
    handle = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FailedError(f"a daemon already serves {home.folder}") from None
        yield
    finally:
        os.close(handle)


async def _work(engine: LocalEngine, news: asyncio.Event) -> None:
    """Run the engine; what goes wrong in it is logged and tried again, because jobs depend on it."""
    while True:
        pause_s = _BUSY_S if any(entry.job.holds for entry in engine.entries) else _IDLE_S
        try:
            while engine.tick():
                await asyncio.sleep(0)
        except Exception:  # noqa: BLE001 - logged with its trace; jobs depend on this loop
            _log.exception("the engine has stumbled; it goes on from what is written down")
            engine.reopen()
            pause_s = _TROUBLE_S
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), pause_s)
        news.clear()


async def _serve(home: Home, host: str, port: int) -> None:
    engine = LocalEngine(home)
    news = asyncio.Event()
    interface = ClusterInterface(engine, home, home.token(), news.set)
    config = uvicorn.Config(
        interface.application(), log_level="warning", lifespan="off", access_log=False, server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )  # fmt: skip
    listener = socket.create_server((host, port), backlog=_BACKLOG)
    myself = Identity.of(os.getpid())
    assert myself is not None, "a process that runs has an identity"
    write_document(home.address, {"host": host, "port": listener.getsockname()[1], "process": myself.as_plain()})
    work = asyncio.create_task(_work(engine, news))
    try:
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        engine.close()
        home.address.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Serve the cluster in a folder until asked to end."""
    parser = argparse.ArgumentParser(prog="weft-cluster")
    parser.add_argument("home", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    home = Home(given.home)
    try:
        with held(home):
            asyncio.run(_serve(home, given.host, given.port))
    except (WeftError, OSError) as error:
        _log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
