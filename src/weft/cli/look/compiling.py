"""`weft compile`: compile the simulator and the transport before anybody waits for them.

Every variant that the built-in transports use is compiled by running it for a moment, in processes beside each other.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.output import say
from weft.core.compile.cache import can_compile
from weft.core.errors import UsageError

_PAIR = "from weft.cli.main import run; run()"
_ENDPOINT = "from weft.transport.endpoint import Endpoint; Endpoint().close()"
_MOST_SECONDS = 1800


def _simulation(transports: str, threads: int, scenario: str = "pair") -> Sequence[str]:
    words = ("simulate", scenario, "--engine", "engine", "--transport", transports, "--threads", str(threads))
    return (sys.executable, "-c", _PAIR, *words)


_PARTS = {
    "simulator": _simulation("mrc", 1, "nic-port-down"),
    "simulator on several threads": _simulation("mrc", 2),
    "endpoint on sockets": (sys.executable, "-c", _ENDPOINT),
    "RoCE": _simulation("roce", 1),
    "RoCE on several threads": _simulation("roce", 2),
    "adaptive routing": _simulation("adaptive", 1),
}
"""What is compiled, the most used first, with the rule that faults at NICs need.

The simulator of `mrc` is that of every transport that sprays.
"""


def compile_ahead(
    *,
    into: Annotated[
        Path | None,
        Parameter(help="Folder to store it in, in place of the cache: src/weft/compiled_code goes into wheels."),
    ] = None,
    jobs: Annotated[int, Parameter(help="Compilations at once; 0: as many as there are cores.")] = 0,
) -> None:
    """Compile the simulator and the transport now, once: no first run then waits for it."""
    if not can_compile():
        raise UsageError("the simulator is compiled by numba, which is not installed; pip install 'weft[sim]'")
    if jobs < 0:
        raise UsageError(f"--jobs {jobs}: write 1 or more, or 0 for as many as there are cores")
    if into is not None and into.exists() and not into.is_dir():
        raise UsageError(f"{into} is no folder")
    with tempfile.TemporaryDirectory() as scratch:
        # Elsewhere first and then moved as a whole, so that an interrupt leaves no half of it behind.
        environment = dict(os.environ) if into is None else {**os.environ, "XDG_CACHE_HOME": scratch}
        _run_all(environment, jobs or os.cpu_count() or 1)
        if into is not None:
            for made in sorted((Path(scratch) / "weft").iterdir()):
                shutil.copytree(made, into / made.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock"))


def _run_all(environment: dict[str, str], jobs: int) -> None:
    """Run every part, `jobs` at once; end them all where one fails or the user interrupts."""
    running: list[subprocess.Popen[str]] = []

    def compile_part(name: str) -> None:
        child = subprocess.Popen(  # noqa: S603 - our own program
            _PARTS[name], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        running.append(child)
        _, errors = child.communicate(timeout=_MOST_SECONDS)
        if child.returncode:
            last = (errors.strip().splitlines() or [f"status {child.returncode}"])[-1]
            raise UsageError(f"{name} could not be compiled: {last}")

    with ThreadPoolExecutor(jobs) as pool:
        parts = {pool.submit(compile_part, name): name for name in _PARTS}
        try:
            for number, part in enumerate(as_completed(parts), 1):
                part.result()
                say(f"compiled {number} of {len(parts)}: {parts[part]}")
        except BaseException:
            for part in parts:
                part.cancel()
            for child in running:
                child.kill()
            raise
