"""The daemon of a local cluster: one process, one loop, the engine and its HTTP interface.

Started by `weft cluster up`; holds a lock on the cluster's folder for as long as it lives, so there is never a second
one. It may be killed at any moment: the next one goes on. The command line comes in by a socket in that folder, which
others cannot reach; `--host` and `--port` are for programs.
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
from weft.engines.local import daemon_log
from weft.engines.local.atomic_files import write_document
from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home
from weft.engines.local.processes import Identity
from weft.engines.local.supervised_loop import EngineLoop
from weft.web.cluster import ClusterInterface
from weft.web.connection_guard import MOST_HEADER_BYTES, Lobbies, raise_file_limit
from weft.web.console.application import ConsoleApplication

_log = logging.getLogger("weft.cluster")
_BACKLOG = 1024
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


async def _work(loop: EngineLoop, news: asyncio.Event) -> None:
    """Run the engine for ever."""
    while True:
        while not (pause_s := loop.turn()):
            await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), pause_s)
        news.clear()


async def _serve(home: Home, host: str, port: int, lobbies: Lobbies) -> None:
    engine = LocalEngine(home)
    loop, news = EngineLoop(engine, home), asyncio.Event()
    interface = ClusterInterface(engine, loop, home, news.set, lobbies.health)
    # Whoever may submit may look: one token opens both.
    console = ConsoleApplication((home.folder / "jobs",), home).application(home.token(), (host, socket.gethostname()))
    config = uvicorn.Config(
        interface.application(console), log_config=None, log_level="warning", lifespan="off", access_log=False,
        server_header=False, timeout_graceful_shutdown=_GRACE_S, http=lobbies.protocol(), ws="none", backlog=_BACKLOG,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
    )  # fmt: skip
    listener = socket.create_server((host, port), backlog=_BACKLOG)
    own = home.listen(_BACKLOG)
    myself = Identity.of(os.getpid())
    assert myself is not None, "a process that runs has an identity"
    write_document(home.address, {"host": host, "port": listener.getsockname()[1], "process": myself.as_plain()})
    tasks = [asyncio.create_task(_work(loop, news)), asyncio.create_task(lobbies.sweep())]
    try:
        await uvicorn.Server(config).serve(sockets=[listener, own])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engine.close()
        home.lane.unlink(missing_ok=True)
        home.address.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Serve the cluster in a folder until asked to end."""
    parser = argparse.ArgumentParser(prog="weft-cluster")
    parser.add_argument("home", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args(arguments)
    home = Home(given.home)
    daemon_log.write_to(home.log)
    lobbies = Lobbies(raise_file_limit())
    try:
        with held(home):
            asyncio.run(_serve(home, given.host, given.port, lobbies))
    except (WeftError, OSError) as error:
        _log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
