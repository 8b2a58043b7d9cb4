"""Experiments, served replicas and traces: small jobs that come, wait, run and end beside the gangs."""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from weft.campaign.agenda import Agenda
from weft.campaign.compression import FoldedCluster
from weft.campaign.fleet import DAY_MS, Fleet, ms
from weft.campaign.gpu_time import GpuTime
from weft.campaign.repair_shop import log_normal
from weft.campaign.trace import TraceJob
from weft.cluster.records.actions import Bind, Preempt
from weft.cluster.records.effects import ended, stopped
from weft.cluster.records.job import Gang, Job, JobState
from weft.core.seeds import Seed


@dataclass(slots=True)
class SmallJob:
    """One job that is no gang of the standing demand."""

    service: bool
    team: str
    nodes: int
    gpus: int
    work_ms: int
    """How long its work takes; 0 for a service, which goes on."""
    submit_ms: int
    start_ms: int = -1
    first_ms: int = -1
    """When it started for the first time."""
    paused_ms: int = 0
    """How long it has stood since its start because the grid asked for it."""
    turn: int = 0


class JobStream:
    """Every small job; one owner."""

    def __init__(self, fleet: Fleet, cluster: FoldedCluster, ledger: GpuTime, agenda: Agenda) -> None:
        """Begin without jobs."""
        self.fleet, self.cluster, self.ledger, self.agenda = fleet, cluster, ledger, agenda
        self.jobs: dict[str, SmallJob] = {}
        self.gpus = 0
        """GPUs that they hold now."""
        self.waits_s: dict[int, list[float]] = defaultdict(list)
        """Waits until the first start, by nodes."""
        self.ran_ms: dict[str, int] = defaultdict(int)
        """GPU-time that each team had."""
        self.waited_ms: dict[str, int] = defaultdict(int)
        """GPU-time that each team waited for."""
        self.lost_ms = 0
        """GPU-time that had to be run again, or a service that had to move."""
        self.ended = 0

    def submit_services(self) -> None:
        """Ask for the replicas that are served."""
        spec = self.fleet.spec.serving
        for number in range(spec.replicas):
            gang = Gang(spec.nodes, self.fleet.unit_gpus)
            job = Job(f"serving-{number:05d}", gang, 0, "service", spec.team, spec.priority, takes_degraded=False)
            self._submit(job, SmallJob(True, spec.team, spec.nodes, spec.nodes * self.fleet.unit_gpus, 0, 0))

    def submit_stream(self, end_ms: int, seed: Seed) -> None:
        """Draw the stream of experiments: Poisson arrivals, log-normal run times, sizes in powers of two."""
        spec = self.fleet.spec.experiments
        draw = seed.stream("experiments")
        count = int(draw.poisson(spec.per_day * end_ms / DAY_MS))
        times = sorted(int(each) for each in draw.random(count) * end_ms)
        powers = draw.integers(0, int(math.log2(spec.largest)) + 1, count).tolist()
        for number, (at_ms, power) in enumerate(zip(times, powers, strict=True)):
            work_ms = max(1000, round(log_normal(draw, ms(spec.mean), spec.spread)))
            gang = Gang(2**power, self.fleet.unit_gpus)
            job = Job(f"run-{number:06d}", gang, at_ms, "experiment", spec.team, spec.priority, takes_degraded=False)
            small = SmallJob(False, spec.team, 2**power, 2**power * self.fleet.unit_gpus, work_ms, at_ms)
            self.agenda.at(at_ms, self._submit, job, small)

    def submit_trace(self, lines: list[TraceJob], end_ms: int) -> None:
        """Submit the jobs of a trace at their times."""
        for number, line in enumerate(lines):
            if line.submit_ms >= end_ms:
                continue
            job = line.request(number, checkpoint_ms=1_800_000, grace_ms=60_000, min_run_ms=0)
            small = SmallJob(
                line.kind == "service", line.team, line.nodes, line.nodes * line.gpus_per_node, line.duration_ms,
                line.submit_ms,
            )  # fmt: skip
            self.agenda.at(line.submit_ms, self._submit, replace(job, kind="experiment"), small)

    def _submit(self, job: Job, small: SmallJob) -> None:
        self.jobs[job.id] = small
        self.cluster.state.put(job, self.agenda.now_ms)
        self.agenda.dirty = True

    def bound(self, action: Bind) -> None:
        """Let a job run."""
        small, now_ms = self.jobs[action.job], self.agenda.now_ms
        small.start_ms = now_ms
        small.turn += 1
        if small.first_ms < 0:
            small.first_ms = now_ms
            self.waits_s[small.nodes].append((now_ms - small.submit_ms) / 1000)
        self.waited_ms[small.team] += (now_ms - small.submit_ms) * small.gpus
        self.gpus += small.gpus
        if small.work_ms:
            self.agenda.after(small.work_ms, self._end, action.job, small.turn)

    def _end(self, name: str, turn: int) -> None:
        small = self.jobs.get(name)
        if small is None or small.turn != turn:
            return
        self._leave(small, "serving" if small.service else "experiments")
        self.ended += 1
        job = self.cluster.state.jobs[name]
        self.cluster.state.put(ended(job, JobState.DONE), self.agenda.now_ms)
        del self.jobs[name]
        self.agenda.dirty = True

    def evicted(self, action: Preempt) -> None:
        """Let a job go back to the queue; an experiment loses what it has done."""
        small, now_ms = self.jobs[action.job], self.agenda.now_ms
        spent = self._leave(small, "serving" if small.service else "experiments lost")
        self.lost_ms += 0 if small.service else spent
        small.turn += 1
        small.submit_ms = now_ms
        self.cluster.state.put(stopped(self.cluster.state.jobs[action.job], now_ms), now_ms)
        self.agenda.dirty = True

    def stretch(self, by_ms: int) -> None:
        """Pause every experiment: each ends so much later, and the pause is the grid's."""
        for name, small in self.jobs.items():
            if small.start_ms >= 0 and not small.service:
                left_ms = small.work_ms - (self.agenda.now_ms - small.start_ms)
                small.work_ms += by_ms
                small.turn += 1
                self.agenda.after(left_ms + by_ms, self._end, name, small.turn)
                small.paused_ms += by_ms

    def _leave(self, small: SmallJob, bucket: str) -> int:
        span_ms = self.agenda.now_ms - small.start_ms
        paused_ms = min(small.paused_ms, span_ms)
        spent = (span_ms - paused_ms) * small.gpus
        self.ledger.add("power cap", paused_ms * small.gpus)
        self.ledger.add(bucket, spent)
        small.paused_ms = 0
        self.ran_ms[small.team] += spent
        self.gpus -= small.gpus
        small.start_ms = -1
        return spent

    def close(self, end_ms: int) -> None:
        """Account for what still runs or waits at the end."""
        for small in self.jobs.values():
            if small.start_ms >= 0:
                self._leave(small, "serving" if small.service else "experiments")
            else:
                self.waited_ms[small.team] += (end_ms - small.submit_ms) * small.gpus
