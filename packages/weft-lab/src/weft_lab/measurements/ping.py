"""Round trips of small MRC writes between two hosts of a lab, one at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.core.errors import FailedError
from weft_lab.measurements.bench import mrc_document
from weft_lab.measurements.stream import TrafficStream, converse
from weft_lab.network.lab import Lab

PATIENCE_S = 10.0
"""How long one answer may take before the rest is given up."""


@dataclass(frozen=True)
class Trip:
    """One write and its answer."""

    number: int
    round_trip_us: float


def ping_by_mrc(
    lab: Lab,
    ends: tuple[int, int],
    *,
    count: int,
    size: int,
    interval_s: float,
    watch: Callable[[Trip], None] | None = None,
) -> tuple[list[Trip], dict[str, Any]]:
    """Send `count` writes of `size` bytes and have each answered; return the round trips and the sender's counts."""
    near, far = ends
    stream = TrafficStream("mrc", "MRC", near, far, seconds=0.0)
    extra = {"mode": "ping", "count": count, "interval_s": interval_s}
    asked = (mrc_document(lab, near, far, size=size, **extra), mrc_document(lab, far, near, size=size, **extra))
    trips: list[Trip] = []

    def heard(message: dict[str, Any]) -> bool:
        if "round_trip_ns" in message:
            trips.append(Trip(message["number"], message["round_trip_ns"] / 1000))
            if watch is not None:
                watch(trips[-1])
        stream.statistics = message.get("statistics", stream.statistics)
        if "error" in message:
            raise FailedError(message["error"])
        return "end" in message

    converse(lab, stream, asked, heard, patience_s=PATIENCE_S + interval_s)
    return trips, stream.statistics
