"""How a model is judged while it trains: the held-out loss, and evaluations of one's own by name.

Evaluations leave no trace in the training: gradients are off, the model's mode and every random generator are put back.
Results are plain numbers; the caller writes them beside the checkpoint.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from weft.core.errors import UsageError


class Judged(Protocol):
    """What is judged: an `nn.Module`, or a `ParallelModel`."""

    def modules(self) -> Iterator[nn.Module]:
        """Yield every module."""
        ...

    def eval(self) -> object:
        """Put every module into evaluation mode."""
        ...


Evaluation = Callable[[Any, int], Mapping[str, float]]
"""Given the model and the number of steps done, returns named numbers."""


class Evaluations:
    """Evaluations by name, in the order in which they were added."""

    def __init__(self, every: int = 0) -> None:
        """Be due every `every` steps; 0 for never."""
        self._every = every
        self._known: dict[str, Evaluation] = {}

    def add(self, name: str, evaluation: Evaluation) -> None:
        """Add an evaluation; its results are called `name`, or `name.key` where it returns several."""
        if name in self._known:
            raise UsageError(f"there is already an evaluation called {name!r}; choose another name")
        self._known[name] = evaluation

    def due(self, step: int) -> bool:
        """Return whether to evaluate after `step` steps."""
        return self._every > 0 and step > 0 and step % self._every == 0

    def run(self, model: Judged, step: int) -> dict[str, float]:
        """Return the results of all evaluations."""
        results: dict[str, float] = {}
        for name, evaluation in self._known.items():
            with judging(model):
                values = evaluation(model, step)
            alone = values.keys() == {name}
            results |= {name if alone else f"{name}.{key}": float(value) for key, value in values.items()}
        return results


@contextlib.contextmanager
def judging(model: Judged) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and put everything back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


def held_out_loss(
    batches: Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]],
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor],
    name: str = "held_out_loss",
) -> Evaluation:
    """Return the evaluation that averages `loss(model, inputs, targets)` over the held-out `batches`.

    The mean is taken over batches in their order in double precision, so it is the same on every machine that computes
    the same losses.
    """

    def evaluation(model: nn.Module, step: int) -> dict[str, float]:  # noqa: ARG001 - the same batches at every step
        losses = [loss(model, inputs, targets).item() for inputs, targets in batches()]
        if not losses:
            raise UsageError(
                "there is no held-out data to evaluate on; raise data.held_out or set evaluation.every = 0"
            )
        return {name: sum(losses) / len(losses)}

    return evaluation
