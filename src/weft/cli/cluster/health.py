"""`weft nodes test` and `weft nodes programs`: run health checks on this machine, and list what each detects."""

import json as json_format
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli.cluster.queue import nodes_app
from weft.cli.output import JsonFlag, print_json, print_table, say
from weft.cluster.health.expected_figures import LEAST_SHARE
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
    for_job: Annotated[str | None, Parameter(name="--for", help="A job whose plan's needs are held against.")] = None,
    site: Annotated[str | None, Parameter(help="With --for: the site that the plan is for.")] = None,
    least: Annotated[float, Parameter(help="With --for: least share of a need that passes.")] = LEAST_SHARE,
    json: JsonFlag = False,
) -> None:
    """Test this machine; status 1 where something is wrong.

    With --for JOB --site SITE it does what the job will do here: the products of its plan, memory, and sums over this
    machine's ranks, each held against what the planner expects of the site.
    """
    if for_job is not None:
        if programs:
            raise UsageError(f"--for {for_job} is a test of its own; leave {', '.join(programs)} out")
        _test_needs(for_job, site, least, seconds, json=json)
        return
    if site is not None:
        raise UsageError("--site belongs to --for JOB")
    wanted = programs or ("preflight",)
    named(wanted)
    if not 0 < seconds <= _MOST_S or not 1 <= mebibytes <= _MOST_MEBIBYTES:
        raise UsageError(f"--seconds {seconds:g} --mebibytes {mebibytes}: write numbers above zero, up to an hour")
    options: list[str] = ["--seconds", str(seconds), "--mebibytes", str(mebibytes)]
    options += _paths({"kernel-log": kernel_log, "survey": survey, "runs": runs, "state": state})
    reports = _run([*wanted, *options])
    if json:
        print_json(reports)
    else:
        _print(reports)
    wrong = [report["program"] for report in reports if not report["passed"]]
    if wrong:
        raise FailedError(f"this machine has failed {', '.join(wrong)}")


def _paths(given: Mapping[str, Path | None]) -> list[str]:
    """Return the options that name files; all but the folder for counters have to be there."""
    found: list[str] = []
    for option, path in given.items():
        if path is not None:
            if option != "state" and not path.exists():
                raise UsageError(f"--{option} {path}: there is no such file")
            if option in ("kernel-log", "survey") and path.is_dir():
                raise UsageError(f"--{option} {path}: that is a folder; name a file")
            found += [f"--{option}", str(path)]
    return found


def _test_needs(reference: str, site: str | None, least: float, seconds: float, *, json: bool) -> None:
    """Measure what a job needs of this machine, and say what falls short."""
    if site is None:
        raise UsageError(f"--for {reference}: name the site that this machine is a part of by --site")
    if not 0 < least <= 1 or not 0 < seconds <= _MOST_S:
        raise UsageError(f"--least {least:g} --seconds {seconds:g}: a share of at most 1, and seconds above zero")
    from weft.api import plan
    from weft.planning.node_needs import compared, needs_of, unmet
    from weft.training.launch.machine_times import devices, measure_needs

    report = plan(reference, site, top=1)
    chosen = report.own or report.outcome.best
    if not len(chosen.plans):
        raise FailedError(f"{reference} fits {site} by no plan: {report.outcome.hint}")
    needs = needs_of(report.site, report.work, chosen.plans)
    there, on_cpu = devices()[0], report.site.gpu.kind == "CPU"
    if on_cpu != (there == 0):
        has = f"{there} GPUs" if there else "no GPU"
        raise UsageError(f"--site {site}: its nodes have {report.site.gpu.kind}s, this machine has {has}")
    missing = max(0, needs.ranks - there) if not on_cpu else 0
    ranks = needs.ranks - missing
    sides = [(each.m, each.n, each.k) for each in needs.products]
    times = measure_needs(ranks, sides, [each.size for each in needs.messages] if ranks > 1 else [], seconds)
    found = compared(replace(needs, messages=needs.messages if ranks > 1 else ()), times)
    short = unmet(found, least)
    texts = [f"{one.what}: {one.share:.0%} of what is needed" for one in short]
    texts += [f"{missing} of {needs.ranks} GPUs are missing"] if missing else []
    if json:
        print_json({
            "job": reference, "site": site, "device": times.device, "ranks": ranks, "least": least, "short": texts,
            "needs": [{**asdict(one), "share": one.share} for one in found],
        })  # fmt: skip
    else:
        rows = [
            (one.what, f"{significant(one.needed)} {one.unit}", f"{significant(one.measured)} {one.unit}",
             f"{one.share:.0%}", "bad" if one in short else "good")
            for one in found
        ]  # fmt: skip
        columns = ("what", "needed", "measured", "share", "")
        print_table(
            f"{reference} on a node of {site}: {ranks} busy ranks on {times.device}", columns, rows, words=(0, 4)
        )
    if texts:
        raise FailedError(f"this machine is too slow for {reference}: {'; '.join(texts)}")


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
