"""The kernel's log as a health check: GPU driver errors (XID), machine checks, disks, links, stalls.

What a line means is in `faults.toml`, and `cluster.health.faults` decides by it; here a log is read whole. The agent
(`node_agent`) follows one instead.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from weft.cluster.health.faults import FaultCatalogue, FaultVerdict, most_at_once
from weft.cluster.records.node import Severity
from weft.engines.health.checks import CheckSetting, Finding, HealthReport
from weft.engines.health.fault_data import shipped_catalogue
from weft.engines.health.log_follower import said_by

_MOST_LINES = 200_000
_PATIENCE_S = 10
_LISTED = 20


def classify(line: str) -> Finding | None:
    """Return what a line of the kernel's log means for the machine's health by itself, or nothing."""
    found = shipped_catalogue().of_line(line)
    return None if found is None else _finding(found, 1, 1)


def _finding(found: FaultVerdict, times: int, at_once: int) -> Finding:
    # What is healthy now and then is a note.
    one = found.evidence(0)
    severity: Severity = "note" if at_once <= found.entry.most else one.severity
    return Finding(one.check, severity, found.text + (f" ({times} times)" if times > 1 else ""), one.gpu)


def judge(lines: list[str], catalogue: FaultCatalogue | None = None) -> tuple[Finding, ...]:
    """Return what a whole log means: each kind on each device once, with its count."""
    known = catalogue or shipped_catalogue()
    kinds: dict[tuple[str, str], list[tuple[FaultVerdict, int]]] = {}
    said_at = said_by()
    for line in lines:
        if (found := known.of_line(line)) is not None:
            kinds.setdefault((found.entry.name, found.device), []).append((found, said_at(line)))
    order = ("fatal", "warning", "note")
    findings = sorted((_finding_of(each) for each in kinds.values()), key=lambda one: order.index(one.severity))
    return tuple(findings[:_LISTED])


def _finding_of(seen: list[tuple[FaultVerdict, int]]) -> Finding:
    last, _ = seen[-1]
    times = [at_ms for found, at_ms in seen for _ in range(min(found.count, last.entry.most + 1))]
    return _finding(last, len(seen), most_at_once(times, last.entry.within_ms))


def kernel(setting: CheckSetting) -> HealthReport:
    """Read the kernel's log."""
    began = time.monotonic()
    lines = _saved(setting.kernel_log) if setting.kernel_log is not None else _machine()
    if lines is None:
        return HealthReport("kernel", (), seconds=time.monotonic() - began, note="the kernel's log cannot be read here")
    return HealthReport("kernel", judge(lines), {"lines": float(len(lines))}, time.monotonic() - began)


def _saved(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-_MOST_LINES:]


def _machine() -> list[str] | None:
    """Return the kernel's ring buffer, by the device or by dmesg."""
    with contextlib.suppress(OSError):
        return _ring()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["dmesg"], capture_output=True, timeout=_PATIENCE_S, check=True)  # noqa: S607 - a system tool
        return said.stdout.decode("utf-8", errors="replace").splitlines()
    return None


def _ring() -> list[str]:
    handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    lines: list[str] = []
    try:
        while len(lines) < _MOST_LINES:
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the buffer has moved on below us; the next read goes on
            lines.append(record.decode("utf-8", errors="replace").partition("\n")[0])
    finally:
        os.close(handle)
    return lines
