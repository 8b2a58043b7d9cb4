"""`weft cluster replay`: job traces through the real scheduler in simulated time."""

import csv
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from weft.campaign.failures import Failures
from weft.campaign.measures import Measures
from weft.campaign.policies import ORDER, policy_of
from weft.campaign.replay import TraceReplay
from weft.campaign.trace import TraceJob, admit_all, written
from weft.campaign.trace_file import read_trace
from weft.cli.cluster.traces import SITE, Nodes, SeedNumber, SiteName, pool_of, say_left_out
from weft.cli.output import (
    JsonFlag,
    PlotFile,
    print_json,
    print_table,
    progress,
    save_picture,
    say,
    writing,
    written_to,
)
from weft.cluster.forecast import StartCalibration
from weft.cluster.from_policy import as_tables, differences
from weft.cluster.from_site import power_of
from weft.cluster.health.idle_tests import hours_to_validate
from weft.cluster.records.job import Team
from weft.cluster.records.node import Node
from weft.cluster.records.snapshot import Snapshot
from weft.core.errors import UsageError
from weft.core.provenance import digest, provenance
from weft.core.seeds import Seed
from weft.specs import load_site

_TEST_MS = 900_000
"""A long test of an idle node: about 15 minutes, as DCGM's level 3."""

_JOB_COLUMNS = (
    "policy", "job", "kind", "team", "priority", "nodes", "submit_s", "start_s", "end_s", "state", "wait_s", "reasons",
    "preemptions", "lost_gpu_s",
)  # fmt: skip


def replay(
    trace: Annotated[
        Path,
        Parameter(
            help="CSV with submit_s, duration_s, time_limit_s, nodes, gpus_per_node, team, priority, kind, or a trace "
            "of Slurm (sacct -P), SWF, Philly, Helios, Acme or Alibaba. The scheduler never sees how long jobs take."
        ),
    ],
    /,
    *,
    site: SiteName = SITE,
    nodes: Nodes = None,
    policy: Annotated[str, Parameter(help=f"Policies by comma: {', '.join(ORDER)}, or policy files.")] = "weft",
    quota: Annotated[str | None, Parameter(help="GPU quota per team, as red=4000,blue=2000; default: equal.")] = None,
    forecasts: Annotated[
        bool, Parameter(negative="", help="Tell jobs that wait when they start, and count how often it is true.")
    ] = False,
    failures: Annotated[bool, Parameter(negative="", help="Inject node failures at the site's rates.")] = False,
    seed: SeedNumber = 0,
    jobs: Annotated[
        Path | None,
        Parameter(help="Write one row per job, with its waits, into FILE (.csv)."),
        written_to("--jobs", ".csv"),
    ] = None,
    decisions: Annotated[
        Path | None,
        Parameter(help="Write the log of every decision of the first policy into FILE (.jsonl)."),
        written_to("--decisions", ".jsonl"),
    ] = None,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Replay TRACE through the real scheduler in simulated time and print how it went."""
    names = [name.strip() for name in policy.split(",")]
    spec = load_site(site)
    pool = pool_of(spec, nodes)
    found_trace = read_trace(trace, spec.node.gpus)
    lines = found_trace.lines
    teams = _teams(lines, pool, quota)
    admit_all(lines, pool, teams, str(trace))
    policies = {name: policy_of(name, power_of(spec)) for name in names}
    found: dict[str, Measures] = {}
    documents: list[dict[str, Any]] = []
    logged: list[str] = []
    with progress() as watch:
        for name, (rules, power) in policies.items():
            begin_s = time.process_time()
            snapshot = Snapshot(pool, teams=teams, power=power, policy=rules)
            world = TraceReplay(
                snapshot, lines, failures=Failures.of(spec, Seed(seed)) if failures else None,
                calibration=StartCalibration() if forecasts else None,
            )  # fmt: skip
            if decisions is not None and name == names[0]:
                world.record(logged.append)
            found[name] = world.run(partial(watch, name))
            documents.append(_document(name, found[name], world, time.process_time() - begin_s))
    if jobs is not None:
        _write_jobs(jobs, found)
    if decisions is not None:
        _write_decisions(decisions, logged)
    save_picture(plot, "draw_replays", found, size=(13.0, 8.0))
    if json:
        origin = provenance({"trace": digest(written(lines)), "site": spec.as_written(), "nodes": len(pool)}, seed)
        print_json({
            "site": spec.name, "nodes": len(pool), "format": found_trace.format,
            "left_out": dict(found_trace.left_out), "policies": documents, "provenance": origin.as_json(),
        })  # fmt: skip
    else:
        say_left_out(trace, found_trace)
        _print(trace, lines, pool, documents)


def _write_decisions(target: Path, logged: list[str]) -> None:
    with writing(target) as part:
        part.write_text("".join(f"{each}\n" for each in logged), encoding="utf-8")


def _teams(lines: list[TraceJob], pool: tuple[Node, ...], quota: str | None) -> tuple[Team, ...]:
    names = sorted({line.team for line in lines})
    gpus = sum(node.gpus for node in pool)
    if quota is None:
        return tuple(Team(name, gpus // len(names)) for name in names)
    given: dict[str, int] = {}
    for entry in quota.split(","):
        name, _, number = entry.partition("=")
        if not number.strip().isdigit():
            raise UsageError(f"--quota {entry!r}: write TEAM=GPUS, such as red=4000")
        given[name.strip()] = int(number)
    if sum(given.values()) > gpus:
        raise UsageError(f"--quota asks for {sum(given.values()):,} GPUs; the cluster has {gpus:,}")
    return tuple(Team(name, number) for name, number in given.items())


def _document(name: str, measured: Measures, world: TraceReplay, cpu_s: float) -> dict[str, Any]:
    idle = 1 - measured.utilisation()
    hours = hours_to_validate(measured.cluster.pool.count, idle, 0, _TEST_MS)
    return {
        "policy": name,
        "rules": as_tables(measured.cluster.policy),
        **measured.as_json(),
        "hours_to_validate": hours if hours != float("inf") else None,
        "start_interval": None if world.starts is None else world.starts.as_json(),
        "passes": world.passes,
        "cpu_s": cpu_s,
    }


def _print(trace: Path, lines: list[TraceJob], pool: tuple[Node, ...], documents: list[dict[str, Any]]) -> None:
    columns = ("policy", "utilisation", "mean wait", "95th", "longest", "fairness", "preempted", "waste", "T0 spread")
    rows = [
        (each["policy"], f"{each['utilisation']:.1%}", *(_span(each["wait_s"][key]) for key in ("mean", "p95", "max")),
         f"{each['fairness']:.3f}", f"{sum(each['preempted'].values()):,}", f"{each['waste']:.2%}",
         f"{each['fragmentation']:.2f}")
        for each in documents
    ]  # fmt: skip
    print_table(f"{trace}: {len(lines):,} jobs on {len(pool):,} nodes", columns, rows)
    rows = [
        (each["policy"], f"{each['energy_kwh'] / 1000:,.1f} MWh", f"{each['peak_w'] / 1e6:,.1f} MW",
         f"{each['ramp_w_per_s'] / 1e6:.2f} MW/s", f"{each['passes']:,}", f"{each['cpu_s']:.1f} s")
        for each in documents
    ]  # fmt: skip
    print_table("power, and scheduler CPU", ("policy", "energy", "peak", "ramp", "passes", "CPU"), rows)
    rows = [
        (each["policy"], f"{each['utilisation_makespan']:.1%}", f"{each['allocation_while_waiting']:.1%}",
         f"{each['stranded_while_waiting']:.1%}", _covered(each["start_interval"]))
        for each in documents
    ]  # fmt: skip
    columns = ("policy", "to the end", "while jobs wait", "free on used nodes", "80 % intervals hold")
    print_table("share of all GPUs that was held", columns, rows)
    sizes = list(documents[0]["wait_s_by_size"])
    rows = [
        (each["policy"], _span(each["wait_s_quick"]["p95"]),
         *(_span(each["wait_s_by_size"][size]["p95"]) for size in sizes))
        for each in documents
    ]  # fmt: skip
    print_table("wait, 95th percentile, of quick experiments and by nodes", ("policy", "quick", *sizes), rows)
    for each in documents:
        say(f"policy {each['policy']}: {differences(each['rules']) or 'as built in'}")
    reasons = list(dict.fromkeys(name for each in documents for name in each["wait_hours_by_reason"]))
    rows = [
        (each["policy"], *(f"{each['wait_hours_by_reason'].get(name, 0):,.1f} h" for name in reasons),
         f"{each['unexplained_s']:.0f} s")
        for each in documents
    ]  # fmt: skip
    print_table("why jobs waited, summed over jobs", ("policy", *reasons, "unexplained"), rows)
    hours = documents[0]["hours_to_validate"]
    if hours is not None:
        text = f"idle-time tests of all {len(pool):,} nodes take {hours:.1f} h (15 min each)"
        say(text)


def _covered(interval: dict[str, Any] | None) -> str:
    return "-" if interval is None or interval["covered"] is None else f"{interval['covered']:.0%} of starts"


def _span(seconds: float) -> str:
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004 - two hours


def _write_jobs(target: Path, found: dict[str, Measures]) -> None:
    with writing(target) as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_JOB_COLUMNS)
        for name, measured in found.items():
            for record in measured.records.values():
                reasons = " ".join(f"{code}={ms / 1000:.3f}" for code, ms in record.reasons.items())
                times = (record.submit_ms, record.start_ms, record.end_ms)
                submit, start, end = ("" if each is None else each / 1000 for each in times)
                wait = "" if record.wait_ms is None else record.wait_ms / 1000
                writer.writerow((name, record.id, record.kind, record.team, record.priority, record.nodes, submit,
                                 start, end, record.state, wait, reasons, record.preemptions,
                                 record.lost_gpu_ms / 1000))  # fmt: skip
