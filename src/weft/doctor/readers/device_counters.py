"""Counters of devices over time: `nvidia-smi --query-gpu ... --format=csv`, `nvidia-smi dmon`, `dcgmi dmon`."""

import re
from collections import defaultdict

import numpy as np

from weft.diagnosis.finding import DiagnosisFinding
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import DeviceSample, Evidence

_UNIT = re.compile(r"^(.*?)\s*\[(.*)\]$")
_VALUE = re.compile(r"^\s*([-+]?\d+(?:[.,]\d+)?)\s*([%A-Za-z/]*)\s*$")
"""A number, in some languages with a decimal comma, and its unit."""
_BELOW_PEERS = 0.9
_WORST_COUNTERS = ("ecc.errors.uncorrected", "retired_pages", "remapped_rows.failure", "DBE", "xid_errors", "XIDER")
_DCGM_HEAD = re.compile(r"^#\s*Entity\s+(.*)$", re.MULTILINE)
_DMON_HEAD = re.compile(r"^#\s*(?:Date\s+Time\s+)?gpu\s+(.*)$", re.MULTILINE)
_DCGM_ROW = re.compile(r"^\s*((?:GPU(?:-I|-CI)?|NvSwitch|Switch|NvLink|Link|CPU|Core)\s*[\d:/]+)\s+(.*)$")
_LIFELONG = re.compile(r"aggregate|retired_pages|remapped_rows", re.IGNORECASE)
"""Counters that are never reset: they tell of today only if they rise."""
_CLOCK = re.compile(r"^clocks?\.(?:current\.)?(?:sm|gr|graphics)$|SMCLK|^pclk$")
_LOAD = re.compile(r"^utilization\.gpu$|^sm$|GPUTL|GRACT|SMACT", re.IGNORECASE)
_MOST_IDLE = 0.5


class DeviceCounterReader:
    """Reads samples of several devices and finds the one that is unlike the others."""

    name = "device counters"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether its heading has the words of one of the tools."""
        first = file.log_head.split("\n", 1)[0]
        smi = re.search("[,;]", first) and re.search(
            r"\b(utilization\.gpu|power\.draw|temperature\.gpu|clocks\.)", first
        )
        heads = (_DCGM_HEAD, _DMON_HEAD)
        return file.is_text and (bool(smi) or any(head.search(file.log_head) is not None for head in heads))

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read all samples, holding one list for each device and field."""
        samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        tables = ((_DCGM_HEAD, _dcgm_rows), (_DMON_HEAD, _dmon_rows))
        rows = next((rows for head, rows in tables if head.search(file.log_head) is not None), _smi_rows)(file)
        for device, field, unit, value in rows:
            samples[device, field, unit].append(value)
        if not samples:
            raise UnreadableError(f"{file.path} has a heading of device counters and no numbers")
        found = [
            DeviceSample(device, field, unit, float(np.mean(values)), min(values), max(values), len(values))
            for (device, field, unit), values in sorted(samples.items())
        ]
        evidence.samples += found
        evidence.findings += _odd_devices(found)
        devices = {one.device for one in found}
        return f"{len(devices)} devices, {len({one.field for one in found})} counters"


def _smi_rows(file: FileToRead):  # noqa: ANN202 - tuples of device, field, unit, value
    lines = file.log_lines()
    first = next(lines, "")
    between = ";" if ";" in first else ","
    heading = [_named(cell) for cell in first.split(between)]
    names = [name for name, _ in heading]
    who = next(
        (names.index(key) for key in ("index", "gpu_uuid", "uuid", "pci.bus_id", "gpu_bus_id") if key in names), None
    )
    for line in lines:
        cells = line.split(between)
        if len(cells) != len(heading):
            continue
        device = f"GPU {cells[who].strip()}" if who is not None else "GPU"
        for at, (name, unit) in enumerate(heading):
            value = _VALUE.match(cells[at])
            if at != who and value is not None and name not in {"timestamp", "index"}:
                yield device, name, unit or value.group(2), _figure(value)


def _figure(value: re.Match[str]) -> float:
    return float(value.group(1).replace(",", "."))


def _named(cell: str) -> tuple[str, str]:
    found = _UNIT.match(cell.strip())
    return (found.group(1).strip(), found.group(2)) if found else (cell.strip(), "")


def _dcgm_rows(file: FileToRead):  # noqa: ANN202 - the same
    names: list[str] = []
    for line in file.log_lines():
        if (heading := _DCGM_HEAD.match(line)) is not None:
            names = heading.group(1).split()
            continue
        found = _DCGM_ROW.match(line)
        if found is not None and names:
            for name, cell in zip(names, found.group(2).split(), strict=False):
                if (value := _VALUE.match(cell)) is not None:
                    yield " ".join(found.group(1).split()), name, "", _figure(value)


def _dmon_rows(file: FileToRead):  # noqa: ANN202 - the same
    names: list[str] = []
    units: list[str] = []
    for line in file.log_lines():
        if (heading := _DMON_HEAD.match(line)) is not None:
            names = heading.group(1).split()
        elif line.lstrip().startswith("#") and "Idx" in line:
            units = line.split("Idx", 1)[1].split()
        else:
            cells = line.lstrip("# ").split()
            cells = cells[2:] if len(cells) == len(names) + 3 else cells  # date and time, with -o DT
            if len(cells) == len(names) + 1 and cells[0].isdecimal():
                for at, name in enumerate(names):
                    if (value := _VALUE.match(cells[at + 1])) is not None:
                        yield f"GPU {cells[0]}", name, units[at] if at < len(units) else "", _figure(value)


def _odd_devices(found: list[DeviceSample]) -> list[DiagnosisFinding]:
    findings: list[DiagnosisFinding] = []
    for one in found:
        counter = any(word.lower() in one.field.lower() for word in _WORST_COUNTERS)
        if counter and one.high > (one.low if _LIFELONG.search(one.field) else 0):
            findings.append(DiagnosisFinding(
                "wrong", "device-errors", one.device, f"{one.device} counts {one.high:g} of {one.field}.", (), 0.9
            ))  # fmt: skip
    load = {one.device: one.mean for one in found if _LOAD.search(one.field)}
    busiest = max(load.values(), default=0.0)
    # A device that does nothing is clocked down, and nobody's fault.
    idle = {device for device, mean in load.items() if mean < _MOST_IDLE * busiest}
    for field in sorted({one.field for one in found if _CLOCK.search(one.field)}):
        own = [one for one in found if one.field == field and one.device not in idle]
        usual = float(np.median([one.mean for one in own]))
        findings += [
            DiagnosisFinding(
                "slow", "slow-clock", one.device,
                f"{one.device} runs at {one.mean:.0f} {one.unit or 'MHz'} in the mean, the others at {usual:.0f}: heat,"
                " power or a limit holds it back.", (), 0.85, usual / one.mean if one.mean else None,
            )
            for one in own if len(own) > 2 and one.mean < _BELOW_PEERS * usual  # noqa: PLR2004 - of two, which is odd
        ]  # fmt: skip
    return findings
