"""Written histories: what broke when, run against the controllers; and logs of real engines, decided again.

A diary is a CSV with `at_h` (hours from the beginning), `class` (as in docs/campaign.md) and `part` (a node, a rack, or
a number). A decision log is what `cluster.log` writes for the local engine and for the Kubernetes controller alike: the
campaign's own state goes through the same changes, and every pass is made again.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.campaign.arrivals import FleetFault
from weft.campaign.csv_rows import csv_rows, csv_text
from weft.campaign.fleet import HOUR_MS, Fleet, ms
from weft.cluster.log import replayed
from weft.core.errors import Mistake, SpecError, UsageError

COLUMNS = ("at_h", "class", "part")
_OPTIONAL = ("soft",)
_YES, _NO = ("1", "true", "yes"), ("", "0", "false", "no")
_MOST_SHOWN = 10


def read_diary(path: Path, fleet: Fleet) -> tuple[FleetFault, ...]:
    """Return the faults of a diary; every mistake is named with its line."""
    found: list[FleetFault] = []
    mistakes: list[Mistake] = []
    for number, values in csv_rows(csv_text(path), str(path), COLUMNS, _OPTIONAL):
        try:
            found.append(_fault(values, fleet))
        except _DiaryLineError as error:
            mistakes.append(Mistake(str(path), error.column, str(error), line=number))
    if mistakes:
        raise SpecError(mistakes[:_MOST_SHOWN])
    if not found:
        raise UsageError(f"{path} has no faults below its header; write at least one line")
    return tuple(sorted(found, key=lambda fault: fault.at_ms))


class _DiaryLineError(Exception):
    def __init__(self, column: str, text: str) -> None:
        super().__init__(text)
        self.column = column


def _fault(values: dict[str, str], fleet: Fleet) -> FleetFault:
    name, part = values["class"], values["part"]
    known = (*fleet.classes, "silent", "software", "alarm")
    if name not in known:
        raise _DiaryLineError("class", f"{name!r} is no class of faults; write one of {', '.join(known)}")
    try:
        at_h = float(values["at_h"])
    except ValueError:
        raise _DiaryLineError("at_h", f"{values['at_h']!r} is no number of hours") from None
    end_h = ms(fleet.spec.duration) / HOUR_MS
    if not math.isfinite(at_h) or not 0 <= at_h < end_h:
        raise _DiaryLineError("at_h", f"{values['at_h']}; the campaign lasts from 0 to {end_h:g} h")
    groups = fleet.classes[name].groups if name in fleet.classes else fleet.units
    if name == "software":
        groups = len(fleet.spec.gangs)
    names = {record.name: record.number for record in fleet.records} if groups == fleet.units else {}
    number = names.get(part, int(part) if part.isdecimal() and part.isascii() else -1)
    if not 0 <= number < groups:
        what = "a node's name, or a number" if names else "a number"
        raise _DiaryLineError(
            "part", f"there is no {part!r}; {name} has {groups:,} parts: write {what} below {groups:,}"
        )
    soft = values.get("soft", "").lower()
    if soft not in (*_YES, *_NO):
        raise _DiaryLineError("soft", f"{values['soft']!r} is neither true nor false; write one of them, or nothing")
    return FleetFault(round(at_h * HOUR_MS), name, number, soft=soft in _YES)


@dataclass(frozen=True, slots=True)
class LogReplay:
    """An engine's decisions, made again."""

    passes: int
    decisions: int
    faults: int
    """Reports of faults that the engine had."""
    differences: int
    first: str
    """When the first pass that differs was made, in milliseconds of the log's clock."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def replayed_log(path: Path) -> LogReplay:
    """Make every decision of a log again by the pass that campaigns make."""
    passes = decisions = faults = 0
    lines = [line for line in csv_text(path).splitlines() if line.strip()]
    try:
        for line in lines:
            entry = json.loads(line)
            if "snapshot" in entry:
                continue
            passes += 1
            decisions += len(entry["actions"])
            faults += sum(_is_fault(change) for change in entry["changes"])
        found = list(replayed(lines))
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UsageError(f"{path} is no decision log: {error}; an engine writes one") from None
    if not passes:
        raise UsageError(f"{path} is no decision log: it holds no pass; an engine writes one")
    return LogReplay(passes, decisions, faults, len(found), str(found[0].at_ms) if found else "")


def _is_fault(change: dict[str, Any]) -> bool:
    evidence = change.get("record", {}).get("evidence", []) if change.get("put") == "node" else []
    return any(each.get("severity") == "fatal" for each in evidence)
