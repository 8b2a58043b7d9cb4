"""What a replay is judged by: use, waits and their reasons, fairness, waste, fragmentation, energy.

Fed by `replay` while it runs; every waiting second of every job is put down to the rule that blocked it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.campaign.trace import TraceJob
from weft.cluster.records.actions import Bind, Preempt, Ticket, Wait, Wave
from weft.cluster.records.job import Job
from weft.cluster.scheduling.placement import switches
from weft.cluster.scheduling.queue import is_quick
from weft.cluster.scheduling.state import ClusterState

HOUR_MS = 3_600_000
_SIZES = ((1, "1"), (4, "2-4"), (32, "5-32"), (256, "33-256"), (math.inf, "over 256"))
_UNTOLD = "pass"
"""The wait from a submission to the next pass: nobody blocks it."""


@dataclass
class JobRecord:
    """One job's life in a replay; times in milliseconds."""

    id: str
    kind: str
    team: str
    """Team whose quota is charged."""
    priority: int
    """Its priority."""
    nodes: int
    """Nodes that it asked for."""
    gpus: int
    """GPUs that it asked for, in all."""
    submit_ms: int
    """When it was handed in."""
    start_ms: int | None = None
    """When it first got its nodes."""
    end_ms: int | None = None
    state: str = ""
    """How it ended."""
    preemptions: int = 0
    """How often it had to leave."""
    lost_gpu_ms: int = 0
    """Work that no checkpoint kept."""
    quick: bool = False
    """Whether it is a small experiment that declares a short limit, as those of a fast lane."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Milliseconds that it waited for each reason, over all its waits."""

    @property
    def wait_ms(self) -> int | None:
        """Return how long it waited for its first start."""
        return None if self.start_ms is None else self.start_ms - self.submit_ms


class Measures:
    """Everything that is counted in one replay; one owner."""

    def __init__(self, cluster: ClusterState, lines: Sequence[TraceJob]) -> None:
        """Begin at nothing."""
        self.cluster = cluster
        self.total_gpus = sum(node.gpus for node in cluster.pool.nodes)
        self.records: dict[str, JobRecord] = {}
        self.first_ms = lines[0].submit_ms
        self.last_submit_ms = lines[-1].submit_ms
        self.end_ms = self.first_ms
        self.busy: list[tuple[int, int]] = [(self.first_ms, 0)]
        """GPUs that are held, by time."""
        self.draw: list[tuple[int, int]] = []
        """Changes of the site's draw in watts, by time."""
        self.preempted: Counter[str] = Counter()
        """Jobs that were asked to leave, by reason."""
        self.evictions = 0
        """Jobs that were made to."""
        self.disturbances = 0
        """Gangs that went on on other nodes."""
        self.tickets: list[Ticket] = []
        """Repairs that were asked for."""
        self.used_gpu_ms: dict[str, int] = defaultdict(int)
        """What each team held."""
        self.waited_ms, self.held_while_waiting, self.stranded_while_waiting = 0, 0.0, 0.0
        """Time with jobs in line, and over it the GPU-milliseconds that were held, or free on partly used nodes."""
        self._looked: tuple[int, int, int] | None = None
        self._held = 0
        self._since: dict[str, tuple[str, int]] = {}
        self._extra: list[tuple[int, int]] = []

    def after_pass(self, now_ms: int) -> None:
        """Note how the pool stands after a pass; while jobs wait, what is free is what the scheduler could not use."""
        if self._looked is not None:
            since_ms, held, stranded = self._looked
            self.waited_ms += now_ms - since_ms
            self.held_while_waiting += held * (now_ms - since_ms)
            self.stranded_while_waiting += stranded * (now_ms - since_ms)
        self._looked = None
        if len(self.cluster.queue):
            pool = self.cluster.pool
            free = pool.free_gpus
            self._looked = (now_ms, self._held, free - int(pool.histogram[1, pool.largest]) * pool.largest)

    def submitted(self, job: Job) -> None:
        """Note that a job was handed in."""
        self.records[job.id] = JobRecord(
            job.id, job.kind, job.team, job.priority, job.gang.nodes, job.gpus, job.submit_ms,
            quick=is_quick(job, self.cluster.policy),
        )  # fmt: skip
        self._since[job.id] = (_UNTOLD, job.submit_ms)

    def waits(self, action: Wait, now_ms: int) -> None:
        """Note why a job waits."""
        self._settle(action.job, now_ms)
        self._since[action.job] = (action.code, now_ms)

    def bound(self, job: Job, action: Bind, now_ms: int) -> None:
        """Note that a job got its nodes."""
        self._settle(job.id, now_ms)
        record = self.records[job.id]
        if record.start_ms is None:
            record.start_ms = now_ms
        self._hold(now_ms, job.gpus)
        nodes = len(action.placement.nodes)
        waves = action.waves or (Wave(0, nodes),)
        self._change(waves, action.placement.gpus_per_node * self.cluster.rise_w(job), now_ms)
        if len(action.placement.nodes) > 1:
            self._extra.append(self._spread(action))

    def freed(self, job: Job, at_ms: int) -> None:
        """Note that a job gave its nodes back."""
        assert job.start_ms is not None
        self._hold(at_ms, -job.gpus)
        self.used_gpu_ms[job.team] += job.gpus * (at_ms - job.start_ms)
        nodes = len(job.placement.nodes) if job.placement else 0
        node_w = job.gpus * self.cluster.rise_w(job) // max(1, nodes)
        self._change(self.cluster.ramp.fall(nodes, node_w, at_ms) or (Wave(0, nodes),), -node_w, at_ms)

    def asked(self, action: Preempt) -> None:
        """Note that a job was asked to leave."""
        self.preempted[action.reason] += 1

    def evicted(self, action: Preempt) -> None:
        """Note that a job was made to leave."""
        self.evictions += 1
        if action.reason in ("node", "backfill"):
            self.preempted[action.reason] += 1

    def requeued(self, job: Job, at_ms: int) -> None:
        """Note that a job that had to leave waits again."""
        record = self.records[job.id]
        record.preemptions, record.lost_gpu_ms = job.preemptions, job.lost_gpu_ms
        self._since[job.id] = (_UNTOLD, at_ms)

    def disturbed(self, job: Job, now_ms: int) -> None:
        """Note that a gang goes on from its last checkpoint on other nodes."""
        self.disturbances += 1
        self.records[job.id].lost_gpu_ms += job.gpus * (now_ms - job.kept_ms(now_ms))

    def finished(self, job: Job, at_ms: int) -> None:
        """Note that a job is over."""
        record = self.records[job.id]
        record.end_ms, record.state = at_ms, str(job.state)

    def never_ran(self, name: str, at_ms: int) -> None:
        """Note that a job was cancelled before it ran."""
        self._settle(name, at_ms)
        self.records[name].end_ms, self.records[name].state = at_ms, "cancelled"

    def close(self, now_ms: int) -> None:
        """Note that everything is over."""
        self.end_ms = max(now_ms, self.first_ms + 1)

    def unexplained_ms(self) -> int:
        """Return the waiting time, over all jobs, that no reason was given for."""
        return sum(
            abs(record.wait_ms - sum(record.reasons.values()))
            for record in self.records.values()
            if record.wait_ms is not None and not record.preemptions
        )

    def utilisation(self, *, whole: bool = False) -> float:
        """Return the share of the pool's GPU time that jobs held, to the last submission or to the end."""
        until = max(self.end_ms if whole else self.last_submit_ms, self.first_ms + 1)
        times = np.array([at for at, _ in self.busy] + [until])
        held = np.array([gpus for _, gpus in self.busy])
        spans = np.diff(np.minimum(times, until))
        return float((spans * held).sum() / ((until - self.first_ms) * self.total_gpus))

    def waits_by(self, key: str) -> dict[str, dict[str, float]]:
        """Return waits for the first start in seconds, by "kind", "team", "size" or "priority"."""
        groups: dict[str, list[float]] = defaultdict(list)
        for record in self.records.values():
            name = size_class(record.nodes) if key == "size" else str(getattr(record, key))
            if record.wait_ms is not None:
                groups[name].append(record.wait_ms / 1000)
        order = [name for _, name in _SIZES] if key == "size" else sorted(groups)
        return {name: _spread_of(groups[name]) for name in order if name in groups}

    def reasons(self) -> dict[str, float]:
        """Return the hours that jobs waited, by reason."""
        total: Counter[str] = Counter()
        for record in self.records.values():
            total.update(record.reasons)
        return {name: ms / HOUR_MS for name, ms in total.most_common()}

    def fairness(self) -> float:
        """Return Jain's index of what teams held over their quotas: 1 where all are alike."""
        quotas = {team.name: team.quota_gpus for team in self.cluster.shares.records()}
        shares = [
            self.used_gpu_ms[name] / quota for name, quota in quotas.items() if quota and name in self.used_gpu_ms
        ]
        return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)) if any(shares) else 1.0

    def fragmentation(self) -> float:
        """Return how many T0s gangs touched over the fewest that could have held them; 1 is best."""
        used, fewest = (sum(column) for column in zip(*self._extra, strict=True)) if self._extra else (1, 1)
        return used / fewest

    def power_wave(self, step_ms: int = 1000) -> tuple[np.ndarray, np.ndarray]:
        """Return times in seconds and the site's draw in watts at the end of every step."""
        changes = sorted(self.draw)
        times = np.array([at for at, _ in changes], dtype=np.int64)
        levels = np.cumsum([watts for _, watts in changes]) + self.cluster.pool.count * self.cluster.power.node_idle_w
        last_ms = max(self.end_ms, changes[-1][0] if changes else 0)
        grid = np.arange(self.first_ms - step_ms, last_ms + 2 * step_ms, step_ms)
        at = np.searchsorted(times, grid, side="right") - 1
        idle = self.cluster.pool.count * self.cluster.power.node_idle_w
        return grid / 1000, np.where(at >= 0, levels[np.maximum(at, 0)] if len(levels) else idle, idle)

    def ramp_w_per_s(self) -> float:
        """Return the largest change of the site's draw within any second, up or down."""
        changes = sorted(self.draw)
        times = np.array([at for at, _ in changes], dtype=np.int64)
        levels = np.concatenate([[0], np.cumsum([watts for _, watts in changes])])
        before = np.searchsorted(times, times - 1000, side="right")
        return float(np.abs(levels[1:] - levels[before]).max()) if len(times) else 0.0

    def energy_kwh(self) -> float:
        """Return the energy from the first submission to the end."""
        idle = self.cluster.pool.count * self.cluster.power.node_idle_w * (self.end_ms - self.first_ms)
        rise = sum(watts * (self.end_ms - min(at, self.end_ms)) for at, watts in self.draw)
        return (idle + rise) / 1000 / HOUR_MS

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        records = self.records.values()
        span_ms = self.end_ms - self.first_ms
        lost = sum(record.lost_gpu_ms for record in records) / HOUR_MS
        held = sum(self.used_gpu_ms.values()) / HOUR_MS
        _, watts = self.power_wave()
        return {
            "jobs": len(records),
            "done": sum(record.state == "done" for record in records),
            "over_limit": sum(record.state == "failed" for record in records),
            "makespan_s": span_ms / 1000,
            "utilisation": self.utilisation(),
            "utilisation_makespan": self.utilisation(whole=True),
            "allocation_while_waiting": self._share(self.held_while_waiting),
            "stranded_while_waiting": self._share(self.stranded_while_waiting),
            "wait_s": _spread_of([record.wait_ms / 1000 for record in records if record.wait_ms is not None]),
            "wait_s_quick": _spread_of(
                [one.wait_ms / 1000 for one in records if one.quick and one.wait_ms is not None]
            ),
            "wait_s_by_size": self.waits_by("size"),
            "wait_s_by_kind": self.waits_by("kind"),
            "wait_s_by_priority": self.waits_by("priority"),
            "wait_s_by_team": self.waits_by("team"),
            "wait_hours_by_reason": self.reasons(),
            "unexplained_s": self.unexplained_ms() / 1000,
            "fairness": self.fairness(),
            "preempted": dict(sorted(self.preempted.items())),
            "evicted": self.evictions,
            "lost_gpu_hours": lost,
            "waste": lost / held if held else 0.0,
            "fragmentation": self.fragmentation(),
            "energy_kwh": self.energy_kwh(),
            "peak_w": float(watts.max()),
            "ramp_w_per_s": self.ramp_w_per_s(),
            "replaced": self.disturbances,
            "tickets": len(self.tickets),
            "technician_hours": sum(ticket.technician_min for ticket in self.tickets) / 60,
        }

    def _share(self, gpu_ms: float) -> float:
        return gpu_ms / (self.waited_ms * self.total_gpus) if self.waited_ms else 0.0

    def _settle(self, name: str, now_ms: int) -> None:
        code, since_ms = self._since.pop(name)
        reasons = self.records[name].reasons
        if now_ms > since_ms:
            reasons[code] = reasons.get(code, 0) + now_ms - since_ms

    def _hold(self, at_ms: int, gpus: int) -> None:
        self._held += gpus
        if self.busy[-1][0] == at_ms:
            self.busy[-1] = (at_ms, self._held)
        else:
            self.busy.append((at_ms, self._held))

    def _change(self, waves: Sequence[Wave], node_w: int, at_ms: int) -> None:
        """Write a change of the site's draw down, wave by wave."""
        self.draw += [(at_ms + wave.after_ms, node_w * wave.nodes) for wave in waves]

    def _spread(self, action: Bind) -> tuple[int, int]:
        nodes = self.cluster.nodes_of[action.job]
        return switches(nodes, self.cluster.pool.t0), self._fewest(len(nodes))

    def _fewest(self, nodes: int) -> int:
        if not hasattr(self, "_reach"):
            self._reach = np.cumsum(np.sort(np.bincount(self.cluster.pool.t0))[::-1])
        return int(np.searchsorted(self._reach, nodes)) + 1


def size_class(nodes: int) -> str:
    """Return the class of sizes that a number of nodes falls into."""
    return next(name for most, name in _SIZES if nodes <= most)


def _spread_of(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"jobs": 0, "mean": 0.0, "p50": 0.0, "p95": 0.0, "max": 0.0}
    column = np.array(values)
    return {
        "jobs": len(values),
        "mean": float(column.mean()),
        "p50": float(np.percentile(column, 50)),
        "p95": float(np.percentile(column, 95)),
        "max": float(column.max()),
    }
