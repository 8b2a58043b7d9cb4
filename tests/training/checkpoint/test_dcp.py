import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from weft.training.checkpoint.dcp import (
    Failure,
    RankGroup,
    ShardError,
    Staging,
    all_fine,
    attempt,
    fine,
    plain,
    read,
    reason_of,
    write,
)


def test_an_answer_comes_through_and_a_failure_is_words():
    assert attempt(lambda: 3) == 3
    assert attempt(lambda: int("x")) == Failure("ValueError: invalid literal for int() with base 10: 'x'")

    def shards() -> None:
        raise ShardError("rank 1 has no disk")

    assert attempt(shards) == Failure("rank 1 has no disk")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the disk is read-only"),
        (errno.EFBIG, "a file would be larger than is allowed here"),
        (errno.EACCES, "Permission denied (/x)"),
    ],
)
def test_the_operating_systems_reason_is_found_below_others(number: int, words: str):
    outer = RuntimeError("the writer failed")
    outer.__cause__ = OSError(number, os.strerror(number), "/x")
    assert reason_of(outer).startswith(words)


def test_an_error_without_words_is_named_by_its_kind():
    assert reason_of(ValueError()) == "ValueError: ValueError()"
    assert reason_of(ValueError("first\nsecond")) == "ValueError: first"


def test_failures_of_ranks_are_joined_by_reason():
    assert all_fine([1, 2]) == [1, 2]
    with pytest.raises(ShardError, match=r"^full$"):
        all_fine([Failure("full")])
    with pytest.raises(ShardError, match=r"full \(on ranks 0, 2\); gone \(on rank 1\)"):
        all_fine([Failure("full"), Failure("gone"), Failure("full"), 4])
    with pytest.raises(ShardError, match="0, 1, 2, 3, 4 and 5 more"):
        all_fine([Failure("full")] * 10 + [3])
    assert fine(5) == 5
    with pytest.raises(ShardError, match="why"):
        fine(Failure("why"))


def test_modules_become_what_their_state_says():
    model = nn.Linear(2, 2)
    found = plain({"model": model, "step": 3})
    assert found["step"] == 3
    assert sorted(found["model"]) == ["bias", "weight"]


def test_a_staged_copy_does_not_follow_the_training():
    staging = Staging()
    tensor = torch.zeros(3)
    copy = staging.copy({"w": tensor})
    tensor += 1
    assert torch.equal(copy["w"], torch.zeros(3))
    again = staging.copy({"w": tensor})
    assert torch.equal(again["w"], torch.ones(3))
    staging.close()


def test_one_rank_writes_and_reads_a_folder(tmp_path: Path):
    state: dict[str, Any] = {"model": {"w": torch.arange(6.0).view(2, 3)}, "count": torch.tensor(4)}
    sealed: dict[str, Any] = {}
    folder = tmp_path / "part"
    folder.mkdir()
    write(folder, state, RankGroup(None), lambda files, tensors: sealed.update(files=files, tensors=tensors))
    assert sealed["tensors"]["model.w"].shape == (2, 3)
    assert sealed["tensors"]["model.w"].dtype == "float32"
    assert all((folder / name).stat().st_size == entry.bytes for name, entry in sealed["files"].items())
    target: dict[str, Any] = {"model": {"w": torch.zeros(2, 3)}, "count": torch.tensor(0)}
    read(folder, target)
    assert torch.equal(target["model"]["w"], state["model"]["w"])
    assert int(target["count"]) == 4


def test_a_seal_that_fails_fails_the_write(tmp_path: Path):
    folder = tmp_path / "part"
    folder.mkdir()

    def seal(files: object, tensors: object) -> None:
        del files, tensors
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(ShardError, match="the disk is full"):
        write(folder, {"w": torch.ones(2)}, RankGroup(None), seal)
