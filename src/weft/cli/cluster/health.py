"""`weft nodes test` and `weft nodes programs`: run health checks on this machine, and list what each detects."""

import json as json_format
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli.cluster.queue import nodes_app
from weft.cli.output import JsonFlag, print_json, print_table, say
from weft.core.errors import FailedError, UsageError
from weft.core.quantity import significant
from weft.engines.health.registry import CHECKS, SUITES, named

_MOST_S, _MOST_MEBIBYTES = 3600.0, 1_000_000


@nodes_app.command(name="test")
def examine(
    *programs: Annotated[
        str, Parameter(help="Health checks or suites (idle, preflight, diagnose, validate); default: preflight.")
    ],
    seconds: Annotated[float, Parameter(help="Duration of each active check.")] = 1.0,
    mebibytes: Annotated[int, Parameter(help="Memory to test with patterns.")] = 64,
    kernel_log: Annotated[Path | None, Parameter(help="Saved kernel log instead of this machine's.")] = None,
    survey: Annotated[Path | None, Parameter(help="JSON of the fabric prober (weft lab map --json).")] = None,
    runs: Annotated[
        Path | None, Parameter(name=("--folder", "--runs"), help="Folder of runs whose incidents count.")
    ] = None,
    state: Annotated[Path | None, Parameter(help="Folder for counters between two checks.")] = None,
    json: JsonFlag = False,
) -> None:
    """Test this machine; status 1 where something is wrong."""
    wanted = programs or ("preflight",)
    named(wanted)
    if not 0 < seconds <= _MOST_S or not 1 <= mebibytes <= _MOST_MEBIBYTES:
        raise UsageError(f"--seconds {seconds:g} --mebibytes {mebibytes}: write numbers above zero, up to an hour")
    options: list[str] = ["--seconds", str(seconds), "--mebibytes", str(mebibytes)]
    for option, path in (("kernel-log", kernel_log), ("survey", survey), ("runs", runs), ("state", state)):
        if path is not None:
            if option != "state" and not path.exists():
                raise UsageError(f"--{option} {path}: there is no such file")
            if option in ("kernel-log", "survey") and path.is_dir():
                raise UsageError(f"--{option} {path}: that is a folder; name a file")
            options += [f"--{option}", str(path)]
    reports = _run([*wanted, *options])
    if json:
        print_json(reports)
    else:
        _print(reports)
    wrong = [report["program"] for report in reports if not report["passed"]]
    if wrong:
        raise FailedError(f"this machine has failed {', '.join(wrong)}")


@nodes_app.command(name="programs")
def list_programs(*, json: JsonFlag = False) -> None:
    """List the health checks: what each detects, its threshold, and how long it takes."""
    if json:
        print_json([
            {"name": one.name, "kind": one.kind, "catches": one.catches, "threshold": one.threshold, "takes": one.takes,
             "suites": [name for name, members in SUITES.items() if one.name in members]}
            for one in CHECKS.values()
        ])  # fmt: skip
        return
    rows = [(one.name, one.kind, one.catches, one.threshold, one.takes) for one in CHECKS.values()]
    columns = ("check", "kind", "detects", "threshold", "duration")
    print_table("health checks", columns, rows, words=tuple(range(len(columns))))


def run_checks(names: tuple[str, ...]) -> list[str]:
    """Run checks for a moment each and return those that found something wrong, with what they found."""
    reports = _run([*names, "--seconds", "0.2", "--mebibytes", "16"])
    return [
        f"{report['program']} ({'; '.join(str(one['text']) for one in report['findings']) or 'no reason given'})"
        for report in reports if not report["passed"]
    ]  # fmt: skip


def _run(arguments: list[str]) -> list[dict[str, Any]]:
    """Run checks in a process of their own, where one thread computes."""
    command = [sys.executable, "-m", "weft.engines.health", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    if done.returncode == UsageError.exit_status:
        raise UsageError(done.stderr.strip())
    if done.returncode:
        raise FailedError(f"the health checks crashed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json_format.loads(done.stdout)


def _print(reports: list[dict[str, Any]]) -> None:
    rows = [
        (report["program"], "-" if report["note"] else "good" if report["passed"] else "bad",
         f"{report['seconds']:.2f}",
         "; ".join(one["text"] for one in report["findings"]) or report["note"] or _figures(report["figures"]))
        for report in reports
    ]  # fmt: skip
    print_table("this machine", ("check", "", "s", "result"), rows, words=(0, 1, 3))
    if any(report["note"] for report in reports):
        say("-: not applicable here; weft nodes programs describes each check")


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {significant(value)}" for name, value in figures.items())
