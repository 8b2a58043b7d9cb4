"""The doctor's answer as a Chrome trace for Perfetto: a typical step of every rank, with the verdict marked."""

from typing import Any

import numpy as np

from weft.doctor.examination import Examination

_US = 1e6


def trace_of(found: Examination) -> dict[str, Any]:
    """Return the trace as plain values: the step whose time is the middle one, findings as instants."""
    events: list[dict[str, Any]] = []
    for program in found.programs:
        seconds = program.step_seconds()
        row = int(np.argsort(seconds)[len(seconds) // 2])
        stages = {int(rank): int(program.stage[program.rank == rank][0]) for rank in np.unique(program.rank)}
        events += [
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}, stage {stage}"}}
            for rank, stage in stages.items()
        ]
        for place in range(program.places):
            name = program.names[program.name[place]]
            lane = 1 if ("send" in name or "recv" in name or "reduce" in name or "gather" in name) else 0
            events.append({
                "ph": "X", "name": name, "cat": "operation", "pid": int(program.rank[place]), "tid": lane,
                "ts": float(program.start_s[row, place]) * _US,
                "dur": float(program.end_s[row, place] - program.start_s[row, place]) * _US,
                "args": {"step": int(program.steps[row]), "occurrence": int(program.occurrence[place])},
            })  # fmt: skip
    for number, one in enumerate(found.findings()):
        for rank in one.ranks or (0,):
            events.append({
                "ph": "i", "s": "p", "name": f"{one.verdict}: {one.subject or one.cause}", "cat": "verdict",
                "pid": rank, "tid": 0, "ts": float(number),
                "args": {"sentence": one.sentence, "confidence": one.confidence},
            })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}
