"""A dense feed-forward block, gated (SwiGLU, arXiv 2002.05202) or plain, and the nonlinearities that blocks have."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from weft.specs.job import ModelSpec

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
"""The nonlinearities, by their names in a job file."""


class Feed(nn.Module):
    """down(act(gate(x)) * up(x)), or down(act(up(x))) where there is no gate."""

    def __init__(self, spec: ModelSpec, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.width, inner, bias=spec.biases) if spec.gated else None
        self.up = nn.Linear(spec.width, inner, bias=spec.biases)
        self.down = nn.Linear(inner, spec.width, bias=spec.biases)
        self.activation = ACTIVATIONS[spec.activation]

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to `hidden`."""
        if self.gate is None:
            return self.down(self.activation(self.up(hidden)))
        return self.down(self.activation(self.gate(hidden)) * self.up(hidden))
