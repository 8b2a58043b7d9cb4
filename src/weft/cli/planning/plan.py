"""`weft plan`: every valid plan of a job on a site, the best first, and what the chosen one does, costs and risks."""

import math
from dataclasses import dataclass
from json import dumps as json_text
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from weft import api
from weft.cli.output import (
    BuiltInSite,
    DetailsFlag,
    JobArgument,
    JsonFlag,
    PlotFile,
    counting,
    print_json,
    print_table,
    save_picture,
    say,
    write_text,
    writing,
    written_to,
)
from weft.cli.planning.headline import headline
from weft.cli.planning.job_and_site import job_and_site
from weft.cli.screen.figures import (
    day_range,
    days,
    joules,
    kilograms,
    kilowatt_hours,
    money,
    second_range,
    seconds,
    share,
    thousands,
    watts,
)
from weft.core.errors import UsageError
from weft.core.quantity import SIZE, significant
from weft.planning.rehearsal import plan_name
from weft.planning.report import PlanReport, plan_row, step_row
from weft.planning.run_formats import ChosenRun, ToolName, run_file
from weft.specs.software import Precision as PrecisionName

_MOST_TRACES = 4096
"""Ranks whose traces are written without being asked again."""

app = App(name="plan", help="Find the best plans of a job on a site and their cost.", help_format="plaintext")

Pairs = Annotated[
    list[str] | None, Parameter(name="--fix", negative="", help="Fix a choice, as tp=8; may be repeated.")
]
Changes = Annotated[
    list[str] | None,
    Parameter(
        name="--what-if", negative="", help="Plan again after a change, as planes=4, nodes=-8 or 'link_rate=400 Gb/s'."
    ),
]
Precision = Annotated[
    PrecisionName | None,
    Parameter(help="Matmul precision; default: the job's own plan, or bf16 (fp32 on CPUs)."),
]


@dataclass(frozen=True)
class ExportOptions:
    """The chosen plan for another tool."""

    tool: Annotated[
        ToolName | Literal["chakra"] | None,
        Parameter(
            name="--export",
            help="Print the chosen plan for the tool that is to run it; chakra: write its step as traces.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        written_to("--out"),
        Parameter(
            help="With --export chakra: PREFIX of the files PREFIX.0.et, PREFIX.1.et, ... and PREFIX.groups.json."
        ),
    ] = None
    ranks: Annotated[
        Literal["all", "stages"],
        Parameter(help="With --export chakra: a trace of each rank, or of the first rank of each pipeline stage."),
    ] = "all"


_NO_EXPORT = ExportOptions()


@app.default
def plan(
    job: JobArgument,
    place: Annotated[
        BuiltInSite | None, Parameter(name="SITE", show_choices=False, help="Site; job and site go in either order.")
    ] = None,
    /,
    *,
    site: Annotated[
        BuiltInSite | None, Parameter(show_choices=False, help="The site, where it is not named after the job.")
    ] = None,
    top: Annotated[int, Parameter(help="Plans to show.")] = 10,
    fix: Pairs = None,
    what_if: Changes = None,
    precision: Precision = None,
    export: Annotated[ExportOptions, Parameter(name="*")] = _NO_EXPORT,
    details: DetailsFlag = False,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Find the best plans of JOB on a site, and say what the chosen one takes."""
    if top < 1:
        raise UsageError(f"--top {top}: ask for at least 1 plan")
    if (export.tool == "chakra") != (export.out is not None):
        raise UsageError("--export chakra and --out PREFIX go together, as in --export chakra --out traces/step")
    job, chosen_site = job_and_site(job, place, site)
    fixed = pairs_of(fix or [])
    found = api.plan(job, chosen_site, top=top, fixed=fixed, precision=precision)
    others = [
        (change, api.plan(job, chosen_site, top=top, fixed=fixed, precision=precision, what_if=change))
        for change in what_if or []
    ]
    if export.out is not None:
        _write_traces(found, export.out, export.ranks)
        return
    if export.tool is not None and export.tool != "chakra":
        chosen = found.chosen.plans
        batch = found.job.batch.model_copy(update={"micro": int(chosen.micro[0])})
        run = ChosenRun(found.job.model_copy(update={"batch": batch}), found.plan_spec, found.site)
        write_text(run_file(export.tool, run))
        return
    save_picture(plot, "draw_plan", found, size=(13.0, 9.0))
    if json:
        document = found.as_json()
        if others:
            document["what_if"] = [{"change": change, **other.as_json()} for change, other in others]
        print_json(document)
        return
    if others:
        print_difference([("as it is", found), *others])
        return
    print_report(found, details=details)


@app.command
def compare(
    first: Annotated[str, Parameter(help="A job (with --site) or a site (with --job).")],
    second: Annotated[str, Parameter(help="Another one.")],
    /,
    *,
    site: Annotated[str | None, Parameter(help="Compare two jobs on this site.")] = None,
    job: Annotated[str | None, Parameter(help="Compare two sites for this job.")] = None,
    json: JsonFlag = False,
) -> None:
    """Compare two jobs on one site, or one job on two sites."""
    if (site is None) == (job is None):
        raise UsageError("give --site to compare two jobs on it, or --job to compare two sites for it")
    pairs = [(name, site) if site is not None else (job, name) for name in (first, second)]
    reports = [(name, api.plan(str(a), str(b))) for name, (a, b) in zip((first, second), pairs, strict=True)]
    if json:
        print_json([report.as_json() for _, report in reports])
        return
    print_difference(reports)


def _write_traces(found: PlanReport, prefix: Path, ranks: Literal["all", "stages"]) -> None:
    """Write the chosen plan's step as Chakra traces, and the ranks of its groups as ASTRA-sim reads them."""
    # protobuf comes with an extra, which other exports do without.
    from weft.netsim.workload.chakra import written_trace
    from weft.netsim.workload.plan_traces import PlanTraces

    traces = PlanTraces(found)
    total, stages = traces.sizes["ranks"], traces.sizes["pp"]
    if ranks == "all" and total > _MOST_TRACES:
        raise UsageError(f"{total:,} ranks are as many files; write --ranks stages for one of each of {stages} stages")
    numbers = range(0, total, 1 if ranks == "all" else total // stages)
    size = 0
    with counting("writing", len(numbers)) as step:
        for rank in numbers:
            data = written_trace(traces.trace(rank))
            with writing(prefix.with_name(f"{prefix.name}.{rank}.et")) as part:
                part.write_bytes(data)
            size += len(data)
            step()
        with writing(prefix.with_name(f"{prefix.name}.groups.json")) as part:
            part.write_text(json_text({str(number): list(group) for group, number in traces.groups.items()}))
    row = plan_row(found.chosen, 0, found.machine, found.work)
    count = "1 trace" if len(numbers) == 1 else f"{len(numbers):,} traces"
    what = f"{plan_name(row)}, {seconds(row['step_s'])} a step"
    say(f"{count} of {total:,} ranks ({SIZE.about(size)}) in {prefix}.*.et: {what}")


def print_report(found: PlanReport, *, details: bool) -> None:
    """Print what one job comes to on one site, its plans, and everything else where details are wanted."""
    say(f"{found.job.name} on {found.site.name}", style="bold")
    for line in headline(found):
        say(line)
    say("")
    print_plans(found)
    if not details:
        say("step, memory, failures, power and placement of the first plan: --details")
        return
    _print_step(found)
    _print_goodput(found)
    _print_power(found)
    _print_places(found)


def print_plans(found: PlanReport) -> None:
    """Print the table of plans, the job's own first where it has one."""
    best = found.outcome.best
    rows = [found.row(best, row) for row in range(len(best))]
    if found.own is not None:
        rows.insert(0, found.row(found.own, 0))
    axes = [axis for axis in ("dp", "tp", "pp", "cp", "ep") if any(row[axis] > 1 for row in rows)] or ["dp"]
    table = [
        (
            ("own" if found.own is not None and number == 0 else str(number + (found.own is None)))
            + ("?" if row["unmatched"] else "")
            + ("!" if row["not_trained"] else ""),
            *(f"{row[axis]:,}" for axis in axes),
            *_plan_cells(row),
        )
        for number, row in enumerate(rows)
    ]
    spaced = "" if found.outcome.every else " (evenly spaced; there are too many to try all)"
    considered = f"{found.outcome.considered:,} valid plans{spaced}, {found.outcome.feasible:,} fit"
    last = len(axes)
    print_table(
        considered,
        ("plan", *axes, "ZeRO", "schedule", "micro", "recompute", "step", "MFU", "tokens/s", "GiB", "limit"),
        table,
        words=(0, last + 2, last + 4, last + 9),
    )
    for reason in dict.fromkeys(row["unmatched"] for row in rows if row["unmatched"]):
        say(f"? {reason}")
    first = rows[0]
    _print_trained(found, next((row for row in rows if row["not_trained"]), None), float(first["step_s"]))
    say(
        "step of the first plan: 90 % interval "
        f"{second_range(first['step_low_s'], first['step_s'], first['step_high_s'])}"
        f" ({first['interval_basis']})"
    )


def _print_trained(found: PlanReport, marked: dict[str, Any] | None, step_s: float) -> None:
    """Say why `weft train` does not run the first of the marked plans, and which plan it would run."""
    if marked is None:
        return
    say(f"! not for `weft train`: {marked['not_trained'][0]}")
    accepted = found.outcome.accepted
    if len(accepted):
        row = plan_row(accepted, 0, found.machine, found.work)
        longer = share(row["step_s"] / step_s - 1)
        micro = f"micro-batches of {row['micro_batch']}"
        say(f"  the best that it runs: {plan_name(row)}, {micro}: {seconds(row['step_s'])} a step ({longer})")
    else:
        say("  it runs no plan of this job here")


def print_difference(reports: list[tuple[str, PlanReport]]) -> None:
    """Print several reports side by side, each figure with its difference to the first."""
    names = [name for name, _ in reports]
    rows: list[tuple[str, ...]] = []
    columns = [_figures(report) for _, report in reports]
    for what in columns[0]:
        base = columns[0][what][1]
        cells = [columns[0][what][0]]
        for column in columns[1:]:
            text, value = column[what]
            cells.append(text if base in (None, 0) or value is None else f"{text} ({share(value / base - 1)})")
        rows.append((what, *cells))
    print_table("best plans side by side", ("what", *names), rows, words=range(len(names) + 1))


def _figures(report: PlanReport) -> dict[str, tuple[str, float | None]]:
    row = plan_row(report.chosen, 0, report.machine, report.work)
    shape = " ".join(f"{axis}{row[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep"))
    run = report.run
    return {
        "plan": (f"{shape} {row['schedule']}", None),
        "GPUs": (f"{row['gpus']:,}", row["gpus"]),
        "step": (seconds(row["step_s"]), row["step_s"]),
        "MFU": (f"{row['mfu']:.1%}", row["mfu"]),
        "tokens/s": (thousands(row["tokens_per_s"]), row["tokens_per_s"]),
        "memory": (SIZE.about(row["memory_bytes"]), row["memory_bytes"]),
        "limit": (row["limit"], None),
        "goodput": (f"{report.goodput.share:.1%}", report.goodput.share),
        "power, mean": (watts(report.power.mean_w), report.power.mean_w),
        "swing": (watts(report.power.swing_w), report.power.swing_w),
        "run": (days(run.days), run.days),
        "energy": (kilowatt_hours(run.energy_kwh), run.energy_kwh),
    }


def _plan_cells(row: dict[str, Any]) -> tuple[str, ...]:
    # An interleaved schedule is 1F1B with so many chunks on a stage.
    schedule = row["schedule"].replace("interleaved", f"1f1b x{row['chunks']}") if row["pp"] > 1 else "-"
    shard = "" if row["zero"] == 0 or row["shard"] == row["dp"] * row["cp"] else f"/{row['shard']}"
    return (
        f"{row['zero']}{shard}",
        schedule,
        str(row["micro_batch"]),
        row["recompute"],
        seconds(row["step_s"]),
        f"{row['mfu']:.1%}",
        thousands(row["tokens_per_s"]),
        significant(row["memory_bytes"] / 2**30),
        row["limit"],
    )


_STEP_WORDS = {
    "compute_s": "compute", "recompute_s": "recompute", "tensor_s": "TP communication",
    "context_s": "CP communication", "expert_s": "EP all-to-all", "pipeline_s": "PP send/recv",
    "bubble_s": "pipeline bubble", "data_s": "DP communication", "optimizer_s": "optimizer",
    "straggler_s": "straggler wait",
}  # fmt: skip


def _print_step(found: PlanReport) -> None:
    step = float(found.chosen.step_s[0])
    parts = [(name, value) for name, value in step_row(found.chosen.times, 0).items() if value > 0]
    rows = [(_STEP_WORDS[name], seconds(value), f"{value / step:.1%}") for name, value in parts]
    print_table("step of the first plan (communication: exposed only)", ("part", "time", "share"), rows)
    memory = found.chosen.memory.row(0)
    room = found.machine.memory_bytes
    held = [(name, SIZE.about(value), f"{value / room:.1%}") for name, value in memory.items()]
    left = room - sum(memory.values())
    held.append(("free", SIZE.about(left), f"{left / room:.1%}"))
    print_table("peak GPU memory of the first plan", ("part", "size", "share"), held)


def _print_goodput(found: PlanReport) -> None:
    good, run = found.goodput, found.run
    currency = found.site.prices.currency
    energy, rent = (money(cents / 100, currency) for cents in (run.energy_cents, run.gpu_cents))
    between = "no failures expected" if math.isinf(good.mttf_s) else seconds(good.mttf_s)
    facts = [
        ("MTBF of the job", between),
        ("checkpoint every", f"{seconds(good.interval_s)}, blocking for {seconds(good.write_s)}"),
        ("restart after a failure", seconds(good.restart_s)),
        ("goodput (ETTR)", f"{good.share:.1%} (linear form {good.linear_share:.1%})"),
        ("spare nodes for 99.9 %", f"{good.spares:,}"),
        ("throughput without spares", f"{good.degraded_share:.1%}: a replica waits for a node"),
        ("run time", f"{days(run.days)}; 90 % interval {day_range(run.days_low, run.days, run.days_high)}"),
        ("job-stopping failures", significant(run.failures)),
        ("GPU-hours", thousands(run.gpu_hours)),
        ("energy at the meter", f"{kilowatt_hours(run.energy_kwh)}, {kilograms(run.carbon_kg)} CO2"),
        ("cost", f"energy {energy}, GPU-hours {rent}"),
    ]  # fmt: skip
    print_table("the run with this site's failures", ("what", "value"), facts, words=(0, 1))
    rows = [
        (fault.name, significant(fault.per_hour * 24), "yes" if fault.stops else "no", f"{fault.gpus:,}",
         significant(fault.lost_gpu_hours))
        for fault in good.faults
    ]  # fmt: skip
    print_table(
        "expected faults",
        ("fault", "per day", "stops the job", "GPUs in repair", "GPU-hours lost each"),
        rows,
        words=(0, 2),
    )


def _print_power(found: PlanReport) -> None:
    power = found.power
    rack = power.mean_w / found.meter.gpus * found.machine.domain_gpus
    facts = [
        ("mean", watts(power.mean_w)),
        ("peak", watts(power.peak_w)),
        ("mean per scale-up domain", watts(rack)),
        ("swing within a second", watts(power.swing_w)),
        ("strongest oscillation", f"{power.strongest_hz:.2f} Hz"),
        ("energy per step", joules(found.energy_j_per_step)),
        ("utility-contract violations", ", ".join(power.broken) or "none"),
    ]
    print_table("power at the meter", ("what", "value"), facts, words=(0, 1))
    events = [
        (each.name, "never" if math.isinf(each.every_s) else seconds(each.every_s), watts(each.swing_w),
         seconds(each.seconds))
        for each in found.events
    ]  # fmt: skip
    print_table("power events besides the steps", ("what", "every", "swing", "stays for"), events)
    rows = [
        (each.name, share(each.energy), share(each.slower), watts(each.verdict.swing_w),
         ", ".join(each.verdict.broken) or "none")
        for each in found.mitigations
    ]  # fmt: skip
    print_table("power mitigations", ("what", "energy", "step", "swing", "violations"), rows, words=(0, 4))


def _print_places(found: PlanReport) -> None:
    rows = [(axis.name, f"{axis.size:,}", f"{axis.stride:,}", axis.tier) for axis in found.axes if axis.size > 1]
    print_table(
        "placement of the mesh axes", ("axis", "ranks", "stride in GPUs", "groups stay inside"), rows, words=(0, 3)
    )
    costs = [
        (cost.part, f"{cost.bandwidth_lost:.1%}", "stops" if math.isinf(cost.slower) else f"{cost.slower:+.2%}",
         f"{cost.replicas_lost:,}", f"{cost.throughput_lost:.2%}")
        for cost in found.failures
    ]  # fmt: skip
    print_table(
        "step time with a failed part",
        ("failed", "bandwidth lost", "step", "replicas lost", "throughput lost, no spare"),
        costs,
    )
    serving = found.serving
    if serving is not None:
        say(
            f"If served: {serving.tp} GPUs per replica, batch {serving.batch:,}, TTFT {seconds(serving.prefill_s)}, "
            f"TPOT {seconds(serving.decode_s)}, {significant(serving.tokens_per_s_per_gpu)} tokens/s per GPU"
        )


def pairs_of(texts: list[str]) -> dict[str, str]:
    """Return choices of a plan, written NAME=VALUE, by name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"--fix {text!r} is not a choice; write it as tp=8")
        if name.strip() in found:
            raise UsageError(f"--fix {name.strip()} is given twice; write it once")
        found[name.strip()] = value.strip()
    return found
