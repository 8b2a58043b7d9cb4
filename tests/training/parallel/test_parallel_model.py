from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.meshes import mesh_of
from tests.training.ranks import job_of
from torch import Tensor, nn

from weft.specs.job import JobSpec
from weft.training.model import Decoder
from weft.training.parallel.apply import ParallelDecoder
from weft.training.parallel.own_model import OwnModel
from weft.training.parallel.parallel_model import ParallelModel, keep_hooked, low_precision
from weft.training.parallel.reducer import Family
from weft.training.parallel.sharding import blocks_of


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    return job_of(tmp_path_factory.mktemp("job"), model={"tied": True})


def decoder_of(job: JobSpec, rank: int = 0, **plan: Any) -> ParallelDecoder:
    """Return the decoder of `rank`, cut into `pp` stages of equal length."""
    mesh = mesh_of(rank, **plan)
    pp = mesh.plan.pp
    number = mesh.place.pp
    each = job.model.layers // pp
    layers = range(number * each, (number + 1) * each)
    stage = Decoder(job.model, layers=layers, embed=number == 0, head=number == pp - 1)
    return ParallelDecoder(job, mesh, torch.device("cpu"), [stage], (number,))


def holds(family: Family, parameter: Tensor) -> bool:
    return any(one is parameter for one in family.parameters)


def test_a_tied_matrix_of_one_stage_counts_once(job: JobSpec):
    model = decoder_of(job)
    assert model.tied() == []
    assert all(model.first_copy(parameter) for parameter in model.parameters())
    (family,) = model.families()
    assert len(family.parameters) == len(list(model.parameters()))


def test_the_second_copy_of_a_tied_matrix_counts_nowhere(job: JobSpec):
    first, last = (decoder_of(job, rank, pp=2, schedule="gpipe") for rank in range(2))
    (embedding,), (head,) = first.tied(), last.tied()
    assert isinstance(embedding, nn.Parameter)
    assert isinstance(head, nn.Parameter)
    assert first.first_copy(embedding)
    assert not last.first_copy(head)
    assert [family.counted for family in last.families() if holds(family, head)] == [False]
    assert [family.parameters for family in first.families() if holds(family, embedding)] == [(embedding,)]
    names = [name for name, _ in last.named_parameters()]
    assert "embed.weight" in names
    assert "head.weight" not in names


def test_gradients_of_both_ends_on_one_rank_are_added_embedding_first(job: JobSpec):
    mesh = mesh_of(pp=2, schedule="zbv")
    stages = [
        Decoder(job.model, layers=[0], embed=True, head=False), Decoder(job.model, layers=[3], embed=False, head=True),
    ]  # fmt: skip
    model = ParallelDecoder(job, mesh, torch.device("cpu"), stages, (0, 3))
    embedding, head = model.tied()
    embedding.grad, head.grad = torch.full_like(embedding, 1.5), torch.full_like(head, 0.25)
    model.join_ends()
    assert torch.equal(embedding.grad, torch.full_like(embedding, 1.75))
    assert torch.equal(head.grad, embedding.grad)
    assert isinstance(head, nn.Parameter)
    assert not model.first_copy(head)


@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 1))
def test_of_all_replicas_one_stands_for_a_whole_parameter(dp: int, cp: int, tp: int):
    sizes = {"dp": dp, "cp": cp, "tp": tp + 1}
    module = nn.Linear(2, 2)
    stands = 0
    for rank in range(dp * cp * (tp + 1)):
        model = OwnModel(JOB, mesh_of(rank, **sizes), torch.device("cpu"), [module], (0,))
        stands += model.first_copy(next(module.parameters()))
    assert stands == 1


JOB = JobSpec.model_validate(
    {
        "name": "x", "steps": 1, "model": {"layers": 2, "width": 8, "heads": 2, "ffn": 8},
        "batch": {"sequences": 2, "micro": 1, "length": 8}, "plan": {},
    }
)  # fmt: skip


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(2, 2)
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.more = nn.ModuleDict({"a": nn.Linear(2, 2)})


def test_blocks_are_what_lists_and_dictionaries_hold():
    module = Two()
    assert blocks_of(module) == [module.layers[0], module.layers[1], module.more["a"]]
    assert blocks_of(nn.Linear(2, 2)) == []


def test_a_parameter_that_does_not_train_is_in_no_family():
    module = Two()
    module.front.weight.requires_grad = False
    model = OwnModel(JOB, mesh_of(), torch.device("cpu"), [module], (0,), whole=module)
    (family,) = model.families()
    assert not holds(family, module.front.weight)
    assert len(family.parameters) == 7


def test_modules_modes_and_buffers_reach_every_stage():
    stages = [nn.BatchNorm1d(2), nn.Dropout()]
    model = OwnModel(JOB, mesh_of(), torch.device("cpu"), stages, (0, 1))
    assert list(model.modules()) == stages
    model.eval()
    assert not any(stage.training for stage in stages)
    assert sorted(model.buffers()) == ["num_batches_tracked", "running_mean", "running_var"]


def test_inputs_and_targets_are_one_token_apart():
    model = OwnModel(JOB, mesh_of(), torch.device("cpu"), [], (0,))
    inputs, targets = model.split(torch.arange(9)[None])
    assert inputs.tolist() == [list(range(8))]
    assert targets.tolist() == [list(range(1, 9))]
    assert inputs.is_contiguous()
    assert targets.is_contiguous()


def test_what_a_model_leaves_out_is_asked_for():
    with pytest.raises(TypeError, match="abstract"):
        ParallelModel(JOB, mesh_of(), torch.device("cpu"), [], (0,))  # pyrefly: ignore
    model = OwnModel(JOB, mesh_of(), torch.device("cpu"), [], (0,))
    assert model.flops_per_token() is None
    assert model.buffers() == {}
    assert model.tied() == []


@pytest.mark.parametrize(("precision", "kind"), [("bf16", torch.bfloat16), ("fp32", None)])
def test_matrices_have_the_plans_precision(precision: str, kind: torch.dtype | None):
    assert low_precision(mesh_of(precision=precision)) is kind


def test_only_views_under_sharding_are_copied():
    base = torch.ones(4)
    view = base[:2]
    assert keep_hooked(view, mesh_of()) is view
    copied = keep_hooked(view, mesh_of(dp=2, shard=2))
    assert copied is not view
    assert torch.equal(copied, view)
    assert keep_hooked(base, mesh_of(dp=2, shard=2)) is base


def test_held_out_losses_are_those_of_single_batches(tmp_path: Path):
    module = nn.Embedding(256, 256)
    model = OwnModel(job_of(tmp_path), mesh_of(), torch.device("cpu"), [module], (0,), whole=module)
    batches = [torch.randint(256, (1, 9), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    with torch.no_grad():
        found = model.held_out(batches)
    assert found == [float(model.loss(batch).detach()) for batch in batches]


class Recorder:
    def __init__(self, batches: list[Tensor]) -> None:
        self.batches, self.added = batches, []

    def micro_batches(self):
        yield from self.batches

    def add(self, loss: Tensor) -> None:
        self.added.append(float(loss.detach()))


def test_without_a_pipeline_each_micro_batch_is_run_and_added_in_turn(tmp_path: Path):
    module = nn.Embedding(256, 256)
    model = OwnModel(job_of(tmp_path), mesh_of(), torch.device("cpu"), [module], (0,), whole=module)
    step = Recorder([torch.arange(9)[None], torch.arange(9, 18)[None]])
    model.forward_backward(step)  # pyrefly: ignore
    assert step.added == [float(model.loss(batch).detach()) for batch in step.batches]
    assert module.weight.grad is not None
