"""The search: every valid plan for a model, a batch and a machine, scored at once, best first.

Candidates are whole columns, so a hundred thousand of them cost a few hundred array operations. A plan is valid when
every split divides evenly; it is feasible when it fits into memory. Where nothing is feasible the outcome says how far
off the nearest plan is and which change would do.
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from weft.collectives.costs import Column
from weft.core.errors import UsageError
from weft.planning.machine import Machine
from weft.planning.memory import Memory, memory_of
from weft.planning.plans import RECOMPUTES, SCHEDULES, Plans, Practice
from weft.planning.step import StepTimes, Workload, step_times

LARGEST_MICRO = 16
LARGEST_CONTEXT = 64
_DEEPEST_CHUNKS = 12
_FULL_MEMORY = 0.9
_SMALL_LOSS = 0.1
_FEW_ROUNDS = 4
FIXABLE = ("dp", "tp", "pp", "cp", "ep", "zero", "schedule", "micro", "recompute", "chunks")
"""The choices that a user may hold fixed."""


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

    def __len__(self) -> int:
        """Return the number of plans."""
        return len(self.plans)


@dataclass(frozen=True)
class Outcome:
    """What a search found."""

    best: Scored
    """The best feasible plans; empty where none is."""
    considered: int
    """Valid plans that were scored."""
    feasible: int
    """Those that fit into memory."""
    hint: str
    """Where nothing fits: how far off, and the nearest change that would fit."""


def search(
    work: Workload,
    machine: Machine,
    practice: Practice,
    *,
    fixed: Mapping[str, str] | None = None,
    top: int = 10,
    gpus: int | None = None,
) -> Outcome:
    """Return the best plans on up to `gpus` GPUs (all of the machine's where absent)."""
    room = machine.gpus if gpus is None else gpus
    choice = read_fixed(fixed or {})
    plans = candidates(work, machine, room, choice)
    if not len(plans):
        raise UsageError(_no_candidate(work, machine, room, choice))
    memory = memory_of(work, plans, practice)
    fits = memory.total <= machine.memory_bytes
    count = int(np.count_nonzero(fits))
    if not count:
        return Outcome(scored(work, plans.take([]), machine, practice), len(plans), 0,
                       _nearest(work, machine, practice, plans=plans, memory=memory, gpus=room))  # fmt: skip
    feasible = plans.take(fits)
    step = step_times(work, feasible, machine, practice).step_s
    # Tokens per second decide; of equals, fewer GPUs and then less memory win.
    order = np.lexsort((memory.total[fits], feasible.ranks, step))
    return Outcome(
        scored(work, feasible.take(_distinct(feasible, order, top)), machine, practice), len(plans), count, ""
    )


def scored(work: Workload, plans: Plans, machine: Machine, practice: Practice) -> Scored:
    """Return plans with everything that is known about them."""
    times = step_times(work, plans, machine, practice)
    step = times.step_s
    peak = plans.ranks * (machine.fp8_flops if practice.fp8 else machine.bf16_flops)
    useful = work.model.flops_per_token(work.length, causal=True) * work.tokens / (step * peak)
    share = np.array([0.0, 0.0, 1 / 3])[plans.recompute.astype(np.int64)]
    return Scored(
        plans=plans,
        times=times,
        memory=memory_of(work, plans, practice),
        step_s=step,
        mfu=useful,
        hfu=useful * (1 + share),
        tokens_per_s=work.tokens / step,
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


def read_fixed(fixed: Mapping[str, str]) -> dict[str, int]:
    """Return `--fix` pairs as numbers, or raise with what can be fixed."""
    found: dict[str, int] = {}
    for name, value in fixed.items():
        if name not in FIXABLE:
            raise UsageError(f"{name!r} can not be fixed; choose among {', '.join(FIXABLE)}")
        names = {"schedule": SCHEDULES, "recompute": RECOMPUTES}.get(name)
        if names is not None:
            if value not in names:
                raise UsageError(f"{name} = {value!r} is not known; choose among {', '.join(names)}")
            found[name] = names.index(value)
        elif not value.isdigit() or (int(value) == 0 and name != "zero"):
            raise UsageError(f"{name} = {value!r} is not a whole number above 0; write it as {name}=8")
        else:
            found[name] = int(value)
    return found


def candidates(work: Workload, machine: Machine, gpus: int, fixed: Mapping[str, int]) -> Plans:
    """Return every valid plan on more than half of `gpus`, or on as many as the batch can use."""
    parts: list[Column] = []
    for tp in _allowed(fixed, "tp", _tensor_sizes(work, machine)):
        for cp in _allowed(fixed, "cp", _context_sizes(work)):
            for pp in _allowed(fixed, "pp", _pipeline_sizes(work)):
                room = gpus // (tp * cp * pp)
                for dp in _allowed(fixed, "dp", _data_sizes(work, room), most=room):
                    parts += [_block(work, machine, fixed, (dp, tp, pp, cp, ep)) for ep in _experts(work, fixed, dp)]
    parts = [part for part in parts if part.size]
    table = np.concatenate(parts) if parts else np.empty((0, 11))
    names = ("dp", "tp", "pp", "cp", "ep", "zero", "shard", "schedule", "chunks", "micro", "recompute")
    return Plans(**{name: np.ascontiguousarray(table[:, column]) for column, name in enumerate(names)})


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of `number` up to `most`."""
    found = _all_divisors(number)
    return list(found[: bisect.bisect_right(found, most)])


@cache
def _all_divisors(number: int) -> tuple[int, ...]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return tuple(sorted({each for pair in small for each in (pair, number // pair)}))


def _allowed(fixed: Mapping[str, int], name: str, values: list[int], most: int | None = None) -> list[int]:
    if name not in fixed:
        return values
    wanted = fixed[name]
    if name == "dp":
        return [wanted] if most is not None and wanted <= most else []
    return [wanted] if wanted in values else []


def _tensor_sizes(work: Workload, machine: Machine) -> list[int]:
    model = work.model
    whole = [each for each in divisors(model.heads, machine.domain_gpus) if model.ffn % each == 0]
    # What does not divide the domain would cut a group in two, or leave GPUs over.
    return [each for each in whole if machine.domain_gpus % each == 0]


def _context_sizes(work: Workload) -> list[int]:
    powers = [2**power for power in range(LARGEST_CONTEXT.bit_length())]
    return [each for each in powers if work.length % (2 * each) == 0 or each == 1]


def _pipeline_sizes(work: Workload) -> list[int]:
    layers = work.model.layers
    # Two slots more are the embedding and the output, each counted as a layer (Llama 3, arXiv 2407.21783, 3.3.2).
    return sorted({*divisors(layers, layers), *(each for each in divisors(layers + 2, layers) if each > 1)})


def _data_sizes(work: Workload, room: int) -> list[int]:
    """Return the numbers of replicas that use more than half of the room; the most that the batch allows otherwise."""
    possible = divisors(work.sequences, room)
    return [each for each in possible if 2 * each > room] or possible[-1:]


def _experts(work: Workload, fixed: Mapping[str, int], dp: int) -> list[int]:
    if work.model.experts == 1:
        return _allowed(fixed, "ep", [1])
    return _allowed(fixed, "ep", [each for each in divisors(work.model.experts, dp) if dp % each == 0])


def _block(work: Workload, machine: Machine, fixed: Mapping[str, int], mesh: tuple[int, int, int, int, int]) -> Column:
    """Return every valid plan on one mesh, a row each."""
    dp, tp, pp, cp, ep = mesh
    if work.sequences % dp:
        return np.empty((0, 11))
    rows: list[tuple[int, ...]] = []
    replicas = dp * cp
    inside = max(1, min(replicas, machine.domain_gpus // tp))
    shardings = [(0, 1)] if replicas == 1 else [(zero, replicas) for zero in range(4)]
    if 1 < inside < replicas and replicas % inside == 0:
        shardings += [(3, inside)]
    for micro in _allowed(fixed, "micro", divisors(work.sequences // dp, LARGEST_MICRO)):
        rounds = work.sequences // (dp * micro)
        for schedule, chunks in _schedules(work.model.layers, pp, rounds, fixed):
            rows += [
                (dp, tp, pp, cp, ep, zero, shard, schedule, chunks, micro, recompute)
                for zero, shard in shardings
                if fixed.get("zero", zero) == zero and (zero < 3 or pp == 1 or rounds == 1)  # noqa: PLR2004
                for recompute in (range(len(RECOMPUTES)) if "recompute" not in fixed else (fixed["recompute"],))
            ]
    return np.array(rows, dtype=np.float64) if rows else np.empty((0, 11))


def _schedules(layers: int, pp: int, rounds: int, fixed: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return the schedules that a pipeline of `pp` stages can run with `rounds` micro-batches, and their chunks."""
    plain, interleaved, zero_bubble, v_shape = range(len(SCHEDULES))
    found = [(plain, 1)]
    if pp > 1:
        each = -(-layers // pp)
        found += [(zero_bubble, 1)]
        if rounds % pp == 0:
            found += [(interleaved, chunks) for chunks in divisors(each, _DEEPEST_CHUNKS) if chunks > 1]
        if each % 2 == 0 and rounds >= 2 * pp:
            found += [(v_shape, 2)]
    wanted = fixed.get("schedule"), fixed.get("chunks")
    return [(s, c) for s, c in found if wanted[0] in (None, s) and wanted[1] in (None, c)]


def _distinct(plans: Plans, order: NDArray[np.intp], top: int) -> list[int]:
    """Return the best rows, one for each mesh, micro-batch and schedule: variants in sharding alone are not news."""
    seen: set[tuple[float, ...]] = set()
    chosen: list[int] = []
    columns = np.stack([plans.dp, plans.tp, plans.pp, plans.cp, plans.ep, plans.micro, plans.schedule], axis=1)
    for row in order:
        key = tuple(columns[row])
        if key not in seen:
            seen.add(key)
            chosen.append(int(row))
            if len(chosen) == top:
                break
    return chosen


def _nearest(work: Workload, machine: Machine, practice: Practice, *, plans: Plans, memory: Memory, gpus: int) -> str:
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
        wider = candidates(work, larger, gpus * factor, {})
        if len(wider) and float(memory_of(work, wider, practice).total.min()) <= machine.memory_bytes:
            return f"{text}; {gpus * factor:,} GPUs instead of {gpus:,} would hold it"
    return f"{text}; no number of such GPUs holds it: choose a smaller model, shorter sequences or larger memory"


def _no_candidate(work: Workload, machine: Machine, gpus: int, fixed: Mapping[str, int]) -> str:
    """Say which fixed value has no valid plan, and the nearest that has one."""
    domains = {
        "tp": _tensor_sizes(work, machine),
        "cp": _context_sizes(work),
        "pp": _pipeline_sizes(work),
    }
    for name, values in domains.items():
        if name in fixed and fixed[name] not in values:
            near = sorted(sorted(values, key=lambda each: abs(each - fixed[name]))[:2])
            reason = {"tp": "heads and feed-forward", "cp": "the sequence", "pp": "the layers"}[name]
            return f"{name} = {fixed[name]} does not split {reason} evenly; the nearest are {_words(near)}"
    mesh = 1
    for name in ("dp", "tp", "pp", "cp"):
        mesh *= fixed.get(name, 1)
    if mesh > gpus:
        return f"these sizes make {mesh:,} ranks, more than the {gpus:,} GPUs there are; the most is {gpus:,}"
    if "dp" in fixed and work.sequences % fixed["dp"]:
        below = work.sequences - work.sequences % fixed["dp"]
        near = sorted(divisors(work.sequences, work.sequences), key=lambda each: abs(each - fixed["dp"]))[:2]
        batches = [each for each in (below, below + fixed["dp"]) if each]
        return (
            f"a batch of {work.sequences:,} sequences is not divisible over dp = {fixed['dp']}; "
            f"write dp = {_words(sorted(near))}, or a batch of {_words(batches)}"
        )
    if "micro" in fixed:
        return f"micro = {fixed['micro']} does not divide what a replica gets of {work.sequences:,} sequences"
    return "no plan has all of these fixed values at once; leave one of them out"


def _words(values: list[int]) -> str:
    return " or ".join(f"{value:,}" for value in values)
