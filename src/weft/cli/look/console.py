"""`weft ui`: the console in a browser, from this machine alone unless asked otherwise."""

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.cluster.local import HomeOption, home_of
from weft.cli.output import say, warn
from weft.core.errors import FailedError, UsageError
from weft.core.extras import need

_RUNS = Path("runs")
_LOOPBACK = "127.0.0.1"
_PATIENCE_S = 30.0


def ui(
    *folders: Annotated[Path, Parameter(help="Folders of runs, and of site and job files; default: runs.")],
    host: Annotated[
        str, Parameter(help="Address to listen on; any but loopback is reachable from the network.")
    ] = _LOOPBACK,
    port: Annotated[int, Parameter(help="Port; 0 for any free one.")] = 0,
    home: HomeOption = None,
) -> None:
    """Open the console: runs, what-if, fabric and cluster in a browser.

    The URL holds a secret token; whoever has it may look. Ctrl-C ends the console; runs go on.
    """
    need("starlette", "uvicorn", "prometheus_client", extra="ui")
    from weft.web.console.serving import serve

    for folder in folders:
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "does not exist"
            raise UsageError(f"{folder} {what}; name a folder of runs, such as weft train --folder writes")
    shown = folders or ((_RUNS,) if _RUNS.is_dir() else ())
    if not folders and not shown:
        warn(f"there is no folder {_RUNS} yet: the console shows what-if and fabric; weft train makes runs")
    serve(tuple(shown) or (Path.cwd() / _RUNS,), home_of(home), host, port, lambda url: say(f"console at {url}"))


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Serve the console of a folder from another process for as long as something else runs here."""
    need("starlette", "uvicorn", "prometheus_client", extra="ui")
    # A process of its own: what is trained here forks, and a server with threads must not be forked.
    program = [sys.executable, "-m", "weft.web.console.serving", str(home_of(None).folder), str(folder.absolute())]
    child = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own module
    try:
        warn(f"console at {_first_line(child)}")
        yield
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE_S)
        if child.stdout is not None:
            child.stdout.close()


def _first_line(child: "subprocess.Popen[bytes]") -> str:
    assert child.stdout is not None, "its output is a pipe"
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        if selector.select(_PATIENCE_S):
            line = os.read(child.stdout.fileno(), 4096).decode().strip()
            if line:
                return line
    raise FailedError("the console did not start")
