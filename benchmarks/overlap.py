"""Exposed communication of a step, with gradients sent during backward and with gradients sent after it.

    python benchmarks/overlap.py [RANKS]

Trains the same decoder on data-parallel ranks of this machine twice over the same steps and prints the seconds that the
average rank waits for others, by median over the steps, and their ratio. On a machine with fewer cores than ranks the
exchange competes with the arithmetic, so overlap gains less there than where a network card does the work.
"""

import sys
import tempfile
from statistics import median
from typing import Any

from weft.specs import JobSpec
from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks

_WARM = 2
_JOB: dict[str, Any] = {
    "name": "overlap",
    "steps": 12,
    "model": {"layers": 6, "width": 256, "heads": 4, "ffn": 768},
    "batch": {"sequences": 4, "micro": 1, "length": 128},
    "checkpoint": {"every": 0},
}


def train(reporter: Reporter, job: JobSpec, folder: str, *, overlap: bool) -> None:
    """Be one rank."""
    import weft

    run = weft.start(job, folder=folder, on_step=lambda line: reporter.send("step", line))
    model = weft.spread(run)
    optimizer = weft.adamw(model.parameters(), job.optimizer)
    run.attach(model, optimizer, overlap=overlap)
    for step in run.steps():
        model.forward_backward(step)
        step.reduce()
        optimizer.step()
        run.finish(step)
    run.close()


def measure(ranks: int, *, overlap: bool) -> tuple[float, float]:
    """Return the exposed communication and the length of a step in seconds."""
    job = JobSpec.model_validate(_JOB | {"plan": {"dp": ranks}})
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"job": job, "folder": folder, "overlap": overlap}
        Ranks("overlap:train", ranks, arguments, on_message=lambda _, __, line: lines.append(line)).run()
    steps = [line["seconds"] for line in lines if "seconds" in line][_WARM:]
    return (
        median(seconds.get("exposed_communication", 0.0) for seconds in steps),
        median(sum(seconds.values()) for seconds in steps),
    )


def main(ranks: int = 2) -> None:
    """Measure and print."""
    with_s, with_step = measure(ranks, overlap=True)
    without_s, without_step = measure(ranks, overlap=False)
    print(f"{ranks} ranks, exposed communication by median over steps")
    print(f"  with overlap     {with_s * 1e3:8.2f} ms of {with_step * 1e3:8.2f} ms")
    print(f"  without overlap  {without_s * 1e3:8.2f} ms of {without_step * 1e3:8.2f} ms")
    print(f"ratio of exposed communication, with to without: {with_s / without_s:.2f}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
