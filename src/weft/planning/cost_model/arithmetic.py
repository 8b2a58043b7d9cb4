"""What a model is made of and what a token costs: parameters and floating-point operations from its dimensions alone.

Exact integers; a test holds them against the parameters of the real module and against torch's own count of operations.
Only matrix products are counted, a multiplication and an addition being two operations, as is the custom for model
FLOPs (PaLM, arXiv 2204.02311, appendix B). Time, memory and communication are not computed here.
"""

from dataclasses import dataclass

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


def head_width(spec: ModelSpec) -> int:
    """Return the width of one attention head."""
    return spec.head_width or spec.width // spec.heads


def kv_heads(spec: ModelSpec) -> int:
    """Return the number of heads of keys and values."""
    return spec.kv_heads or spec.heads


def layer_parameters(spec: ModelSpec) -> int:
    """Return the number of parameters of one block."""
    counted = parameters(spec)
    final_norm = spec.width
    return (counted.attention + counted.feed + counted.router + counted.norms - final_norm) // spec.layers


def parameters(spec: ModelSpec) -> Parameters:
    """Return the numbers of parameters of a model."""
    experts = spec.experts
    attention = _attention_matrices(spec)
    if spec.qkv_bias:
        attention += (spec.heads + 2 * kv_heads(spec)) * head_width(spec)
    if spec.qk_norm:
        attention += 2 * head_width(spec)
    one_feed = 3 * spec.width * (experts.ffn if experts else spec.ffn)
    return Parameters(
        embedding=spec.vocabulary * spec.width,
        attention=spec.layers * attention,
        feed=spec.layers * one_feed * (experts.count if experts else 1),
        router=spec.layers * spec.width * experts.count if experts else 0,
        norms=(2 * spec.layers + 1) * spec.width,
        head=0 if spec.tied else spec.vocabulary * spec.width,
        idle=spec.layers * one_feed * (experts.count - experts.top_k) if experts else 0,
    )


def flops_per_token(spec: ModelSpec, length: int, *, causal: bool = False) -> Flops:
    """Return the operations of a token in texts of `length` tokens.

    By default attention counts every pair of tokens, as torch's counter and most published figures do; `causal` counts
    only the pairs that a decoder needs: a token sees half of the text, and itself.
    """
    experts = spec.experts
    feed = 3 * spec.width * (experts.ffn * experts.top_k if experts else spec.ffn)
    router = spec.width * experts.count if experts else 0
    matrices = spec.layers * (_attention_matrices(spec) + feed + router) + spec.vocabulary * spec.width
    # Scores and weighted values: for each pair of tokens and each head, two products of a head's width.
    pairs = 2 * spec.layers * spec.heads * head_width(spec)
    seen = pairs * (length + 1) // 2 if causal else pairs * length
    forward = 2 * (matrices + seen)
    return Flops(forward=forward, backward=2 * forward)


def _attention_matrices(spec: ModelSpec) -> int:
    return spec.width * head_width(spec) * 2 * (spec.heads + kv_heads(spec))
