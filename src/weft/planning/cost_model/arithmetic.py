"""What a model is made of and what a token costs: parameters and floating-point operations from its dimensions alone.

Exact integers; a test holds them against the parameters of the real module and against torch's own count of operations.
Only matrix products are counted, a multiplication and an addition being two operations, as is the custom for model
FLOPs (PaLM, arXiv 2204.02311, appendix B). Time, memory and communication are not computed here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from weft.planning.cost_model.parameter_shapes import Shape, block_shapes, head_width, shapes
from weft.specs.job import ModelSpec


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters, part by part."""

    embedding: int
    """The table of token vectors."""
    attention: int
    """All attention blocks: matrices, biases and norms of single heads."""
    feed: int
    """All feed-forward blocks, every expert counted."""
    router: int
    """All routers of expert blocks."""
    norms: int
    """All norms of the residual stream."""
    head: int
    """The output matrix; 0 where it is the embedding."""
    idle: int
    """Those of `feed` that a token does not meet: the experts it is not sent to."""

    @property
    def total(self) -> int:
        """Return the number of parameters."""
        return self.embedding + self.attention + self.feed + self.router + self.norms + self.head

    @property
    def active(self) -> int:
        """Return the number of parameters that one token meets."""
        return self.total - self.idle


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of one token, on average over a text."""

    forward: int
    """In the forward pass."""
    backward: int
    """In the backward pass: each product has two gradients, each as large as itself."""

    @property
    def total(self) -> int:
        """Return the operations of both passes; recomputation saves memory and is not a model's work."""
        return self.forward + self.backward


def layer_parameters(spec: ModelSpec) -> int:
    """Return the number of parameters of one block, on average over all."""
    counts = (_numel(block_shapes(spec, layer)) * many for layer, many in _kinds_of_block(spec))
    return sum(counts) // spec.layers


def parameters(spec: ModelSpec) -> Parameters:
    """Return the numbers of parameters of a model."""
    experts = spec.experts
    ends = dict(shapes(spec.model_copy(update={"layers": 0})))
    found = dict.fromkeys(("attention", "feed", "router", "norms"), 0)
    for layer, many in _kinds_of_block(spec):
        for name, shape in block_shapes(spec, layer):
            found[_part_of(name)] += many * math.prod(shape)
    sparse = spec.layers - experts.dense_layers if experts else 0
    idle = 0 if experts is None else 3 * spec.width * experts.ffn * (experts.count - experts.top_k) * sparse
    return Parameters(
        embedding=_numel((name, shape) for name, shape in ends.items() if name.startswith(("embed", "positions"))),
        attention=found["attention"],
        feed=found["feed"],
        router=found["router"],
        norms=found["norms"] + _numel((name, shape) for name, shape in ends.items() if name.startswith("norm.")),
        head=math.prod(ends.get("head.weight", (0,))),
        idle=idle,
    )


def flops_per_token(spec: ModelSpec, length: int, *, causal: bool = False) -> Flops:
    """Return the operations of a token in texts of `length` tokens.

    By default attention counts every pair of tokens, as torch's counter and most published figures do; `causal` counts
    only the pairs that a decoder needs: a token sees half of the text, and itself, or what a window shows of that.
    """
    matrices = spec.vocabulary * spec.width
    for layer, many in _kinds_of_block(spec):
        matrices += many * sum(_met(name, shape, spec) for name, shape in block_shapes(spec, layer))
    # Scores and weighted values: for each pair of tokens and each head, a product of a query and one of a value.
    latent, each = spec.latent, head_width(spec)
    widths = 2 * each if latent is None else each + latent.rope_width + latent.value_width
    seen = sum(_pairs(spec, layer, length) if causal else length * length for layer in range(spec.layers))
    seen = spec.heads * widths * seen // max(1, length)
    forward = 2 * (matrices + seen)
    return Flops(forward=forward, backward=2 * forward)


def window_of(spec: ModelSpec, layer: int) -> int:
    """Return how many tokens block number `layer` sees; 0 for the whole text."""
    if spec.window_from is None:
        return spec.window if layer % 2 == 0 else 0
    return spec.window if layer >= spec.window_from else 0


def _pairs(spec: ModelSpec, layer: int, length: int) -> int:
    """Return the pairs of tokens that a causal block attends to in a text."""
    reach = min(window_of(spec, layer) or length, length)
    return reach * (reach + 1) // 2 + (length - reach) * reach


def _met(name: str, shape: Shape, spec: ModelSpec) -> int:
    """Return how many elements of a matrix a token meets."""
    if spec.experts is not None and name.startswith("feed.experts."):
        return math.prod(shape[1:]) * spec.experts.top_k
    return math.prod(shape) if len(shape) > 1 else 0


def _kinds_of_block(spec: ModelSpec) -> list[tuple[int, int]]:
    """Return one block of each kind, and how many there are of it."""
    dense = spec.experts.dense_layers if spec.experts is not None else 0
    return [(layer, many) for layer, many in ((0, dense), (dense, spec.layers - dense)) if many]


def _part_of(name: str) -> str:
    if name.startswith(("attention_norm", "feed_norm")):
        return "norms"
    if name.startswith(("feed.router", "feed.correction")):
        return "router"
    return name.split(".", 1)[0]


def _numel(named: Iterable[tuple[str, Shape]]) -> int:
    return sum(math.prod(shape) for _, shape in named)
