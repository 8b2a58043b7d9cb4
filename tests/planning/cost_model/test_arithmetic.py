from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from weft.core.seeds import Seed
from weft.planning.cost_model.arithmetic import flops_per_token, layer_parameters, parameters
from weft.specs.job import ExpertsSpec, ModelSpec
from weft.training.model import Decoder, initialise


@st.composite
def small_models(draw: st.DrawFn) -> ModelSpec:
    groups = draw(st.integers(1, 3))
    heads = groups * draw(st.integers(1, 3))
    each = 2 * draw(st.integers(1, 4))
    count = draw(st.integers(2, 5))
    experts = ExpertsSpec(count=count, top_k=draw(st.integers(1, count)), ffn=draw(st.integers(1, 9)))
    return ModelSpec(
        layers=draw(st.integers(1, 3)),
        width=draw(st.integers(1, 24)),
        heads=heads,
        kv_heads=groups,
        head_width=each,
        ffn=draw(st.integers(1, 24)),
        vocabulary=draw(st.integers(2, 40)),
        tied=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        experts=draw(st.sampled_from([None, experts])),
    )


@given(small_models())
@settings(max_examples=40, deadline=None)
def test_parameters_are_those_of_the_real_module(spec: ModelSpec) -> None:
    with torch.device("meta"):
        model = Decoder(spec)
    assert parameters(spec).total == sum(parameter.numel() for parameter in model.parameters())
    assert layer_parameters(spec) == sum(parameter.numel() for parameter in model.layers["0"].parameters())


@given(small_models(), st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_operations_are_those_that_torch_counts(spec: ModelSpec, length: int) -> None:
    torch.set_num_threads(1)
    model = Decoder(spec)
    initialise(model, Seed(0))
    tokens = torch.zeros(2, length, dtype=torch.int64)
    # Torch's counter does not know the fused CPU kernel; the plain one does the same products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = model(tokens)
        forward = counter.get_total_flops()
        logits.sum().backward()
    counted = flops_per_token(spec, length)
    assert forward == counted.forward * tokens.numel()
    assert counter.get_total_flops() == counted.total * tokens.numel()


@pytest.mark.parametrize(("shape", "billions"), [
    # Llama 3.1 405B: arXiv 2407.21783, table 3; Mixtral 8x7B, total and active: arXiv 2401.04088, section 1.
    ({"layers": 126, "width": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248, "vocabulary": 128256}, (405, 405)),
    ({"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocabulary": 32000,
      "experts": ExpertsSpec(count=8, top_k=2, ffn=14336)}, (47, 13)),
])  # fmt: skip
def test_published_models_have_their_published_size(shape: dict[str, Any], billions: tuple[int, int]) -> None:
    counted = parameters(ModelSpec(tied=False, **shape))
    rounded = (round(counted.total / 1e9), round(counted.active / 1e9))
    assert rounded[0] in (billions[0], billions[0] + 1)
    assert rounded[1] in (billions[1], billions[1] + 1)


def test_llama_405b_costs_six_operations_a_parameter_and_token() -> None:
    spec = ModelSpec(layers=126, width=16384, heads=128, kv_heads=8, ffn=53248, vocabulary=128256, tied=False)
    matrices = parameters(spec).total - parameters(spec).embedding - parameters(spec).norms
    assert flops_per_token(spec, 0).total == 6 * matrices


def test_causal_attention_is_about_half() -> None:
    spec = ModelSpec(layers=2, width=16, heads=2, ffn=8, vocabulary=8)
    none, half, whole = (
        flops_per_token(spec, length, causal=causal).forward for length, causal in ((0, False), (9, True), (9, False))
    )
    assert (whole - none) * 10 == (half - none) * 18
