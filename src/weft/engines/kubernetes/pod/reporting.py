"""What programs inside pods tell the engine: how far a job's checkpoints are, and what was seen of its node.

One pod of a job reports, to the engine's own address and never to the API server; the engine puts what it hears into
its next pass. A report names the job's uid, which only its pods know. Whoever cannot be reached is not waited for.
"""

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_EVERY_S = 10.0
_PATIENCE_S = 3.0


def newest_checkpoint_ms(folder: Path) -> int | None:
    """Return when the newest checkpoint below a folder of runs was written."""
    times: list[float] = []
    for path in folder.glob("*/checkpoints/*"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return int(max(times) * 1000) if times else None


@contextlib.contextmanager
def reporting(address: str, about: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Report about a job's checkpoints while the block runs; nothing is done without an address."""
    if not address:
        yield
        return
    over = threading.Event()

    def work() -> None:
        reported: int | None = None
        while not over.wait(_EVERY_S):
            newest = newest_checkpoint_ms(folder)
            # Only what is new is reported.
            if newest is not None and newest != reported and _send(address, {**about, "checkpoint_ms": newest}):
                reported = newest

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _send(address: str, document: Mapping[str, Any]) -> bool:
    body = json.dumps(document).encode()
    request = urllib.request.Request(  # noqa: S310 - the address comes from the engine
        f"{address}/v1/report", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S):  # noqa: S310 - the same
            return True
    except (urllib.error.URLError, OSError, ValueError):
        return False
