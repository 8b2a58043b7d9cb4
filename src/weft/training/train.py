"""`weft train`'s loop: the public API around the built-in model or somebody's own, and nothing else."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from weft.specs import JobSpec
from weft.training.launch.rank_place import Reporter
from weft.training.model.optimizer import optimizers
from weft.training.parallel.apply import parallelize
from weft.training.parallel.exact_sum import tree_sum
from weft.training.parallel.own_model import parallelize_own
from weft.training.parallel.parallel_model import ParallelModel
from weft.training.session import Session, start


def train(
    job: JobSpec, folder: str, *, resume: bool = False, reporter: Reporter | None = None, model: str | None = None
) -> dict[str, Any]:
    """Train `job` on the ranks that are there and return the result (on rank 0; empty elsewhere).

    `model` names a model of one's own ("package:build", or an entry point of `weft.models`) instead of the built-in.
    """
    report = None if reporter is None else partial(reporter.send, "step")
    run = start(job, folder=folder, resume=resume, on_step=report, model=model)
    made: ParallelModel = parallelize(run) if model is None else parallelize_own(run, model)
    chosen = optimizers(made.named_parameters(), job.optimizer)
    run.attach(made, *chosen)
    run.evaluations.add("held_out_loss", lambda _, __: {"held_out_loss": held_out_loss(run, made)})
    for step in run.steps():
        made.forward_backward(step)
        step.reduce()
        for optimizer in chosen:
            optimizer.step()
        run.finish(step)
    return run.close()


def held_out_loss(run: Session, model: ParallelModel) -> float:
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
