"""The Python interface: the same words as the command line, returning reports instead of printing them.

    import weft
    weft.design("gb200-8x100g-131k").limits.hops_max

`weft` loads this module when one of its names is first used, so that `import weft` alone costs nothing.
"""

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft.core import quantity
from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.core.units import BitsPerSecond
from weft.fabric.design import Design, candidates, describe
from weft.specs import JobSpec, ScenarioSpec, SiteSpec, load_job, load_scenario, load_site

if TYPE_CHECKING:
    from weft.campaign.measures import Measures
    from weft.doctor.examination import Examination
    from weft.engines.local.home import Home
    from weft.fabric.explain import Explanation
    from weft.netsim.kernel.checkpoint import Keep
    from weft.netsim.report import SimulationReport
    from weft.netsim.run import Watch
    from weft.netsim.series_file import SeriesFile
    from weft.netsim.setup import Files
    from weft.planning.report import PlanReport
    from weft.planning.scaling_laws.scaling import Fit, Optimum, Points, Prediction
    from weft.planning.summary.rehearsed import Rehearsal, SampledSimulation
    from weft.specs.software import Precision

__all__ = [
    "compare", "design", "diagnose", "explain", "plan", "rehearse", "replay", "scale", "simulate", "submit",
]  # fmt: skip

_TEMPLATE_SITE = "gb200-8x100g-131k"
_LARGEST_GPUS = 4_000_000


def design(site: str | SiteSpec) -> Design:
    """Return the fabric of a site in figures; `site` is a built-in name, a path or a loaded site."""
    spec = load_site(site) if isinstance(site, str) else site
    return describe(spec.name, spec.fabric)


def compare(
    gpus: int, nic: str = "800 Gb/s", switch: str = "51.2 Tb/s", planes: tuple[int, ...] = ()
) -> tuple[Design, ...]:
    """Return every sensible fabric for `gpus`, cheapest first, made of NICs and switches of these rates."""
    if gpus > _LARGEST_GPUS:
        raise UsageError(f"{gpus:,} GPUs are more than weft designs for; ask for at most {_LARGEST_GPUS:,}")
    template = load_site(_TEMPLATE_SITE).fabric
    return candidates(template, gpus, _rate(nic, "nic"), _rate(switch, "switch"), planes)


def plan(
    job: str | JobSpec,
    site: str | SiteSpec,
    *,
    top: int = 10,
    fixed: Mapping[str, str] | None = None,
    precision: "Precision | None" = None,
    what_if: str | Sequence[str] | None = None,
) -> "PlanReport":
    """Return the best plans of a job on a site and what the chosen one takes.

    `fixed` holds choices ({"tp": "8"}); `what_if` changes the site or the job first ("planes=4"), or
    both by several changes one after the other. The precision is that of the job's own plan where none is given, and
    otherwise what the GPUs are made for.
    """
    from weft.planning.cost_model.plans import software_of
    from weft.planning.report import plan_job
    from weft.planning.what_if import changed_all

    place = load_site(site) if isinstance(site, str) else site
    task = load_job(job) if isinstance(job, str) else job
    if what_if is not None:
        place, task = changed_all(place, task, (what_if,) if isinstance(what_if, str) else what_if)
    return plan_job(place, task, practice=software_of(task, place, precision), fixed=fixed, top=top)


def rehearse(
    site: str | SiteSpec,
    job: str | JobSpec,
    *,
    folder: Path | None = None,
    start: date | None = None,
    simulate: bool | None = None,
    say: Callable[[str], None] | None = None,
    fixed: Mapping[str, str] | None = None,
) -> "Rehearsal":
    """Return what a job would do on a site: plan, step, goodput, failures, power, cost, and the verdict.

    Where the job does not fit, the answer says so instead of raising. `folder` holds runs whose measured figures stand
    beside the predicted ones; `start` is the first day of the run. A part of the fabric is simulated packet by packet
    where that takes less than 20 s of processor time, or as `simulate` says; `say` is called with what is simulated.
    `fixed` holds choices of the plan ({"tp": "8"}).
    """
    from weft.planning.cost_model.plans import software_of
    from weft.planning.rehearsal import rehearse as lines_of
    from weft.planning.report import plan_job
    from weft.planning.summary.rehearsed import Rehearsal, SampledSimulation, begun
    from weft.training.run_figures import newest_run, run_figures

    place = load_site(site) if isinstance(site, str) else site
    task = load_job(job) if isinstance(job, str) else job
    record = None if folder is None else newest_run(folder, task)
    measured = {} if record is None else run_figures(record, task.steps)
    try:
        report = plan_job(place, task, practice=software_of(task, place, None), fixed=fixed)
    except UsageError as error:
        none = SampledSimulation("not simulated: the job does not fit")
        return Rehearsal(place, task, None, str(error), (), none)
    figures, simulation = _sampled(report, simulate, say)
    lines = lines_of(report, simulated=figures, measured=measured)
    found = Rehearsal(place, task, report, "", lines, simulation, None if record is None else record.name)
    return found if start is None else begun(found, start)


def _sampled(
    report: "PlanReport", simulate: bool | None, say: Callable[[str], None] | None
) -> "tuple[dict[str, float], SampledSimulation]":
    """Return what the step's exchanges come to packet by packet, and what was simulated or why nothing was."""
    from weft.netsim.step_table import step_tables, why_not_simulated
    from weft.planning.rehearsal import simulated_figures
    from weft.planning.summary.rehearsed import SampledSimulation

    if simulate is False:
        return {}, SampledSimulation("not simulated: it was left out")
    why_not = None if simulate else why_not_simulated(report.site)
    if why_not is not None:
        return {}, SampledSimulation(why_not)
    tables = step_tables(report.site, say=say)
    figures = simulated_figures(report, tables.healthy, tables.spine_lost)
    hit = "" if tables.spine_lost is None else "; the T1 switch has just died and no path is retired yet"
    note = (
        f"permutations of a ring's step between {tables.hosts:,} NICs, packet by packet ({tables.healthy.source}){hit}"
    )
    return figures, SampledSimulation(note, tables.hosts)


def simulate(
    scenario: str | ScenarioSpec,
    transports: Sequence[str] = (),
    seed: int | None = None,
    *,
    engine: Literal["engine", "reference"] | None = None,
    threads: int | None = None,
    files: "Files | None" = None,
    traces: Path | None = None,
    fast: bool | None = None,
    keep: "Keep | None" = None,
    series: "SeriesFile | None" = None,
    watch: "Watch | None" = None,
    say: Callable[[str], None] | None = None,
) -> "tuple[SimulationReport, ...]":
    """Run a scenario packet by packet and return one report for each transport.

    `scenario` is a built-in name, a path or a loaded scenario. `engine` is the compiled one where that is installed,
    and gives the same reports; `files` are htsim's, in place of the scenario's traffic and fabric; `traces` is the
    prefix of Chakra traces, in place of its traffic. `fast` compiles the protocol's rules for the reference (decided by
    the size of the traffic where absent). `keep` says where a long run is kept, to be taken up again; `series` is a
    file that grows by a line for each bin; `watch` is called with progress, `say` with what takes long.
    """
    from weft.netsim.run import Observers, run
    from weft.netsim.setup import set_up, set_up_files, set_up_traces, transports_of

    spec = load_scenario(scenario) if isinstance(scenario, str) else scenario
    site = load_site(spec.site)
    job = None if spec.job is None else load_job(spec.job)
    if files is not None:
        setup = set_up_files(spec, site, files, seed)
    elif traces is not None:
        setup = set_up_traces(spec, site, traces, seed)
    else:
        setup = set_up(spec, site, seed, job)
    reports: list[SimulationReport] = []
    chosen = transports_of(setup, tuple(transports))
    if keep is not None and len(chosen) > 1:
        raise UsageError(f"one run can be kept, not {len(chosen)}; name one transport")
    observers = Observers(keep, series, watch, say)
    for transport in chosen:
        reports.append(run(setup, transport, engine=engine, threads=threads, fast=fast, observers=observers))
        if reports[-1].interrupted:
            break
    return tuple(reports)


def explain(topic: str, site: str | SiteSpec = _TEMPLATE_SITE, *, seed: int = 0) -> "Explanation":
    """Return why a decision of the fabric works, in a site's own numbers, with a simulation beside every formula."""
    from weft.fabric.explain import explain as explained

    return explained(topic, load_site(site) if isinstance(site, str) else site, Seed(seed))


@dataclass(frozen=True)
class ScaledLoss:
    """A scaling law, and what it says about a run or a budget."""

    fit: "Fit"
    """The law, fitted to finished runs."""
    prediction: "Prediction | None"
    """The loss of the run that was asked for; none where none was."""
    optimum: "Optimum | None"
    """The best use of the budget that was asked for; none where none was."""


def scale(
    points: "str | Path | Points",
    *,
    params: float | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    law: Literal["hoffmann", "kaplan"] = "hoffmann",
    seed: int = 0,
) -> ScaledLoss:
    """Return the scaling law of finished runs (a CSV of params, tokens, loss), and what it predicts.

    `params` and `tokens` together ask for the loss of a run, `flops` for the best use of a budget.
    """
    from weft.planning.scaling_laws import scaling
    from weft.training.finished_losses import read_points

    if (params is None) != (tokens is None):
        raise UsageError("params and tokens go together: both say which run is predicted")
    runs = read_points(Path(points)) if isinstance(points, str | Path) else points
    found = scaling.fit(runs, Seed(seed), form=law)
    asked = None if params is None or tokens is None else scaling.predict(found, params, tokens, Seed(seed))
    return ScaledLoss(found, asked, None if flops is None else scaling.optimal(found, flops, Seed(seed)))


def replay(
    trace: str | Path,
    *,
    site: str | SiteSpec = _TEMPLATE_SITE,
    nodes: int | None = None,
    policies: Sequence[str] = ("weft",),
    failures: bool = False,
    seed: int = 0,
) -> "dict[str, Measures]":
    """Return how a job trace goes through the real scheduler in simulated time, by policy; teams have equal quotas."""
    from weft.campaign.failures import Failures
    from weft.campaign.policies import policy_of
    from weft.campaign.replay import TraceReplay
    from weft.campaign.trace import admit_all
    from weft.campaign.trace_file import read_trace
    from weft.cluster.from_site import nodes_of, power_of
    from weft.cluster.records.job import Team
    from weft.cluster.records.snapshot import Snapshot

    spec = load_site(site) if isinstance(site, str) else site
    pool = nodes_of(spec, nodes)
    lines = read_trace(Path(trace), spec.node.gpus).lines
    names = sorted({line.team for line in lines})
    teams = tuple(Team(name, sum(node.gpus for node in pool) // len(names)) for name in names)
    admit_all(lines, pool, teams, str(trace))
    found: dict[str, Measures] = {}
    for name in policies:
        rules, power = policy_of(name, power_of(spec))
        snapshot = Snapshot(pool, teams=teams, power=power, policy=rules)
        world = TraceReplay(snapshot, lines, failures=Failures.of(spec, Seed(seed)) if failures else None)
        found[name] = world.run()
    return found


def submit(
    work: str | JobSpec | Sequence[str], *, home: Path | None = None, snapshot: bool = True, **asked: Any
) -> list[dict[str, Any]]:
    """Hand a training (a job) or a command (its words) to the cluster of this machine; return what it made of it.

    `asked` are the keys of a submission, such as `name`, `team`, `priority`, `time_limit`, `nodes`, `gpus_per_node` and
    `after`. The working folder goes along as it is now, unless `snapshot` is false.
    """
    from weft.core.specfile import validate
    from weft.engines.local.archive import pack
    from weft.engines.local.client import LocalClient
    from weft.specs.submission import SubmissionSpec
    from weft.training.parallel.auto_plan import planned

    table: dict[str, Any] = {"key": str(uuid.uuid4()), **asked}
    if isinstance(work, str | JobSpec):
        job = planned(load_job(work) if isinstance(work, str) else work)
        table |= {"kind": "training", "job": job.as_written()}
    else:
        table |= {"command": list(work)}
    validate(table, SubmissionSpec, "the submission")
    client = LocalClient(cluster_home(home))
    client.post("v1", "check", body=table)
    if snapshot:
        table["snapshot"] = client.upload(pack(Path.cwd()))
    return client.submit(table)


def diagnose(*paths: str, job: str | JobSpec | None = None, site: str | SiteSpec | None = None) -> "Examination":
    """Return what is slow, stuck or wrong in a training, from anybody's files of it: `weft doctor` in Python.

    With `job` and `site` it is set beside what the planner expects. (`weft.doctor` is the package.)
    """
    from weft.doctor.examination import examine_evidence
    from weft.doctor.expected import expectation
    from weft.doctor.gather import gather

    if (job is None) != (site is None):
        raise UsageError("job and site go together: both say what to expect")
    expected = None if job is None or site is None else expectation(plan(job, site))
    return examine_evidence(gather(paths, None), expected)


def cluster_home(given: Path | None = None) -> "Home":
    """Return the cluster of this machine that is meant: the one given, that of WEFT_CLUSTER, or the user's."""
    from weft.engines.local.home import Home

    if given is not None:
        return Home(given.absolute())
    return Home(Path(os.environ.get("WEFT_CLUSTER") or Path.home() / ".weft" / "cluster").absolute())


def _rate(text: str, option: str) -> BitsPerSecond:
    try:
        amount = quantity.RATE.parse(text)
    except quantity.QuantityError as error:
        raise UsageError(f"--{option}: {error}") from None
    if amount <= 0:
        raise UsageError(f"--{option}: {text!r} is not a rate above zero")
    return BitsPerSecond(amount)
