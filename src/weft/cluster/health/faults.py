"""From a line of a kernel's log to what is done about the node: a catalogue of faults, and the monitor that counts.

Pure: a line and its time go in, verdicts come out. The catalogue itself is data (`engines/health/faults.toml`), each
entry with its source; whoever reads logs (`engines.health.node_agent`) hands both over. A verdict becomes evidence, and
what follows from evidence is decided by `quarantine` as for every other report.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from weft.cluster.health.kernel_lines import kernel_message
from weft.cluster.records.node import NodeEvidence, Severity

_XID = re.compile(r"NVRM: (?:\S+ )?Xid \(([^)]*)\): (\d+)\b")
_PCI = re.compile(r"(?:PCI:)?((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)", re.IGNORECASE)
_MOST_TEXT = 160
_MOST_MESSAGE = 500
_LONG = "NVRM: The NVIDIA GPU "
"""How a message of the driver begins that older kernels log in pieces."""
_MOST_DEVICE = 40
_MOST_PARTS = 4096
_SPANS_MS = {"s": 1_000, "min": 60_000, "h": 3_600_000}


class FaultAction(StrEnum):
    """What a fault calls for."""

    IGNORE = "ignore"
    """Nothing: a program's own mistake, or the echo of another error."""
    CORDON = "cordon"
    """The node keeps its work and gets no more."""
    DEGRADE = "degrade"
    """One GPU is excluded; the others stay in use."""
    RESET = "reset"
    """The node is emptied and one of its GPUs reset."""
    DRAIN = "drain"
    """The node is emptied and tested."""
    REBOOT = "reboot"
    """The node is emptied and rebooted."""
    REPLACE = "replace"
    """The node is emptied, and somebody is asked to replace a part."""


_SEVERITIES: Mapping[FaultAction, Severity] = {FaultAction.IGNORE: "note", FaultAction.CORDON: "warning"}
_REPAIRS: Mapping[FaultAction, str] = {
    FaultAction.DEGRADE: "swap-gpu", FaultAction.RESET: "reset-gpu", FaultAction.REBOOT: "reboot",
    FaultAction.REPLACE: "swap-gpu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """One kind of fault."""

    name: str
    """What it is called: "xid 79", "edac-uncorrectable"."""
    check: str
    """The check that a report of it names."""
    meaning: str
    """What it means, in words."""
    action: FaultAction
    source: str
    """Where meaning and action come from."""
    repair: str = ""
    """The repair that it calls for (`tickets.REPAIRS`); that of its action where empty."""
    most: int = 0
    """So many within `within_ms` are still healthy."""
    within_ms: int = 0


@dataclass(frozen=True, slots=True)
class FaultVerdict:
    """What one line, or one condition, says about a node."""

    entry: FaultEntry
    action: FaultAction
    """What is to be done; less than the entry's where no GPU is known or too few were counted."""
    text: str
    """What was seen, in words."""
    gpu: int | None = None
    """Number of the GPU that is to blame, where one is and its number is known."""
    device: str = ""
    """PCI address in the message, or what it begins with where there is none."""
    count: int = 1
    """How many errors the message speaks of."""

    def evidence(self, at_ms: int) -> NodeEvidence:
        """Return the verdict as a node's evidence."""
        severity = _SEVERITIES.get(self.action, "fatal")
        gpu = self.gpu if self.action is FaultAction.DEGRADE else None
        repair = self.entry.repair or _REPAIRS.get(self.action, "")
        return NodeEvidence(self.entry.check, at_ms, severity, self.text, gpu=gpu, repair=repair)


def pci_key(address: str) -> tuple[int, int, int] | None:
    """Return domain, bus and device of a PCI address in any of its forms; nothing where it is none."""
    found = _PCI.search(address)
    if found is None:
        return None
    *domain, bus, device = found[1].split(":")
    return (int(domain[0], 16) if domain else 0, int(bus, 16), int(device.partition(".")[0], 16))


def gpu_numbers(addresses: Sequence[str]) -> dict[tuple[int, int, int], int]:
    """Return the number of each GPU by its PCI address: NVML and the device plugin count in the order of the bus."""
    keys = sorted({key for each in addresses if (key := pci_key(each)) is not None})
    return {key: number for number, key in enumerate(keys)}


@dataclass(frozen=True, slots=True)
class _LinePattern:
    entry: FaultEntry
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class FaultCatalogue:
    """Every kind of fault that is known, as read from the data file."""

    xids: Mapping[int, tuple[tuple[re.Pattern[str] | None, FaultEntry], ...]]
    lines: tuple[_LinePattern, ...]
    conditions: Mapping[str, FaultEntry]
    unknown: FaultEntry
    """What an XID means that is in no catalogue."""

    @property
    def entries(self) -> tuple[FaultEntry, ...]:
        """Return every entry once."""
        xids = (entry for each in self.xids.values() for _, entry in each)
        return tuple(dict.fromkeys((*xids, *(one.entry for one in self.lines), *self.conditions.values())))

    def of_message(self, message: str) -> FaultEntry | None:
        """Return the entry that a message of the kernel (without its prefix) belongs to."""
        if found := _XID.match(message):
            for text, entry in self.xids.get(int(found[2]), ()):
                if text is None or text.search(message, found.end()):
                    return entry
            return self.unknown
        return next((one.entry for one in self.lines if one.pattern.match(message)), None)

    def _count(self, entry: FaultEntry, message: str) -> int:
        """Return how many errors a message speaks of: its group `count`, where its pattern has one."""
        pattern = next((one.pattern for one in self.lines if one.entry is entry), None)
        found = None if pattern is None or "count" not in pattern.groupindex else pattern.match(message)
        return 1 if found is None else int(found["count"])

    def of_line(self, line: str, gpus: Mapping[tuple[int, int, int], int] | None = None) -> FaultVerdict | None:
        """Return what a line of a log in any format means by itself; nothing where it says nothing about health."""
        message = kernel_message(line)
        return None if message is None else self.verdict(message, gpus or {})

    def verdict(self, message: str, gpus: Mapping[tuple[int, int, int], int]) -> FaultVerdict | None:
        """Return what a message of the kernel means by itself; nothing where it says nothing about health."""
        entry = self.of_message(message)
        return None if entry is None else _verdict(entry, message, gpus, self._count(entry, message))

    def of_condition(self, kind: str, text: str) -> FaultVerdict | None:
        """Return what a condition of a Node object means that is true."""
        entry = self.conditions.get(kind)
        return None if entry is None else FaultVerdict(entry, entry.action, f"{kind}: {text[:_MOST_TEXT]}")


def _verdict(entry: FaultEntry, message: str, gpus: Mapping[tuple[int, int, int], int], count: int) -> FaultVerdict:
    xid = _XID.match(message)
    places = [place[1] for place in _PCI.finditer(xid[1] if xid else message)]
    # A port that passes an error on is named before the GPU that it came from.
    device = next((each for each in places if pci_key(each) in gpus), places[0] if places else "")
    key = pci_key(device) if device else None
    gpu = gpus.get(key) if key is not None else None
    action = entry.action
    if action is FaultAction.DEGRADE and gpu is None:
        # Which GPU is to be excluded is not known: the node goes as a whole.
        action = FaultAction.DRAIN
    where = f" (GPU {gpu})" if gpu is not None else ""
    if xid is not None:
        text = f"XID {xid[2]} at {device or xid[1]}{where}: {entry.meaning}"
    else:
        text = f"{entry.meaning}{where}: {message[:_MOST_TEXT]}"
    return FaultVerdict(entry, action, text, gpu, device or message.partition(":")[0][:_MOST_DEVICE], count)


def most_at_once(times: Iterable[int], within_ms: int) -> int:
    """Return how many of `times` at most lie within a span of time."""
    recent: deque[int] = deque()
    most = 0
    for at_ms in sorted(times):
        recent.append(at_ms)
        while recent[0] <= at_ms - within_ms:
            recent.popleft()
        most = max(most, len(recent))
    return most


def catalogue_of(document: Mapping[str, Any]) -> FaultCatalogue:
    """Return the catalogue that the data file holds; raises ValueError where the file contradicts itself."""
    sources = document["sources"]
    xids: dict[int, list[tuple[re.Pattern[str] | None, FaultEntry]]] = {}
    for table in document["xid"]:
        text = re.compile(table["text"], re.IGNORECASE) if "text" in table else None
        for number in table["numbers"]:
            known = xids.setdefault(number, [])
            if known and known[-1][0] is None:
                raise ValueError(f"XID {number} stands twice; the second entry is never reached")
            known.append((text, _entry(f"xid {number}", "xid", table, sources)))
    lines = tuple(
        _LinePattern(_entry(table["name"], table["check"], table, sources), re.compile(table["pattern"], re.IGNORECASE))
        for table in document["line"]
    )
    conditions = {
        kind: _entry(kind, "condition", {"meaning": kind, **table}, sources)
        for table in document["condition"]
        for kind in table["types"]
    }
    unknown = FaultEntry("xid unknown", "xid", "in no catalogue", FaultAction.CORDON, sources["xid"])
    return FaultCatalogue({number: tuple(each) for number, each in xids.items()}, lines, conditions, unknown)


def _entry(name: str, check: str, table: Mapping[str, Any], sources: Mapping[str, str]) -> FaultEntry:
    within_ms = 0
    if "most" in table:
        count, unit = table["within"].split()
        within_ms = int(count) * _SPANS_MS[unit]
    return FaultEntry(name, check, table["meaning"], FaultAction(table["action"]), sources[table["source"]],
                      table.get("repair", ""), table.get("most", 0), within_ms)  # fmt: skip


@dataclass
class FaultMonitor:
    """Counts what is healthy once and a fault when it comes again and again; remembers nothing else."""

    catalogue: FaultCatalogue
    gpus: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    """Number of each GPU by its PCI address."""
    _seen: dict[tuple[str, str], deque[int]] = field(default_factory=dict)
    _unfinished: str = ""
    """What the kernel said last, where it meant nothing by itself: the next line may go on with it."""

    def take(self, line: str, at_ms: int) -> FaultVerdict | None:
        """Take in a line of the log; returns a verdict where something is to be done."""
        message = self._message(line)
        found = None if message is None else self.catalogue.verdict(message, self.gpus)
        self._unfinished = message[-_MOST_MESSAGE:] if message is not None and found is None else ""
        if found is None or found.action is FaultAction.IGNORE:
            return None
        entry = found.entry
        if not entry.most:
            return found
        # What counts is one device's errors, not those of all of them together.
        key = (entry.name, found.device)
        if key not in self._seen and len(self._seen) >= _MOST_PARTS:
            self._seen.pop(next(iter(self._seen)))
        times = self._seen.setdefault(key, deque(maxlen=entry.most + 1))
        if times and at_ms < times[-1] - entry.within_ms:
            times.clear()  # a clock that was set back, or seconds since a later boot
        times.extend([at_ms] * min(found.count, entry.most + 1))
        while times[0] <= at_ms - entry.within_ms:
            times.popleft()
        return found if len(times) > entry.most else None

    def _message(self, line: str) -> str | None:
        """Return the kernel's message, joined with what it goes on with; nothing where the line is somebody else's."""
        message, before = kernel_message(line), self._unfinished
        if message is None:
            # dmesg and journald indent what goes on; a record's keys are indented as well, and change nothing.
            goes_on = before and line[:1] in (" ", "\t")
            return f"{before} {line.strip()}" if goes_on else None
        return f"{before} {message}" if before.startswith(_LONG) and message.startswith("NVRM: ") else message
