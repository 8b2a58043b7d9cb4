"""What the site draws over months: mean, peak, ramps, violations of the contract, energy, carbon and money.

Jobs and outages change the draw in steps; the wave inside a training step is `planning.run.power`'s. A step of the
draw that is not held to a ramp happens within a second, which is what the contract counts.
"""

from dataclasses import dataclass, field

from weft.cluster.records.snapshot import Power
from weft.planning.run.power import JOULES_PER_KWH
from weft.specs.site import PowerSpec


@dataclass
class SiteMeter:
    """Watts at the meter, as they change; one owner."""

    contract: PowerSpec
    drawn: Power
    """What a node and a GPU draw, at the meter."""
    ramp_w_per_s: int | None
    """The ramp that starts and stops are held to by burning or holding power; none where they step."""
    watts: int = 0
    peak_w: int = 0
    watt_ms: int = 0
    burnt_ws: int = 0
    """Watt-seconds that holding a ramp costs."""
    steepest_w: int = 0
    """Largest change within a second."""
    violations: dict[str, int] = field(default_factory=lambda: {"limit": 0, "ramp": 0, "swing": 0})
    over_ms: int = 0
    """Time above the limit."""
    _since_ms: int = 0

    def set(self, watts: int, now_ms: int) -> None:
        """Let the draw be `watts` from now on."""
        if watts == self.watts and now_ms:
            return
        limit_w = None if self.contract.limit is None else self.contract.limit // 1000
        self._accrue(now_ms, limit_w)
        step_w = abs(watts - self.watts)
        first = not self.peak_w
        if limit_w is not None and watts > limit_w >= self.watts:
            self.violations["limit"] += 1
        self.watts = watts
        self.peak_w = max(self.peak_w, watts)
        if first:
            return
        if self.ramp_w_per_s:
            self.burnt_ws += step_w * step_w // (2 * self.ramp_w_per_s)
            step_w = min(step_w, self.ramp_w_per_s)
        self.steepest_w = max(self.steepest_w, step_w)
        for name, most in (("ramp", self.contract.ramp_per_second), ("swing", self.contract.swing)):
            if most is not None and step_w > most // 1000:
                self.violations[name] += 1

    def _accrue(self, now_ms: int, limit_w: int | None) -> None:
        span_ms = now_ms - self._since_ms
        self.watt_ms += self.watts * span_ms
        if limit_w is not None and self.watts > limit_w:
            self.over_ms += span_ms
        self._since_ms = now_ms

    def report(self, end_ms: int) -> dict[str, float]:
        """Return what was drawn up to the end."""
        limit_w = None if self.contract.limit is None else self.contract.limit // 1000
        self._accrue(end_ms, limit_w)
        joules = self.watt_ms / 1000 + self.burnt_ws
        kwh = joules / JOULES_PER_KWH
        return {
            "mean_w": self.watt_ms / end_ms,
            "peak_w": self.peak_w,
            "steepest_w_per_s": self.steepest_w,
            "limit_violations": self.violations["limit"],
            "ramp_violations": self.violations["ramp"],
            "swing_violations": self.violations["swing"],
            "over_limit_h": self.over_ms / 3_600_000,
            "ramp_energy_kwh": self.burnt_ws / JOULES_PER_KWH,
            "energy_kwh": kwh,
            "carbon_t": kwh * self.contract.carbon_g_per_kwh / 1e6,
            "energy_usd": kwh * self.contract.price_per_kwh / 100,
        }
