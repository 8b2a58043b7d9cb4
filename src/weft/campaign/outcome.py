"""What a campaign says: one document for each seed, and bands over seeds.

Plain values only, so that runs in several processes give the same bytes as runs in one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.campaign.fleet import DAY_MS, HOUR_MS
from weft.campaign.gang_care import restart_ms
from weft.campaign.gpu_time import USEFUL
from weft.campaign.operation import FleetOperation
from weft.campaign.training_run import TrainingRun

Document = dict[str, Any]


def outcome_of(done: FleetOperation) -> Document:
    """Return everything that a finished campaign answers."""
    all_ms = done.fleet.gpus * done.end_ms
    total = done.ledger.total
    return {
        "seed": done.seed.root,
        "gpus": done.fleet.gpus,
        "days": done.end_ms / DAY_MS,
        "goodput": sum(total[name] for name in USEFUL) / all_ms,
        "gpu_ms": dict(total),
        "gpu_ms_in_all": all_ms,
        "gangs": [_gang(done, run) for run in done.gangs.runs.values()],
        "availability": _availability(done),
        "waits_s": {str(nodes): _waits(waits) for nodes, waits in sorted(done.jobs.waits_s.items())},
        "faults": _faults(done),
        "repair": _repair(done),
        "silent": _silent(done),
        "power": done.meter.report(done.end_ms),
        "money": _money(done),
        "decisions": {**dict(sorted(done.actions.items())), "alarms of the brake": done.alarms},
        "events": done.agenda.done,
        "passes": done.passes,
        "timeline": _timeline(done),
    }


def _timeline(done: FleetOperation) -> Document:
    """Return how many GPUs were where over time, as columns."""
    names = [name for name in dict.fromkeys(key for _, shown in done.timeline for key in shown) if name != "watts"]
    return {
        "at_h": [at_ms / HOUR_MS for at_ms, _ in done.timeline],
        "watts": [shown["watts"] for _, shown in done.timeline],
        "gpus": {name: [shown.get(name, 0) for _, shown in done.timeline] for name in names},
    }


def _gang(done: FleetOperation, run: TrainingRun) -> Document:
    stops = sum(run.stops.values())
    spec = done.gangs.specs[run.name]
    wanted_ms = run.wanted_gpus * done.end_ms
    return {
        "name": run.name,
        "gpus": run.wanted_gpus,
        "ettr": (run.kept + run.pending) / wanted_ms,
        "interruptions": stops,
        "mtbf_h": run.held_ms / HOUR_MS / stops if stops else None,
        "interruptions_by_class": dict(sorted(run.stops.items())),
        "checkpoint_interval_s": run.interval_ms / 1000,
        "checkpoint_write_s": run.write_ms / 1000,
        "restart_s": restart_ms(done.fleet, spec, run.wanted_gpus) / 1000,
    }


def _availability(done: FleetOperation) -> dict[str, float]:
    ran: dict[str, float] = {}
    asked: dict[str, float] = {}
    for name, run in done.gangs.runs.items():
        team = done.gangs.specs[name].team
        ran[team] = ran.get(team, 0) + run.held_ms * run.wanted_gpus
        asked[team] = asked.get(team, 0) + done.end_ms * run.wanted_gpus
    for team, gpu_ms in done.jobs.ran_ms.items():
        ran[team] = ran.get(team, 0) + gpu_ms
        asked[team] = asked.get(team, 0) + gpu_ms
    for team, gpu_ms in done.jobs.waited_ms.items():
        asked[team] = asked.get(team, 0) + gpu_ms
    return {team: ran.get(team, 0) / asked[team] for team in sorted(asked) if asked[team]}


def _waits(waits_s: Sequence[float]) -> Document:
    return {
        "jobs": len(waits_s), "mean": float(np.mean(waits_s)), "p95": float(np.percentile(waits_s, 95)),
        "max": max(waits_s),
    }  # fmt: skip


def _faults(done: FleetOperation) -> list[Document]:
    lost: dict[str, int] = {}
    stops: dict[str, int] = {}
    for run in done.gangs.runs.values():
        for name, gpu_ms in run.lost_by.items():
            lost[name] = lost.get(name, 0) + gpu_ms
        for name, count in run.stops.items():
            stops[name] = stops.get(name, 0) + count
    found: list[Document] = []
    for name in sorted({*done.struck, *lost, *done.nodes.out_gpu_ms} - {""}):
        count, stopped = done.struck[name], lost.get(name, 0)
        out = done.nodes.out_gpu_ms[name]
        units = done.nodes.events[f"out: {name}"] * done.fleet.whole_gpus
        found.append({
            "class": name,
            "count": count,
            "stops": stops.get(name, 0),
            "blast_gpus": (done.gangs.blast_gpus[name] + units) / count if count else None,
            "stopped_gpu_h": stopped / HOUR_MS,
            "out_gpu_h": out / HOUR_MS,
            "gpu_h_each": (stopped + out) / HOUR_MS / count if count else None,
        })  # fmt: skip
    found.append({
        "class": "link flap", "count": done.arrivals.flaps, "stops": 0, "blast_gpus": None,
        "stopped_gpu_h": done.ledger.total["network"] / HOUR_MS, "out_gpu_h": 0.0, "gpu_h_each": None,
    })  # fmt: skip
    return found


def _repair(done: FleetOperation) -> Document:
    shop, events = done.nodes.shop, done.nodes.events
    idle = sum(done.nodes.out_gpu_ms.values())
    spread = sorted(done.nodes.out_ms.items())
    mean = sum(units * span_ms for units, span_ms in spread) / done.end_ms
    over = sum(span_ms for units, span_ms in spread if units > done.demand.spares) / done.end_ms
    return {
        "tickets": shop.tickets,
        "technician_h": shop.technician_ms / HOUR_MS,
        "technician_min_a_ticket": shop.technician_ms / 60_000 / shop.tickets if shop.tickets else 0.0,
        "parts": shop.parts,
        "idle_gpu_h": idle / HOUR_MS,
        "waited_for_technicians_h": shop.crews_waited_ms / HOUR_MS,
        "waited_for_parts_h": shop.parts_waited_ms / HOUR_MS,
        "failed": events["failed repairs"],
        "cured_by_reset": events["cured by reset"],
        "given_up": events["retired"],
        "spares": done.demand.spares,
        "out_mean": mean,
        "out_most": done.nodes.out_most,
        "more_out_than_spares": over,
        "spares_used": min(done.demand.spares, done.nodes.out_most),
    }


def _silent(done: FleetOperation) -> Document:
    steps = 0
    for name, run in done.gangs.runs.items():
        step_ms = done.gangs.specs[name].step / 1e9
        steps += round(run.kept_wrong / max(1, run.wanted_gpus) / step_ms)
    return {
        "began": done.struck["silent"],
        "not_found_at_the_end": len(done.nodes.bad_units),
        "poisoned_steps_not_found": steps,
        "poisoned_gpu_h_thrown_away": done.ledger.total["poisoned"] / HOUR_MS,
    }


def _money(done: FleetOperation) -> Document:
    spec, shop = done.fleet.spec.money, done.nodes.shop
    hours = done.fleet.gpus * done.end_ms / HOUR_MS
    useful = sum(done.ledger.total[name] for name in USEFUL) / HOUR_MS
    gpu_usd = spec.gpu_hour / 100
    repair_usd = shop.technician_ms / HOUR_MS * spec.technician_hour / 100 + shop.parts * spec.part / 100
    return {
        "gpus_usd": hours * gpu_usd,
        "not_useful_usd": (hours - useful) * gpu_usd,
        "repair_usd": repair_usd,
        "energy_usd": done.meter.report(done.end_ms)["energy_usd"],
        "useful_gpu_hour_usd": (hours * gpu_usd + repair_usd) / useful if useful else None,
    }


def bands(documents: Sequence[Any]) -> Any:
    """Return mean, and the 5th and 95th percentile over seeds, of every number that all documents have."""
    first = documents[0]
    if isinstance(first, dict):
        shared = [key for key in first if key not in ("timeline", "seed") and all(key in each for each in documents)]
        return {key: found for key in shared if (found := bands([each[key] for each in documents])) is not None}
    if isinstance(first, list):
        keyed = [{str(item.get("name", item.get("class"))): item for item in each} for each in documents]
        return bands(keyed)
    if isinstance(first, bool | str) or any(each is None or isinstance(each, str) for each in documents):
        return None
    values = np.array(documents, dtype=float)
    low, high = np.percentile(values, [5, 95])
    return {"mean": float(values.mean()), "p5": float(low), "p95": float(high)}
