"""Synthetic timings of pipelined jobs with a planted cause, for tests of diagnosis and for rehearsing it.

A job of `replicas` x `stages` ranks runs micro-batches by a schedule (GPipe, 1F1B, interleaved 1F1B, zero bubble); who
waits for whom is known here and simulated event by event, while `weft.diagnosis` has to find it from the times. Chance
comes from the seed alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np

from weft.diagnosis.operations import Operations

PlantedCause = Literal[
    "none",
    "slow-rank",
    "slow-stage",
    "slow-link",
    "uneven-sequences",
    "input-stall",
    "intermittent-rank",
    "slow-since",
    "pauses",
]
TimedSchedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
_Pass: TypeAlias = tuple[str, int, int]
"""Direction, micro-batch and model chunk of one pass."""
_PAUSES_A_STEP, _PAUSE_S = 1.5, 0.4
"""How often computing stops on any of the ranks, and for how long, times `factor`."""
_SECONDS: Mapping[str, float] = MappingProxyType({"forward": 0.06, "backward": 0.12, "weight": 0.06})


@dataclass(frozen=True)
class TimedJob:
    """What is simulated."""

    seed: int
    replicas: int = 4
    stages: int = 4
    micro_batches: int = 8
    """Of the interleaved schedule they are rounded up to a multiple of the stages."""
    steps: int = 12
    cause: PlantedCause = "none"
    noise: float = 0.01
    """Relative deviation of every operation."""
    factor: float = 1.5
    """How much slower the culprit is; for a link and an input it is scaled to what a step notices."""
    culprit: int = 0
    """Rank, stage or (for links) rank that receives; a rank is `stage * replicas + replica`."""
    schedule: TimedSchedule = "1f1b"
    chunks: int = 2
    """Model chunks of each stage, for the interleaved schedule."""
    clock_skew_s: float = 0.0
    """Deviation of the ranks' clocks from each other."""
    uneven: float = 0.0
    """Deviation of micro-batches from each other, besides the cause."""

    @property
    def model_chunks(self) -> int:
        """Return how many chunks each stage holds."""
        return self.chunks if self.schedule == "interleaved" and self.stages > 1 else 1

    @property
    def batches(self) -> int:
        """Return the micro-batches of a step."""
        return self.micro_batches if self.model_chunks == 1 else -(-self.micro_batches // self.stages) * self.stages


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
    arrived: dict[tuple[int, _Pass], float] = field(default_factory=dict)
    rows: list[_TimedRow] = field(default_factory=list)

    def noisy(self, seconds: float) -> float:
        return seconds * float(np.exp(self.chance.normal(0, self.job.noise)))

    def local(self, rank: int, name: str, seconds: float, micro_batch: int = -1) -> None:
        begin = self.free[rank]
        self.free[rank] = begin + seconds
        self.rows.append(_TimedRow(rank, name, begin, self.free[rank], micro_batch))

    def transfer(self, sender: int, receiver: int, sent: _Pass) -> None:
        """Send without blocking; the receive is written where it is waited for."""
        took = self.noisy(0.001)
        if self.job.cause == "slow-link" and self.slow and receiver == self.job.culprit and sent[0] == "forward":
            took += 0.1 * self.job.factor
        begin = self.free[sender]
        self.arrived[receiver, sent] = begin + took
        self.rows.append(_TimedRow(sender, f"{sent[0]}-send", begin, begin + took, -1))

    def receive(self, rank: int, wanted: _Pass) -> bool:
        """Wait for what was sent; whether it has been sent already."""
        if (rank, wanted) not in self.arrived:
            return False
        begin = self.free[rank]
        self.free[rank] = max(begin, self.arrived[rank, wanted])
        self.rows.append(_TimedRow(rank, f"{wanted[0]}-recv", begin, self.free[rank], -1))
        return True

    def collective(self, name: str, ranks: list[int], seconds: float) -> None:
        end = max(self.free[rank] for rank in ranks) + self.noisy(seconds)
        for rank in ranks:
            self.rows.append(_TimedRow(rank, name, self.free[rank], end + float(self.chance.uniform(0, 1e-5)), -1))
            self.free[rank] = end

    def compute(self, rank: int, direction: str, micro_batch: int) -> None:
        job = self.job
        seconds = _SECONDS[direction] / job.model_chunks
        if job.schedule == "zero-bubble" and direction == "backward":
            seconds -= _SECONDS["weight"]
        if self.slow and job.cause in {"slow-rank", "intermittent-rank", "slow-since"} and rank == job.culprit:
            seconds *= job.factor
        if self.slow and job.cause == "slow-stage" and rank // job.replicas == job.culprit:
            seconds *= job.factor
        seconds *= float(self.lengths[rank % job.replicas, micro_batch])
        name = "backward-weight-compute" if direction == "weight" else f"{direction}-compute"
        paused_s = 0.0
        if job.cause == "pauses":
            passes = 2 * job.replicas * job.stages * job.batches * job.model_chunks
            paused_s = _PAUSE_S * job.factor * (self.chance.random() < _PAUSES_A_STEP / passes)
        self.local(rank, name, self.noisy(seconds) + paused_s, micro_batch)


def timed_job(job: TimedJob) -> Operations:
    """Return the operations of a job's steps."""
    chance = np.random.default_rng(job.seed)
    rows: list[tuple[int, _TimedRow]] = []
    since = int(chance.integers(job.steps // 3, max(job.steps // 3 + 1, 2 * job.steps // 3)))
    now_and_then = set(chance.permutation(job.steps)[: max(2, job.steps // 2)].tolist())
    skew = chance.normal(0, 1, job.replicas * job.stages) * job.clock_skew_s
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
        np.array([index[row.name] for _, row in rows]), np.array([row.start for _, row in rows]) + skew[rank],
        np.array([row.end - row.start for _, row in rows]), np.array([row.micro_batch for _, row in rows]), names,
    )  # fmt: skip


def _one_step(job: TimedJob, chance: np.random.Generator, *, slow: bool) -> list[_TimedRow]:
    lengths = np.ones((job.replicas, job.batches))
    if job.cause == "uneven-sequences":
        lengths = np.exp(chance.normal(0, 0.4 * (job.factor - 1), lengths.shape))
    elif job.uneven:
        lengths = np.exp(chance.normal(0, job.uneven, lengths.shape))
    ranks = job.replicas * job.stages
    state = _Step(job, chance, slow, lengths, np.zeros(ranks))
    for stage in range(job.stages):
        state.collective("params-all-gather", [stage * job.replicas + one for one in range(job.replicas)], 0.01)
    if slow and job.cause == "input-stall":
        state.free[job.culprit % job.replicas] += 0.3 * job.factor  # the first stage reads the input
    programs = [_ORDERS[job.schedule](job, rank // job.replicas) for rank in range(ranks)]
    place = [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while place[rank] < len(programs[rank]) and _advance(state, rank, programs[rank][place[rank]]):
                place[rank] += 1
                moved = True
    assert place == [len(program) for program in programs], "a job that waits for itself"
    for stage in range(job.stages):
        state.collective("grads-reduce-scatter", [stage * job.replicas + one for one in range(job.replicas)], 0.03)
    state.collective("optimizer-clip-main-grad", list(range(ranks)), 0.002)
    for rank in range(ranks):
        state.local(rank, "optimizer", state.noisy(0.02))
    return state.rows


def _advance(state: _Step, rank: int, wanted: _Pass) -> bool:
    """Compute one micro-batch in one direction if its input is there."""
    job = state.job
    direction, number, chunk = wanted
    if direction == "weight":
        state.compute(rank, direction, number)
        return True
    stage, last_chunk = rank // job.replicas, job.model_chunks - 1
    ends = [(0, 0), (job.stages - 1, last_chunk)]
    first, last = ends if direction == "forward" else ends[::-1]
    if (stage, chunk) != first and not state.receive(rank, wanted):
        return False
    state.compute(rank, direction, number)
    if (stage, chunk) != last:
        towards = 1 if direction == "forward" else -1
        further = (stage + towards) % job.stages
        wraps = further != stage + towards
        state.transfer(rank, further * job.replicas + rank % job.replicas,
                       (direction, number, chunk + towards * wraps))  # fmt: skip
    return True


def _gpipe(job: TimedJob, _stage: int) -> list[_Pass]:
    """Return all forward passes, then all backward passes."""
    numbers = range(job.batches)
    return [("forward", one, 0) for one in numbers] + [("backward", one, 0) for one in numbers]


def _one_f_one_b(job: TimedJob, stage: int) -> list[_Pass]:
    """Return the order of a stage's passes in the 1F1B schedule."""
    warm = min(job.batches, job.stages - stage - 1)
    return _alternating([("forward", one, 0) for one in range(job.batches)],
                        [("backward", one, 0) for one in range(job.batches)], warm)  # fmt: skip


def _alternating(ups: list[_Pass], downs: list[_Pass], warm: int) -> list[_Pass]:
    """Return `warm` forward passes, then forward and backward passes in turn."""
    order = ups[:warm]
    for up, down in zip(ups[warm:], downs, strict=False):
        order += [up, down]
    return order + downs[len(ups) - warm :]


def _interleaved(job: TimedJob, stage: int) -> list[_Pass]:
    """Return the interleaved 1F1B schedule (Narayanan et al., SC 2021, section 2.2)."""
    stages, chunks = job.stages, job.model_chunks
    if chunks == 1:
        return _one_f_one_b(job, stage)
    total = job.batches * chunks

    def of(place: int, *, back: bool) -> _Pass:
        chunk = place // stages % chunks
        number = place // (stages * chunks) * stages + place % stages
        return ("backward", number, chunks - 1 - chunk) if back else ("forward", number, chunk)

    warm = min(total, (stages - stage - 1) * 2 + (chunks - 1) * stages)
    ups = [of(place, back=False) for place in range(total)]
    return _alternating(ups, [of(place, back=True) for place in range(total)], warm)


def _zero_bubble(job: TimedJob, stage: int) -> list[_Pass]:
    """Return 1F1B whose backward passes are cut in two, weights later (ZB-H1 of Qi et al., ICLR 2024)."""
    order: list[_Pass] = []
    waiting: list[_Pass] = []
    for one in _one_f_one_b(job, stage):
        order.append(one)
        if one[0] == "backward":
            waiting.append(("weight", one[1], 0))
            if len(waiting) > stage:
                order.append(waiting.pop(0))
    return order + waiting


_ORDERS = MappingProxyType({
    "gpipe": _gpipe, "1f1b": _one_f_one_b, "interleaved": _interleaved, "zero-bubble": _zero_bubble,
})  # fmt: skip
