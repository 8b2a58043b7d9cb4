"""A plan's step as a Chrome trace, which Perfetto opens: what each pipeline stage does when. Pure."""

from typing import Any

from weft.planning.cost_model.timeline import Bar, timeline
from weft.planning.report import PlanReport

_US = 1e6


def bars_of(report: PlanReport, most_stages: int | None = None, most_rounds: int | None = None) -> tuple[Bar, ...]:
    """Return the bars of the chosen plan's step; of a large one the first stages and micro-batches where asked for."""
    row, times = report.chosen.plans.row(0), report.chosen.times
    rounds = report.work.sequences // (row["dp"] * row["micro"])
    stages = min(row["pp"], most_stages or row["pp"])
    # Interleaving goes in whole groups of micro-batches.
    rounds = max(stages, min(rounds, most_rounds or rounds) // stages * stages)
    chunks = row["chunks"] if row["schedule"] == "interleaved" else 1
    forward, backward = float(times.forward_s[0]), float(times.backward_s[0])
    weights = forward if row["schedule"] in ("zero-bubble", "zbv") and backward > forward else 0.0
    return timeline(stages, rounds, forward, backward, chunks=chunks, weights_s=weights)


def trace_of_plan(report: PlanReport) -> dict[str, Any]:
    """Return the chosen plan's step as a trace: a track for each stage."""
    bars = bars_of(report)
    title = f"{report.job.name} on {report.site.name}: one step as planned"
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": title}}]
    events += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": stage + 1, "args": {"name": f"stage {stage}"}}
        for stage in sorted({bar.stage for bar in bars})
    ]
    events += [
        {"ph": "X", "name": f"{bar.kind} {bar.micro}", "cat": bar.kind, "pid": 1, "tid": bar.stage + 1,
         "ts": bar.start_s * _US, "dur": (bar.end_s - bar.start_s) * _US,
         "args": {"micro_batch": bar.micro, "chunk": bar.chunk}}
        for bar in bars
    ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}
