"""What programs inside pods tell the engine: how far a job's checkpoints are, and what was seen of its node.

One pod of a job reports, to the engine's own address and never to the API server; the engine puts what it hears into
its next pass. A report names the job's uid, which only its pods know. Whoever can not be reached is not waited for.
"""

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.cluster.records.node import NodeEvidence

_EVERY_S = 10.0
_PATIENCE_S = 3.0
_MOST_TEXT = 500
_SEVERITIES = ("note", "warning", "fatal")


@dataclass(frozen=True)
class PodReport:
    """What one pod says."""

    job: str
    """Namespace and name of its job."""
    uid: str
    """Uid of its job."""
    node: str
    """Where it runs."""
    checkpoint_ms: int | None = None
    """When the newest checkpoint was complete."""
    seen: tuple[NodeEvidence, ...] = ()
    """What was seen of the node."""


def read(document: Any, now_ms: int) -> PodReport:
    """Return a report as it came; raises ValueError where it is none."""
    try:
        seen = tuple(
            NodeEvidence(str(one["check"])[:_MOST_TEXT], now_ms, one["severity"], str(one.get("text", ""))[:_MOST_TEXT])
            for one in document.get("seen", ())
            if one["severity"] in _SEVERITIES
        )
        checkpoint = document.get("checkpoint_ms")
        # A clock that runs ahead must not make a job look safer than it is.
        kept = None if checkpoint is None else min(int(checkpoint), now_ms)
        return PodReport(str(document["job"]), str(document["uid"]), str(document["node"]), kept, seen)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError("a report has job, uid, node, and what is new") from None


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
        told: int | None = None
        while not over.wait(_EVERY_S):
            newest = newest_checkpoint_ms(folder)
            # Only what is new is told.
            if newest is not None and newest != told and _send(address, {**about, "checkpoint_ms": newest}):
                told = newest

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
