import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from weft.core.seeds import Seed
from weft.specs.job import ExpertsSpec, ModelSpec, RopeScalingSpec
from weft.training.model import Decoder, ExpertBalance, attend_locally, initialise

SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "untied": {"tied": False, "kv_heads": None},
    "biased": {"qkv_bias": True},
    "normed": {"qk_norm": True, "head_width": 12},
    "stretched": {"rope_scaling": RopeScalingSpec(factor=4.0, length=8), "rope_base": 500.0},
    "experts": {"experts": ExpertsSpec(count=4, top_k=2, ffn=12)},
}


def model_of(shape: dict[str, Any], seed: int = 1, noise: float = 0.3) -> Decoder:
    plain = {"layers": 2, "width": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocabulary": 32}
    spec = ModelSpec.model_validate({**plain, **shape})
    model = Decoder(spec)
    initialise(model, Seed(seed))
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # Biases and norms start at 0 and 1; a mistake in them would hide.
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=chance), alpha=noise)
    return model


def tokens_of(seed: int, batch: int, length: int) -> Tensor:
    return torch.randint(32, (batch, length), generator=torch.Generator().manual_seed(seed))


# The decoder once more, one head and one position at a time, straight from the formulas.


def plain_norm(spec: ModelSpec, x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + spec.norm_epsilon).sqrt() * weight


def plain_angle(spec: ModelSpec, plane: int, each: int) -> float:
    angle = 1 / spec.rope_base ** (2 * plane / each)
    if spec.rope_scaling is None:
        return angle
    scaling, turn = spec.rope_scaling, 2 * math.pi / angle
    if turn < scaling.length / scaling.high:
        return angle
    if turn > scaling.length / scaling.low:
        return angle / scaling.factor
    smooth = (scaling.length / turn - scaling.low) / (scaling.high - scaling.low)
    return (1 - smooth) * angle / scaling.factor + smooth * angle


def plain_turn(spec: ModelSpec, head: Tensor, position: int) -> Tensor:
    out, half = head.clone(), len(head) // 2
    for plane in range(half):
        angle = position * plain_angle(spec, plane, len(head))
        a, b = head[plane], head[plane + half]
        out[plane] = a * math.cos(angle) - b * math.sin(angle)
        out[plane + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def plain_attention(spec: ModelSpec, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    each = spec.head_width or spec.width // spec.heads
    share = spec.heads // (spec.kv_heads or spec.heads)
    heads = {}
    for part in ("query", "key", "value"):
        y = (x @ weights[f"{part}.weight"].T + weights.get(f"{part}.bias", 0)).view(len(x), -1, each)
        if part != "value":
            y = plain_norm(spec, y, weights[f"{part}_norm.weight"]) if spec.qk_norm else y
            y = torch.stack([torch.stack([plain_turn(spec, head, n) for head in row]) for n, row in enumerate(y)])
        heads[part] = y if part == "query" else y.repeat_interleave(share, dim=1)
    mixed = torch.zeros(len(x), spec.heads, each)
    for n in range(len(x)):
        for head in range(spec.heads):
            scores = heads["key"][: n + 1, head] @ heads["query"][n, head] / math.sqrt(each)
            mixed[n, head] = scores.softmax(0) @ heads["value"][: n + 1, head]
    return mixed.flatten(1) @ weights["output.weight"].T


def plain_feed(spec: ModelSpec, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    if spec.experts is None:
        gate, up, down = (weights[f"{part}.weight"] for part in ("gate", "up", "down"))
        return down @ (functional.silu(gate @ x) * (up @ x))
    chances = (weights["router.weight"] @ x).softmax(0)
    best = sorted(range(spec.experts.count), key=lambda expert: -float(chances[expert]))[: spec.experts.top_k]
    gate, up, down = (weights[f"experts.{part}"] for part in ("gate", "up", "down"))
    said = [chances[e] * (down[e] @ (functional.silu(gate[e] @ x) * (up[e] @ x))) for e in best]
    return torch.stack(said).sum(0) / chances[best].sum()


def plain_logits(spec: ModelSpec, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    def below(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}

    hidden = weights["embed.weight"][tokens]
    for layer in range(spec.layers):
        block = below(f"layers.{layer}.")
        x = plain_norm(spec, hidden, block["attention_norm.weight"])
        hidden = hidden + plain_attention(spec, below(f"layers.{layer}.attention."), x)
        x = plain_norm(spec, hidden, block["feed_norm.weight"])
        hidden = hidden + torch.stack([plain_feed(spec, below(f"layers.{layer}.feed."), row) for row in x])
    head = weights["embed.weight" if spec.tied else "head.weight"]
    return plain_norm(spec, hidden, weights["norm.weight"]) @ head.T


@pytest.mark.parametrize("shape", SHAPES)
def test_it_computes_what_the_formulas_say(shape: str) -> None:
    model = model_of(SHAPES[shape])
    tokens = tokens_of(3, 2, 7)
    with torch.no_grad():
        logits = model(tokens)
        plain = torch.stack([plain_logits(model.spec, model.state_dict(), row) for row in tokens])
    assert logits.shape == (2, 7, 32)
    torch.testing.assert_close(logits, plain, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_later_token_changes_nothing_before_it(shape: str) -> None:
    model = model_of(SHAPES[shape])
    tokens = tokens_of(4, 1, 9)

    @given(st.integers(0, 8), st.integers(1, 31))
    @settings(max_examples=8, deadline=None)
    def changed(place: int, by: int) -> None:
        other = tokens.clone()
        other[0, place] = (other[0, place] + by) % 32
        with torch.no_grad():
            before, after = model(tokens), model(other)
        torch.testing.assert_close(before[:, :place], after[:, :place], rtol=1e-4, atol=1e-6)
        assert not torch.allclose(before[:, place], after[:, place])

    changed()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_stages_in_a_row_are_the_whole_model(shape: str, cut: int) -> None:
    whole = model_of(SHAPES[shape])
    first = Decoder(whole.spec, layers=range(cut), head=False)
    second = Decoder(whole.spec, layers=range(cut, 2), embed=False)
    state = whole.state_dict()
    for stage in (first, second):
        assert set(stage.state_dict()) <= set(state)
        stage.load_state_dict({name: state[name] for name in stage.state_dict()})
    tokens = tokens_of(5, 2, 6)
    with torch.no_grad():
        assert torch.equal(second(first(tokens)), whole(tokens))


def test_only_distances_between_positions_count() -> None:
    model = model_of({})
    tokens = tokens_of(6, 2, 6)
    with torch.no_grad():
        plain = model(tokens)
        torch.testing.assert_close(model(tokens, 40), plain, rtol=1e-3, atol=1e-4)
        assert torch.equal(model(tokens, 7), model(tokens, torch.arange(7, 13)))
        assert torch.equal(model(tokens, 7), model(tokens, torch.arange(7, 13).expand(2, -1)))
        assert not torch.allclose(model(tokens, torch.arange(6) * 3), plain)


def test_another_attention_can_be_put_in() -> None:
    model = model_of({})
    seen = []

    def spy(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        seen.append((q.shape, k.shape, v.shape, causal))
        return attend_locally(q, k, v, causal)

    tokens = tokens_of(7, 2, 5)
    with torch.no_grad():
        plain = model(tokens)
        model.attend_by(spy)
        assert torch.equal(model(tokens), plain)
    assert seen == [((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), True)] * 2


def test_a_tied_output_is_one_parameter() -> None:
    model = model_of({})
    assert model.head is not None
    assert model.embed is not None
    assert model.head.weight is model.embed.weight
    assert "head.weight" not in dict(model.named_parameters())


def test_two_copies_of_a_tied_matrix_add_up_to_its_gradient() -> None:
    whole = model_of({})
    first = Decoder(whole.spec, layers=[0, 1], head=False)
    second = Decoder(whole.spec, layers=[], embed=False)
    state = whole.state_dict()
    for stage in (first, second):
        stage.load_state_dict({name: state[name] for name in stage.state_dict()})
    tokens = tokens_of(8, 2, 6)
    whole(tokens).square().sum().backward()
    second(first(tokens)).square().sum().backward()
    assert first.embed is not None
    assert second.head is not None
    assert whole.embed is not None
    assert first.embed.weight.grad is not None
    assert second.head.weight.grad is not None
    summed = first.embed.weight.grad + second.head.weight.grad
    torch.testing.assert_close(summed, whole.embed.weight.grad, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_computes_nearly_the_same_in_bf16(shape: str) -> None:
    model = model_of(SHAPES[shape], noise=0.1)
    tokens = tokens_of(9, 1, 6)
    with torch.no_grad():
        exact = model(tokens)
        rough = model.bfloat16()(tokens)
    assert rough.dtype == torch.bfloat16
    # Seven bits of mantissa, through two layers.
    assert (rough - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("shape", ["grouped", "experts"])
def test_it_learns(shape: str) -> None:
    model = model_of(SHAPES[shape], noise=0)
    tokens = torch.arange(24).repeat(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        balance = ExpertBalance(0.01)
        logits = model(tokens[:, :-1], balance=balance)
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) + balance.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(32), abs=0.1)
    assert losses[-1] < losses[0] / 2
