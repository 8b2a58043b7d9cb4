"""AdamW and Muon as a job file describes them, and the learning rate of a step as a pure function of its number."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Muon, Optimizer
from typing_extensions import override

from weft.core.errors import UsageError
from weft.specs.job import OptimizerSpec

_ENDS = ("embed.", "positions.", "head.")


def learning_rate(spec: OptimizerSpec, step: int, steps: int) -> float:
    """Return the learning rate of `step`, counted from 0, of `steps`: a linear rise, then the schedule's fall.

    From the schedule's horizon on, by default the last step, it stays where it is.
    """
    if step < spec.warmup:
        return spec.learning_rate * (step + 1) / spec.warmup
    if spec.schedule == "constant":
        return spec.learning_rate
    done = min(1.0, (step - spec.warmup) / max(1, (spec.horizon or steps) - spec.warmup))
    left = (1 + math.cos(math.pi * done)) / 2 if spec.schedule == "cosine" else 1 - done
    return spec.learning_rate * (spec.final_share + (1 - spec.final_share) * left)


def optimizers(named: Iterable[tuple[str, nn.Parameter]], spec: OptimizerSpec) -> list[Optimizer]:
    """Return what changes the parameters that are `named` in the whole model, together."""
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    turned = [parameter for name, parameter in trained if spec.kind == "muon" and _is_inner(name, parameter)]
    taken = {id(parameter) for parameter in turned}
    found: list[Optimizer] = [adamw([each for _, each in trained if id(each) not in taken], spec)]
    if any(isinstance(each.data, DTensor) for each in turned):
        raise UsageError(
            "Muon turns whole matrices, and the plan cuts them; write shard, tp and ep = 1, or kind = 'adamw'"
        )
    if turned:
        # Scaled so that AdamW's learning rate and decay do for both (Moonlight, arXiv 2502.16982, section 2.2).
        found.append(
            Muon(turned, lr=spec.learning_rate, weight_decay=spec.weight_decay, momentum=spec.momentum,
                 adjust_lr_fn="match_rms_adamw")
        )  # fmt: skip
    return found


def _is_inner(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a matrix between the embedding and the output."""
    return parameter.dim() == 2 and not name.startswith(_ENDS)  # noqa: PLR2004 - a matrix


def adamw(parameters: Iterable[nn.Parameter], spec: OptimizerSpec) -> Optimizer:
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
    listed: list[dict[str, Any]] = [
        {"params": members, "weight_decay": spec.weight_decay if decays else 0.0}
        for (decays, _), members in groups.items()
    ]
    if spec.state == "bf16":
        return NarrowAdamW(listed, lr=spec.learning_rate, betas=spec.betas, eps=spec.epsilon)
    return AdamW(listed, lr=spec.learning_rate, betas=spec.betas, eps=spec.epsilon, fused=on_gpu)


class NarrowAdamW(Optimizer):
    """AdamW (arXiv 1711.05101) that keeps both moments in bf16, rounded to the nearest after every step in fp32.

    The moments take 4 bytes a parameter instead of 8. A parameter of a shard has moments of its shard.
    """

    def __init__(self, params: Any, *, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Change every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._change(parameter, group)

    def _change(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None, "asked before"
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        state["step"] += 1
        count, (first, second) = float(state["step"]), group["betas"]
        mean = state["exp_avg"].float().lerp_(gradient.float(), 1 - first)
        square = state["exp_avg_sq"].float().mul_(second).addcmul_(gradient.float(), gradient.float(), value=1 - second)
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        scale = math.sqrt(1 - second**count)
        parameter.addcdiv_(mean, square.sqrt_().div_(scale).add_(group["eps"]), value=-group["lr"] / (1 - first**count))
