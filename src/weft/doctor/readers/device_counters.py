"""Counters of devices over time: CSV of `nvidia-smi --query-gpu ... --format=csv` and tables of `dcgmi dmon`."""

import re
from collections import defaultdict

import numpy as np

from weft.diagnosis.finding import DiagnosisFinding
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import DeviceSample, Evidence

_UNIT = re.compile(r"^(.*?)\s*\[(.*)\]$")
_VALUE = re.compile(r"^\s*([-+]?\d+(?:\.\d+)?)\s*([%A-Za-z/]*)\s*$")
_BELOW_PEERS = 0.9
_WORST_COUNTERS = ("ecc.errors.uncorrected", "retired_pages", "remapped_rows.failure", "DBE", "xid_errors", "XIDER")
_DCGM_HEAD = re.compile(r"^#\s*Entity\s+(.*)$", re.MULTILINE)


class DeviceCounterReader:
    """Reads samples of several devices and finds the one that is unlike the others."""

    name = "device counters"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether its heading has the words of one of the tools."""
        first = file.text_head.split("\n", 1)[0]
        smi = "," in first and re.search(r"\b(utilization\.gpu|power\.draw|temperature\.gpu|clocks\.)", first)
        return file.is_text and (bool(smi) or _DCGM_HEAD.search(file.text_head) is not None)

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read all samples, holding one list for each device and field."""
        samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        rows = _dcgm_rows(file) if _DCGM_HEAD.search(file.text_head) else _smi_rows(file)
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
    lines = file.lines()
    heading = [_named(cell) for cell in next(lines, "").split(",")]
    names = [name for name, _ in heading]
    who = next(
        (names.index(key) for key in ("index", "gpu_uuid", "uuid", "pci.bus_id", "gpu_bus_id") if key in names), None
    )
    for line in lines:
        cells = line.split(",")
        if len(cells) != len(heading):
            continue
        device = f"GPU {cells[who].strip()}" if who is not None else "GPU"
        for at, (name, unit) in enumerate(heading):
            value = _VALUE.match(cells[at])
            if at != who and value is not None and name not in {"timestamp", "index"}:
                yield device, name, unit or value.group(2), float(value.group(1))


def _named(cell: str) -> tuple[str, str]:
    found = _UNIT.match(cell.strip())
    return (found.group(1).strip(), found.group(2)) if found else (cell.strip(), "")


def _dcgm_rows(file: FileToRead):  # noqa: ANN202 - the same
    names: list[str] = []
    for line in file.lines():
        if (heading := _DCGM_HEAD.match(line)) is not None:
            names = heading.group(1).split()
            continue
        found = re.match(r"^GPU\s+(\d+)\s+(.*)$", line)
        if found is not None and names:
            for name, cell in zip(names, found.group(2).split(), strict=False):
                if (value := _VALUE.match(cell)) is not None:
                    yield f"GPU {found.group(1)}", name, "", float(value.group(1))


def _odd_devices(found: list[DeviceSample]) -> list[DiagnosisFinding]:
    findings: list[DiagnosisFinding] = []
    for one in found:
        counter = any(word.lower() in one.field.lower() for word in _WORST_COUNTERS)
        if counter and one.high > 0 and one.field != "corrected":
            findings.append(DiagnosisFinding(
                "wrong", "device-errors", one.device, f"{one.device} counts {one.high:g} of {one.field}.", (), 0.9
            ))  # fmt: skip
    for field in sorted(
        {one.field for one in found if re.search(r"clocks?\.(current\.)?(sm|gr|graphics)|SMCLK", one.field)}
    ):
        own = [one for one in found if one.field == field]
        usual = float(np.median([one.mean for one in own]))
        findings += [
            DiagnosisFinding(
                "slow", "slow-clock", one.device,
                f"{one.device} runs at {one.mean:.0f} {one.unit} in the mean, the others at {usual:.0f}: heat, power or"
                " a limit holds it back.", (), 0.85, usual / one.mean if one.mean else None,
            )
            for one in own if len(own) > 2 and one.mean < _BELOW_PEERS * usual  # noqa: PLR2004 - of two, which is odd
        ]  # fmt: skip
    return findings
