"""Counters that the kernel keeps: memory errors, throttling, links that go down, errors of NICs.

Rates are over the last hour. What came since the last look is kept apart from what came in the last hour: an error that
is proof counts once, one that only counts when it is frequent is held against the hour. A counter that has gone back
was reset, and counts from zero.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.engines.health.checks import CheckSetting, Finding, HealthReport

HOUR_S = 3600.0
_SAMPLE_S = 300.0
CORRECTED_PER_HOUR = 100.0
"""Corrected memory errors an hour from which on a module is suspect."""
THROTTLES_PER_HOUR = 60.0
"""Thermal throttlings an hour: more than one a minute is no passing peak."""
HOT_C = 90
"""Degrees Celsius: GPUs slow themselves down from about here on."""
FLAPS_PER_HOUR = 3.0
"""Times an hour that a link may go down and up."""
NIC_ERRORS_PER_HOUR: Mapping[str, float] = {
    "symbol_error": 120.0,
    "link_error_recovery": 5.0,
    "local_link_integrity_errors": 5.0,
    "excessive_buffer_overrun_errors": 5.0,
    "port_rcv_errors": 3600.0,
    "rx_crc_errors": 3600.0,
    "tx_carrier_errors": 60.0,
}
"""Errors of a port that an hour may have. Symbol errors: 120 is what the bit error rate of the InfiniBand specification
(volume 2, 1e-12) allows; of the others a handful, or one a second, is no link that a training should wait for."""

Counts = dict[str, float]


@dataclass(frozen=True, slots=True)
class Increments:
    """What has been counted."""

    last: Counts
    """Since the last look; since the boot where there was none."""
    hour: Counts
    """In the last hour; fewer where nobody has looked for so long."""
    hours: float
    """How long that was, in hours: at least one, so that a burst is no rate."""


Judge = Callable[[Increments], list[Finding]]


def ecc(setting: CheckSetting) -> HealthReport:
    """Read the counters of corrected and uncorrected memory errors."""
    counts = _read(setting.system, "devices/system/edac/mc/mc*/[cu]e_count")

    def judge(new: Increments) -> list[Finding]:
        found: list[Finding] = []
        for name, count in new.hour.items():
            bank = name.split("/")[-2]
            if name.endswith("ue_count"):
                if new.last[name] > 0:
                    found.append(Finding("ecc", "fatal", f"{new.last[name]:g} uncorrectable memory errors in {bank}"))
            elif count / new.hours > CORRECTED_PER_HOUR:
                text = f"{count / new.hours:,.0f} corrected memory errors an hour in {bank}"
                found.append(Finding("ecc", "warning", text))
        return found

    return _report("ecc", counts, setting, judge, "the kernel shows no memory error counters here")


def throttling(setting: CheckSetting) -> HealthReport:
    """Read how often CPUs were slowed down for their heat."""
    counts = _read(setting.system, "devices/system/cpu/cpu*/thermal_throttle/*_throttle_count")

    def judge(new: Increments) -> list[Finding]:
        worst = max(new.hour.items(), key=lambda item: item[1])
        rate = worst[1] / new.hours
        cpu = worst[0].split("/")[-3]
        text = f"{cpu} was slowed down for heat {rate:,.0f} times an hour"
        return [Finding("throttling", "warning", text)] if rate > THROTTLES_PER_HOUR else []

    return _report("throttling", counts, setting, judge, "the kernel shows no throttling counters here")


def links(setting: CheckSetting) -> HealthReport:
    """Read how often network links went down, Ethernet and InfiniBand."""
    counts = _read(setting.system, "class/net/*/carrier_down_count")
    counts |= _read(setting.system, "class/infiniband/*/ports/*/counters/link_downed")

    def judge(new: Increments) -> list[Finding]:
        return [
            Finding("link", "warning", f"{_port(name)} went down {count:g} times, {count / new.hours:,.1f} an hour")
            for name, count in new.hour.items()
            if count / new.hours > FLAPS_PER_HOUR
        ]

    return _report("links", counts, setting, judge, "there are no links with counters here")


def nics(setting: CheckSetting) -> HealthReport:
    """Read how many errors the ports of NICs have counted, Ethernet and InfiniBand."""
    counts: Counts = {}
    for name in NIC_ERRORS_PER_HOUR:
        counts |= _read(setting.system, f"class/infiniband/*/ports/*/counters/{name}")
        counts |= _read(setting.system, f"class/net/*/statistics/{name}")

    def judge(new: Increments) -> list[Finding]:
        found: list[Finding] = []
        for name, count in new.hour.items():
            kind = name.rpartition("/")[2]
            if count / new.hours > NIC_ERRORS_PER_HOUR[kind]:
                text = f"{_port(name)} counts {count / new.hours:,.0f} {kind} an hour"
                found.append(Finding("nic", "warning", f"{text}; {NIC_ERRORS_PER_HOUR[kind]:g} are healthy"))
        return found

    return _report("nics", counts, setting, judge, "there are no NICs with error counters here")


def _port(name: str) -> str:
    parts = name.split("/")
    return parts[2] if parts[1] == "net" else f"{parts[2]} port {parts[4]}"


def _read(system: Path, pattern: str) -> Counts:
    found: Counts = {}
    for path in sorted(system.glob(pattern)):
        try:
            found[str(path.relative_to(system))] = float(path.read_text(encoding="ascii").split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return found


def _report(name: str, counts: Counts, setting: CheckSetting, judge: Judge, none: str) -> HealthReport:
    began = time.monotonic()
    if not counts:
        return HealthReport(name, (), note=none)
    new = increments(name, counts, setting)
    figures = {"counters": float(len(counts)), "hours": new.hours}
    return HealthReport(name, tuple(judge(new)), figures, time.monotonic() - began)


def increments(name: str, counts: Counts, setting: CheckSetting) -> Increments:
    """Return what was counted since the last look and in the last hour; since the boot where there was none."""
    up_s = _up_s()
    if setting.state is None:
        return Increments(counts, counts, max(1.0, up_s / HOUR_S))
    setting.state.mkdir(parents=True, exist_ok=True)
    path = setting.state / f"{name}.json"
    kept = _kept(path)
    if kept is None:
        last, total = counts, counts
        samples: list[list[Any]] = []
        hour, hours = counts, max(1.0, up_s / HOUR_S)
    else:
        # After a boot every counter has begun again, as after a reset of its driver.
        last = {key: _since(value, kept["raw"].get(key, 0.0)) for key, value in counts.items()}
        total = {key: kept["total"].get(key, 0.0) + value for key, value in last.items()}
        samples = [each for each in kept["samples"] if up_s - HOUR_S <= each[0] <= up_s]
        oldest = samples[0][1] if samples else kept["total"]
        hour, hours = {key: value - oldest.get(key, 0.0) for key, value in total.items()}, 1.0
    if not samples or up_s - samples[-1][0] >= _SAMPLE_S:
        samples.append([up_s, total])
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"raw": counts, "total": total, "samples": samples}), encoding="utf-8")
    new.replace(path)
    return Increments(last, hour, hours)


def _since(value: float, before: float) -> float:
    return value - before if value >= before else value


def _kept(path: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and kept.keys() >= {"raw", "total", "samples"} else None


def _up_s() -> float:
    try:
        return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return HOUR_S
