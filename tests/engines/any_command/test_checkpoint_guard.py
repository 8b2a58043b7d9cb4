"""Whatever happens to files, a program finds whole ones or none; what is good is never touched."""

import json
import os
import random
import struct
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import FailedError
from weft.engines.any_command.checkpoint_guard import CheckpointGuard, broken

LONG_AGO_S = 1000.0
FORMS = ("a.pt", "a.safetensors", "a.json", "a.bin")


def write(path: Path, dice: random.Random) -> bytes:
    """Write a file of a form that its name says, with drawn content, as if it had lain there for long."""
    payload = dice.randbytes(dice.randrange(40, 400))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pt":
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("data", payload)
    elif path.suffix == ".safetensors":
        header = json.dumps({"w": {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + payload)
    elif path.suffix == ".json":
        path.write_text(json.dumps({"step": payload.hex()}))
    else:
        path.write_bytes(payload)
    then = time.time() - LONG_AGO_S + dice.random()
    os.utime(path, (then, then))
    return path.read_bytes()


def looked_twice(guard: CheckpointGuard) -> None:
    """Have a guard see that everything is at rest."""
    guard.look()
    guard.look()


def damage(path: Path, how: str, dice: random.Random) -> None:
    """Damage a file behind everybody's back; its size and time stay unless it is cut."""
    status, content = path.stat(), bytearray(path.read_bytes())
    if how == "cut":
        path.write_bytes(content[: dice.randrange(len(content))])
        return
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@given(
    names=st.lists(st.sampled_from(FORMS), min_size=1, max_size=4), how=st.sampled_from(["cut", "flip"]),
    seed=st.integers(0, 2**32), restarted=st.booleans(),
)  # fmt: skip
@settings(max_examples=40)
def test_a_damaged_file_gets_its_last_whole_version_back_and_the_others_stay(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], how: str, seed: int, *, restarted: bool
):
    place, dice = tmp_path_factory.mktemp("guard"), random.Random(seed)
    paths = [place / "ckpt" / str(number) / name for number, name in enumerate(names)]
    good = {path: write(path, dice) for path in paths}
    guard = CheckpointGuard(place / "ckpt", place / "keep")
    looked_twice(guard)
    victim = dice.choice(paths)
    damage(victim, how, dice)
    if restarted:
        guard = CheckpointGuard(place / "ckpt", place / "keep")
    (said,) = guard.settle()
    assert victim.name in said
    assert "put back" in said
    assert {path: path.read_bytes() for path in paths} == good
    assert guard.settle() == []


@given(st.sampled_from(FORMS), st.integers(0, 2**32))
@settings(max_examples=40)
def test_a_file_that_was_cut_off_while_it_was_written_is_moved_away(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int
):
    place, dice = tmp_path_factory.mktemp("guard"), random.Random(seed)
    old, new = place / "ckpt" / "old" / name, place / "ckpt" / "new" / name
    content = write(old, dice)
    guard = CheckpointGuard(place / "ckpt", place / "keep")
    looked_twice(guard)
    write(new, dice)
    new.write_bytes(new.read_bytes()[: dice.randrange(1, 30)])
    (said,) = guard.settle()
    assert "moved to" in said
    assert not new.exists()
    assert old.read_bytes() == content


@given(st.sampled_from(FORMS), st.integers(0, 2**32))
@settings(max_examples=20)
def test_what_was_there_before_and_what_people_bring_is_believed(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int
):
    place, dice = tmp_path_factory.mktemp("guard"), random.Random(seed)
    write(place / "ckpt" / "first" / name, dice)
    guard = CheckpointGuard(place / "ckpt", place / "keep")
    assert guard.settle() == []
    looked_twice(guard)
    write(place / "ckpt" / "brought" / name, dice)
    assert CheckpointGuard(place / "ckpt", place / "keep").settle() == []


def test_a_file_that_a_rank_has_open_is_not_put_away_and_not_believed(tmp_path: Path):
    path = tmp_path / "ckpt" / "a.bin"
    write(path, random.Random(1))
    guard = CheckpointGuard(tmp_path / "ckpt", tmp_path / "keep", lambda: {str(path.resolve())})
    looked_twice(guard)
    assert guard.stored == 0
    (said,) = guard.settle(start_over=True)
    assert "being written when the ranks ended" in said


def test_a_distributed_checkpoint_without_its_list_is_moved_away_whole(tmp_path: Path):
    for name in ("__0_0.distcp", "__1_0.distcp"):
        write(tmp_path / "ckpt" / "step-2" / name, random.Random(2))
    for name in ("__0_0.distcp", ".metadata"):
        write(tmp_path / "ckpt" / "step-1" / name, random.Random(3))
    (said,) = CheckpointGuard(tmp_path / "ckpt", tmp_path / "keep").settle()
    assert "never finished" in said
    assert [path.name for path in (tmp_path / "ckpt").iterdir()] == ["step-1"]


def test_where_nothing_whole_is_left_of_what_was_stored_the_start_is_refused(tmp_path: Path):
    path = tmp_path / "ckpt" / "a.pt"
    write(path, random.Random(4))
    guard = CheckpointGuard(tmp_path / "ckpt", tmp_path / "keep")
    looked_twice(guard)
    path.write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "keep" / "copies" / "a.pt").write_bytes(b"damaged too")
    with pytest.raises(FailedError, match="none of them is whole") as refused:
        guard.settle()
    assert "--start-over" in str(refused.value)
    assert guard.settle(start_over=True) == []


def test_files_that_a_program_has_cleared_away_are_forgotten(tmp_path: Path):
    path = tmp_path / "ckpt" / "a.pt"
    write(path, random.Random(5))
    guard = CheckpointGuard(tmp_path / "ckpt", tmp_path / "keep")
    looked_twice(guard)
    path.unlink()
    guard.look()
    assert not (tmp_path / "keep" / "copies" / "a.pt").exists()
    assert guard.settle() == []


def test_a_damaged_record_is_refused_with_what_to_do(tmp_path: Path):
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "guard.json").write_text("[1]")
    with pytest.raises(FailedError, match=r"move .* away"):
        CheckpointGuard(tmp_path / "ckpt", tmp_path / "keep")


@pytest.mark.parametrize("content", [b"", b"\xff" * 9, struct.pack("<Q", 2) + b"[]"])
def test_a_file_of_tensors_with_a_strange_header_is_broken(tmp_path: Path, content: bytes):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    assert broken(path) is not None
