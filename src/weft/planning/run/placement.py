"""Where the ranks of a plan sit: which axis crosses which tier, who shares what, and what a failure costs the step.

Ranks are numbered with the tensor axis innermost, then context, data and pipeline, and put on GPUs in that order. A
synchronous step waits for its slowest rank, so bandwidth lost by one NIC is lost by all.
"""

import math
from dataclasses import dataclass, replace

from weft.fabric.graph.shape import shape_of
from weft.fabric.limits import blasts_of
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import Plans, Workload
from weft.planning.cost_model.step import step_times
from weft.specs.site import SiteSpec
from weft.specs.software import SoftwareSpec

AXES = ("tp", "cp", "dp", "pp")
"""Mesh axes, innermost first."""


@dataclass(frozen=True)
class AxisPlacement:
    """One mesh axis on the machine."""

    name: str
    """Its name."""
    size: int
    """Ranks along it."""
    stride: int
    """GPUs from one rank to the next."""
    tier: str
    """The widest thing that its groups cross: "node", "scale-up domain", "T0", "pod" or "fabric"."""


@dataclass(frozen=True)
class Colocation:
    """What shares a place."""

    place: str
    """A node, a scale-up domain, the GPUs below one T0, or a pod."""
    gpus: int
    """GPUs in it."""
    holds: dict[str, int]
    """How many ranks of each axis it holds."""


@dataclass(frozen=True)
class FailureCost:
    """What one failure costs."""

    part: str
    """What fails."""
    bandwidth_lost: float
    """Share of bandwidth that the hit NICs lose."""
    slower: float
    """Longer steps while it lasts, as a share; infinite where the job stops until it is repaired or replaced."""
    replicas_lost: int
    """Replicas that are lost with it where no spare takes over."""
    throughput_lost: float
    """Share of throughput lost while it lasts, without a spare."""


def axes_of(plans: Plans, row: int, site: SiteSpec) -> tuple[AxisPlacement, ...]:
    """Return where each axis of a plan runs."""
    tiers = _tiers(site)
    found: list[AxisPlacement] = []
    stride = 1
    for name in AXES:
        size = int(getattr(plans, name)[row])
        found.append(AxisPlacement(name, size, stride, "none" if size == 1 else _tier(tiers, stride, size)))
        stride *= size
    return tuple(found)


def colocation_of(plans: Plans, row: int, site: SiteSpec) -> tuple[Colocation, ...]:
    """Return which ranks share a node, a domain, a T0 and a pod."""
    sizes = {name: int(getattr(plans, name)[row]) for name in AXES}
    found: list[Colocation] = []
    for place, gpus in _tiers(site)[:-1]:
        left = gpus
        holds: dict[str, int] = {}
        for name in AXES:
            holds[name] = max(1, min(sizes[name], left))
            left //= sizes[name]
        found.append(Colocation(place, gpus, holds))
    return tuple(found)


def failure_costs(
    work: Workload, plan: Plans, machine: Machine, practice: SoftwareSpec, site: SiteSpec
) -> tuple[FailureCost, ...]:
    """Return what a failed link, plane, switch, node and rack cost the step of a single plan."""
    base = float(step_times(work, plan, machine, practice).step_s[0])
    replica = int(plan.ranks[0] // plan.dp[0])
    replicas = int(plan.dp[0])

    def slowed(part: str, share: float) -> FailureCost:
        if share >= 1:
            return FailureCost(part, share, math.inf, 0, 1.0)
        slower = replace(machine, nic_rate=machine.nic_rate * (1 - share))
        longer = float(step_times(work, plan, slower, practice).step_s[0]) / base - 1
        return FailureCost(part, share, longer, 0, longer / (1 + longer))

    def gone(part: str, gpus: int) -> FailureCost:
        lost = min(replicas, max(1, math.ceil(gpus / replica)))
        return FailureCost(part, 0.0, math.inf if lost == replicas else 0.0, lost, lost / replicas)

    names = {"nic link": "NIC link", "t0": "T0 switch", "t0-t1 link": "T0-T1 link", "t1": "T1 switch"}
    shares = {blast.part: float(blast.share) for blast in blasts_of(site.fabric)}
    # Above a T0 a share is one of that plane's way up, and a NIC has several planes.
    for part in ("t0-t1 link", "t1"):
        if part in shares:
            shares[part] /= site.fabric.planes
    costs = [slowed(name, shares[part]) for part, name in names.items() if part in shares]
    costs.append(slowed("whole plane", 1 / site.fabric.planes))
    costs += [gone("node", site.node.gpus), gone("scale-up domain", machine.domain_gpus)]
    return tuple(costs)


def _tiers(site: SiteSpec) -> list[tuple[str, int]]:
    """Return places that hold GPUs, smallest first; equal ones are named once."""
    shape = shape_of(site.fabric)
    places = [
        ("node", site.node.gpus),
        ("scale-up domain", max(site.scale_up.gpus, site.node.gpus)),
        ("T0", shape.down),
        ("pod", shape.pod_t0 * shape.down),
    ]
    kept: list[tuple[str, int]] = []
    for place, gpus in places:
        if gpus < shape.hosts and (not kept or gpus > kept[-1][1]):
            kept.append((place, gpus))
    return [*kept, ("fabric", shape.hosts)]


def _tier(tiers: list[tuple[str, int]], stride: int, size: int) -> str:
    """Return the smallest place that holds every group of an axis whole, groups starting at multiples of their span."""
    span = stride * size
    return next((place for place, gpus in tiers if gpus % span == 0), tiers[-1][0])
