"""What failures cost: how often a job stops, how much of its time is work, how many spares it needs.

Rates come from a site; the rest is arithmetic of a series system: any part that must not fail stops the job. The
checkpoint interval is Daly's optimum (Future Generation Computer Systems 22, 2006); the linear form that Meta uses
(arXiv 2410.21680) stands beside it: nearly the same where failures are rare, too low where restarts dominate. Measured
logs are `training.metrics.ledger`'s matter.
"""

import math
from dataclasses import dataclass

from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.graph.shape import shape_of
from weft.specs.site import SiteSpec

FIT_HOURS = 1e9
HOUR_S, DAY_S = 3600.0, 86400.0
_HOPELESS = 100.0
"""Lives of the machine that an interval must not outlast: beyond, no step is ever finished."""
_LARGEST_SPARES = 1_000_000


@dataclass(frozen=True)
class FailureClass:
    """One class of failure, for one job."""

    name: str
    """What fails."""
    per_hour: float
    """How often, over all parts that the job uses."""
    stops: bool
    """Whether the job stops; it goes on with less bandwidth otherwise."""
    gpus: int
    """GPUs out of work until the part is repaired."""
    lost_gpu_hours: float
    """What one such failure costs: the whole job's stop, and the part's own time in repair."""


@dataclass(frozen=True)
class Goodput:
    """How much of a job's time is work."""

    mttf_s: float
    """Mean time between failures that stop the job."""
    interval_s: float
    """Best time between checkpoints."""
    write_s: float
    """Time that a checkpoint stops the training."""
    restart_s: float
    """From a failure to the first new step."""
    share: float
    """Share of the time that ends up in the model (ETTR), after Daly."""
    linear_share: float
    """The same by the linear form; 0 where that would be negative."""
    spares: int
    """Nodes in repair with probability 99.9 % at most: what must be spare for the job to stay whole."""
    degraded_share: float
    """Share of throughput if no spare is kept and a replica is dropped while its node is in repair."""
    faults: tuple[FailureClass, ...]
    """Classes of failures, most frequent first."""


def job_mttf_s(per_thousand_node_days: float, nodes: float) -> float:
    """Return the mean time between failures of a job on `nodes` for a rate for 1,000 node-days."""
    return DAY_S * 1000 / (per_thousand_node_days * nodes)


def daly_interval_s(mttf_s: float, write_s: float) -> float:
    """Return the time between checkpoints that wastes least (Daly 2006, equation 37)."""
    if write_s >= 2 * mttf_s:
        return mttf_s
    ratio = write_s / (2 * mttf_s)
    return max(math.sqrt(2 * write_s * mttf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s, 1e-9)


def daly_share(mttf_s: float, restart_s: float, write_s: float, interval_s: float) -> float:
    """Return the share of time that is work when failures may also strike during restarts (Daly 2006, equation 20)."""
    if math.isinf(mttf_s):
        return interval_s / (interval_s + write_s)
    exponent = (interval_s + write_s) / mttf_s
    if exponent + restart_s / mttf_s > _HOPELESS:
        return 0.0
    return interval_s / (mttf_s * math.exp(restart_s / mttf_s) * math.expm1(exponent))


def linear_share(mttf_s: float, restart_s: float, write_s: float, interval_s: float) -> float:
    """Return the share of time that is work by the linear form of arXiv 2410.21680, at least 0."""
    lost = 0.0 if math.isinf(mttf_s) else (restart_s + interval_s / 2) / mttf_s
    return max(0.0, (1 - lost) / (1 + write_s / interval_s))


def standby(machines: int, probability: float, confidence: float = 0.99) -> int:
    """Return how many standbys suffice with `confidence` where each machine fails with `probability`."""
    if probability <= 0:
        return 0
    term = machines * math.log1p(-probability)
    odds = math.log(probability) - math.log1p(-probability)
    covered, failed = math.exp(term), 0
    while covered < confidence and failed < machines:
        term += math.log(machines - failed) - math.log(failed + 1) + odds
        failed += 1
        covered += math.exp(term)
    return failed


def spares_for(mean_down: float, confidence: float = 0.999) -> int:
    """Return how many nodes are in repair at most with `confidence`, if `mean_down` are on average."""
    if mean_down <= 0:
        return 0
    term, covered, count = -mean_down, math.exp(-mean_down), 0
    while covered < confidence and count < _LARGEST_SPARES:
        count += 1
        term += math.log(mean_down / count)
        covered += math.exp(term)
    return count


def checkpoint_s(site: SiteSpec, state_bytes: float, peers_rate: float) -> float:
    """Return the time that a checkpoint of `state_bytes` takes: into the site's store, or to peers at `peers_rate`."""
    return state_bytes / (peers_rate if site.storage is None else site.storage / 8)


def goodput_of(site: SiteSpec, gpus: int, replica_gpus: int, *, write_s: float, step_s: float) -> Goodput:
    """Return what failures cost a job on `gpus` of a site whose replicas have `replica_gpus` GPUs each.

    A checkpoint stops the training for `write_s`; there is at most one for each step of `step_s`. A restart reads one,
    and takes longer the more GPUs there are.
    """
    failures = site.failures
    cold = failures.detection + failures.restart + failures.cold_start * gpus / 1000
    restart_s = cold / PICOSECONDS_PER_SECOND + (0.0 if site.storage is None else write_s)
    repair_s = site.failures.repair / PICOSECONDS_PER_SECOND
    rates = _rates(site, gpus)
    per_hour = sum(rate for rate, stops, _ in rates.values() if stops)
    mttf_s = HOUR_S / per_hour if per_hour else math.inf
    interval_s = max(step_s, daly_interval_s(mttf_s, write_s) if per_hour else DAY_S)
    stop_hours = (restart_s + interval_s / 2) / HOUR_S
    faults = [
        FailureClass(name, rate, stops, idle, (gpus * stop_hours if stops else 0.0) + idle * repair_s / HOUR_S)
        for name, (rate, stops, idle) in rates.items()
        if rate
    ]
    node_rate = sum(rate for name, (rate, _, idle) in rates.items() if idle)
    down = node_rate * repair_s / HOUR_S
    replicas = gpus / replica_gpus
    # What was computed wrongly until it was noticed is thrown away, and the stop is counted with the others.
    found_s = failures.silent_detection / PICOSECONDS_PER_SECOND
    right = math.exp(-rates["silent corruption"][0] / HOUR_S * found_s)
    return Goodput(
        mttf_s=mttf_s,
        interval_s=interval_s,
        write_s=write_s,
        restart_s=restart_s,
        share=right * daly_share(mttf_s, restart_s, write_s, interval_s),
        linear_share=right * linear_share(mttf_s, restart_s, write_s, interval_s),
        spares=spares_for(down),
        degraded_share=max(0.0, 1 - min(down, replicas) / replicas),
        faults=tuple(sorted(faults, key=lambda fault: -fault.per_hour)),
    )


def _rates(site: SiteSpec, gpus: int) -> dict[str, tuple[float, bool, int]]:
    """Return failures an hour, whether they stop the job, and GPUs that go into repair, class by class."""
    fabric, failures = site.fabric, site.failures
    shape = shape_of(fabric)
    share = gpus / fabric.gpus
    nodes = gpus / site.node.gpus
    several = fabric.planes > 1
    optics = 2 * fabric.parts.optic.failure_rate
    return {
        "GPU": (failures.gpu * gpus / FIT_HOURS, True, site.node.gpus),
        "host": (failures.host * nodes / FIT_HOURS, True, site.node.gpus),
        "software": (failures.software / FIT_HOURS, True, 0),
        "silent corruption": (failures.silent * gpus / FIT_HOURS, True, site.node.gpus),
        "NIC": (
            (fabric.parts.nic.failure_rate + failures.optic_stops * optics) * gpus / FIT_HOURS,
            True,
            site.node.gpus,
        ),
        # With several planes a lost link, optic or switch takes bandwidth, not the job.
        "NIC link optics": ((1 - failures.optic_stops) * optics * gpus / FIT_HOURS, not several, 0),
        "switch": (fabric.parts.switch.failure_rate * shape.switches * share / FIT_HOURS, not several, 0),
        # A link that comes back by itself is waited for: transports retry for longer than a flap lasts.
        "link flap": (failures.link_flap * sum(shape.links) * share / FIT_HOURS, False, 0),
    }
