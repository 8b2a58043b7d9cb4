import math
from collections.abc import Iterator

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.core.seeds import Seed
from weft.planning.cost_model.parameter_shapes import shapes
from weft.specs.job import ExpertsSpec, ModelSpec
from weft.training.model import Decoder, canonical, full_tensor_of, initialise

DENSE = ModelSpec(layers=4, width=16, heads=4, kv_heads=2, ffn=24, vocabulary=32, qkv_bias=True, qk_norm=True)
SPARSE = ModelSpec(
    layers=2, width=16, heads=4, ffn=24, vocabulary=32, tied=False, experts=ExpertsSpec(count=6, top_k=2, ffn=8)
)


@pytest.mark.parametrize("spec", [DENSE, SPARSE])
def test_names_and_shapes_are_those_of_the_module(spec: ModelSpec) -> None:
    with torch.device("meta"):
        model = Decoder(spec)
    assert [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()] == list(
        shapes(spec).items()
    )


@pytest.mark.parametrize("spec", [DENSE, SPARSE])
@pytest.mark.parametrize("seed", [Seed(0), Seed(7).branch("again")])
def test_every_part_starts_from_the_bits_of_the_whole(spec: ModelSpec, seed: Seed) -> None:
    whole = Decoder(spec)
    initialise(whole, seed)
    state = whole.state_dict()
    stages = [
        Decoder(spec, layers=[0], head=False),
        Decoder(spec, layers=range(1, spec.layers), embed=False, head=False),
        Decoder(spec, layers=[], embed=False),
    ]
    seen = set()
    for stage in stages:
        initialise(stage, seed)
        for name, parameter in stage.named_parameters():
            assert torch.equal(parameter, state[name])
            assert torch.equal(parameter, full_tensor_of(name, spec, seed))
            seen.add(name)
    assert seen == set(state)


def test_another_seed_and_another_name_give_other_weights() -> None:
    one = full_tensor_of("layers.0.attention.query.weight", DENSE, Seed(1))
    assert not torch.equal(one, full_tensor_of("layers.0.attention.query.weight", DENSE, Seed(2)))
    assert not torch.equal(one, full_tensor_of("layers.1.attention.query.weight", DENSE, Seed(1)))
    # Seeds that differ only above 32 bits are different seeds too.
    assert not torch.equal(one, full_tensor_of("layers.0.attention.query.weight", DENSE, Seed(1 + 2**40)))


def test_no_two_experts_start_alike() -> None:
    stacked = full_tensor_of("layers.0.feed.experts.gate", SPARSE, Seed(1))
    assert len({expert.numpy().tobytes() for expert in stacked}) == 6


def test_deviations_norms_and_biases() -> None:
    spec = DENSE.model_copy(update={"width": 256, "ffn": 512, "head_width": 64})
    plain = full_tensor_of("layers.0.feed.up.weight", spec, Seed(3))
    scaled = full_tensor_of("layers.0.feed.down.weight", spec, Seed(3))
    assert plain.std().item() == pytest.approx(0.02, rel=0.02)
    assert scaled.std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.02)
    assert abs(plain.mean().item()) < 2e-4
    wider = full_tensor_of("layers.0.feed.up.weight", spec.model_copy(update={"deviation": 0.1}), Seed(3))
    assert wider.std().item() == pytest.approx(0.1, rel=0.02)
    assert torch.equal(full_tensor_of("norm.weight", spec, Seed(3)), torch.ones(256))
    assert torch.equal(full_tensor_of("layers.1.attention.key.bias", spec, Seed(3)), torch.zeros(128))


def test_wrappers_and_ties_do_not_change_a_name() -> None:
    assert canonical("_orig_mod.layers.0._checkpoint_wrapped_module.feed.up.weight", DENSE) == "layers.0.feed.up.weight"
    assert canonical("head.weight", DENSE) == "embed.weight"
    assert canonical("head.weight", SPARSE) == "head.weight"


@pytest.fixture
def third_of_four() -> Iterator[DeviceMesh]:
    distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield init_device_mesh("cpu", (4,))
    distributed.destroy_process_group()


def test_a_shard_starts_from_its_part_of_the_whole(third_of_four: DeviceMesh) -> None:
    model = Decoder(DENSE)
    up = model.layers["1"].get_submodule("feed.up")
    empty = torch.zeros(24, 16)
    up.register_parameter(
        "weight", torch.nn.Parameter(distribute_tensor(empty, third_of_four, [Shard(0)], src_data_rank=None))
    )
    initialise(model, Seed(4))
    whole = full_tensor_of("layers.1.feed.up.weight", DENSE, Seed(4))
    weight = up.get_parameter("weight")
    assert isinstance(weight, DTensor)
    assert torch.equal(weight.to_local(), whole[12:18])
