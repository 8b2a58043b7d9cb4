"""`weft health agent` and `weft health catalogue`: watch this node's health, and list what each fault calls for."""

import json as json_format
import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli.output import JsonFlag, print_json, print_table
from weft.cluster.health.expected_figures import read_expected
from weft.cluster.health.faults import FaultEntry
from weft.core.errors import UsageError
from weft.engines.health.fault_data import shipped_catalogue
from weft.engines.health.log_follower import DEVICE
from weft.engines.health.node_agent import AgentSettings, run_agent

_STATE = Path("/var/lib/weft-health")


def agent(
    *,
    node: Annotated[str, Parameter(help="Name of this node; default: $NODE_NAME, else the host name.")] = "",
    log: Annotated[Path, Parameter(help="Kernel log to follow: the device, or a file in any format.")] = DEVICE,
    report: Annotated[str, Parameter(help="URL that hears reports; default: print them only.")] = "",
    token: Annotated[Path | None, Parameter(help="File with the token that is sent along.")] = None,
    state: Annotated[Path, Parameter(help="Folder for its place in the log, counters, waiting reports.")] = _STATE,
    counters: Annotated[float, Parameter(help="Seconds between two looks at counters.")] = 30.0,
    reset_command: Annotated[str, Parameter(help="Command that resets GPU {gpu} when that is ordered.")] = "",
    reboot_command: Annotated[str, Parameter(help="Command that reboots when that is ordered.")] = "",
    expect: Annotated[tuple[str, ...], Parameter(negative="", help="Least of a test: CHECK.FIGURE=VALUE.")] = (),
    once: Annotated[bool, Parameter(negative="", help="Look once and end.")] = False,
) -> None:
    """Watch this node: follow the kernel log, read GPU and NIC counters, report faults. One JSON line for each."""
    if counters <= 0:
        raise UsageError(f"--counters {counters:g}: write a number of seconds above zero")
    if log != DEVICE and not log.exists() and once:
        raise UsageError(f"--log {log}: there is no such file")
    if token is not None and not token.exists():
        raise UsageError(f"--token {token}: there is no such file")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    commands = {kind: each for kind, each in (("reset-gpu", reset_command), ("reboot", reboot_command)) if each}
    name = node or os.environ.get("NODE_NAME") or socket.gethostname()
    run_agent(
        AgentSettings(
            name,
            log,
            state,
            report,
            token,
            counters_s=counters,
            commands=commands,
            expected=read_expected(expect),
            history=once,
        ),
        _print,
        once=once,
    )


def _print(found: Mapping[str, Any]) -> None:
    sys.stdout.write(json_format.dumps(found) + "\n")
    sys.stdout.flush()


def catalogue(*, json: JsonFlag = False) -> None:
    """List every fault that is known: what it means, the action, the source."""
    entries = sorted(shipped_catalogue().entries, key=lambda one: (one.check, len(one.name), one.name))
    if json:
        print_json([
            {"name": one.name, "check": one.check, "meaning": one.meaning, "action": str(one.action), "most": one.most,
             "within_s": one.within_ms // 1000, "repair": one.repair, "source": one.source}
            for one in entries
        ])  # fmt: skip
        return
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in entries:
        # A condition of a node is named by whoever reports it; its name says all that is known.
        means = "a node's condition" if one.meaning == one.name else one.meaning
        alike.setdefault((means, str(one.action), _threshold(one)), []).append(one.name)
    rows = [(action, least, f"{means}: {_told_together(names)}") for (means, action, least), names in alike.items()]
    print_table(f"{len(entries)} faults", ("action", "from", "what it means: its names"), rows, words=(0, 1, 2))


def _threshold(one: FaultEntry) -> str:
    return f"> {one.most} in {one.within_ms // 60_000} min" if one.most else "1"


def _told_together(names: list[str]) -> str:
    """Return names of faults that are alike, what numbered ones have in common written once: xid 8, 11, 13."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, number = name.rpartition(" ")
        kinds.setdefault(kind, []).append(number)
    return ", ".join(f"{kind} {', '.join(dict.fromkeys(each))}".strip() for kind, each in kinds.items())
