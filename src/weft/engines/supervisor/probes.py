"""Probes: short trainings of a fixed family whose whole steps show what this machine reaches.

Each is mostly one thing: the software of a step, of a micro-batch or of a block; updates; products; attention; the
loss; what is done for each parameter; pipelines; matrices cut over ranks; weights gathered for each block.
`planning.calibration.step_probes` turns their times into a site's figures. They take turns, so that other work on the
machine meets all of them, and what other programs take of the processors is taken off. What slows a machine down
without being seen from inside, such as neighbours on the same hardware, comes and goes within seconds and only ever
adds: so the least tenth of a probe's steps counts, whichever rounds they are from.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.engines.supervisor.cpu_contention import Ticks, others_share, ticks
from weft.engines.supervisor.rank_supervisor import Supervisor
from weft.planning.calibration.step_probes import ProbeTime
from weft.specs import JobSpec, load_job
from weft.training.run_dir import records

_WARM_STEPS = 2
_CALM = 0.03
_LEAST_SHARE, _LEAST_STEPS = 0.1, 2


@dataclass(frozen=True)
class _Probe:
    """One training of the family."""

    model: tuple[int, int, int, int, int, int]
    """Blocks, width, heads, heads of keys and values, inner width, vocabulary."""
    batch: tuple[int, int, int]
    """Micro-batches of each replica, sequences of one, tokens of a sequence."""
    steps: int
    """As many as take a second or two."""
    axis: str = "dp"
    """What ranks do besides being replicas: "pp" and "tp" in pairs, "shard" all together."""


_PROBES = {
    "step": _Probe((1, 16, 2, 2, 32, 256), (1, 1, 4), 40),
    "micro": _Probe((1, 16, 2, 2, 32, 256), (16, 1, 4), 20),
    "blocks": _Probe((12, 32, 2, 1, 96, 256), (4, 1, 16), 14),
    "deep update": _Probe((12, 32, 2, 1, 96, 256), (1, 1, 16), 20),
    "products": _Probe((2, 384, 6, 6, 1024, 256), (1, 2, 80), 14),
    "ordinary": _Probe((3, 192, 6, 3, 512, 256), (1, 4, 96), 14),
    "several": _Probe((3, 144, 4, 2, 400, 256), (4, 1, 128), 10),
    "narrow": _Probe((6, 80, 4, 2, 224, 256), (1, 3, 112), 14),
    "attention": _Probe((2, 96, 3, 3, 192, 256), (1, 1, 576), 14),
    "loss": _Probe((1, 64, 2, 2, 128, 4096), (1, 2, 128), 20),
    "update": _Probe((2, 384, 6, 6, 1024, 256), (1, 1, 8), 14),
    "sums": _Probe((2, 384, 6, 6, 1024, 256), (6, 1, 8), 10),
    "pipeline": _Probe((6, 160, 5, 5, 448, 256), (3, 2, 96), 12, "pp"),
    "stages": _Probe((4, 96, 3, 3, 256, 256), (8, 1, 64), 12, "pp"),
    "sends": _Probe((2, 32, 2, 1, 64, 256), (16, 1, 16), 14, "pp"),
    "tensor": _Probe((5, 112, 4, 2, 320, 256), (3, 2, 96), 9, "tp"),
    "wide tensor": _Probe((2, 288, 4, 4, 768, 256), (1, 2, 64), 9, "tp"),
    "long tensor": _Probe((2, 128, 4, 4, 352, 256), (2, 1, 448), 9, "tp"),
    "deep tensor": _Probe((7, 64, 4, 4, 160, 256), (1, 1, 64), 10, "tp"),
    "shards": _Probe((3, 96, 4, 2, 256, 256), (4, 1, 64), 10, "shard"),
    "deep shards": _Probe((8, 48, 3, 3, 128, 256), (3, 1, 32), 10, "shard"),
    "several shards": _Probe((4, 144, 4, 2, 400, 256), (2, 1, 128), 10, "shard"),
    "wide shards": _Probe((2, 320, 5, 5, 832, 256), (1, 1, 32), 12, "shard"),
}


def probe_jobs(ranks: int) -> tuple[JobSpec, ...]:
    """Return the probes of a machine with `ranks` ranks; those of pairs only where all of them have a partner."""
    plans = {"dp": {"dp": ranks}}
    if ranks > 1:
        plans["shard"] = {"dp": ranks, "shard": ranks}
    if ranks % 2 == 0:
        plans |= {axis: {"dp": ranks // 2, axis: 2} for axis in ("pp", "tp")}
    return tuple(_job(name, probe, plans[probe.axis]) for name, probe in _PROBES.items() if probe.axis in plans)


def _job(name: str, probe: _Probe, plan: dict[str, int]) -> JobSpec:
    """Return a probe as a job without pauses for checkpoints and evaluation."""
    table: dict[str, Any] = load_job("tiny-gpt").as_written()
    names = ("layers", "width", "heads", "kv_heads", "ffn", "vocabulary")
    table["model"] |= dict(zip(names, probe.model, strict=True))
    rounds, micro, length = probe.batch
    table["batch"] |= {"sequences": plan["dp"] * rounds * micro, "micro": micro, "length": length}
    table |= {"name": f"probe-{name.replace(' ', '-')}", "plan": plan, "steps": probe.steps}
    table |= {"checkpoint": {"every": 0}, "evaluation": {"every": 0}}
    return JobSpec.model_validate(table)


@dataclass(frozen=True)
class ProbeTraining:
    """The steps of one training."""

    steps_s: tuple[float, ...]
    """How long each took, without the first ones and the last."""
    others: float
    """Share of the processors that other programs took meanwhile."""


def trained(job: JobSpec) -> ProbeTraining:
    """Train a job in a folder that is thrown away."""
    marks: list[Ticks] = []

    def tell(line: Mapping[str, Any]) -> None:
        now = ticks()
        if "seconds" in line and now is not None:
            marks.append(now)

    with tempfile.TemporaryDirectory() as folder:
        Supervisor(job, Path(folder), on_line=tell).run()
        steps = records(Path(folder))[-1].steps()
    seconds = tuple(sum(line["seconds"].values()) for line in steps[_WARM_STEPS:-1])
    return ProbeTraining(seconds, others_share(marks[_WARM_STEPS - 1 : -1]))


def in_turns(jobs: Sequence[JobSpec], rounds: int, tell: Callable[[], None] | None = None) -> list[ProbeTime]:
    """Train every job in each of `rounds` rounds and return its time when undisturbed; `tell` is called after each."""
    found: list[list[ProbeTraining]] = [[] for _ in jobs]
    for _ in range(rounds):
        for trainings, job in zip(found, jobs, strict=True):
            trainings.append(trained(job))
            if tell is not None:
                tell()
    return [undisturbed(job, trainings) for job, trainings in zip(jobs, found, strict=True)]


def undisturbed(job: JobSpec, trainings: Sequence[ProbeTraining]) -> ProbeTime:
    """Return the mean of the least tenth of a job's steps, two at least, less what other programs took of each.

    Trainings during which other programs took clearly more than during the calmest one are left out.
    """
    fewest = min(one.others for one in trainings)
    calm = [one for one in trainings if one.others <= fewest + _CALM]
    steps = sorted((step_s * (1 - one.others), one.others) for one in calm for step_s in one.steps_s)
    least = steps[: max(_LEAST_STEPS, round(_LEAST_SHARE * len(steps)))]
    return ProbeTime(
        job, statistics.mean(step_s for step_s, _ in least), statistics.mean(others for _, others in least)
    )
