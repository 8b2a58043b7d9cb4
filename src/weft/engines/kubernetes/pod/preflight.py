"""A gang's preflight: health checks of one of its nodes, in an init container on that node before the job's command.

It has the job's GPUs and the image that has weft in it. What it finds goes into the container's termination message, in
which the controller reads it: the node is taken out, and the gang is placed anew without counting against it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cluster.health.expected_figures import test_result
from weft.cluster.records.exit_status import UNFIT
from weft.core.errors import UsageError

CONTAINER = "weft-preflight"
"""What the init container is called."""
MESSAGE = "/dev/termination-log"
"""Where Kubernetes reads a container's last words."""
_MOST_TEXT = 1000
_PATIENCE_S = 3600


def asked(checks: tuple[str, ...], expected: Mapping[str, float], seconds: float) -> str:
    """Return what is asked of a preflight, as the variable WEFT_PREFLIGHT holds it."""
    return json.dumps({"checks": checks, "expect": dict(expected), "seconds": seconds}, separators=(",", ":"))


def read_finding(message: str) -> tuple[str, str]:
    """Return the check and the text of a termination message; an empty check where it is not ours."""
    check, colon, text = message.strip().partition(": ")
    return (check, text) if colon and " " not in check else ("", message.strip())


def preflight(environment: Mapping[str, str]) -> int:
    """Run the checks; returns 0, or UNFIT where this node fails one."""
    try:
        wanted: dict[str, Any] = json.loads(environment["WEFT_PREFLIGHT"])
        checks, expected, seconds = wanted["checks"], wanted["expect"], float(wanted["seconds"])
    except (KeyError, ValueError, TypeError):
        raise UsageError("this is a gang's preflight; its variable WEFT_PREFLIGHT cannot be read") from None
    command = [sys.executable, "-m", "weft.engines.health", *checks, "--seconds", str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)  # noqa: S603 - our own module
    except subprocess.TimeoutExpired:
        return _unfit(environment, "preflight", "the checks do not end")
    if done.returncode == UsageError.exit_status:
        raise UsageError(done.stderr.strip())
    if done.returncode:
        return _unfit(environment, "preflight", (done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    text, check = test_result(json.loads(done.stdout), expected)
    return _unfit(environment, check, text) if text else 0


def _unfit(environment: Mapping[str, str], check: str, text: str) -> int:
    said = f"{check}: {text}"[:_MOST_TEXT]
    sys.stderr.write(f"this node is not fit for the job: {said}\n")
    path = Path(environment.get("WEFT_TERMINATION_LOG", MESSAGE))
    if path.exists() or os.access(path.parent, os.W_OK):
        path.write_text(said, encoding="utf-8")
    return UNFIT
