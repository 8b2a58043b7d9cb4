"""What others have seen: trainings of their ranks, the fabric's prober of links. Their reports are files."""

import time
from collections.abc import Mapping
from typing import Any

from weft.cluster.records.node import Severity
from weft.core.errors import UsageError
from weft.core.input_files import json_of, read_bytes
from weft.engines.health.checks import CheckSetting, Finding, HealthReport
from weft.training.run_dir import records

_BLAMED: dict[str, Severity] = {"diverged": "warning", "hung": "warning", "stopped": "warning"}
"""Incidents that weigh more than a note; a process that was killed or ended by an error says little of its machine."""
_HEALTHY = frozenset({"fine", "hidden"})
"""Words of the prober for links that are right, or of which nothing can be said (`fabric.fault_localization`)."""


def trainer(setting: CheckSetting) -> HealthReport:
    """Read the incidents of the trainings on this machine."""
    began = time.monotonic()
    if setting.runs is None:
        return HealthReport("trainer", (), note="no folder of runs was given")
    found: list[Finding] = []
    seen = 0
    for record in records(setting.runs):
        for line in record.incidents():
            seen += 1
            if line.get("slot") is not None:
                found.append(_incident(record.name, line))
    return HealthReport("trainer", tuple(found), {"incidents": float(seen)}, time.monotonic() - began)


def _incident(run: str, line: Mapping[str, Any]) -> Finding:
    kind = str(line.get("kind"))
    text = f"{run} after step {line.get('step')}: slot {line.get('slot')} {kind}"
    return Finding("trainer", _BLAMED.get(kind, "note"), text)


def prober(setting: CheckSetting) -> HealthReport:
    """Read the verdicts of the fabric's prober (`weft lab map --json`)."""
    began = time.monotonic()
    if setting.survey is None:
        return HealthReport("prober", (), note="no survey of the fabric was given")
    try:
        survey = json_of(read_bytes(setting.survey))
        links = [(str(one["link"]), str(one["health"]), float(one["loss"] or 0)) for one in survey["links"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{setting.survey} is no survey of the prober ({error}); weft lab map --json writes one"
        ) from None
    sick = [(name, health, loss) for name, health, loss in links if health not in _HEALTHY]
    found = [Finding("prober", "warning", f"{name} is {health}, loses {loss:.1%}") for name, health, loss in sick]
    return HealthReport("prober", tuple(found), {"links": float(len(links))}, time.monotonic() - began)
