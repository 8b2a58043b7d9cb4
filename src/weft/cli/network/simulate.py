"""`weft simulate`: run a scenario, packet by packet, and say how it went."""

import csv
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from weft import api
from weft.cli.network.job_report import print_jobs, times_of_jobs
from weft.cli.network.link_report import print_links, with_links, write_links
from weft.cli.network.simulation_report import print_reports
from weft.cli.output import (
    BuiltInScenario,
    DetailsFlag,
    JsonFlag,
    PlotFile,
    print_json,
    progress,
    save_picture,
    seed_option,
    warn,
    writing,
    written_to,
)
from weft.collectives.registry import SHORT_NAMES
from weft.core.errors import FailedError, UsageError
from weft.core.quantity import TIME
from weft.netsim.comparison import Posting
from weft.netsim.kernel.checkpoint import Keep
from weft.netsim.report import SimulationReport
from weft.netsim.run import Observers
from weft.netsim.series_file import SeriesFile
from weft.netsim.sharing import JobTime
from weft.specs import ScenarioSpec


@dataclass(frozen=True)
class CollectiveOptions:
    """What `--collective` takes: a comparison of transports in place of a scenario."""

    collective: Annotated[
        str | None, Parameter(help=f"Compare transports on {', '.join(SHORT_NAMES)} or KIND/ALGORITHM instead.")
    ] = None
    size: Annotated[
        str | None, Parameter(help="Collective: buffer size, or several sizes by comma; default: 64MiB.")
    ] = None
    ranks: Annotated[
        int | None, Parameter(help="Collective: number of ranks; default: 64, or all of a smaller site.")
    ] = None
    posting: Annotated[
        Posting | None,
        Parameter(help="Collective: each send whole (default), or in chunks over several QPs as NCCL does."),
    ] = None


@dataclass(frozen=True)
class TrafficFiles:
    """Files of other tools in place of a scenario's traffic and fabric."""

    matrix: Annotated[Path | None, Parameter(help="htsim connection matrix (.cm) in place of the traffic.")] = None
    topology: Annotated[Path | None, Parameter(help="htsim topology (.topo) in place of the site's fabric.")] = None
    chakra: Annotated[
        Path | None, Parameter(help="MLCommons Chakra traces PREFIX.0.et, PREFIX.1.et, ..., in place of the traffic.")
    ] = None


@dataclass(frozen=True)
class ExecutionOptions:
    """By which simulator a scenario runs, on how many threads, and where a long run is checkpointed."""

    engine: Annotated[
        Literal["engine", "reference"] | None,
        Parameter(help="Compiled simulator (engine) or its readable reference; both give the same report."),
    ] = None
    threads: Annotated[int | None, Parameter(help="Threads; default: all cores for large fabrics.")] = None
    keep: Annotated[
        Path | None, Parameter(help="Folder for checkpoints of a long run; the same command resumes it.")
    ] = None


@dataclass(frozen=True)
class ResultFiles:
    """Where results go beside the screen."""

    out: Annotated[Path | None, Parameter(help="Sweep: Parquet file of the results.")] = None
    flows: Annotated[
        Path | None,
        Parameter(help="Write one row per flow into FILE (.parquet or .csv)."),
        written_to("--flows", ".parquet", ".csv"),
    ] = None
    series: Annotated[
        Path | None,
        Parameter(help="Write FILE (.jsonl) while it runs: one line per bin of simulated time."),
        written_to("--series", ".jsonl"),
    ] = None
    links: Annotated[
        Path | None,
        Parameter(help="Write what links carried, by bin, into FILE (.parquet or .csv); --plot shows T0 x T1."),
        written_to("--links", ".parquet", ".csv"),
    ] = None


_SCENARIO = {
    "transport", "seed", "engine", "threads", "keep", "matrix", "topology", "chakra", "flows", "series", "links",
}  # fmt: skip
_TAKEN = {
    "a scenario": _SCENARIO,
    "traces": _SCENARIO | {"site"},
    "--collective": {"collective", "size", "ranks", "posting", "site", "transport", "seed"},
    "sweep": {"out"},
    "golden": {"seed"},
}
"""Options of each of the things that are simulated; --json, --plot and --details go with all of them."""
_SIZE = "64MiB"
_FLAT = Parameter(name="*")
_COLLECTIVE, _TRAFFIC, _EXECUTION, _RESULTS = CollectiveOptions(), TrafficFiles(), ExecutionOptions(), ResultFiles()


def simulate(
    scenario: Annotated[
        BuiltInScenario | None,
        Parameter(help="Scenario name or file; not with --matrix, --collective or --chakra.", show_choices=False),
    ] = None,
    sweep: Annotated[
        str | None, Parameter(help="Sweep file, after the word `sweep`, or folder, after the word `golden`.")
    ] = None,
    /,
    *,
    transport: Annotated[
        str | None,
        Parameter(
            help="Transports by comma: mrc, uet, random, roce (roce:8: 8 QPs per flow), reps, adaptive; "
            "default: the scenario's."
        ),
    ] = None,
    collective: Annotated[CollectiveOptions, _FLAT] = _COLLECTIVE,
    site: Annotated[
        str | None, Parameter(help="Collective, traces: site name or file; a collective's default: bed-64x400g.")
    ] = None,
    seed: Annotated[int | None, seed_option("Random seed; default: the scenario's.")] = None,
    execution: Annotated[ExecutionOptions, _FLAT] = _EXECUTION,
    traffic: Annotated[TrafficFiles, _FLAT] = _TRAFFIC,
    results: Annotated[ResultFiles, _FLAT] = _RESULTS,
    details: DetailsFlag = False,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Run SCENARIO, packet by packet, and print completion times, rates, losses and recovery.

    `weft simulate sweep FILE` runs a scenario over sizes, loads, transports, failed links and seeds, on all cores;
    `weft simulate golden FOLDER` runs recorded cases and says how many are found within 5 and 10 %.
    """
    _refuse_idle(
        scenario, {**vars(collective), **vars(execution), **vars(traffic), **vars(results)},
        site=site, transport=transport, seed=seed,
    )  # fmt: skip
    if scenario in ("sweep", "golden"):
        _run_many(scenario, sweep, results.out, seed, json=json, plot=plot)
        return
    names = tuple(name.strip() for name in transport.split(",")) if transport else ()
    if collective.collective is not None:
        from weft.cli.network.collective import CollectiveRun, run_collective

        asked = (collective.collective, collective.size or _SIZE, collective.ranks, collective.posting or "whole")
        run_collective(CollectiveRun(*asked, site, names, seed or 0), json=json, plot=plot)
        return
    chosen = scenario if traffic.chakra is None else _traced(scenario, traffic.chakra, site, traffic.matrix)
    files = _files(chosen, sweep, traffic)
    _check_tables(results.flows, results.links)
    measured = chosen or "htsim-permutation"
    if results.links is not None:
        measured = with_links(measured)
    kept = None if execution.keep is None else Keep(execution.keep)
    with progress() as watch, nullcontext() if results.series is None else SeriesFile(results.series) as bins:
        reports = api.simulate(
            measured, names, seed, engine=execution.engine, threads=execution.threads, files=files,
            traces=traffic.chakra, keep=kept, series=bins, watch=watch, say=warn,
        )  # fmt: skip
        own = None if files or traffic.chakra or reports[-1].interrupted else measured
        jobs = times_of_jobs(own, reports, seed, Observers(watch=watch, say=warn))
    _write_results(results, reports)
    drawn = "draw_reports" if reports[0].links is None else "draw_links"
    save_picture(plot, drawn, reports, size=(9.0, 7.0))
    _print_results(reports, jobs, json=json, details=details)
    _end(reports, kept)


def _run_many(
    word: str, asked: str | None, out: Path | None, seed: int | None, *, json: bool, plot: Path | None
) -> None:
    """Run a sweep's file or a folder of recorded results."""
    if word == "sweep":
        from weft.cli.network.sweep import run_sweep

        run_sweep(asked, out, json=json, plot=plot)
        return
    from weft.cli.network.golden import run_golden

    run_golden(asked, seed, json=json)


def _traced(scenario: str | None, prefix: Path, site: str | None, matrix: Path | None) -> str | ScenarioSpec:
    """Return what traces run in: a scenario that was named, or one with nothing but a site."""
    if matrix is not None:
        raise UsageError("name either htsim's --matrix or --chakra traces, not both")
    if scenario is not None:
        return scenario
    if site is None:
        raise UsageError("--chakra needs a site to run on: add --site h100-400g-16k, or name a scenario")
    return ScenarioSpec.model_construct(name=prefix.name, site=site)


def _files(scenario: str | ScenarioSpec | None, sweep: str | None, traffic: TrafficFiles) -> tuple[Path, Path] | None:
    """Return htsim's two files where they are given, or raise with what does not go together."""
    if sweep is not None:
        raise UsageError(f"one scenario at a time, not {scenario} and {sweep}; `weft simulate sweep FILE` runs many")
    matrix, topology = traffic.matrix, traffic.topology
    if (matrix is None) != (topology is None):
        raise UsageError("--matrix and --topology go together; name both files")
    if scenario is None and matrix is None:
        raise UsageError("name a scenario, built in or a file: weft simulate pair")
    return None if matrix is None or topology is None else (matrix, topology)


def _print_results(
    reports: tuple[SimulationReport, ...], jobs: Sequence[tuple[JobTime, ...]], *, json: bool, details: bool
) -> None:
    if json:
        documents = [report.as_json() for report in reports]
        for document, times in zip(documents, jobs, strict=False):
            document["jobs"] = [time.as_json() for time in times]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    print_reports(reports, details=details)
    print_links(reports)
    print_jobs(jobs)


def _end(reports: tuple[SimulationReport, ...], kept: Keep | None) -> None:
    """End as the runs did: interrupted, or with flows that failed; say first what is kept of them."""
    if kept is not None and (kept.trouble or reports[-1].interrupted):
        on = f"checkpoint in {kept.folder}; the same command resumes from {TIME.about(reports[-1].end_ps)}"
        warn(kept.trouble or on)
    if any(report.interrupted for report in reports):
        raise KeyboardInterrupt
    if kept is not None:
        # Its results are written: what would resume it is of no more use, and large.
        kept.remove()
    failed = sum(report.as_json()["failed"] for report in reports)
    if failed:
        raise FailedError(f"{failed} flows failed; --flows FILE.csv names each with its error")


def _refuse_idle(scenario: str | None, options: dict[str, object], **more: object) -> None:
    """Refuse options that do nothing with what is simulated, before anything runs."""
    given = {name for name, value in {**options, **more}.items() if value is not None}
    what = "traces" if "chakra" in given and scenario is None else "a scenario"
    if scenario in ("sweep", "golden"):
        what = scenario
    elif "collective" in given:
        if scenario is not None or given & {"matrix", "chakra"}:
            raise UsageError("name either a scenario or a collective: weft simulate pair, or --collective ring")
        what = "--collective"
    for name in sorted(given - _TAKEN[what]):
        takes = " or ".join(each for each, names in _TAKEN.items() if name in names)
        raise UsageError(f"--{name} goes with {takes}, not with {what}; leave it out")


def _check_tables(*tables: Path | None) -> None:
    """Refuse a format that cannot be written here, before anything runs."""
    if any(file is not None and file.suffix == ".parquet" for file in tables) and find_spec("polars") is None:
        raise UsageError("Parquet needs polars, which is not installed; name a .csv file instead")


def _write_results(results: ResultFiles, reports: tuple[SimulationReport, ...]) -> None:
    if results.flows is not None:
        _write_flows(results.flows, reports)
    if results.links is not None:
        write_links(results.links, reports)


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
