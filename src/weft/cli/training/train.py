"""`weft train`: start the ranks of a job on this machine, show how it goes, and say what it came to."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from weft.cli.look.console import beside
from weft.cli.output import BuiltInSite, JobArgument, JsonFlag, console, draw_own_screen, print_json, print_table, say
from weft.core import quantity
from weft.core.errors import UsageError
from weft.core.extras import need
from weft.core.specfile import read_table, validate, with_values
from weft.engines.supervisor import Supervisor
from weft.engines.supervisor.rank_layout import RankMain
from weft.planning.cost_model.arithmetic import parameters
from weft.specs import JobSpec, load_job
from weft.specs.faults import FaultsSpec
from weft.training.parallel.auto_plan import planned
from weft.training.run_dir import check_root, find, latest, resumed_model

_LINES = 10
_WEIGHT_BYTES = 4
"""Weights are kept in fp32, whatever the products are computed in."""
_RUNS = Path("runs")


def train(
    job: JobArgument, /, *,
    resume: Annotated[bool, Parameter(negative="", help="Resume the newest run of this job.")] = False,
    start_over: Annotated[bool, Parameter(negative="", help="Begin anew where nothing can be resumed.")] = False,
    set: Annotated[tuple[str, ...], Parameter(name="--set", negative="", help="Change a key: KEY=VALUE.")] = (),
    folder: Annotated[Path, Parameter(name="--folder", help="Folder of runs.")] = _RUNS,
    site: Annotated[BuiltInSite | None,
                    Parameter(show_choices=False, help="Site for which plan = auto is chosen; default: this machine.")
                    ] = None,
    faults: Annotated[str | None, Parameter(name="--faults", help="Inject the faults described in FILE.")] = None,
    model: Annotated[str | None, Parameter(help="Train your own model: package:build, or an installed name.")] = None,
    ui: Annotated[bool, Parameter(negative="", help="Show the run in a browser while it lasts.")] = False,
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Train a job on this machine.

    Ranks that die, hang or go wrong are replaced and the run goes on; weft runs incidents shows what happened. Ctrl-C
    saves a checkpoint and ends; --resume goes on from the newest one, exactly, or is refused where none is good any
    more; with --start-over it then begins at step 0.
    """
    need("torch")
    spec = planned(changed(load_job(job), set, job), site)
    check_memory(spec, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    model = resumed_model(latest(folder, spec) if resume else None, model)
    with _shown(spec, quiet=json) as show:
        broken = None if faults is None else validate(read_table(faults), FaultsSpec, faults)
        arguments = {"job": spec, "folder": str(folder), "resume": resume, "model": model}
        main = RankMain(arguments=arguments)
        supervisor = Supervisor(spec, folder, main=main, resume=resume, faults=broken, on_line=show)
        supervisor.start_over = start_over
        check_root(folder)
        with beside(folder) if ui else contextlib.nullcontext():
            result = supervisor.run()
    if json:
        print_json({**result, "provenance": find(folder, result["run"]).provenance()})
    else:
        _print_result(result, job)
    if result["state"] != "finished":
        raise KeyboardInterrupt


def changed(job: JobSpec, changes: tuple[str, ...], name: str) -> JobSpec:
    """Return `job` with every KEY=VALUE of `changes` put in its place, checked as a whole."""
    values: dict[str, str] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {change}: write KEY=VALUE, such as --set steps=100 or --set plan.dp=4")
        values[key.strip()] = text.strip()
    return with_values(job, values, f"{name} with --set")


def check_memory(job: JobSpec, memory_bytes: int) -> None:
    """Refuse a model whose weights alone, held once, are more than this machine's memory."""
    needed = _WEIGHT_BYTES * parameters(job.model).total
    if needed > memory_bytes:
        raise UsageError(
            f"the weights of job {job.name!r} take {quantity.SIZE.about(needed)}, but this machine has"
            f" {quantity.SIZE.about(memory_bytes)}; weft plan and weft rehearse say what it would do on a site"
        )


class _Lines:
    """Progress for pipes and logs: a line now and then."""

    def __init__(self, job: JobSpec, out: Console) -> None:
        """Print about ten lines over the whole training."""
        self._every = max(1, job.steps // _LINES)
        self._out = out
        self._steps = job.steps

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Print what is new."""
        if "problem" in line:
            self._out.print(line["problem"], markup=False, soft_wrap=True)
        elif "incident" in line:
            self._out.print(_incident(line), markup=False, soft_wrap=True)
        elif "loss" in line and (line["step"] % self._every == 0 or line["step"] == self._steps):
            self._out.print(f"step {line['step']:,} of {self._steps:,}  {_figures(line)}", markup=False)


def _incident(line: Mapping[str, Any]) -> str:
    return f"after step {line['step']:,}: {line['incident'].splitlines()[0]}; recovering"


def _ignore(line: Mapping[str, Any]) -> None:
    """Say nothing."""


def _figures(line: Mapping[str, Any]) -> str:
    loss = "not finite" if line["loss"] is None else f"{line['loss']:.4f}"
    return f"loss {loss}  {quantity.significant(line['tokens_per_s'])} tokens/s  MFU {line['mfu']:.1%}"


@contextlib.contextmanager
def _shown(job: JobSpec, *, quiet: bool) -> Iterator[Any]:
    """Show progress: a bar on a terminal, lines elsewhere, nothing on standard output where JSON goes there."""
    errors = Console(stderr=True, highlight=False)
    if not errors.is_terminal:
        yield _ignore if quiet else _Lines(job, console())
        return
    draw_own_screen()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[figures]}"), console=errors, transient=True) as progress:
        task = progress.add_task(job.name, total=job.steps, figures="starting")

        def show(line: Mapping[str, Any]) -> None:
            if "problem" in line:
                progress.console.print(line["problem"], markup=False)
            elif "incident" in line:
                progress.console.print(_incident(line), markup=False)
            elif "loss" in line:
                progress.update(task, completed=line["step"], figures=_figures(line))

        yield show


def _print_result(result: Mapping[str, Any], job: str) -> None:
    seconds: dict[str, float] = result["goodput"]["seconds"]
    wall = sum(seconds.values())
    spent = sorted(seconds.items(), key=lambda entry: -entry[1])
    rows = [(kind.replace("_", " "), f"{value:,.2f}", f"{value / wall:.1%}") for kind, value in spent]
    rows.append(("wall time", f"{wall:,.2f}", ""))
    print_table("wall time by class, recoveries included", ("class", "seconds", "share"), rows)
    loss = "-" if result["final_loss"] is None else f"{result['final_loss']:.4f}"
    how = "measured" if result["energy"]["measured"] else "estimated"
    say(
        f"{result['run']}: {result['state']} after {result['steps']:,} steps, loss {loss},"
        f" {quantity.significant(result['tokens_per_s'])} tokens/s, MFU {result['mfu']:.1%},"
        f" {quantity.ENERGY.about(int(result['energy_j'] * 1000))} {how}, weights {result['weights_digest']}"
    )
    if result["recoveries"]:
        seconds_lost = sum(one["seconds_lost"] for one in result["incidents"])
        say(
            f"{len(result['recoveries'])} recoveries, {seconds_lost:,.1f} s lost, goodput"
            f" {result['goodput']['share']:.1%}; weft runs incidents {result['run']} lists them"
        )
    if result["state"] != "finished":
        say(f"checkpoint saved; resume with: weft train {job} --resume")
