"""Every valid plan for a model, a batch and a machine, as columns: what the search scores.

A plan is valid when every split divides evenly. There are tens of thousands for an ordinary job; where divisors abound
and there would be more than half a million, evenly spaced choices of each axis are taken, and the caller is informed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.collectives.costs import Column
from weft.core.errors import UsageError
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import RECOMPUTES, SCHEDULES, Plans, Workload
from weft.planning.legality import context_sizes, divisors, pipeline_sizes, schedules, tensor_sizes

LARGEST_MICRO = 16
MOST_PLANS = 500_000
_COLUMNS = ("dp", "tp", "pp", "cp", "ep", "zero", "shard", "schedule", "chunks", "micro", "recompute")
FIXABLE = ("dp", "tp", "pp", "cp", "ep", "zero", "schedule", "micro", "recompute", "chunks")
"""The choices that a user may hold fixed."""

_Mesh: TypeAlias = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Caps:
    """Most values of each axis that are tried."""

    dp: int = 10**9
    """Data-parallel replicas."""
    pp: int = 10**9
    """Pipeline stages."""
    cp: int = 10**9
    """Context-parallel ranks."""
    ep: int = 10**9
    """Expert-parallel ranks."""
    micro: int = 10**9
    """Micro-batches."""
    chunks: int = 10**9
    """Chunks of a stage."""


LEVELS = (Caps(), Caps(dp=3, pp=16, cp=5, ep=5, micro=6, chunks=4), Caps(dp=1, pp=10, cp=4, ep=3, micro=4, chunks=3))
"""From everything to what is always quick."""


def read_fixed(fixed: Mapping[str, str]) -> dict[str, int]:
    """Return `--fix` pairs as numbers, or raise with what can be fixed."""
    found: dict[str, int] = {}
    for name, value in fixed.items():
        if name not in FIXABLE:
            raise UsageError(f"{name!r} cannot be fixed; choose among {', '.join(FIXABLE)}")
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


def candidates(work: Workload, machine: Machine, gpus: int, fixed: Mapping[str, int]) -> tuple[Plans, bool]:
    """Return every valid plan on more than half of `gpus`, or on as many as the batch can use; and if those are all."""
    for level, caps in enumerate(LEVELS):
        meshes = _meshes(work, machine, gpus, fixed, caps)
        last = level == len(LEVELS) - 1
        if last or len(meshes) * _least_rows(work, fixed, caps) <= MOST_PLANS:
            parts: list[Column] = []
            rows = 0
            for mesh in meshes:
                part = _block(work, machine, fixed, mesh, caps)
                parts.append(part)
                rows += len(part)
                if rows > MOST_PLANS and not last:
                    break
            else:
                table = np.concatenate([np.empty((0, len(_COLUMNS))), *parts])
                columns = {name: np.ascontiguousarray(table[:, place]) for place, name in enumerate(_COLUMNS)}
                return Plans(**columns), level == 0
    raise AssertionError("the last level always returns")


def spaced(values: list[int], most: int) -> list[int]:
    """Return at most `most` of the values, evenly spaced, the last one among them."""
    if len(values) <= most:
        return values
    if most == 1:
        return values[-1:]
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _least_rows(work: Workload, fixed: Mapping[str, int], caps: Caps) -> int:
    """Return a number of rows that most meshes have at least; a first guess that saves making them."""
    micros = 1 if "micro" in fixed else min(caps.micro, len(divisors(work.sequences, 4)))
    return micros * 4 * (1 if "recompute" in fixed else len(RECOMPUTES))


def _meshes(work: Workload, machine: Machine, gpus: int, fixed: Mapping[str, int], caps: Caps) -> list[_Mesh]:
    """Return every mesh whose axes split the model and the batch evenly."""
    found: list[_Mesh] = []
    for tp in _allowed(fixed, "tp", tensor_sizes(work.model, machine.domain_gpus)):
        for cp in spaced(_allowed(fixed, "cp", context_sizes(work.length)), caps.cp):
            for pp in spaced(_allowed(fixed, "pp", pipeline_sizes(work.model.layers)), caps.pp):
                room = gpus // (tp * cp * pp)
                for dp in spaced(_allowed(fixed, "dp", _data_sizes(work, room), most=room), caps.dp):
                    found += [(dp, tp, pp, cp, ep) for ep in spaced(_experts(work, fixed, dp), caps.ep)]
    return found


def _allowed(fixed: Mapping[str, int], name: str, values: list[int], most: int | None = None) -> list[int]:
    if name not in fixed:
        return values
    wanted = fixed[name]
    if name == "dp":
        return [wanted] if most is not None and wanted <= most else []
    return [wanted] if wanted in values else []


def _data_sizes(work: Workload, room: int) -> list[int]:
    """Return the numbers of replicas that use more than half of the room; the most that the batch allows otherwise."""
    possible = divisors(work.sequences, room)
    return [each for each in possible if 2 * each > room] or possible[-1:]


def _experts(work: Workload, fixed: Mapping[str, int], dp: int) -> list[int]:
    if work.model.experts == 1:
        return _allowed(fixed, "ep", [1])
    return _allowed(fixed, "ep", [each for each in divisors(work.model.experts, dp) if dp % each == 0])


def _block(work: Workload, machine: Machine, fixed: Mapping[str, int], mesh: _Mesh, caps: Caps) -> Column:
    """Return every valid plan on one mesh, a row each."""
    dp, tp, pp, cp, ep = mesh
    if work.sequences % dp:
        return np.empty((0, len(_COLUMNS)))
    rows: list[tuple[int, ...]] = []
    replicas = dp * cp
    inside = max(1, min(replicas, machine.domain_gpus // tp))
    shardings = [(0, 1)] if replicas == 1 else [(zero, replicas) for zero in range(4)]
    if 1 < inside < replicas and replicas % inside == 0:
        shardings += [(3, inside)]
    for micro in spaced(_allowed(fixed, "micro", divisors(work.sequences // dp, LARGEST_MICRO)), caps.micro):
        rounds = work.sequences // (dp * micro)
        for schedule, chunks in _schedules(work.model.layers, pp, rounds, fixed, caps):
            rows += [
                (dp, tp, pp, cp, ep, zero, shard, schedule, chunks, micro, recompute)
                for zero, shard in shardings
                if fixed.get("zero", zero) == zero and (zero < 3 or pp == 1 or rounds == 1)  # noqa: PLR2004
                for recompute in (range(len(RECOMPUTES)) if "recompute" not in fixed else (fixed["recompute"],))
            ]
    return np.array(rows, dtype=np.float64) if rows else np.empty((0, len(_COLUMNS)))


def _schedules(layers: int, pp: int, rounds: int, fixed: Mapping[str, int], caps: Caps) -> list[tuple[int, int]]:
    """Return the schedules, and the chunks of each, that are tried with `rounds` micro-batches."""
    return [
        (schedule, chunks)
        for schedule, several in schedules(layers, pp, rounds)
        for chunks in spaced(list(several), caps.chunks)
        if fixed.get("schedule", schedule) == schedule and fixed.get("chunks", chunks) == chunks
    ]


def no_candidate(work: Workload, machine: Machine, gpus: int, fixed: Mapping[str, int]) -> str:
    """Say which fixed value has no valid plan, and the nearest that has one."""
    domains = {
        "tp": tensor_sizes(work.model, machine.domain_gpus),
        "cp": context_sizes(work.length),
        "pp": pipeline_sizes(work.model.layers),
    }
    for name, values in domains.items():
        if name in fixed and fixed[name] not in values:
            near = sorted(sorted(values, key=lambda each: abs(each - fixed[name]))[:2])
            reason = {"tp": "heads and feed-forward", "cp": "the sequence", "pp": "the layers"}[name]
            if name == "tp" and work.model.heads % fixed["tp"] == 0 and work.model.ffn % fixed["tp"] == 0:
                reason = f"a scale-up domain of {machine.domain_gpus:,} {'GPU' if machine.domain_gpus == 1 else 'GPUs'}"
            verb = "is" if len(near) == 1 else "are"
            return f"{name} = {fixed[name]} does not split {reason} evenly; the nearest {verb} {_words(near)}"
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
