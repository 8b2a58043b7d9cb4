"""A run's timeline as a Chrome trace, which Perfetto opens: steps by class of time, ranks, incidents.

Lines hold how long a step took, not when it began: steps are laid one after the other on the clock of the time trained,
and an incident stands before the step that it interrupted, with what it cost. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_US = 1e6
_STEPS, _CLASSES, _INCIDENTS, _FIRST_RANK = 1, 2, 3, 10


def trace_of_run(
    name: str, lines: Sequence[Mapping[str, Any]], incidents: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:  # fmt: skip
    """Return the trace of a run from its lines and its incidents."""
    ranks = max((len(line.get("rank_seconds", ())) for line in lines), default=0)
    events = [_named(1, 0, "process_name", f"run {name}"), _named(2, 0, "process_name", "ranks: compute")]
    events += [_named(1, tid, "thread_name", text) for tid, text in
               ((_STEPS, "steps"), (_CLASSES, "time by class, mean rank"), (_INCIDENTS, "incidents"))]  # fmt: skip
    events += [_named(2, _FIRST_RANK + rank, "thread_name", f"rank {rank}") for rank in range(ranks)]
    pending = sorted(incidents, key=lambda each: each["step"])
    at_us = 0.0
    for line in lines:
        while pending and pending[0]["step"] < line["step"]:
            at_us += _incident(events, pending.pop(0), at_us)
        at_us += _step(events, line, at_us)
    for each in pending:
        at_us += _incident(events, each, at_us)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _step(events: list[dict[str, Any]], line: Mapping[str, Any], at_us: float) -> float:
    """Add a step at `at_us`; return how long it took."""
    took_us = sum(line["seconds"].values()) * _US
    about = {key: line[key] for key in ("loss", "grad_norm", "tokens", "weights_digest") if line.get(key) is not None}
    events.append(_slice((1, _STEPS), f"step {line['step']}", at_us, took_us, about))
    begin_us = at_us
    for kind, seconds in line["seconds"].items():
        events.append(_slice((1, _CLASSES), kind.replace("_", " "), begin_us, seconds * _US, {}))
        begin_us += seconds * _US
    out = line.get("planes_out") or ()
    for rank, seconds in enumerate(line.get("rank_seconds", ())):
        lost = {"planes_out": out[rank]} if rank < len(out) and out[rank] else {}
        events.append(_slice((2, _FIRST_RANK + rank), "compute", at_us, seconds * _US, lost))
    if line.get("loss") is not None:
        events.append({"ph": "C", "name": "loss", "pid": 1, "ts": at_us, "args": {"loss": line["loss"]}})
    return took_us


def _incident(events: list[dict[str, Any]], line: Mapping[str, Any], at_us: float) -> float:
    lost_us = (line.get("detect_seconds", 0.0) + line.get("recovery_seconds", 0.0)) * _US
    about = {key: line.get(key) for key in ("seen", "rank", "action", "restored_from", "gpu_seconds_lost")}
    events.append(
        {"ph": "i", "s": "g", "name": str(line["kind"]), "pid": 1, "tid": _INCIDENTS, "ts": at_us, "args": about}
    )
    events.append(_slice((1, _INCIDENTS), str(line["kind"]), at_us, lost_us, about))
    return lost_us


def _slice(
    track: tuple[int, int], name: str, at_us: float, took_us: float, about: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    pid, tid = track
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": at_us, "dur": took_us, "args": dict(about)}


def _named(pid: int, tid: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
