"""The socket that a server listens on, or one sentence on why there is none."""

import errno
import socket

from weft.core.errors import UsageError

_BACKLOG = 128
_LAST_PORT = 65535


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise with one sentence."""
    if not 0 <= port <= _LAST_PORT:
        raise UsageError(f"--port {port}: write a port from 0 to {_LAST_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0]
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        remedy = "give another --port, or 0 for any" if taken else "give an address of this machine"
        raise UsageError(f"--host {host} --port {port}: cannot listen there: {why}; {remedy}") from None
