"""A step of training with next to nothing to compute: what the software itself takes on this machine."""

import statistics
import tempfile
from pathlib import Path

from weft.engines.supervisor.supervisor import Supervisor
from weft.specs import JobSpec, load_job
from weft.training.runs import records

_STEPS = 24
_WARM_STEPS = 3


def bare_job(ranks: int) -> JobSpec:
    """Return a job of one narrow block on `ranks` replicas, without pauses for checkpoints and evaluation."""
    table = load_job("tiny-gpt").as_written()
    table["model"] |= {"layers": 1, "width": 16, "heads": 2, "kv_heads": 2, "ffn": 32}
    table["batch"] |= {"sequences": ranks, "micro": 1, "length": 4}
    table |= {"name": "bare", "plan": {"dp": ranks}, "steps": _STEPS}
    table |= {"checkpoint": {"every": _STEPS}, "evaluation": {"every": _STEPS}}
    return JobSpec.model_validate(table)


def trained_step_s(job: JobSpec) -> float:
    """Return the middle step time of a training in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        Supervisor(job, Path(folder)).run()
        steps = records(Path(folder))[-1].steps()
    return statistics.median(sum(line["seconds"].values()) for line in steps[_WARM_STEPS:-1])
