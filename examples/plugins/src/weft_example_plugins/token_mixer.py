"""A model: an MLP language model with tensor and pipeline parallelism of its own.

Data parallelism, sharding, checkpoints and recovery are weft's and need nothing here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from typing_extensions import override

from weft.specs.job import JobSpec
from weft.training.parallel.mesh import Mesh
from weft.training.parallel.own_model import OwnStage
from weft.training.parallel.pipeline import stage_numbers, stages_of


class Mix(nn.Module):
    """Mixes a token with its past by a decaying mean, then applies two matrices."""

    def __init__(self, width: int) -> None:
        """Make the two matrices."""
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states with the mixture added."""
        inputs = self.norm(hidden)
        shifted = functional.pad(inputs, (0, 0, 1, 0))[:, :-1]
        return hidden + self.down(functional.silu(self.up((inputs + shifted) / 2)))


class TokenMixer(nn.Module):
    """Embedding, mixing layers, and a matrix back to the vocabulary."""

    parallel_axes = ("tp", "pp")

    def __init__(self, job: JobSpec) -> None:
        """Take width, depth and vocabulary from the job's `[model]`."""
        super().__init__()
        self.job = job
        self.embed: nn.Embedding | None = nn.Embedding(job.model.vocabulary, job.model.width)
        self.layers = nn.ModuleDict({str(number): Mix(job.model.width) for number in range(job.model.layers)})
        self.head: nn.Linear | None = nn.Linear(job.model.width, job.model.vocabulary, bias=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of tokens; a middle stage takes and returns hidden states."""
        hidden = inputs if self.embed is None else self.embed(inputs)
        for layer in self.layers.values():
            hidden = layer(hidden)
        return hidden if self.head is None else self.head(hidden)

    def parallelize(self, mesh: Mesh) -> Sequence[OwnStage] | None:
        """Split matrices over the tensor axis and layers over the pipeline axis."""
        if mesh.plan.tp > 1:
            assert mesh.devices is not None
            for layer in self.layers.values():
                parallelize_module(layer, mesh.devices["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if mesh.plan.pp == 1:
            return None
        return [self._stage(number, stages_of(mesh.plan)) for number in stage_numbers(mesh.plan, mesh.place.pp)]

    def _stage(self, number: int, count: int) -> OwnStage:
        """Return stage `number` of `count`; its parameters keep the names they have in the whole model."""
        layers = list(self.layers)
        first, last = len(layers) * number // count, len(layers) * (number + 1) // count
        stage = TokenMixer(self.job)
        stage.load_state_dict(self.state_dict())
        stage.layers = nn.ModuleDict({name: stage.layers[name] for name in layers[first:last]})
        batch, model = self.job.batch, self.job.model
        tokens = torch.empty(batch.micro, batch.length, dtype=torch.int64, device="meta")
        hidden = torch.empty(batch.micro, batch.length, model.width, device="meta", requires_grad=True)
        logits = torch.empty(batch.micro, batch.length, model.vocabulary, device="meta", requires_grad=True)
        if number > 0:
            stage.embed = None
        if number < count - 1:
            stage.head = None
        return OwnStage(stage, tokens if number == 0 else hidden, logits if number == count - 1 else hidden)


def build(job: JobSpec) -> nn.Module:
    """Build the model that `weft train --model token-mixer` trains."""
    return TokenMixer(job)
