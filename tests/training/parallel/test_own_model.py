from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training import own_models
from tests.training.ranks import job_of, trained

from weft.core import plugins
from weft.core.errors import UsageError
from weft.specs.job import PlanSpec
from weft.training.parallel.mesh import Layout, Mesh
from weft.training.parallel.own_model import GROUP, OwnModel, check_axes, find_build, parallelize_own
from weft.training.run_dir import RunRecord

MIXER = "tests.training.own_models:mixer"


def rank_of(folder: Path, plan: dict[str, Any] | None = None, rank: int = 0) -> SimpleNamespace:
    """Return a rank that stands on a mesh without any process group."""
    job = job_of(folder, plan)
    assert job.plan != "auto"
    return SimpleNamespace(job=job, mesh=Mesh(Layout(job.plan), rank), device=torch.device("cpu"))


def own(folder: Path, plan: dict[str, Any], **changes: Any) -> tuple[dict[str, Any], list[str]]:
    """Train the mixer by `weft train`'s loop under `plan`."""
    resume = changes.pop("resume", False)
    name = changes.pop("model_name", MIXER)
    return trained(job_of(folder, plan, **changes), folder / "runs", resume=resume, model=name)


def test_replicas_sharding_and_pipelines_of_an_own_model_give_the_bits_of_one_rank(tmp_path: Path):
    alone, losses = own(tmp_path, {}, steps=3)
    assert len(losses) == 3
    for plan in ({"dp": 2}, {"dp": 2, "shard": 2}, {"pp": 2, "schedule": "1f1b"}):
        result, bits = own(tmp_path, plan, steps=3)
        assert bits == losses, plan
        assert result["weights_digest"] == alone["weights_digest"], plan


def test_tensor_parallelism_of_an_own_model_trains_nearly_the_same(tmp_path: Path):
    alone, _ = own(tmp_path, {}, steps=3)
    result, _ = own(tmp_path, {"tp": 2}, steps=3)
    assert result["final_loss"] == pytest.approx(alone["final_loss"], rel=1e-4)


def test_an_own_model_that_is_resumed_under_another_width_gives_the_same_bits(tmp_path: Path):
    for name in "ab":
        (tmp_path / name).mkdir()
    whole, losses = own(tmp_path / "a", {"dp": 2}, steps=4)
    schedule = {"learning_rate": 1e-2, "warmup": 2, "horizon": 4}
    _, first = own(tmp_path / "b", {"dp": 2}, steps=2, optimizer=schedule)
    result, second = own(tmp_path / "b", {"dp": 1}, steps=4, resume=True)
    assert first + second == losses
    assert result["weights_digest"] == whole["weights_digest"]
    record = RunRecord(tmp_path / "b" / "runs" / "toy-1")
    _, manifest = record.checkpoints()[0]
    assert "buffers.seen" in manifest.tensors


def test_a_loss_and_flops_of_its_own_are_used(tmp_path: Path):
    rank = rank_of(tmp_path)
    model = parallelize_own(rank, "tests.training.own_models:plain")
    tokens = torch.arange(33)[None]
    logits = model.stages[0](tokens[:, :-1])
    expected = 2 * torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert torch.equal(model.loss(tokens), expected)
    assert model.flops_per_token() == 1e6


def test_the_default_loss_is_the_mean_cross_entropy(tmp_path: Path):
    rank = rank_of(tmp_path)
    model = parallelize_own(rank, MIXER)
    tokens = torch.arange(66).view(2, 33)
    logits = model.stages[0](tokens[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert torch.equal(model.loss(tokens), expected)
    assert model.flops_per_token() is None


def test_every_rank_builds_the_same_weights(tmp_path: Path):
    torch.manual_seed(99)
    first = parallelize_own(rank_of(tmp_path), MIXER)
    torch.manual_seed(7)
    second = parallelize_own(rank_of(tmp_path, {"dp": 2}, rank=1), MIXER)
    for (name, left), (same, right) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert name == same
        assert torch.equal(left, right)


def test_names_of_an_own_model_are_left_as_they_are(tmp_path: Path):
    module = torch.nn.ModuleDict({"module": torch.nn.Linear(2, 2)})
    model = OwnModel.replicated(rank_of(tmp_path), module)
    assert [name for name, _ in model.named_parameters()] == ["module.weight", "module.bias"]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("no.such.package:build", "cannot be found"),
        ("tests.training.own_models:missing", "cannot be found"),
        (":build", "cannot be found"),
        ("tests.training.own_models:NOTHING", "is no function"),
        ("nobody-installed-this", "no model is called"),
    ],
)
def test_a_model_that_is_not_there_is_refused(reference: str, words: str):
    with pytest.raises(UsageError, match=words) as caught:
        find_build(reference)
    assert caught.value.exit_status == 2


def test_an_entry_point_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, str]] = []

    def entry_point(group: str, name: str) -> object:
        asked.append((group, name))
        return own_models.mixer

    monkeypatch.setattr(plugins, "entry_point", entry_point)
    assert find_build("mixer") is own_models.mixer
    assert asked == [(GROUP, "mixer")]


def test_a_model_beside_the_caller_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "beside_the_caller.py").write_text("def build(job):\n    return job\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_build("beside_the_caller:build")(3) == 3  # pyrefly: ignore


@pytest.mark.parametrize(
    ("name", "plan", "words"),
    [
        ("number", {}, "gave a int; it must return an nn.Module"),
        ("boastful", {"tp": 2}, "names tp in parallel_axes but has no parallelize"),
        ("plain", {"tp": 2}, "does not offer tp"),
        ("plain", {"pp": 2, "schedule": "1f1b"}, "does not offer pp"),
        ("stageless", {"pp": 2, "schedule": "1f1b"}, "gave 0 pipeline stages for rank 0"),
        ("mixer", {"cp": 2}, "cp = 2, which only the built-in model has"),
    ],
)
def test_what_a_plan_asks_for_and_a_model_lacks_is_refused(tmp_path: Path, name: str, plan: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words) as caught:
        parallelize_own(rank_of(tmp_path, plan), f"tests.training.own_models:{name}")
    assert caught.value.exit_status == 2


@given(
    st.sets(st.sampled_from(["tp", "pp"])), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)
)
def test_a_plan_is_refused_exactly_where_an_axis_is_not_offered(offered: set[str], tp: int, pp: int, cp: int, ep: int):
    plan = PlanSpec(tp=tp, pp=pp, cp=cp, ep=ep, dp=ep)
    lacking = cp > 1 or ep > 1 or (tp > 1 and "tp" not in offered) or (pp > 1 and "pp" not in offered)
    try:
        check_axes("mine", plan, sorted(offered))
    except UsageError:
        assert lacking
    else:
        assert not lacking


def test_pipeline_stages_keep_the_names_of_the_whole_model(tmp_path: Path):
    plan = {"pp": 2, "schedule": "1f1b"}
    whole = {name for name, _ in parallelize_own(rank_of(tmp_path), MIXER).named_parameters()}
    stages = [parallelize_own(rank_of(tmp_path, plan, rank), MIXER) for rank in range(2)]
    names = [{name for name, _ in stage.named_parameters()} for stage in stages]
    assert names[0] | names[1] == whole
    assert not names[0] & names[1]
    assert [stage.numbers for stage in stages] == [(0,), (1,)]
