"""Cables as NetBox exports them, as an edge list for `graph.edges`: REST answers as JSON, or tables as CSV. Pure."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from weft.core.errors import UsageError

_A = ("side_a_device", "Device A", "device_a", "A-side device", "Termination A Device", "a_device")
_B = ("side_b_device", "Device B", "device_b", "B-side device", "Termination B Device", "b_device")
_LENGTH = ("length", "Length")
_UNIT = ("length_unit", "Length unit", "Length Unit")
_LONGEST_HEADING = 10_000
_UNITS_M = {"m": 1.0, "cm": 0.01, "mm": 0.001, "km": 1000.0, "ft": 0.3048, "in": 0.0254, "mi": 1609.344}


def edges_of_netbox_json(document: Any, file: str) -> str:
    """Return the cables of a REST answer (`/api/dcim/cables/`), or of a list of them, as an edge list."""
    cables = document.get("results") if isinstance(document, Mapping) else document
    if not isinstance(cables, list) or not cables:
        raise UsageError(f"{file} has no cables; export /api/dcim/cables/?limit=0")
    rows = []
    for number, cable in enumerate(cables):
        try:
            ends = [_device(cable[f"{side}_terminations"]) for side in ("a", "b")]
            unit = cable.get("length_unit") or "m"
            unit = unit.get("value", "m") if isinstance(unit, Mapping) else unit
            rows.append((ends[0], ends[1], _metres(cable.get("length"), str(unit))))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise UsageError(f"{file}: cable {number + 1} has no device at both ends") from None
    return _listed(rows)


def _device(terminations: Iterable[Mapping[str, Any]]) -> str:
    first, *_ = terminations
    device = first.get("object", first).get("device") or first["device"]
    return str(device["name"] if isinstance(device, Mapping) else device)


def is_netbox_csv(heading: str) -> bool:
    """Return whether a first line has the columns of NetBox's cables."""
    # A line longer than any heading is none, and the reader of CSV refuses its cells.
    if len(heading) > _LONGEST_HEADING:
        return False
    names = {name for row in csv.reader([heading]) for name in row}
    return any(one in names for one in _A) and any(one in names for one in _B)


def edges_of_netbox_csv(text: str, file: str) -> str:
    """Return the cables of a table as an edge list."""
    reader = csv.DictReader(io.StringIO(text))
    rows = []
    try:
        for cable in reader:
            ends = [_cell(cable, names) for names in (_A, _B)]
            if not all(ends):
                raise UsageError(f"{file}, line {reader.line_num}: a cable needs a device at both ends")
            rows.append((ends[0], ends[1], _metres(_cell(cable, _LENGTH), _cell(cable, _UNIT) or "m")))
    except (csv.Error, ValueError) as error:
        raise UsageError(f"{file}, line {reader.line_num}: {error}") from None
    return _listed(rows)


def _cell(row: Mapping[str, str | None], names: Iterable[str]) -> str:
    return next((value.strip() for name in names if (value := row.get(name))), "")


def _metres(length: Any, unit: str) -> str:
    if length in {None, ""}:
        return ""
    factor = _UNITS_M.get(unit.lower().rstrip("s") if len(unit) > 2 else unit.lower())  # noqa: PLR2004 - "ms" is none
    words = {"meter": 1.0, "metre": 1.0, "centimeter": 0.01, "foot": 0.3048, "feet": 0.3048, "inche": 0.0254}
    factor = words.get(unit.lower().rstrip("s"), factor)
    if factor is None:
        raise ValueError(f"unknown unit of length {unit!r}")
    return f"{float(length) * factor:g} m"


def _listed(rows: Iterable[tuple[str, str, str]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("a", "b", "length"))
    writer.writerows(rows)
    return out.getvalue()
