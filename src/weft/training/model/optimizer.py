"""AdamW as a job file describes it, and the learning rate of every step as a pure function of its number."""

import math
from collections.abc import Iterable

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from weft.specs.job import OptimizerSpec


def learning_rate(spec: OptimizerSpec, step: int, steps: int) -> float:
    """Return the learning rate of `step`, counted from 0, of `steps`: a linear rise, then the schedule's fall."""
    if step < spec.warmup:
        return spec.learning_rate * (step + 1) / spec.warmup
    if spec.schedule == "constant":
        return spec.learning_rate
    done = (step - spec.warmup) / max(1, steps - spec.warmup)
    left = (1 + math.cos(math.pi * done)) / 2 if spec.schedule == "cosine" else 1 - done
    return spec.learning_rate * (spec.final_share + (1 - spec.final_share) * left)


def adamw(parameters: Iterable[nn.Parameter], spec: OptimizerSpec) -> AdamW:
    """Return AdamW over `parameters`; matrices decay, norms and biases do not.

    Parameters that are spread over different meshes cannot be stepped in one call, so they form groups of their own.
    """
    groups: dict[tuple[bool, object], list[nn.Parameter]] = {}
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        data = parameter.data
        mesh = data.device_mesh if isinstance(data, DTensor) else None
        groups.setdefault((parameter.dim() > 1, mesh), []).append(parameter)
    on_gpu = any(one.device.type == "cuda" for members in groups.values() for one in members)
    return AdamW(
        [
            {"params": members, "weight_decay": spec.weight_decay if decays else 0.0}
            for (decays, _), members in groups.items()
        ],
        lr=spec.learning_rate,
        betas=spec.betas,
        eps=spec.epsilon,
        fused=on_gpu,
    )
