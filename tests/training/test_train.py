import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.ranks import MIXTURE, job_of, trained

from weft.core.errors import FailedError, UsageError
from weft.training.metrics.step_line import from_bits
from weft.training.parallel.apply import check_compiler
from weft.training.run_dir import RunRecord

RELATIVE = 1e-5
"""Tolerance of fp32 sums in another order, over five steps."""


def losses(folder: Path, plan: dict[str, Any], **changes: Any) -> list[float]:
    _, bits = trained(job_of(folder, plan, **changes), folder)
    return [from_bits(one) for one in bits]


def test_two_and_three_ranks_train_the_same_bits_as_one(tmp_path: Path):
    alone = trained(job_of(tmp_path, steps=3), tmp_path)
    for ranks in (2, 3):
        result, bits = trained(job_of(tmp_path, {"dp": ranks}, steps=3), tmp_path)
        assert bits == alone[1]
        assert result["weights_digest"] == alone[0]["weights_digest"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        {"dp": 4},
        {"dp": 4, "recompute": "full"},
        {"dp": 2, "shard": 2},
        {"dp": 4, "shard": 4},
        {"dp": 4, "shard": 2},
        {"dp": 2, "recompute": "selective"},
    ],
    ids=str,
)
def test_the_data_axis_never_changes_a_bit(tmp_path: Path, plan: dict[str, Any]):
    alone = trained(job_of(tmp_path), tmp_path)
    spread = trained(job_of(tmp_path, plan), tmp_path)
    assert spread[1] == alone[1]
    assert spread[0]["weights_digest"] == alone[0]["weights_digest"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "more", "changes"),
    [
        ({"pp": 2}, {"dp": 2}, {}),
        ({"pp": 2}, {"dp": 3}, {}),
        ({"pp": 2}, {"dp": 2, "shard": 2}, {}),
        ({"pp": 2}, {"dp": 4, "shard": 2, "schedule": "interleaved"}, {}),
        ({"pp": 2}, {"schedule": "gpipe"}, {}),
        ({"pp": 2}, {"schedule": "interleaved", "dp": 2}, {}),
        ({"pp": 2}, {"schedule": "looped-bfs"}, {}),
        ({"pp": 2}, {"schedule": "zero-bubble"}, {}),
        ({"pp": 2}, {"schedule": "zbv"}, {}),
        ({"pp": 2}, {"schedule": "dualpipev"}, {}),
        ({"tp": 2}, {"dp": 2}, {}),
        ({"tp": 2}, {"dp": 2, "shard": 2}, {}),
        ({"cp": 2}, {"dp": 2}, {}),
        ({"cp": 2}, {"dp": 2, "shard": 2}, {}),
        ({"cp": 2}, {"dp": 4, "shard": 2}, {}),
        ({"ep": 2, "dp": 2}, {"dp": 4}, {"model": MIXTURE}),
        ({"precision": "bf16"}, {"dp": 3}, {}),
        ({}, {"dp": 3}, {"model": MIXTURE}),
    ],
    ids=str,
)
def test_for_one_model_split_no_number_of_replicas_and_no_schedule_changes_a_bit(
    tmp_path: Path, split: dict[str, Any], more: dict[str, Any], changes: dict[str, Any]
):
    first = trained(job_of(tmp_path, split, steps=3, **changes), tmp_path)
    second = trained(job_of(tmp_path, split | more, steps=3, **changes), tmp_path)
    assert second[1] == first[1]
    assert second[0]["weights_digest"] == first[0]["weights_digest"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        ({"dp": 3, "exact": False}, {}),
        ({"tp": 2}, {}),
        ({"pp": 2}, {}),
        ({"pp": 4}, {"batch": {"sequences": 8, "micro": 2, "length": 32}}),
        ({"cp": 2}, {}),
        ({"cp": 4}, {}),
        ({"dp": 2, "tp": 2}, {}),
        ({"dp": 2, "pp": 2}, {}),
        ({"pp": 2, "tp": 2}, {}),
        ({"pp": 2, "cp": 2}, {}),
        ({"cp": 2, "tp": 2}, {}),
        ({"dp": 2, "cp": 2}, {}),
        ({"dp": 2, "shard": 2, "exact": False}, {}),
        ({"dp": 4, "shard": 2, "exact": False}, {}),
        ({"dp": 2, "shard": 2, "tp": 2}, {}),
        ({"dp": 2, "shard": 2, "pp": 2, "exact": False}, {}),
        ({"dp": 2, "pp": 2, "tp": 2}, {}),
        ({"dp": 2, "ep": 2}, {"model": MIXTURE}),
        ({"tp": 2}, {"model": MIXTURE}),
        ({"cp": 2}, {"model": MIXTURE}),
        ({"dp": 2, "ep": 2, "tp": 2}, {"model": MIXTURE}),
        ({"dp": 2, "ep": 2, "cp": 2}, {"model": MIXTURE}),
        ({"dp": 2, "ep": 2, "pp": 2}, {"model": MIXTURE}),
        ({"tp": 2}, {"model": {"qk_norm": True, "qkv_bias": True, "tied": False}}),
        ({"dp": 2, "pp": 2}, {"model": {"tied": False}}),
    ],
    ids=str,
)
def test_every_combination_learns_what_one_process_learns(
    tmp_path: Path, plan: dict[str, Any], changes: dict[str, Any]
):
    assert losses(tmp_path, plan, **changes) == pytest.approx(losses(tmp_path, {}, **changes), rel=RELATIVE)


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    check_compiler(torch.device("cuda"))
    with pytest.raises(UsageError, match="no no-such-compiler; install it"):
        check_compiler(torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for processors with it")
@pytest.mark.parametrize("plan", [{"tp": 2}, {"pp": 2, "tp": 2}, {"dp": 2, "shard": 2}], ids=str)
def test_compiled_blocks_learn_what_others_do(tmp_path: Path, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    plain = losses(tmp_path, plan, steps=3)
    for cache in ("cold", "warm"):
        compiled = losses(tmp_path, plan | {"compile": True}, steps=3)
        assert compiled == pytest.approx(plain, rel=RELATIVE), cache


@pytest.mark.slow
@pytest.mark.parametrize(("after", "ranks"), [(1, 2), (2, 3), (3, 1), (4, 4)])
def test_killed_between_two_steps_and_resumed_on_other_ranks_gives_the_same_bits(
    tmp_path: Path, after: int, ranks: int
):
    whole, bits = trained(job_of(tmp_path, {"dp": 2}), tmp_path / "whole")
    often = {"every": 1, "keep": 2}
    dying = job_of(tmp_path, {"dp": 2}, checkpoint=often)
    with pytest.raises(FailedError, match="SIGKILL"):
        trained(dying, tmp_path / "cut", target="tests.training.ranks:train_and_die", after=after)
    result, _ = trained(job_of(tmp_path, {"dp": ranks}, checkpoint=often), tmp_path / "cut", resume=True)
    assert result["weights_digest"] == whole["weights_digest"]
    record = RunRecord(tmp_path / "cut" / "toy-1")
    assert [line["loss_bits"] for line in record.steps()] == bits
    assert [line["step"] for line in record.steps()] == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{"dp": 2, "pp": 2}, {"dp": 2, "shard": 2}, {"tp": 2}, {"dp": 2, "ep": 2}], ids=str)
def test_every_form_resumes_exactly(tmp_path: Path, plan: dict[str, Any]):
    changes = {"model": MIXTURE} if "ep" in plan else {}
    whole, _ = trained(job_of(tmp_path, plan, **changes), tmp_path / "whole")
    with pytest.raises(FailedError, match="SIGKILL"):
        trained(
            job_of(tmp_path, plan, checkpoint={"every": 2}, **changes), tmp_path / "cut",
            target="tests.training.ranks:train_and_die", after=3,
        )  # fmt: skip
    resumed, _ = trained(job_of(tmp_path, plan, **changes), tmp_path / "cut", resume=True)
    assert resumed["weights_digest"] == whole["weights_digest"]


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{"dp": 2}, {"dp": 2, "pp": 2, "schedule": "gpipe"}], ids=str)
def test_work_moves_away_from_a_slow_replica_and_the_bits_stay(tmp_path: Path, plan: dict[str, Any]):
    even, bits = trained(job_of(tmp_path, plan, steps=12), tmp_path / "even")
    slow, slowed = trained(
        job_of(tmp_path, plan, steps=12), tmp_path / "slow", target="tests.training.ranks:train_slowly"
    )
    assert slow["moved"]
    assert slowed == bits
    assert slow["weights_digest"] == even["weights_digest"]


def test_every_second_is_in_one_class_and_the_result_says_what_was_done(tmp_path: Path):
    job = job_of(tmp_path, steps=2, evaluation={"every": 1, "sequences": 2})
    result, _ = trained(job, tmp_path)
    assert {
        "run",
        "steps",
        "final_loss",
        "weights_digest",
        "mfu",
        "tokens_per_s",
        "seconds",
        "energy_j",
        "eval",
    } <= set(result)
    assert result["steps"] == 2
    assert [line["step"] for line in result["eval"]] == [1, 2]
    assert set(result["seconds"]) <= {
        "start_up", "compute", "exposed_communication", "bubble", "input", "checkpoint", "evaluation", "idle",
    }  # fmt: skip
    lines = RunRecord(tmp_path / "toy-1").steps()
    assert sum(sum(line["seconds"].values()) for line in lines) <= sum(result["seconds"].values())


def test_a_run_folder_of_another_job_is_refused(tmp_path: Path):
    trained(job_of(tmp_path, steps=1), tmp_path)
    with pytest.raises(UsageError, match="run folder of another job: seed"):
        trained(job_of(tmp_path, steps=1, seed=7), tmp_path, resume=True)


def test_an_empty_corpus_is_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty"):
        trained(job_of(tmp_path, data={"corpus": str(tmp_path / "empty")}), tmp_path)
    assert not list(tmp_path.glob("toy-*"))
