"""`weft train`'s loop: the public API around the built-in model, and nothing else."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from weft.specs import JobSpec
from weft.training.launch.ranks import Reporter
from weft.training.model.optimizer import adamw
from weft.training.parallel.apply import ParallelDecoder, parallelize
from weft.training.parallel.exact_sum import tree_sum
from weft.training.session import Session, start


def train(job: JobSpec, folder: str, *, resume: bool = False, reporter: Reporter | None = None) -> dict[str, Any]:
    """Train `job` on the ranks that are there and return the result (on rank 0; empty elsewhere)."""
    report = None if reporter is None else partial(reporter.send, "step")
    run = start(job, folder=folder, resume=resume, on_step=report)
    model = parallelize(run)
    optimizer = adamw(model.parameters(), job.optimizer)
    run.attach(model, optimizer)
    run.evaluations.add("held_out_loss", lambda _, __: {"held_out_loss": held_out_loss(run, model)})
    for step in run.steps():
        model.forward_backward(step)
        step.reduce()
        optimizer.step()
        run.finish(step)
    return run.close()


def held_out_loss(run: Session, model: ParallelDecoder) -> float:
    """Return the mean loss over the job's held-out sequences; every replica computes all of them."""
    batch = run.job.batch
    count = max(1, run.job.evaluation.sequences // batch.micro)
    losses = torch.tensor(model.held_out([run.stream.held_out(index) for index in range(count)]), dtype=torch.float64)
    plan, place = run.mesh.plan, run.mesh.place
    parts = torch.zeros(plan.cp, count, dtype=torch.float64)
    if place.dp == 0 and place.tp == 0:
        parts[place.cp] = losses
    dist.all_reduce(parts)
    return tree_sum(parts.flatten().tolist()) / count
