"""Synthetic timings of pipelined jobs with a planted cause, for tests of diagnosis and for rehearsing it.

A job of `replicas` x `stages` ranks runs 1F1B micro-batches; who waits for whom is known here and simulated event by
event, while `weft.diagnosis` has to find it from the times. Chance comes from the seed alone.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from weft.diagnosis.operations import Operations

PlantedCause = Literal[
    "none", "slow-rank", "slow-stage", "slow-link", "uneven-sequences", "input-stall", "intermittent-rank", "slow-since"
]


@dataclass(frozen=True)
class TimedJob:
    """What is simulated."""

    seed: int
    replicas: int = 4
    stages: int = 4
    micro_batches: int = 8
    steps: int = 12
    cause: PlantedCause = "none"
    noise: float = 0.01
    """Relative deviation of every operation."""
    factor: float = 1.5
    """How much slower the culprit is; for a link and an input it is scaled to what a step notices."""
    culprit: int = 0
    """Rank, stage or (for links) rank that receives; a rank is `stage * replicas + replica`."""


@dataclass
class _TimedRow:
    rank: int
    name: str
    start: float
    end: float
    micro_batch: int


@dataclass
class _Step:
    """One step while it is simulated: when each rank is free, and what has arrived where."""

    job: TimedJob
    chance: np.random.Generator
    slow: bool
    lengths: np.ndarray
    free: np.ndarray
    arrived: dict[tuple[str, int, int], float] = field(default_factory=dict)
    rows: list[_TimedRow] = field(default_factory=list)

    def noisy(self, seconds: float) -> float:
        return seconds * float(np.exp(self.chance.normal(0, self.job.noise)))

    def local(self, rank: int, name: str, seconds: float, micro_batch: int = -1) -> None:
        begin = self.free[rank]
        self.free[rank] = begin + seconds
        self.rows.append(_TimedRow(rank, name, begin, self.free[rank], micro_batch))

    def transfer(self, sender: int, receiver: int, direction: str, number: int) -> None:
        """Send without blocking; the receive is written where it is waited for."""
        took = self.noisy(0.001)
        if self.job.cause == "slow-link" and self.slow and receiver == self.job.culprit and direction == "forward":
            took += 0.1 * self.job.factor
        begin = self.free[sender]
        self.arrived[direction, receiver, number] = begin + took
        self.rows.append(_TimedRow(sender, f"{direction}-send", begin, begin + took, -1))

    def receive(self, rank: int, direction: str, number: int) -> bool:
        """Wait for what was sent; whether it has been sent already."""
        if (direction, rank, number) not in self.arrived:
            return False
        begin = self.free[rank]
        self.free[rank] = max(begin, self.arrived[direction, rank, number])
        self.rows.append(_TimedRow(rank, f"{direction}-recv", begin, self.free[rank], -1))
        return True

    def collective(self, name: str, ranks: list[int], seconds: float) -> None:
        end = max(self.free[rank] for rank in ranks) + self.noisy(seconds)
        for rank in ranks:
            self.rows.append(_TimedRow(rank, name, self.free[rank], end + float(self.chance.uniform(0, 1e-5)), -1))
            self.free[rank] = end

    def compute(self, rank: int, direction: str, micro_batch: int) -> None:
        job = self.job
        seconds = 0.06 if direction == "forward" else 0.12
        if self.slow and job.cause in {"slow-rank", "intermittent-rank", "slow-since"} and rank == job.culprit:
            seconds *= job.factor
        if self.slow and job.cause == "slow-stage" and rank // job.replicas == job.culprit:
            seconds *= job.factor
        seconds *= float(self.lengths[rank % job.replicas, micro_batch])
        self.local(rank, f"{direction}-compute", self.noisy(seconds), micro_batch)


def timed_job(job: TimedJob) -> Operations:
    """Return the operations of a job's steps."""
    chance = np.random.default_rng(job.seed)
    rows: list[tuple[int, _TimedRow]] = []
    since = int(chance.integers(job.steps // 3, max(job.steps // 3 + 1, 2 * job.steps // 3)))
    now_and_then = set(chance.permutation(job.steps)[: max(2, job.steps // 2)].tolist())
    for step in range(job.steps):
        slow = job.cause != "none"
        if job.cause == "slow-since":
            slow = step >= since
        elif job.cause == "intermittent-rank":
            slow = step in now_and_then
        rows += [(step, row) for row in _one_step(job, chance, slow=slow)]
    names = tuple(sorted({row.name for _, row in rows}))
    index = {name: number for number, name in enumerate(names)}
    rank = np.array([row.rank for _, row in rows])
    return Operations(
        rank, rank % job.replicas, rank // job.replicas, np.array([step for step, _ in rows]),
        np.array([index[row.name] for _, row in rows]), np.array([row.start for _, row in rows]),
        np.array([row.end - row.start for _, row in rows]), np.array([row.micro_batch for _, row in rows]), names,
    )  # fmt: skip


def _one_step(job: TimedJob, chance: np.random.Generator, *, slow: bool) -> list[_TimedRow]:
    lengths = np.ones((job.replicas, job.micro_batches))
    if job.cause == "uneven-sequences":
        lengths = np.exp(chance.normal(0, 0.4 * (job.factor - 1), lengths.shape))
    ranks = job.replicas * job.stages
    state = _Step(job, chance, slow, lengths, np.zeros(ranks))
    for stage in range(job.stages):
        state.collective("params-all-gather", [stage * job.replicas + one for one in range(job.replicas)], 0.01)
    if slow and job.cause == "input-stall":
        state.free[job.culprit % job.replicas] += 0.3 * job.factor  # the first stage reads the input
    programs = [_one_f_one_b(job, rank // job.replicas) for rank in range(ranks)]
    place = [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while place[rank] < len(programs[rank]) and _advance(state, rank, *programs[rank][place[rank]]):
                place[rank] += 1
                moved = True
    assert place == [len(program) for program in programs], "a job that waits for itself"
    for stage in range(job.stages):
        state.collective("grads-reduce-scatter", [stage * job.replicas + one for one in range(job.replicas)], 0.03)
    state.collective("optimizer-clip-main-grad", list(range(ranks)), 0.002)
    for rank in range(ranks):
        state.local(rank, "optimizer", state.noisy(0.02))
    return state.rows


def _advance(state: _Step, rank: int, direction: str, number: int) -> bool:
    """Compute one micro-batch in one direction if its input is there."""
    job = state.job
    stage = rank // job.replicas
    first, last = (0, job.stages - 1) if direction == "forward" else (job.stages - 1, 0)
    towards = job.replicas if direction == "forward" else -job.replicas
    if stage != first and not state.receive(rank, direction, number):
        return False
    state.compute(rank, direction, number)
    if stage != last:
        state.transfer(rank, rank + towards, direction, number)
    return True


def _one_f_one_b(job: TimedJob, stage: int) -> list[tuple[str, int]]:
    """Return the order of a stage's passes in the 1F1B schedule."""
    warm = min(job.micro_batches, job.stages - stage - 1)
    order = [("forward", number) for number in range(warm)]
    for number in range(job.micro_batches - warm):
        order += [("forward", warm + number), ("backward", number)]
    return order + [("backward", number) for number in range(job.micro_batches - warm, job.micro_batches)]
