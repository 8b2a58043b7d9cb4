"""Everything that `weft plan` says about a job on a site, put together from the parts of this package.

Pure: a site and a job in, a report out. Tables and pictures are made from it elsewhere; `as_json` is the stable form.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from weft.collectives.costs import Column
from weft.core.errors import UsageError
from weft.core.provenance import provenance
from weft.fabric.bill import bill_of
from weft.planning.cost_model.confidence import Confidence, confidence_of
from weft.planning.cost_model.machine import Machine, machine_of
from weft.planning.cost_model.memory import memory_of
from weft.planning.cost_model.plans import Plans, Workload, dimensions_of, software_of, spec_of, written_plan
from weft.planning.cost_model.step import StepTimes
from weft.planning.legality import divisors, is_trained, problems, refusals
from weft.planning.run.goodput import Goodput, checkpoint_s, goodput_of
from weft.planning.run.inference import Serving, best_serving
from weft.planning.run.placement import AxisPlacement, Colocation, FailureCost, axes_of, colocation_of, failure_costs
from weft.planning.run.power import (
    Contract,
    Meter,
    Mitigation,
    PowerEvent,
    PowerPhase,
    PowerVerdict,
    events_of,
    judge,
    mitigations,
    phases_of,
    samples,
    with_lag,
)
from weft.planning.run.run_cost import NINETY, RunCost, Tariff, run_cost
from weft.planning.search import Accept, Scored, SearchResult, limit_of, scored, search
from weft.specs.job import JobSpec, PlanSpec
from weft.specs.site import SiteSpec
from weft.specs.software import SoftwareSpec

SAMPLES_PER_STEP = 200
_MOST_PER_SECOND = 500.0
_WAVE_STEPS, _WAVE_SECONDS = 8, 2.0
_PROMPT, _OUTPUT = 2048, 512
_SERVING_PRECISION = "bf16"


@dataclass(frozen=True)
class PlanReport:
    """What a job would do on a site."""

    site: SiteSpec
    """The site."""
    job: JobSpec
    """The job."""
    machine: Machine
    """The planner's view of the site."""
    work: Workload
    """The planner's view of the job."""
    practice: SoftwareSpec
    """Habits of the software."""
    outcome: SearchResult
    """What the search found; the chosen plan is its first."""
    own: Scored | None
    """The plan that the job file spells out, where it does."""
    goodput: Goodput
    """What failures cost the chosen plan."""
    phases: tuple[PowerPhase, ...]
    """One GPU's power over a step of the chosen plan."""
    wave: Column
    """The draw of one GPU over a few steps, sampled."""
    per_second: float
    """Samples for a second."""
    meter: Meter
    """From that to the utility's meter."""
    power: PowerVerdict
    """The wave at the meter against the contract."""
    events: tuple[PowerEvent, ...]
    """Stops, starts and checkpoints at the meter."""
    mitigations: tuple[Mitigation, ...]
    """Power mitigations."""
    run: RunCost
    """What the whole run takes."""
    axes: tuple[AxisPlacement, ...]
    """Where each axis runs."""
    sharing: tuple[Colocation, ...]
    """Which ranks share a place."""
    failures: tuple[FailureCost, ...]
    """What failures of the network and of nodes cost the step."""
    confidence: Confidence
    """How far off the chosen plan's step may be."""
    serving: Serving | None
    """The same model served from one scale-up domain; none where it does not fit."""

    @property
    def chosen(self) -> Scored:
        """Return the plan that the report is about, first row: the job's own, or the best found."""
        return self.own if self.own is not None else self.outcome.best

    @property
    def plan_spec(self) -> PlanSpec:
        """Return the chosen plan as a job file holds it."""
        return spec_of(self.chosen.plans, 0, self.practice)

    @property
    def energy_j_per_step(self) -> float:
        """Return the energy of one step at the meter."""
        return self.power.mean_w * float(self.chosen.step_s[0])

    def row(self, found: Scored, number: int) -> dict[str, Any]:
        """Return one plan with its costs and how far off they may be, as plain values."""
        doubt = confidence_of(self.work, found.plans, number, self.machine, self.practice)
        step_s = float(found.step_s[number])
        interval = dict(zip(("step_low_s", "step_high_s"), doubt.interval(step_s), strict=True))
        row = plan_row(found, number, self.machine, self.work)
        if found is self.own and self.job.plan != "auto":
            refused = problems(self.job.plan, self.job.model, self.job.batch)
        else:
            refused = refusals(found.plans, number, self.job, self.practice)
        marks = {"interval_basis": doubt.basis, "unmatched": doubt.unmatched, "not_trained": refused}
        return {**row, **interval, **marks}

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        best = self.outcome.best
        document: dict[str, Any] = {
            "site": self.site.name,
            "job": self.job.name,
            "gpus": self.machine.gpus,
            "considered": self.outcome.considered,
            "feasible": self.outcome.feasible,
            "every_plan": self.outcome.every,
            "plans": [self.row(best, row) for row in range(len(best))],
            "own_plan": None if self.own is None else self.row(self.own, 0),
            "trained_plan": self.row(self.outcome.accepted, 0) if len(self.outcome.accepted) else None,
            "memory": self.chosen.memory.row(0),
            "step": step_row(self.chosen.times, 0),
            "goodput": _goodput_json(self.goodput),
            "energy_j_per_step": self.energy_j_per_step,
            "power": {**asdict(self.power), "broken": list(self.power.broken)},
            "power_events": [_finite({**asdict(each), "swing_w": each.swing_w}) for each in self.events],
            "mitigations": [
                {"name": each.name, "energy": each.energy, "slower": each.slower, "swing_w": each.verdict.swing_w,
                 "broken": list(each.verdict.broken)}
                for each in self.mitigations
            ],
            "run": _finite({**asdict(self.run), "currency": self.site.prices.currency}),
            "axes": [asdict(each) for each in self.axes],
            "failures": [_finite(asdict(each)) for each in self.failures],
            "serving": None if self.serving is None else asdict(self.serving),
        }  # fmt: skip
        asked = {"site": self.site.as_written(), "job": self.job.as_written()}
        return {**document, "provenance": provenance(asked).as_json()}


def plan_row(found: Scored, row: int, machine: Machine, work: Workload) -> dict[str, Any]:
    """Return one plan with its costs as plain values."""
    plain = found.plans.row(row)
    gpus = int(found.plans.ranks[row])
    return {
        **{name: plain[name] for name in ("dp", "tp", "pp", "cp", "ep", "zero", "shard", "schedule", "chunks")},
        "micro_batch": plain["micro"],
        "recompute": plain["recompute"],
        "gpus": gpus,
        "step_s": float(found.step_s[row]),
        "mfu": float(found.mfu[row]),
        "hfu": float(found.hfu[row]),
        "tflops_per_gpu": float(found.mfu[row]) * found.peak_flops / 1e12,
        "tokens_per_s": float(found.tokens_per_s[row]),
        "memory_bytes": round(float(found.memory.total[row])),
        "limit": limit_of(found, row, machine, work),
    }


def step_row(times: StepTimes, row: int) -> dict[str, float]:
    """Return the parts of one plan's step in seconds."""
    names = [each.name for each in fields(times) if each.name not in ("forward_s", "backward_s")]
    return {name: float(getattr(times, name)[row]) for name in names}


def plan_job(
    site: SiteSpec,
    job: JobSpec,
    *,
    practice: SoftwareSpec | None = None,
    fixed: Mapping[str, str] | None = None,
    top: int = 10,
) -> PlanReport:
    """Return what `job` would do on `site`, or raise with what is in the way and the nearest change."""
    asked = _PlanRequest(site, job, practice or software_of(job, site))
    work, machine, habits = asked.work, asked.machine, asked.practice
    own = None
    if job.plan != "auto" and not fixed:
        own = scored(work, _checked(job, job.plan, machine, work, habits), machine, habits)
    outcome = search(work, machine, habits, fixed=fixed, top=top, accept=_trainer_of(asked))
    if not outcome.feasible and own is None:
        raise UsageError(f"{job.name} on {site.name}: {outcome.hint}")
    return _report(asked, outcome, own)


@dataclass(frozen=True)
class _PlanRequest:
    """What a report is asked about."""

    site: SiteSpec
    job: JobSpec
    practice: SoftwareSpec

    @cached_property
    def machine(self) -> Machine:
        return machine_of(self.site)

    @cached_property
    def work(self) -> Workload:
        return Workload(dimensions_of(self.job.model), self.job.batch.sequences, self.job.batch.length)


def _trainer_of(asked: _PlanRequest) -> Accept | None:
    """Return what says whether weft's trainer runs a plan; none where it does not have such a model at all."""
    job, practice = asked.job, asked.practice
    if problems(PlanSpec(), job.model, job.batch):
        return None
    return lambda plans, row: is_trained(plans, row, job, practice)


def _report(asked: _PlanRequest, outcome: SearchResult, own: Scored | None) -> PlanReport:
    site, job, machine, work, practice = asked.site, asked.job, asked.machine, asked.work, asked.practice
    chosen = own if own is not None else outcome.best
    plan = chosen.plans.take([0])
    gpus = int(plan.ranks[0])
    step_s = float(chosen.step_s[0])
    state = work.model.total_parameters * (practice.value_bytes + practice.optimizer_bytes)
    write_s = checkpoint_s(site, state, machine.nic_rate * gpus)
    goodput = goodput_of(site, gpus, gpus // int(plan.dp[0]), write_s=write_s, step_s=step_s)
    phases = phases_of(chosen.times, 0, machine.power_w, machine.idle_power_w)
    per_second = min(SAMPLES_PER_STEP / step_s, _MOST_PER_SECOND)
    steps = max(_WAVE_STEPS, math.ceil(_WAVE_SECONDS / step_s))
    wave = with_lag(samples(phases, steps, per_second), per_second)
    network_w = bill_of(site.fabric).power_mw / 1000 / site.fabric.gpus
    meter = Meter(gpus, site.node.power / 1000 / site.node.gpus + network_w, site.power.pue)
    contract = _contract(site)
    power = judge(meter.at(wave), per_second, contract)
    doubt = confidence_of(work, chosen.plans, 0, machine, practice)
    tariff = Tariff(site.power.price_per_kwh, site.power.carbon_g_per_kwh, site.prices.gpu_hour)
    return PlanReport(
        site=site,
        job=job,
        machine=machine,
        work=work,
        practice=practice,
        outcome=outcome,
        own=own,
        goodput=goodput,
        phases=phases,
        wave=wave,
        per_second=per_second,
        meter=meter,
        power=power,
        events=events_of(meter, machine.power_w, machine.idle_power_w, goodput),
        mitigations=tuple(mitigations(wave, meter, machine.power_w, per_second, contract)),
        confidence=doubt,
        run=run_cost(job.steps, step_s, gpus, goodput=goodput, meter_w=power.mean_w,
                     tariff=replace(tariff, model_error=doubt.share / NINETY)),
        axes=axes_of(plan, 0, site),
        sharing=colocation_of(plan, 0, site),
        failures=failure_costs(work, plan, machine, practice, site),
        serving=best_serving(work.model, machine, prompt=_PROMPT, output=_OUTPUT, precision=_SERVING_PRECISION),
    )  # fmt: skip


def _checked(job: JobSpec, plan: PlanSpec, machine: Machine, work: Workload, practice: SoftwareSpec) -> Plans:
    """Return the job's own plan, or raise with the nearest valid values."""
    if plan.ranks > machine.gpus:
        raise UsageError(
            f"{job.name} names {plan.ranks:,} ranks (dp {plan.dp} x tp {plan.tp} x pp {plan.pp} x cp {plan.cp}), but "
            f"the site has {machine.gpus:,} GPUs; write dp = {max(1, machine.gpus // (plan.ranks // plan.dp))} or less"
        )
    share = plan.dp * job.batch.micro
    if work.sequences % share:
        below = work.sequences // share * share
        batches = " or ".join(str(each) for each in (below, below + share) if each)
        near = min(divisors(work.sequences // job.batch.micro, work.sequences), key=lambda each: abs(each - plan.dp))
        raise UsageError(
            f"a batch of {work.sequences} sequences is not divisible into dp = {plan.dp} replicas with micro-batches "
            f"of {job.batch.micro}; write batch.sequences = {batches}, or dp = {near}"
        )
    for name, size, whole, what in (
        ("tp", plan.tp, work.model.heads, "heads"),
        ("pp", plan.pp, work.model.layers, "layers"),
    ):
        if size > whole:
            raise UsageError(f"{name} = {size} is more than the {whole} {what} of the model; write at most {whole}")
    plans = written_plan(job, plan)
    needed = float(memory_of(work, plans, practice).total[0])
    if needed > machine.memory_bytes:
        raise UsageError(
            f"the plan of {job.name} needs {needed / 2**30:,.1f} GiB on a GPU that has "
            f'{machine.memory_bytes / 2**30:,.1f}; write plan = "auto" to see those that fit'
        )
    return plans


def _contract(site: SiteSpec) -> Contract:
    power = site.power
    return Contract(
        limit_w=None if power.limit is None else power.limit / 1000,
        ramp_w_per_s=None if power.ramp_per_second is None else power.ramp_per_second / 1000,
        swing_w=None if power.swing is None else power.swing / 1000,
    )


def _goodput_json(goodput: Goodput) -> dict[str, Any]:
    plain: dict[str, Any] = asdict(goodput)
    plain["faults"] = [asdict(fault) for fault in goodput.faults]
    return _finite(plain)


def _finite(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the values with none in place of infinity, which JSON does not have."""
    return {name: None if isinstance(value, float) and math.isinf(value) else value for name, value in plain.items()}
