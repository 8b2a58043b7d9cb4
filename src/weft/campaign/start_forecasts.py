"""What jobs of a replay hear of their starts, and how often it came true.

Each job that has to wait hears it once, when it first hears a reason: an interval that 80 % of starts are to fall into.
What comes true calibrates the next intervals, as it would in an engine that runs for as long.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from weft.cluster.forecast import StartCalibration, expected_starts
from weft.cluster.records.actions import Action, Bind, Wait
from weft.cluster.scheduling.state import ClusterState


@dataclass(slots=True)
class StartForecasts:
    """Intervals that were given and have not come true yet, and counts of those that have; one owner."""

    cluster: ClusterState
    calibration: StartCalibration
    announced: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """When a job heard it, how long it was thought to wait, and between which times it was to start."""
    known: set[str] = field(default_factory=set)
    inside: int = 0
    """Starts within their intervals."""
    early: int = 0
    """Starts before them."""
    late: int = 0
    """Starts after them."""

    def after_pass(self, actions: Iterable[Action], now_ms: int) -> None:
        """Count the starts of a pass, and tell those who wait for the first time."""
        gpus = int(self.cluster.pool.usable.sum())
        new: list[str] = []
        for action in actions:
            if isinstance(action, Bind):
                self._came_true(action, gpus, now_ms)
                self.known.add(action.job)
            elif isinstance(action, Wait) and action.job not in self.known:
                new.append(action.job)
                self.known.add(action.job)
        if not new:
            return
        expected = expected_starts(self.cluster, now_ms)
        for name in new:
            if name in expected and name in self.cluster.jobs:
                gang = self.cluster.jobs[name].gang
                early_ms, late_ms = self.calibration.interval_ms(
                    now_ms, expected[name], gang.fewest * gang.gpus_per_node, gpus
                )
                self.announced[name] = (now_ms, expected[name] - now_ms, early_ms, late_ms)

    def _came_true(self, action: Bind, pool_gpus: int, now_ms: int) -> None:
        if action.job not in self.announced:
            return
        at_ms, wait_ms, early_ms, late_ms = self.announced.pop(action.job)
        self.early += now_ms < early_ms
        self.late += now_ms > late_ms
        self.inside += early_ms <= now_ms <= late_ms
        self.calibration.started(now_ms - at_ms, wait_ms, action.placement.gpus, pool_gpus)

    def covered(self) -> float | None:
        """Return the share of starts within their intervals; nothing where nobody waited."""
        count = self.inside + self.early + self.late
        return self.inside / count if count else None

    def as_json(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        return {"covered": self.covered(), "inside": self.inside, "early": self.early, "late": self.late}
