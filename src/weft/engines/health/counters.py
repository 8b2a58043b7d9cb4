"""Counters that the kernel keeps: memory errors, throttling, links that go down. Rates are taken between two looks."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from weft.engines.health.checks import CheckSetting, Finding, HealthReport

HOUR_S = 3600.0
CORRECTED_PER_HOUR = 100.0
"""Corrected memory errors an hour from which on a module is suspect."""
THROTTLES_PER_HOUR = 60.0
"""Thermal throttlings an hour: more than one a minute is no passing peak."""
HOT_C = 90
"""Degrees Celsius: GPUs slow themselves down from about here on."""
FLAPS_PER_HOUR = 3.0
"""Times an hour that a link may go down and up."""

Counts = dict[str, float]


def ecc(setting: CheckSetting) -> HealthReport:
    """Read the counters of corrected and uncorrected memory errors."""
    counts = _read(setting.system, "devices/system/edac/mc/mc*/[cu]e_count")

    def judge(since: Mapping[str, float], hours: float) -> list[Finding]:
        found: list[Finding] = []
        for name, count in since.items():
            bank = name.split("/")[-2]
            if name.endswith("ue_count") and count > 0:
                found.append(Finding("ecc", "fatal", f"{count:g} uncorrectable memory errors in {bank}"))
            elif count / hours > CORRECTED_PER_HOUR:
                found.append(
                    Finding("ecc", "warning", f"{count / hours:,.0f} corrected memory errors an hour in {bank}")
                )
        return found

    return _report("ecc", counts, setting, judge, "the kernel shows no memory error counters here")


def throttling(setting: CheckSetting) -> HealthReport:
    """Read how often CPUs were slowed down for their heat."""
    counts = _read(setting.system, "devices/system/cpu/cpu*/thermal_throttle/*_throttle_count")

    def judge(since: Mapping[str, float], hours: float) -> list[Finding]:
        worst = max(since.items(), key=lambda item: item[1])
        rate = worst[1] / hours
        cpu = worst[0].split("/")[-3]
        text = f"{cpu} was slowed down for heat {rate:,.0f} times an hour"
        return [Finding("throttling", "warning", text)] if rate > THROTTLES_PER_HOUR else []

    return _report("throttling", counts, setting, judge, "the kernel shows no throttling counters here")


def links(setting: CheckSetting) -> HealthReport:
    """Read how often network links went down, Ethernet and InfiniBand."""
    counts = _read(setting.system, "class/net/*/carrier_down_count")
    counts |= _read(setting.system, "class/infiniband/*/ports/*/counters/link_downed")

    def judge(since: Mapping[str, float], hours: float) -> list[Finding]:
        return [
            Finding("link", "warning", f"{_port(name)} went down {count:g} times, {count / hours:,.1f} an hour")
            for name, count in since.items()
            if count >= FLAPS_PER_HOUR and count / hours > FLAPS_PER_HOUR
        ]

    return _report("links", counts, setting, judge, "there are no links with counters here")


def _port(name: str) -> str:
    parts = name.split("/")
    return parts[-2] if "net" in parts else f"{parts[-5]} port {parts[-3]}"


def _read(system: Path, pattern: str) -> Counts:
    found: Counts = {}
    for path in sorted(system.glob(pattern)):
        try:
            found[str(path.relative_to(system))] = float(path.read_text(encoding="ascii").split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return found


def _report(
    name: str,
    counts: Counts,
    setting: CheckSetting,
    judge: Callable[[Mapping[str, float], float], list[Finding]],
    none: str,
) -> HealthReport:
    began = time.monotonic()
    if not counts:
        return HealthReport(name, (), note=none)
    since, hours = _since(name, counts, setting)
    figures = {"counters": float(len(counts)), "hours": hours}
    return HealthReport(name, tuple(judge(since, hours)), figures, time.monotonic() - began)


def _since(name: str, counts: Counts, setting: CheckSetting) -> tuple[Counts, float]:
    """Return what was counted since the last look, and over how many hours; since the boot where there was none."""
    up_s = _up_s()
    before: Counts = {}
    at_s = 0.0
    if setting.state is not None:
        setting.state.mkdir(parents=True, exist_ok=True)
        path = setting.state / f"{name}.json"
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            # A boot since then has set every counter back.
            if kept["up_s"] <= up_s:
                before, at_s = kept["counts"], kept["up_s"]
        path.write_text(json.dumps({"up_s": up_s, "counts": counts}), encoding="utf-8")
    since = {key: max(0.0, value - before.get(key, 0.0)) for key, value in counts.items()}
    return since, max(1 / 60, (up_s - at_s) / HOUR_S)


def _up_s() -> float:
    try:
        return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return HOUR_S
