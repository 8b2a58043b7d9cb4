"""The parameters of a decoder by name and shape, from its dimensions alone: what it is made of is written here once.

The trainer's modules have these names, checkpoints and Hugging Face's files are checked against them, and parameters
and operations are counted from them. No torch.
"""

from collections.abc import Iterator

from weft.specs.job import ModelSpec

Shape = tuple[int, ...]


def head_width(spec: ModelSpec) -> int:
    """Return the width of one attention head."""
    return spec.head_width or spec.width // spec.heads


def kv_heads(spec: ModelSpec) -> int:
    """Return the number of heads of keys and values."""
    return spec.kv_heads or spec.heads


def is_sparse(spec: ModelSpec, layer: int) -> bool:
    """Return whether block number `layer` has experts."""
    return spec.experts is not None and layer >= spec.experts.dense_layers


def shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Return the name and the shape of every parameter of the whole model, in the order of its modules."""
    found: dict[str, Shape] = {"embed.weight": (spec.vocabulary, spec.width)}
    if spec.learned_positions:
        found["positions.weight"] = (spec.learned_positions, spec.width)
    for number in range(spec.layers):
        found |= {f"layers.{number}.{name}": shape for name, shape in block_shapes(spec, number)}
    found |= dict(_norm("norm", spec.width, spec))
    if not spec.tied:
        found["head.weight"] = (spec.vocabulary, spec.width)
    return found


def block_shapes(spec: ModelSpec, layer: int) -> Iterator[tuple[str, Shape]]:
    """Yield the names within their block and the shapes of the parameters of block number `layer`."""
    yield from _norm("attention_norm", spec.width, spec)
    yield from _attention(spec) if spec.latent is None else _latent_attention(spec)
    yield from _norm("feed_norm", spec.width, spec)
    experts = spec.experts
    if experts is None or not is_sparse(spec, layer):
        yield from _feed("feed", spec.ffn, spec)
        return
    yield "feed.router.weight", (experts.count, spec.width)
    if experts.correction:
        yield "feed.correction", (experts.count,)
    yield "feed.experts.gate", (experts.count, experts.ffn, spec.width)
    yield "feed.experts.up", (experts.count, experts.ffn, spec.width)
    yield "feed.experts.down", (experts.count, spec.width, experts.ffn)
    if experts.shared:
        yield from _feed("feed.shared", experts.shared, spec)


def _norm(name: str, width: int, spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    if spec.norm == "layer":
        yield f"{name}.bias", (width,)


def _matrix(name: str, rows: int, columns: int, *, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _attention(spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    each = head_width(spec)
    queries, keys = spec.heads * each, kv_heads(spec) * each
    for part, rows in (("query", queries), ("key", keys), ("value", keys)):
        yield from _matrix(f"attention.{part}", rows, spec.width, bias=spec.qkv_bias or spec.biases)
    yield from _matrix("attention.output", spec.width, queries, bias=spec.biases)
    if spec.qk_norm:
        yield "attention.query_norm.weight", (each,)
        yield "attention.key_norm.weight", (each,)


def _latent_attention(spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    latent, each = spec.latent, head_width(spec)
    assert latent is not None, "a model without latent attention"
    queries = spec.heads * (each + latent.rope_width)
    if latent.query_rank:
        yield "attention.query_down.weight", (latent.query_rank, spec.width)
        yield "attention.query_norm.weight", (latent.query_rank,)
    yield "attention.query_up.weight", (queries, latent.query_rank or spec.width)
    yield "attention.kv_down.weight", (latent.kv_rank + latent.rope_width, spec.width)
    yield "attention.kv_norm.weight", (latent.kv_rank,)
    yield "attention.kv_up.weight", (spec.heads * (each + latent.value_width), latent.kv_rank)
    yield "attention.output.weight", (spec.width, spec.heads * latent.value_width)


def _feed(name: str, inner: int, spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    if spec.gated:
        yield from _matrix(f"{name}.gate", inner, spec.width, bias=spec.biases)
    yield from _matrix(f"{name}.up", inner, spec.width, bias=spec.biases)
    yield from _matrix(f"{name}.down", spec.width, inner, bias=spec.biases)
