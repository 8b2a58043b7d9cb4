"""The search: every valid plan for a model, a batch and a machine, scored at once, best first.

Candidates are whole columns, so a hundred thousand of them cost a few hundred array operations. A plan is valid when
every split divides evenly; it is feasible when it fits into memory. Where nothing is feasible the outcome says how far
off the nearest plan is and which change would do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.collectives.costs import Column
from weft.core.errors import UsageError
from weft.planning.candidates import candidates, no_candidate, read_fixed
from weft.planning.cost_model.confidence import latest_s
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.memory import Memory, memory_of
from weft.planning.cost_model.plans import Plans, Workload
from weft.planning.cost_model.step import StepTimes, step_times
from weft.specs.software import SoftwareSpec

_FULL_MEMORY = 0.9
_SMALL_LOSS = 0.1
_FEW_ROUNDS = 4
Accept: TypeAlias = Callable[[Plans, int], bool]
"""Says whether a row of the plans may be chosen."""


@dataclass(frozen=True)
class Scored:
    """Plans with what they cost, best first."""

    plans: Plans
    """The plans."""
    times: StepTimes
    """Their step times."""
    memory: Memory
    """Their memory."""
    step_s: Column
    """Time of a step."""
    mfu: Column
    """Model operations over what the GPUs used could do; attention counted causally."""
    hfu: Column
    """The same with recomputed operations."""
    tokens_per_s: Column
    """Tokens of a step over its time."""
    peak_flops: float
    """What one GPU could do in this precision, by its data sheet."""

    def __len__(self) -> int:
        """Return the number of plans."""
        return len(self.plans)


@dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    best: Scored
    """The best feasible plans; empty where none is."""
    considered: int
    """Valid plans that were scored."""
    feasible: int
    """Those that fit into memory."""
    every: bool
    """Whether all valid plans were scored, or evenly spaced ones because there are too many."""
    accepted: Scored
    """The best of the feasible plans that `accept` takes, one row; empty where it takes none."""
    hint: str
    """Where nothing fits: how far off, and the nearest change that would fit."""


def search(
    work: Workload,
    machine: Machine,
    practice: SoftwareSpec,
    *,
    fixed: Mapping[str, str] | None = None,
    top: int = 10,
    accept: Accept | None = None,
) -> SearchResult:
    """Return the best plans on up to all of the machine's GPUs, and the best that `accept` takes."""
    room, choice = machine.gpus, read_fixed(fixed or {})
    plans, every = candidates(work, machine, room, choice)
    if not len(plans):
        raise UsageError(no_candidate(work, machine, room, choice))
    memory = memory_of(work, plans, practice)
    fits = memory.total <= machine.memory_bytes
    count = int(np.count_nonzero(fits))
    if not count:
        none = scored(work, plans.take([]), machine, practice)
        hint = _nearest(work, machine, practice, plans=plans, memory=memory, gpus=room)
        return SearchResult(none, len(plans), 0, every, none, hint)
    feasible = plans.take(fits)
    step = step_times(work, feasible, machine, practice).step_s
    # The time that is kept in 95 of 100 cases decides, so that a plan of a class that no run confirms is not chosen
    # for a hundredth; of equals, fewer GPUs and then less memory win.
    late = latest_s(step, work, feasible, machine, practice)
    order = np.lexsort((memory.total[fits], feasible.ranks, step, late))
    best = scored(work, feasible.take(_distinct(feasible, order, top)), machine, practice)
    first = [] if accept is None else list(islice((row for row in order if accept(feasible, int(row))), 1))
    return SearchResult(best, len(plans), count, every, scored(work, feasible.take(first), machine, practice), "")


def scored(work: Workload, plans: Plans, machine: Machine, practice: SoftwareSpec) -> Scored:
    """Return plans with everything that is known about them."""
    times = step_times(work, plans, machine, practice)
    step = times.step_s
    speed = machine.peak_flops(practice.precision or "bf16")
    useful = work.model.flops_per_token(work.length, causal=True) * work.tokens / (step * plans.ranks * speed)
    share = np.array([0.0, 0.0, 1 / 3])[plans.recompute.astype(np.int64)]
    return Scored(
        plans=plans,
        times=times,
        memory=memory_of(work, plans, practice),
        step_s=step,
        mfu=useful,
        hfu=useful * (1 + share),
        tokens_per_s=work.tokens / step,
        peak_flops=speed,
    )


def limit_of(found: Scored, row: int, machine: Machine, work: Workload) -> str:
    """Return what holds a plan back: "memory", "bubble", "network", "batch" or "compute"."""
    times, plans = found.times, found.plans
    step = float(found.step_s[row])
    losses = {
        "memory": float(times.recompute_s[row]),
        "bubble": float(times.bubble_s[row]),
        "network": float(times.network_s[row]),
    }
    worst = max(losses, key=lambda name: losses[name])
    if losses[worst] < _SMALL_LOSS * step:
        full = float(found.memory.total[row]) > _FULL_MEMORY * machine.memory_bytes
        return "memory" if full and losses["memory"] > 0 else "compute"
    rounds = work.sequences / float(plans.dp[row] * plans.micro[row])
    return "batch" if worst == "bubble" and rounds < _FEW_ROUNDS * float(plans.pp[row]) else worst


def _distinct(plans: Plans, order: NDArray[np.intp], top: int) -> list[int]:
    """Return the best rows, one for each mesh, micro-batch and schedule: variants in sharding alone are not news."""
    seen: set[tuple[float, ...]] = set()
    chosen: list[int] = []
    columns = np.stack([plans.dp, plans.tp, plans.pp, plans.cp, plans.ep, plans.micro, plans.schedule], axis=1)
    for row in order:
        key = tuple(columns[row])
        if key in seen:
            continue
        seen.add(key)
        chosen.append(int(row))
        if len(chosen) == top:
            break
    return chosen


def _nearest(
    work: Workload, machine: Machine, practice: SoftwareSpec, *, plans: Plans, memory: Memory, gpus: int
) -> str:
    """Say how far the smallest plan is from fitting and which change would do."""
    smallest = int(np.argmin(memory.total))
    needed = float(memory.total[smallest])
    shape = plans.row(smallest)
    text = (
        f"nothing fits: the smallest of {len(plans):,} plans (dp {shape['dp']}, tp {shape['tp']}, pp {shape['pp']}, "
        f"cp {shape['cp']}) needs {needed / 2**30:,.1f} GiB on a GPU that has {machine.memory_bytes / 2**30:,.1f}"
    )
    for factor in (2, 4, 8, 16, 32, 64):
        larger = replace(machine, gpus=gpus * factor)
        wider, _ = candidates(work, larger, gpus * factor, {})
        if len(wider) and float(memory_of(work, wider, practice).total.min()) <= machine.memory_bytes:
            return f"{text}; {gpus * factor:,} GPUs instead of {gpus:,} would hold it"
    return f"{text}; no number of such GPUs holds it: choose a smaller model, shorter sequences or larger memory"
