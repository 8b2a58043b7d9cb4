"""The metadata of a checkpoint is read as torch wrote it, and no file makes code run."""

import os
import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import FileSystemReader

from weft.core.pickle_opcodes import StrangePickleError
from weft.training.checkpoint.dcp import RankGroup, ShardError, read, write
from weft.training.checkpoint.dcp_metadata import read_metadata

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


class RunsCode:
    """What unpickles to a call."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.file}",))


def written(folder: Path, state: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    write(folder, state, RankGroup(None), lambda files, tensors: None)
    return folder


def layers(seed: int) -> dict[str, Any]:
    die = random.Random(seed)
    return {
        f"part{number}": {
            f"w{each}": torch.zeros(
                [die.randrange(4) for _ in range(die.randrange(4))], dtype=die.choice(DTYPES)
            )
            for each in range(die.randrange(1, 4))
        }
        for number in range(die.randrange(1, 4))
    } | {"step": die.randrange(9), "betas": (0.9, die.random()), "listed": [1, {"deep": "x"}]}  # fmt: skip


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_it_says_what_torchs_own_reader_says(seed: int, tmp_path_factory: pytest.TempPathFactory):
    folder = written(tmp_path_factory.mktemp("c") / "whole", layers(seed))
    theirs, ours = FileSystemReader(folder).read_metadata(), read_metadata(folder / ".metadata")
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.storage_data == theirs.storage_data
    assert ours.version == theirs.version


def test_values_that_are_no_tensors_come_back(tmp_path: Path):
    folder = written(tmp_path / "whole", {"step": 7, "betas": (0.9, 0.95), "listed": [1, {"deep": "x"}]})
    target: dict[str, Any] = {"step": 0, "betas": (0.0, 0.0), "listed": [0, {"deep": ""}]}
    read(folder, target)
    assert target == {"step": 7, "betas": (0.9, 0.95), "listed": [1, {"deep": "x"}]}


@pytest.mark.parametrize("protocol", range(6))
def test_no_metadata_runs_code(tmp_path: Path, protocol: int):
    folder, touched = written(tmp_path / "whole", {"w": torch.ones(2)}), tmp_path / "touched"
    whole = FileSystemReader(folder).read_metadata()
    for hostile in (RunsCode(touched), {"x": RunsCode(touched)}):
        (folder / ".metadata").write_bytes(pickle.dumps(hostile, protocol))
        with pytest.raises(ShardError, match=r"\.metadata is not read: it"):
            read(folder, {"w": torch.zeros(2)})
    # In every field of what is otherwise whole.
    for name in ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"):
        before = getattr(whole, name)
        setattr(whole, name, RunsCode(touched))
        (folder / ".metadata").write_bytes(pickle.dumps(whole, protocol))
        setattr(whole, name, before)
        with pytest.raises(ShardError, match=r"\.metadata is not read"):
            read(folder, {"w": torch.zeros(2)})
    assert not touched.exists()


def test_no_value_runs_code(tmp_path: Path):
    folder, touched = written(tmp_path / "whole", {"step": 7}), tmp_path / "touched"
    torch.save(RunsCode(touched), folder / "__0_0.distcp")
    metadata = FileSystemReader(folder).read_metadata()
    for place in metadata.storage_data.values():
        place.length = (folder / "__0_0.distcp").stat().st_size
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        read(folder, {"step": 0})
    assert not touched.exists()


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "a/b", "..", ""])
def test_metadata_points_to_files_of_its_own_folder(tmp_path: Path, name: str):
    folder = written(tmp_path / "whole", {"w": torch.ones(2)})
    metadata = FileSystemReader(folder).read_metadata()
    for place in metadata.storage_data.values():
        place.relative_path = name
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ShardError, match="outside the checkpoint"):
        read(folder, {"w": torch.zeros(2)})


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_damage_is_named_or_harmless(seed: int, tmp_path_factory: pytest.TempPathFactory):
    die = random.Random(seed)
    file = written(tmp_path_factory.mktemp("c") / "whole", layers(1)) / ".metadata"
    content = bytearray(file.read_bytes())
    for _ in range(die.randrange(1, 9)):
        content[die.randrange(len(content))] = die.randrange(256)
    file.write_bytes(content[: die.choice((len(content), die.randrange(len(content))))])
    # Some damage is still a description; nothing but this error may come of the rest.
    with suppress(StrangePickleError):
        read_metadata(file)
