"""The kernel's log: GPU driver errors (XID), machine checks, disks, links, stalls.

`classify` is pure: a line in, what it means out. XID classes follow NVIDIA's catalogue (under docs.nvidia.com, at
deploy/xid-errors): what needs a reset or a repair is proof, what needs a look is a warning, what a program did wrong is
a note.
"""

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path

from weft.cluster.records.node import Severity
from weft.engines.health.checks import CheckSetting, Finding, HealthReport

_MOST_LINES = 200_000
_PATIENCE_S = 10
_LISTED = 20

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
XIDS: dict[int, tuple[Severity, str]] = {
    13: ("note", "graphics engine exception: usually the program"),
    31: ("note", "memory page fault: usually the program"),
    43: ("note", "the program's channel was stopped"),
    45: ("note", "channels were cleaned up after another error"),
    46: ("fatal", "the GPU stopped processing: reset it"),
    48: ("fatal", "double-bit ECC error"),
    61: ("fatal", "internal microcontroller breakpoint: reset it"),
    62: ("fatal", "internal microcontroller halt: reset it"),
    63: ("warning", "a memory row was remapped: reset the GPU to take it up"),
    64: ("fatal", "a memory row could not be remapped"),
    69: ("note", "graphics engine class error: usually the program"),
    74: ("fatal", "NVLink error"),
    79: ("fatal", "the GPU has fallen off the bus"),
    92: ("warning", "many single-bit ECC errors"),
    94: ("warning", "a contained memory error: its program must restart"),
    95: ("fatal", "an uncontained memory error: reset the GPU"),
    119: ("fatal", "the GPU system processor does not answer: reset it"),
    120: ("fatal", "the GPU system processor failed: reset it"),
    140: ("fatal", "an unrecovered ECC error"),
    143: ("fatal", "the GPU could not be initialised"),
}
"""XID numbers, what each weighs, and what it means."""

_LINES: tuple[tuple[str, str, Severity, str], ...] = (
    (r"mce: \[Hardware Error\].*(?:Uncorrected|UC )", "mce", "fatal", "uncorrected machine check"),
    (r"\[Hardware Error\]|mce: .*Machine check", "mce", "warning", "machine check"),
    (r"EDAC .*\bUE\b", "ecc", "fatal", "uncorrectable memory error"),
    (r"EDAC .*\bCE\b", "ecc", "warning", "corrected memory error"),
    (r"I/O error, dev|Buffer I/O error on dev|critical medium error", "disk", "warning", "disk error"),
    (r"nvme\S* .*(?:timeout|controller is down)", "disk", "warning", "NVMe trouble"),
    (r"(?:EXT4-fs|XFS).*(?:error|corrupt)", "disk", "warning", "file system error"),
    (r"NIC Link is Down|link is not ready|Link is down|Port: \d+ Link DOWN", "link", "note", "a link went down"),
    (r"soft lockup|hard LOCKUP|rcu.*stall", "stall", "warning", "a CPU was stuck"),
    (r"Out of memory: Killed process", "memory", "note", "a process was killed for memory"),
    (r"thermal.*(?:throttl|critical)|Package temperature above", "thermal", "warning", "too hot"),
    (r"AER: .*(?:Uncorrected|Fatal)", "pcie", "warning", "PCIe error"),
)
_PATTERNS = [(re.compile(text, re.IGNORECASE), check, weight, meaning) for text, check, weight, meaning in _LINES]
FLAPS = 3
"""Links that went down in one log, from which on they are a warning."""


def classify(line: str) -> Finding | None:
    """Return what a line of the kernel's log means for the machine's health, or nothing."""
    if found := _XID.search(line):
        number = int(found[2])
        severity, meaning = XIDS.get(number, ("warning", "not in the table"))
        return Finding("xid", severity, f"XID {number} at {found[1]}: {meaning}")
    for pattern, check, severity, meaning in _PATTERNS:
        if pattern.search(line):
            return Finding(check, severity, f"{meaning}: {line.strip()[:160]}")
    return None


def judge(lines: list[str]) -> tuple[Finding, ...]:
    """Return what a whole log means: each kind once with its count, links that flap as a warning."""
    kinds: dict[tuple[str, Severity, str], list[str]] = {}
    for line in lines:
        if (found := classify(line)) is not None:
            meaning = found.text if found.check == "xid" else found.text.partition(":")[0]
            kinds.setdefault((found.check, found.severity, meaning), []).append(found.text)
    findings: list[Finding] = []
    for (check, severity, _), texts in kinds.items():
        weight: Severity = "warning" if check == "link" and len(texts) >= FLAPS else severity
        times = f" ({len(texts)} times)" if len(texts) > 1 else ""
        findings.append(Finding(check, weight, texts[-1] + times))
    return tuple(findings[:_LISTED])


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
            lines.append(record.decode("utf-8", errors="replace").partition(";")[2])
    finally:
        os.close(handle)
    return lines
