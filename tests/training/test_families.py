"""Kinds of decoders beside Llama's, trained: the same bits on every number of replicas, and after a resume."""

from pathlib import Path
from typing import Any

import pytest
from tests.training.ranks import job_of, trained

from weft.core.errors import UsageError

GPT2 = {
    "kv_heads": 4, "norm": "layer", "biases": True, "gated": False, "activation": "gelu_tanh",
    "learned_positions": 32, "dropout": 0.1,
}  # fmt: skip
DEEPSEEK = {
    "kv_heads": 4, "head_width": 6,
    "latent": {"kv_rank": 12, "query_rank": 10, "rope_width": 4, "value_width": 5},
    "experts": {"count": 4, "top_k": 2, "ffn": 16, "shared": 16, "dense_layers": 1, "scoring": "sigmoid",
                "correction": True, "scale": 2.5, "groups": 2, "nodes": 1},
}  # fmt: skip
WINDOW = {"window": 8, "window_from": 2}
OPTIMIZERS: list[dict[str, Any]] = [
    {"kind": "muon", "schedule": "constant", "learning_rate": 1e-2},
    {"state": "bf16", "schedule": "constant", "learning_rate": 1e-2},
    {"kind": "muon", "state": "bf16", "schedule": "constant"},
]
CONSTANT = {"learning_rate": 1e-2, "schedule": "constant"}
KINDS = {"gpt2": GPT2, "deepseek": DEEPSEEK, "window": WINDOW}


def same(folder: Path, model: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> None:
    first = trained(job_of(folder, one, steps=3, model=model), folder)
    second = trained(job_of(folder, other, steps=3, model=model), folder)
    assert first[1] == second[1]
    assert first[0]["weights_digest"] == second[0]["weights_digest"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_the_same_bits_as_one(kind: str, tmp_path: Path) -> None:
    same(tmp_path, KINDS[kind], {}, {"dp": 2})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("gpt2", {}, {"dp": 2, "shard": 2}),
        ("deepseek", {}, {"dp": 2, "shard": 2}),
        ("deepseek", {"pp": 2}, {"pp": 2, "dp": 2}),
        ("deepseek", {"pp": 2}, {"pp": 2, "schedule": "interleaved"}),
        ("deepseek", {"dp": 2, "ep": 2}, {"dp": 4, "ep": 2}),
        ("deepseek", {"recompute": "full"}, {"dp": 2}),
        ("window", {"pp": 2}, {"pp": 2, "dp": 2}),
        ("window", {}, {"dp": 2, "recompute": "selective"}),
    ],
    ids=str,
)
def test_no_replicas_shards_or_schedule_change_a_bit(
    kind: str, one: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    same(tmp_path, KINDS[kind], one, other)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_every_optimizer_takes_the_same_bits_on_two_ranks_and_after_a_resume(
    optimizer: dict[str, Any], tmp_path: Path
) -> None:
    more: dict[str, Any] = {"optimizer": optimizer, "checkpoint": {"every": 2}}
    whole = trained(job_of(tmp_path, steps=4, **more), tmp_path)
    plain = trained(job_of(tmp_path, steps=4), tmp_path)
    assert whole[1][1:] != plain[1][1:]
    trained(job_of(tmp_path, steps=2, **more), tmp_path / "again")
    rest = trained(job_of(tmp_path, {"dp": 2}, steps=4, **more), tmp_path / "again", resume=True)
    assert rest[1] == whole[1][2:]
    assert rest[0]["weights_digest"] == whole[0]["weights_digest"]


@pytest.mark.slow
def test_moments_in_bf16_are_sharded_with_the_same_bits(tmp_path: Path) -> None:
    more = {"optimizer": {"state": "bf16", "schedule": "constant"}}
    one = trained(job_of(tmp_path, steps=3, **more), tmp_path)
    two = trained(job_of(tmp_path, {"dp": 2, "shard": 2}, steps=3, **more), tmp_path)
    assert (two[1], two[0]["weights_digest"]) == (one[1], one[0]["weights_digest"])


def test_muon_refuses_matrices_that_are_cut(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Muon turns whole matrices"):
        trained(job_of(tmp_path, {"dp": 2, "shard": 2}, steps=1, optimizer={"kind": "muon"}), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_on_another_number_of_ranks_is_exact(kind: str, tmp_path: Path) -> None:
    whole = trained(job_of(tmp_path, steps=4, model=KINDS[kind], checkpoint={"every": 2}, optimizer=CONSTANT), tmp_path)
    job = job_of(tmp_path, steps=2, model=KINDS[kind], checkpoint={"every": 2}, optimizer=CONSTANT)
    trained(job, tmp_path / "again")
    longer = job_of(tmp_path, {"dp": 2}, steps=4, model=KINDS[kind], checkpoint={"every": 2}, optimizer=CONSTANT)
    rest = trained(longer, tmp_path / "again", resume=True)
    assert rest[1] == whole[1][2:]
    assert rest[0]["weights_digest"] == whole[0]["weights_digest"]
