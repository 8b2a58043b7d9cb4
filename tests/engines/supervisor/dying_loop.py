"""A training loop of one's own, one of whose ranks kills itself at a point that a file names. Imported by ranks."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

import weft

POINTS = ("forward", "backward", "exchange", "before the update", "update", "after the update", "evaluation", "between")
DEATHS = "deaths.json"


class Counting(nn.Module):
    """A model whose loss depends on how often it was run: a buffer that a forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.head = nn.Linear(16, 256)
        self.register_buffer("seen", torch.zeros(()))

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return self.head(self.embed(tokens)) * (1 + self.seen / 64)


class Deaths:
    """Who dies where; each death comes true once, whoever stands at its place."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank

    def at(self, point: str, step: int) -> None:
        """Die here, or a moment later, if that is written."""
        path = self._folder / DEATHS
        for number, death in enumerate(json.loads(path.read_text()) if path.exists() else ()):
            mark = self._folder / f".died-{number}"
            if (death["point"], death["step"], death["rank"]) != (point, step, self._rank) or mark.exists():
                continue
            mark.touch()
            if death["ms"]:
                threading.Timer(death["ms"] / 1e3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)


def loop(job: str, folder: str) -> Any:
    """Train, and die where it is written."""
    run = weft.start(job, folder=folder)
    torch.manual_seed(1)
    model = Counting()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.attach(model, optimizer)
    deaths = Deaths(Path(folder), run.rank)

    def evaluation(judged: Any, step: int) -> dict[str, float]:
        deaths.at("evaluation", step - 1)
        tokens = run.stream.held_out(0)
        return {"loss": float(loss_of(judged, tokens))}

    run.evaluations.add("held_out", evaluation)
    for step in run.steps():
        for tokens in step.micro_batches():
            deaths.at("forward", step.number)
            loss = loss_of(model, tokens)
            deaths.at("backward", step.number)
            loss.backward()
            step.add(loss)
        deaths.at("exchange", step.number)
        step.reduce()
        deaths.at("before the update", step.number)
        deaths.at("update", step.number)
        optimizer.step()
        deaths.at("after the update", step.number)
        run.finish(step)
        deaths.at("between", step.number)
    return run.close()


class Rich(nn.Module):
    """A model that draws, and whose buffers depend on all that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 256)
        self.register_buffer("noted", torch.zeros(()))

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        hidden = functional.dropout(self.embed(tokens), 0.2, training=self.training)
        return self.head(self.norm(hidden.transpose(1, 2)).transpose(1, 2))


class Average:
    """A moving average of the weights."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.mean = [one.detach().clone() for one in model.parameters()]
        self.count = 0

    def update(self) -> None:
        self.count += 1
        for mean, one in zip(self.mean, self._model.parameters(), strict=True):
            mean.lerp_(one.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.count = list(state["mean"]), state["count"]


def rich_loop(job: str, folder: str, *, buffers: str = "broadcast", notes: bool = False) -> Any:
    """Train with everything that a loop may keep, and die where it is written; one that `notes` changes a buffer."""
    run = weft.start(job, folder=folder)
    torch.manual_seed(1)
    model = Rich()
    first = torch.optim.AdamW(model.embed.parameters(), lr=1e-2, amsgrad=True)
    second = torch.optim.SGD([*model.norm.parameters(), *model.head.parameters()], lr=1e-2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(second, 2, gamma=0.5)
    average = Average(model)
    run.attach(model, first, second, schedule, average, buffers=buffers)
    deaths = Deaths(Path(folder), run.rank)

    def evaluation(judged: Any, step: int) -> dict[str, float]:
        deaths.at("evaluation", step - 1)
        loss = float(loss_of(judged, run.stream.held_out(0)))
        return {"loss": loss, "mean": float(sum(one.sum() for one in average.mean)), "drawn": float(torch.rand(()))}

    run.evaluations.add("held_out", evaluation)
    for step in run.steps():
        for tokens in step.micro_batches():
            deaths.at("forward", step.number)
            loss = loss_of(model, tokens)
            deaths.at("backward", step.number)
            loss.backward()
            step.add(loss)
        deaths.at("exchange", step.number)
        step.reduce()
        deaths.at("before the update", step.number)
        second.param_groups[0]["weight_decay"] = 0.01 * step.number
        deaths.at("update", step.number)
        first.step()
        second.step()
        with torch.no_grad():
            model.head.bias.add_(torch.randn_like(model.head.bias), alpha=1e-3)
            if notes:
                model.noted.add_(1)
        schedule.step()
        average.update()
        deaths.at("after the update", step.number)
        run.finish(step)
        deaths.at("between", step.number)
    return run.close()


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean loss of a micro-batch."""
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
