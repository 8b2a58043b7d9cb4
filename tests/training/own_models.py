"""Models of one's own for tests: an MLP-style language model with its own tensor and pipeline parallelism."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from typing_extensions import override

from weft.specs.job import JobSpec
from weft.training.parallel.load_balance import cut
from weft.training.parallel.mesh import Mesh
from weft.training.parallel.own_model import OwnStage
from weft.training.parallel.pipeline import stage_numbers, stages_of


class Layer(nn.Module):
    """Mixes each token with the one before it, then two matrices with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(2 * width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        before = functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
        return hidden + self.down(functional.gelu(self.up(torch.cat([hidden, before], dim=-1))))


class Mixer(nn.Module):
    """A language model, or a stage of one."""

    parallel_axes = ("tp", "pp")

    def __init__(self, job: JobSpec) -> None:
        super().__init__()
        self.job = job
        width, words = job.model.width, job.model.vocabulary
        self.embed: nn.Module | None = nn.Embedding(words, width)
        self.layers = nn.ModuleDict({str(number): Layer(width) for number in range(job.model.layers)})
        self.out: nn.Module | None = nn.Linear(width, words)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs if self.embed is None else self.embed(inputs)
        if self.training:
            self.seen += 1
        for layer in self.layers.values():
            hidden = layer(hidden)
        return hidden if self.out is None else self.out(hidden)

    def parallelize(self, mesh: Mesh) -> list[OwnStage] | None:
        """Cut matrices over the tensor axis, and layers over the pipeline."""
        if mesh.plan.tp > 1:
            assert mesh.devices is not None
            for layer in self.layers.values():
                parallelize_module(layer, mesh.devices["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if mesh.plan.pp == 1:
            return None
        count = stages_of(mesh.plan)
        parts = cut([1.0] * len(self.layers), count)
        return [self._stage(parts[number], number, count) for number in stage_numbers(mesh.plan, mesh.place.pp)]

    def _stage(self, layers: range, number: int, count: int) -> OwnStage:
        stage = type(self)(self.job)
        stage.load_state_dict(self.state_dict())
        stage.layers = nn.ModuleDict({str(layer): stage.layers[str(layer)] for layer in layers})
        if number > 0:
            stage.embed = None
        if number < count - 1:
            stage.out = None
        batch, model = self.job.batch, self.job.model
        tokens = torch.empty(batch.micro, batch.length, dtype=torch.int64, device="meta")
        hidden = torch.empty(batch.micro, batch.length, model.width, device="meta", requires_grad=True)
        logits = torch.empty(batch.micro, batch.length, model.vocabulary, device="meta", requires_grad=True)
        return OwnStage(stage, tokens if number == 0 else hidden, logits if number == count - 1 else hidden)


def mixer(job: JobSpec) -> nn.Module:
    """Build the language model."""
    return Mixer(job)


class Plain(nn.Module):
    """A model that offers nothing but its forward pass and a loss of its own."""

    flops_per_token = 1e6

    def __init__(self, job: JobSpec) -> None:
        super().__init__()
        self.table = nn.Embedding(job.model.vocabulary, job.model.vocabulary)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return self.table(inputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return twice the cross-entropy."""
        return 2 * functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def plain(job: JobSpec) -> nn.Module:
    """Build the table of pairs."""
    return Plain(job)


class Boastful(Plain):
    """Names an axis that it cannot apply."""

    parallel_axes = ("tp",)


def boastful(job: JobSpec) -> nn.Module:
    """Build a model whose parallel_axes promise too much."""
    return Boastful(job)


class Stageless(Plain):
    """Claims pipelines and returns no stage."""

    parallel_axes = ("pp",)

    def parallelize(self, mesh: Mesh) -> list[OwnStage]:
        """Return nothing."""
        del mesh
        return []


def stageless(job: JobSpec) -> nn.Module:
    """Build a model whose parallelize returns no stages."""
    return Stageless(job)


class Foreign(nn.Module):
    """A model of the library `transformers`, which knows nothing of weft."""

    def __init__(self, job: JobSpec) -> None:
        super().__init__()
        import transformers

        spec = job.model
        self.inner = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=spec.vocabulary,
                hidden_size=spec.width,
                num_hidden_layers=spec.layers,
                num_attention_heads=spec.heads,
                num_key_value_heads=spec.kv_heads,
                intermediate_size=spec.ffn,
                max_position_embeddings=job.batch.length,
                use_cache=False,
            )
        )

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(input_ids=inputs).logits


def foreign(job: JobSpec) -> nn.Module:
    """Build a Llama of `transformers`."""
    return Foreign(job)


def number(job: JobSpec) -> int:
    """Build something that is no model."""
    return job.steps


NOTHING = 3
