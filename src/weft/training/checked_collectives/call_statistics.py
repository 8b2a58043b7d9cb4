"""What crossed the groups: calls, bytes and seconds by kind of call."""

import threading
from dataclasses import dataclass, field


@dataclass
class CallCounts:
    """Everything of one kind."""

    calls: int = 0
    """How many."""
    payload_bytes: int = 0
    """What this rank put in, before the backend multiplies it."""
    waited_s: float = 0.0
    """How long this rank's threads waited for the ends of these calls."""


@dataclass
class CallStatistics:
    """Calls by (group's purpose, kind); threads may share it."""

    lines: dict[tuple[str, str], CallCounts] = field(default_factory=dict)
    """What was counted."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def entered(self, group: str, kind: str, payload_bytes: int) -> None:
        """Count a call that begins."""
        with self._lock:
            line = self.lines.setdefault((group, kind), CallCounts())
            line.calls += 1
            line.payload_bytes += payload_bytes

    def waited(self, group: str, kind: str, seconds: float) -> None:
        """Count a wait that has ended."""
        with self._lock:
            self.lines.setdefault((group, kind), CallCounts()).waited_s += seconds

    def as_json(self) -> list[dict[str, str | int | float]]:
        """Return one entry for each line, the most bytes first."""
        rows = [
            {"group": group, "kind": kind, "calls": line.calls, "bytes": line.payload_bytes, "waited_s": line.waited_s}
            for (group, kind), line in self.lines.items()
        ]
        return sorted(rows, key=lambda row: -int(row["bytes"]))
