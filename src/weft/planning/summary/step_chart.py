"""Where the time and the memory of one step go: its parts, its pipeline as bars, the bytes of one GPU.

The pipeline is drawn from the timeline of `cost_model.timeline`; stages and micro-batches beyond what fits on a page
are left out, and the chart says so. Exposed communication stands at the end of each bar that it lengthens.
"""

from dataclasses import dataclass
from typing import Any

from weft.planning.cost_model.memory import Memory
from weft.planning.cost_model.timeline import timeline
from weft.planning.rehearsal import plan_name
from weft.planning.report import PlanReport, plan_row, step_row
from weft.planning.summary.wording import Plain, figure, sentence

STAGES, ROUNDS = 8, 16
"""Most pipeline stages and micro-batches that are drawn."""
_MOST_BARS = 700
PARTS = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "tensor_s": "exposed tensor-parallel communication",
    "context_s": "exposed context-parallel communication",
    "expert_s": "exposed expert all-to-all",
    "pipeline_s": "exposed sends between stages",
    "bubble_s": "pipeline bubble",
    "data_s": "exposed gradient reduction",
    "optimizer_s": "optimizer update",
    "straggler_s": "waiting for the slowest rank",
}
"""Parts of a step by the names of their columns; those that are zero are not shown."""
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "working")


@dataclass(frozen=True)
class _Drawn:
    """The part of a pipeline that fits on a page."""

    stages: int
    rounds: int
    chunks: int
    forward_s: float
    backward_s: float
    weights_s: float
    exposed_forward_s: float
    exposed_backward_s: float


def step_chart(report: PlanReport) -> Plain:
    """Return the parts of the chosen plan's step, and its pipeline as bars."""
    parts = [
        {"key": key, "name": PARTS[key], **figure(seconds, "s"), "share": figure(100 * seconds / _step_s(report), "%")}
        for key, seconds in step_row(report.chosen.times, 0).items()
        if seconds > 0
    ]
    return {"step": figure(_step_s(report), "s"), "parts": parts, "pipeline": _pipeline(report)}


def memory_chart(report: PlanReport) -> Plain:
    """Return the memory of one GPU part by part, against what a job may fill, for the chosen plan and the next ones."""
    chosen = [_memory_row(report, report.chosen.memory, 0, plan_name(_row(report, None)))]
    best = report.outcome.best
    others = [
        _memory_row(report, best.memory, number, plan_name(_row(report, number)))
        for number in range(len(best))
        if not _is_chosen(report, number)
    ]
    capacity = report.machine.memory_bytes
    share = chosen[0]["total"]["value"] / capacity
    return {
        "capacity": figure(capacity, "B"),
        "installed": figure(float(report.site.gpu.memory), "B"),
        "rows": [*chosen, *others[:3]],
        "note": sentence(
            "The plan fills {share} of the {capacity} that a job may use of each GPU's {installed}; the rest is "
            "context, communication buffers and fragments.",
            share=(100 * share, "%"), capacity=(capacity, "B"), installed=(float(report.site.gpu.memory), "B"),
        ),
    }  # fmt: skip


def other_plans(report: PlanReport) -> list[int]:
    """Return the rows of the search's best plans that are not the chosen one."""
    return [number for number in range(len(report.outcome.best)) if not _is_chosen(report, number)]


def _is_chosen(report: PlanReport, number: int) -> bool:
    if report.own is None:
        return number == 0
    return bool(report.own.plans.row(0) == report.outcome.best.plans.row(number))


def _row(report: PlanReport, number: int | None) -> dict[str, Any]:
    found = report.chosen if number is None else report.outcome.best
    return plan_row(found, number or 0, report.machine, report.work)


def _memory_row(report: PlanReport, memory: Memory, number: int, name: str) -> Plain:
    found = memory.row(number)
    total = float(sum(found.values()))
    return {
        "plan": name,
        "parts": [{"name": part, **figure(float(found[part]), "B")} for part in MEMORY_PARTS if found[part]],
        "total": figure(total, "B"),
        "share": figure(100 * total / report.machine.memory_bytes, "%"),
    }


def _step_s(report: PlanReport) -> float:
    return float(report.chosen.step_s[0])


def _pipeline(report: PlanReport) -> Plain:
    row, times = report.chosen.plans.row(0), report.chosen.times
    drawn = _drawn(report)
    bars = timeline(
        drawn.stages, drawn.rounds, drawn.forward_s, drawn.backward_s, chunks=drawn.chunks, weights_s=drawn.weights_s
    )
    exposed = {"forward": drawn.exposed_forward_s, "backward": drawn.exposed_backward_s, "weights": 0.0}
    last = max(bar.end_s for bar in bars)
    tail: list[Plain] = []
    for key, name in (("data_s", "gradients"), ("optimizer_s", "update")):
        seconds = float(getattr(times, key)[0])
        if seconds > 0:
            tail.append({"kind": name, "start": figure(last, "s"), "seconds": figure(seconds, "s")})
            last += seconds
    rounds = _rounds(report)
    return {
        "stages": drawn.stages,
        "bars": [
            {
                "stage": bar.stage, "kind": bar.kind, "micro": bar.micro, "chunk": bar.chunk,
                "start": figure(bar.start_s, "s"), "seconds": figure(bar.end_s - bar.start_s, "s"),
                "exposed": figure(min(exposed[bar.kind] / drawn.chunks, bar.end_s - bar.start_s), "s"),
            }
            for bar in bars
        ],
        "tail": tail,
        "end": figure(last, "s"),
        "note": _pipeline_note(str(row["schedule"]), row["pp"], drawn, rounds),
    }  # fmt: skip


def _pipeline_note(schedule: str, stages: int, drawn: _Drawn, rounds: int) -> Plain:
    if stages == 1:
        text = "There is one pipeline stage; {drawn} of {rounds} micro-batches of a replica are drawn."
    else:
        text = (
            "{schedule} schedule: {shown} of {stages} stages and {drawn} of {rounds} micro-batches of a replica are "
            "drawn."
        )
    if schedule == "zbv" and stages > 1:
        text += " ZB-V is drawn as zero-bubble H1."
    if schedule == "interleaved" and drawn.chunks == 1 and stages > 1:
        text += " It is drawn as 1F1B, for it has too many chunks."
    return sentence(
        text, schedule=(schedule, ""), shown=(float(drawn.stages), ""), stages=(float(stages), ""),
        drawn=(float(drawn.rounds), ""), rounds=(float(rounds), ""),
    )  # fmt: skip


def _rounds(report: PlanReport) -> int:
    row = report.chosen.plans.row(0)
    return max(1, report.work.sequences // (row["dp"] * row["micro"]))


def _sizes(row: dict[str, Any], every: int) -> tuple[int, int, int]:
    """Return how many stages, micro-batches and chunks are drawn.

    Interleaving goes through whole groups of as many micro-batches as there are stages; drawn without it, the bubble
    would be too long, so stages are left out rather than chunks.
    """
    stages, rounds, chunks = min(row["pp"], STAGES), min(every, ROUNDS), row["chunks"]
    if row["schedule"] != "interleaved" or stages == 1 or chunks == 1:
        return stages, rounds, 1
    while stages > 1:
        for groups in range(min(every, ROUNDS) // stages, 0, -1):
            if groups * stages * stages * chunks * 2 <= _MOST_BARS:
                return stages, groups * stages, chunks
        stages //= 2
    return min(row["pp"], STAGES), rounds, 1


def _drawn(report: PlanReport) -> _Drawn:
    """Return how much of the pipeline is drawn, and the lengths of its bars."""
    row, times = report.chosen.plans.row(0), report.chosen.times
    every = _rounds(report)
    stages, rounds, chunks = _sizes(row, every)
    forward, backward = float(times.forward_s[0]), float(times.backward_s[0])
    exact = row["schedule"] in ("zero-bubble", "zbv") and stages > 1 and backward > forward
    near = float(times.tensor_s[0] + times.context_s[0]) / every
    far = float(times.expert_s[0]) / every / 2
    return _Drawn(
        stages=stages, rounds=rounds, chunks=chunks, forward_s=forward, backward_s=backward,
        weights_s=forward if exact else 0.0,
        exposed_forward_s=near / 3 + far, exposed_backward_s=2 * near / 3 + far,
    )  # fmt: skip
