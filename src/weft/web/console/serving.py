"""Serves a console from a process of its own or a thread of nobody's: one socket, loopback unless asked otherwise."""

import argparse
import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from weft.engines.local.home import Home
from weft.web.console.access import new_token
from weft.web.console.application import ConsoleApplication
from weft.web.http.listening import listen

_GRACE_S = 1
_MOST_REQUESTS = 256


def url_of(listener: socket.socket, token: str) -> str:
    """Return the address that opens the console that listens there."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - a comparison
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}"


def serve(
    folders: Sequence[Path], home: Home, host: str, port: int, announce: Callable[[str], None]
) -> None:  # fmt: skip
    """Serve until interrupted; `announce` is called with the URL as soon as it answers."""
    listener, token = listen(host, port), new_token()
    console = ConsoleApplication(folders, home)
    config = uvicorn.Config(
        console.application(token, (host, socket.gethostname())), log_config=None, lifespan="off", access_log=False,
        server_header=False, timeout_graceful_shutdown=_GRACE_S, ws="none", limit_concurrency=_MOST_REQUESTS,
    )  # fmt: skip
    server = uvicorn.Server(config)
    announce(url_of(listener, token))
    # uvicorn raises the signal that ended it once more; the console has ended well then.
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def main(arguments: list[str] | None = None) -> int:
    """Serve for another program of ours, which reads the URL from the first line."""
    parser = argparse.ArgumentParser(prog="weft-console")
    parser.add_argument("home", type=Path)
    parser.add_argument("folders", type=Path, nargs="*")
    given = parser.parse_args(arguments)

    def announce(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    serve(given.folders, Home(given.home), "127.0.0.1", 0, announce)
    return 0


if __name__ == "__main__":
    sys.exit(main())
