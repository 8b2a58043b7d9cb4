"""A loop of somebody's own, with everything that loops have and the built-in one has not."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from typing_extensions import override

import weft


class Convolved(nn.Module):
    """A language model of bytes with a BatchNorm, dropout, and buffers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.mix = nn.Conv1d(16, 16, 3)
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 256)

    @override
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = functional.pad(self.embed(tokens).transpose(1, 2), (2, 0))
        hidden = functional.dropout(torch.relu(self.norm(self.mix(hidden))), 0.1, self.training)
        return self.out(hidden.transpose(1, 2))


class Turning(torch.optim.Optimizer):
    """Counts in Python, and turns with its count."""

    @override
    def step(self, closure: Any = None) -> Any:
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                share = 1.0 / state["count"]
                noise = torch.rand(())
                with torch.no_grad():
                    parameter.sub_(group["lr"] * (share + 0.01 * noise) * parameter.grad)


def loop(job: str, folder: str, *, buffers: str = "broadcast") -> dict[str, Any]:
    """Train with two optimizers, one of them with a scheduler of its own, and a norm with statistics."""
    run = weft.start(job, folder=folder, resume=True)
    model = Convolved()
    first = torch.optim.AdamW(
        [{"params": model.mix.parameters(), "lr": 1e-2}, {"params": model.norm.parameters(), "lr": 1e-3}]
    )
    second = Turning([*model.embed.parameters(), *model.out.parameters()], {"lr": 0.5})
    plan = torch.optim.lr_scheduler.ExponentialLR(second, 0.9)
    run.attach(model, first, second, plan, buffers=buffers)
    for step in run.steps():
        for tokens in step.micro_batches():
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            step.add(loss)
        step.reduce()
        for one in (first, second, plan):
            one.step()
        run.finish(step)
    return run.close()


def synchronised(job: str, folder: str) -> dict[str, Any]:
    """Train with statistics that do not depend on the number of replicas."""
    return loop(job, folder, buffers="synchronised")


class Place:
    """Where a loader of one's own stands: another place on every rank."""

    def __init__(self) -> None:
        self.at = torch.distributed.get_rank()

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def uneven(job: str, folder: str) -> None:
    """Attach what is another on every rank."""
    weft.start(job, folder=folder).attach(nn.Linear(2, 2), Place())
