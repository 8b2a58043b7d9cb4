"""The decoder, or the part of it that a pipeline stage holds.

Pre-norm blocks of attention and feed-forward around a residual stream. Unless the spec asks for more: RMSNorm (arXiv
1910.07467), SwiGLU, rotary positions, no dropout, no biases.

Tied weights. Where embedding and output are one matrix and one module holds both, they are one `Parameter`, known as
`embed.weight`. Where the first stage holds the one and the last stage the other, each has its own copy, started from
the same stream (`weights.canonical` names it); they stay equal if the two gradients are added, in the order embedding
then output, and both copies step with the sum. That is the work of whoever makes the stages.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from weft.planning.cost_model.parameter_shapes import is_sparse
from weft.specs.job import ModelSpec
from weft.training.model.attention import Attend, Attention, AttentionCore, LatentAttention
from weft.training.model.experts import Dispatch, ExpertBalance, ExpertFeed, Load
from weft.training.model.feed import Feed
from weft.training.model.rotary import Rotary


def norm_of(spec: ModelSpec) -> nn.Module:
    """Return a norm of the residual stream."""
    kind = nn.LayerNorm if spec.norm == "layer" else nn.RMSNorm
    return kind(spec.width, eps=spec.norm_epsilon)


class Block(nn.Module):
    """One layer: attention, then feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, spec: ModelSpec, layer: int = 0) -> None:
        super().__init__()
        self.attention_norm = norm_of(spec)
        self.attention = Attention(spec, layer) if spec.latent is None else LatentAttention(spec, layer)
        self.feed_norm = norm_of(spec)
        self.feed = ExpertFeed(spec) if is_sparse(spec, layer) else Feed(spec, spec.ffn)
        self.dropout = spec.dropout

    @override
    def forward(self, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Load | None]:
        """Return the residual stream after the block, and the load of its experts where it has some."""
        hidden = hidden + self._drop(self.attention(self.attention_norm(hidden), rotary))
        if isinstance(self.feed, ExpertFeed):
            added, load = self.feed(self.feed_norm(hidden))
            return hidden + self._drop(added), load
        return hidden + self._drop(self.feed(self.feed_norm(hidden))), None

    def _drop(self, added: Tensor) -> Tensor:
        return functional.dropout(added, self.dropout, self.training) if self.dropout else added


class Decoder(nn.Module):
    """A decoder, or a stage of one: `layers` says which blocks it holds, `embed` and `head` whether it holds the ends.

    Blocks keep the numbers that they have in the whole model, so a parameter has the same name in every stage. Weights
    are not set here; see `weights.initialise`.
    """

    def __init__(
        self, spec: ModelSpec, *, layers: Iterable[int] | None = None, embed: bool = True, head: bool = True
    ) -> None:
        super().__init__()
        self.spec = spec
        numbers = range(spec.layers) if layers is None else sorted(layers)
        assert all(0 <= number < spec.layers for number in numbers), f"layers {numbers} of {spec.layers}"
        self.embed = nn.Embedding(spec.vocabulary, spec.width) if embed else None
        learned = embed and spec.learned_positions
        self.positions = nn.Embedding(spec.learned_positions, spec.width) if learned else None
        self.layers = nn.ModuleDict({str(number): Block(spec, number) for number in numbers})
        self.norm = norm_of(spec) if head else None
        self.head = nn.Linear(spec.width, spec.vocabulary, bias=False) if head else None
        if spec.tied and self.embed is not None and self.head is not None:
            self.head.weight = self.embed.weight

    @override
    def forward(
        self, inputs: Tensor, positions: Tensor | int | None = None, balance: ExpertBalance | None = None
    ) -> Tensor:
        """Return logits `[batch, length, vocabulary]`, or hidden states `[batch, length, width]` without a head.

        `inputs` are token ids `[batch, length]`, or hidden states where there is no embedding. `positions` is the
        position of the first token or of all of them (see `Rotary`). A `balance` collects the loads of the experts.
        """
        hidden = inputs if self.embed is None else self._embedded(inputs, positions)
        rotary = Rotary(self.spec, positions)
        for block in self.layers.values():
            hidden, load = block(hidden, rotary)
            if balance is not None and load is not None:
                balance.loads.append(load)
        if self.norm is None or self.head is None:
            return hidden
        return self.head(self.norm(hidden))

    def _embedded(self, tokens: Tensor, positions: Tensor | int | None) -> Tensor:
        assert self.embed is not None, "only the first stage has the embedding"
        hidden = self.embed(tokens)
        if self.positions is not None:
            if not isinstance(positions, Tensor):
                positions = torch.arange(tokens.shape[1], device=tokens.device) + (positions or 0)
            hidden = hidden + self.positions(positions.to(tokens.device))
        rate = self.spec.dropout
        return functional.dropout(hidden, rate, self.training) if rate else hidden

    def attend_by(self, attend: Attend) -> None:
        """Put `attend` into every attention block."""
        for module in self.modules():
            if isinstance(module, AttentionCore):
                module.attend = attend

    def dispatch_by(self, dispatch: Dispatch) -> None:
        """Put `dispatch` into every block of experts."""
        for module in self.modules():
            if isinstance(module, ExpertFeed):
                module.dispatch = dispatch
