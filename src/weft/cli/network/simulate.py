"""`weft simulate`: run a scenario, packet by packet, and say how it went."""

import csv
import resource
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from weft import api
from weft.cli.output import JsonFlag, PlotFile, console, print_json, print_table, save_plot, writing, written_to
from weft.core.errors import FailedError, UsageError
from weft.core.quantity import RATE, SIZE, TIME, counted, significant
from weft.netsim.comparison import Posting
from weft.netsim.kernel.checkpoint import Keep
from weft.netsim.report import SimulationReport
from weft.netsim.series_file import SeriesFile
from weft.netsim.simulate import Watch
from weft.specs import ScenarioSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORTH_TELLING_S = 1.0
"""Runs that took at least so long say how fast they were and what memory they took."""
FlowsFile = Annotated[
    Path | None,
    Parameter(name="--flows", help="Write how every flow went into FILE (.parquet or .csv)."),
    written_to("--flows", ".parquet", ".csv"),
]
Transports = Annotated[
    str | None,
    Parameter(
        help="Transports to run, by comma: mrc, uet, random, roce (roce:8 has 8 queue pairs for a flow), reps, "
        "adaptive; the scenario's where absent."
    ),
]
Collective = Annotated[
    str | None,
    Parameter(help="Instead of a scenario: compare transports on ring, reduce-scatter, all-gather or all-to-all."),
]
Engine = Annotated[
    Literal["engine", "reference"] | None,
    Parameter(help="The compiled engine or the readable reference; both give the same report."),
]
SiteName = Annotated[
    str | None,
    Parameter(
        help="Collective, traces: built-in name or path of the site; a collective's is bed-64x400g where absent."
    ),
]
Traces = Annotated[
    Path | None,
    Parameter(
        help="Chakra traces PREFIX.0.et, PREFIX.1.et, ... of MLCommons, one for each rank, instead of the traffic."
    ),
]
PostingName = Annotated[
    Posting,
    Parameter(help="Collective: each send as one message, or in pieces and over queue pairs in turn, as NCCL does."),
]
KeepFolder = Annotated[
    Path | None, Parameter(help="Folder in which a long run is kept; the same command takes it up again.")
]

SeriesName = Annotated[
    Path | None,
    Parameter(name="--series", help="Write FILE (.jsonl) while it runs, a line for each bin of simulated time."),
    written_to("--series", ".jsonl"),
]


def simulate(
    scenario: str | None = None,
    sweep: str | None = None,
    /,
    *,
    transport: Transports = None,
    collective: Collective = None,
    size: Annotated[str, Parameter(help="Collective: bytes of the buffer, or several sizes by comma.")] = "64MiB",
    ranks: Annotated[int, Parameter(help="Collective: how many take part.")] = 64,
    posting: PostingName = "whole",
    site: SiteName = None,
    seed: Annotated[int | None, Parameter(help="Root of everything random; the scenario's where absent.")] = None,
    engine: Engine = None,
    threads: Annotated[int | None, Parameter(help="Threads of the engine; all cores for large fabrics.")] = None,
    matrix: Annotated[Path | None, Parameter(help="htsim's connection matrix (.cm) instead of the traffic.")] = None,
    topology: Annotated[Path | None, Parameter(help="htsim's topology (.topo) instead of the site's fabric.")] = None,
    chakra: Traces = None,
    keep: KeepFolder = None,
    out: Annotated[Path | None, Parameter(help="Sweep: the Parquet file of its results.")] = None,
    flows: FlowsFile = None,
    series: SeriesName = None,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Run SCENARIO, packet by packet, and print completion times, rates, losses and recovery.

    `weft simulate sweep FILE` runs a scenario over sizes, loads, transports, failed links and seeds, on all cores.

    Parameters
    ----------
    scenario
        Built-in name or path of a scenario file; may be left out with --matrix, --collective or --chakra.
    sweep
        Path of a sweep file, after the word `sweep`.

    """
    if scenario == "sweep":
        from weft.cli.network.sweep import run_sweep

        run_sweep(sweep, out, json=json, plot=plot)
        return
    names = tuple(name.strip() for name in transport.split(",")) if transport else ()
    if collective is not None:
        from weft.cli.network.collective import run_collective

        _only_a_collective(scenario, matrix, chakra)
        run_collective(collective, size, ranks, site, names, seed=seed or 0, posting=posting, json=json, plot=plot)
        return
    chosen = scenario if chakra is None else _traced(scenario, chakra, site, matrix)
    files = _files(chosen, sweep, matrix, topology)
    _check_options(flows, posting)
    kept = None if keep is None else Keep(keep)
    with _progress() as (watch, say), nullcontext() if series is None else SeriesFile(series) as bins:
        reports = api.simulate(
            chosen or "htsim-permutation", names, seed, engine=engine, threads=threads, files=files, traces=chakra,
            keep=kept, series=bins, watch=watch, say=say,
        )  # fmt: skip
    if flows is not None:
        _write_flows(flows, reports)
    if plot is not None:
        from weft.cli.pictures_netsim import draw_reports

        save_plot(plot, lambda figure: draw_reports(figure, reports), (9.0, 7.0))
    if json:
        documents = [report.as_json() for report in reports]
        print_json(documents[0] if len(documents) == 1 else documents)
    else:
        _print(reports)
    _end(reports, kept)


def _traced(scenario: str | None, prefix: Path, site: str | None, matrix: Path | None) -> str | ScenarioSpec:
    """Return what traces run in: a scenario that was named, or one with nothing but a site."""
    if matrix is not None:
        raise UsageError("name either htsim's --matrix or --chakra traces, not both")
    if scenario is not None:
        return scenario
    if site is None:
        raise UsageError("--chakra needs a site to run on: add --site h100-400g-16k, or name a scenario")
    return ScenarioSpec.model_construct(name=prefix.name, site=site)


def _files(
    scenario: str | ScenarioSpec | None, sweep: str | None, matrix: Path | None, topology: Path | None
) -> tuple[Path, Path] | None:
    """Return htsim's two files where they are given, or raise with what does not go together."""
    if sweep is not None:
        raise UsageError(f"one scenario at a time, not {scenario} and {sweep}; `weft simulate sweep FILE` runs many")
    if (matrix is None) != (topology is None):
        raise UsageError("--matrix and --topology go together; name both files")
    if scenario is None and matrix is None:
        raise UsageError("name a scenario, built in or a file: weft simulate pair")
    return None if matrix is None or topology is None else (matrix, topology)


@contextmanager
def _progress() -> "Iterator[tuple[Watch | None, Any]]":
    """Give what shows progress on a terminal; a file gets a line for what takes long."""
    if not sys.stderr.isatty():
        yield None, lambda text: sys.stderr.write(f"{text}\n")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    tasks: dict[str, Any] = {}
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=errors, transient=True) as progress:

        def watch(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done)

        yield watch, lambda text: errors.print(f"[dim]{text}[/]")


def _end(reports: tuple[SimulationReport, ...], kept: Keep | None) -> None:
    """End as the runs did: interrupted, or with flows that failed; say first what is kept of them."""
    if kept is not None and (kept.trouble or reports[-1].interrupted):
        on = f"kept in {kept.folder}; the same command goes on from {TIME.about(reports[-1].end_ps)}"
        sys.stderr.write(f"{kept.trouble or on}\n")
    if any(report.interrupted for report in reports):
        raise KeyboardInterrupt
    failed = sum(report.as_json()["failed"] for report in reports)
    if failed:
        raise FailedError(f"{failed} flows failed; --flows FILE.csv names each with its error")


def _only_a_collective(*others: str | Path | None) -> None:
    """Refuse a collective beside anything else that says what is sent."""
    if any(other is not None for other in others):
        raise UsageError("name either a scenario or a collective: weft simulate pair, or --collective ring")


def _check_options(flows: Path | None, posting: str) -> None:
    """Refuse a format that can not be written here, and what only a collective takes, before anything runs."""
    if posting != "whole":
        raise UsageError("--posting goes with --collective; a scenario says it in its table transport.posting")
    if flows is not None and flows.suffix == ".parquet" and find_spec("polars") is None:
        raise UsageError("Parquet needs polars, which is not installed; name a .csv file instead")


def _print(reports: tuple[SimulationReport, ...]) -> None:
    first = reports[0]
    table = [_row(report) for report in reports]
    columns = ("transport", "flows", "fct mean", "p99", "max", "to ideal", "NIC goodput", "resent", "trimmed",
               "marked", "hops", "CPU")  # fmt: skip
    title = (
        f"{first.scenario}: {first.hosts:,} NICs, {counted(first.planes, 'plane')}; ideal {TIME.about(first.ideal_ps)}"
    )
    print_table(title, columns, table)
    rows = [
        (report.transport, fault.kind, fault.target, TIME.about(fault.at_ps), f"{fault.data_lost:,}",
         f"{fault.pairs:,} of {len(report.pairs):,}", _longest(fault.recovery_ps))
        for report in reports
        for fault in report.faults
    ]  # fmt: skip
    if rows:
        columns = ("transport", "fault", "of", "at", "data lost", "queue pairs", "longest recovery")
        print_table("what faults did", columns, rows, words=(0, 1, 2))
    for report in reports:
        slowest = report.slowest()
        if slowest is not None:
            took = "did not complete" if slowest.completion_ps is None else TIME.about(slowest.completion_ps)
            failure = f" ({slowest.failure})" if slowest.failure else ""
            span = report.makespan_ps() if report.chained else None
            whole = "" if span is None else f"all of them {TIME.about(span)}; "
            text = f"{report.transport}: {whole}slowest flow {slowest.name} {took}{failure}; trace {report.hash()}"
            console().print(text, markup=False, soft_wrap=True)
        if report.wall_s > _WORTH_TELLING_S:
            hops = report.packet_hops
            text = (
                f"{report.transport}: {_count(hops)} packet-hops in {report.wall_s:.0f} s, "
                f"{_count(hops / report.wall_s)} a second and {_count(hops / report.cpu_s)} a CPU second; "
                f"at most {SIZE.about(_peak_bytes())} of memory"
            )
            console().print(text, markup=False, soft_wrap=True)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _count(number: float) -> str:
    """Return a count as people say it: all digits of a small one, three and a letter of a large one."""
    for unit, name in ((10**9, "G"), (10**6, "M")):
        if number >= unit:
            return f"{significant(number / unit)} {name}"
    return f"{number:,.0f}"


def _row(report: SimulationReport) -> tuple[str, ...]:
    found = report.as_json()
    times = found["fct_us"]
    known = times["max"] is not None
    us = [TIME.about(times[name] * 10**6, 4) if known else "-" for name in ("mean", "p99", "max")]
    over = report.over_ideal()
    ratio = "-" if over is None else f"{over:.3f}"
    whole = found["completed"] == found["flows"]
    flows = f"{found['flows']:,}" if whole else f"{found['completed']:,} of {found['flows']:,}"
    return (
        report.transport, flows, *us, ratio, RATE.about(found["goodput_bps_per_nic"]), _count(found["retransmitted"]),
        _count(found["trimmed"]), _count(found["marked"]), _count(found["packet_hops"]), f"{found['cpu_s']:.1f} s",
    )  # fmt: skip


def _longest(recovery_ps: tuple[int, ...]) -> str:
    return TIME.about(max(recovery_ps)) if recovery_ps else "-"


def _write_flows(target: Path, reports: tuple[SimulationReport, ...]) -> None:
    rows = [{"transport": report.transport, **asdict(flow)} for report in reports for flow in report.flows]
    with writing(target) as part:
        if target.suffix == ".parquet":
            import polars

            polars.DataFrame(rows).write_parquet(part)
        else:
            with part.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
