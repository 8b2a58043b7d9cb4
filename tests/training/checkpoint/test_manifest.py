import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.training.checkpoint.manifest import (
    MANIFEST,
    CheckpointManifest,
    FileEntry,
    ManifestError,
    TensorEntry,
    broken,
    complete,
    decode,
    file_entry,
    problems,
    read,
)

names = st.text("abcdefgh._0", min_size=1, max_size=8)
manifests = st.builds(
    CheckpointManifest,
    step=st.integers(0, 10**9),
    sequence=st.integers(0, 10**6),
    extra=st.dictionaries(names, st.integers() | st.text() | st.none()),
    files=st.dictionaries(names, st.builds(FileEntry, st.integers(0, 10**12), st.text("0123456789abcdef"))),
    tensors=st.dictionaries(
        names,
        st.builds(TensorEntry, st.lists(st.integers(0, 9)).map(tuple), st.sampled_from(["float32", "int64"]), names),
    ),
)


@given(manifests)
def test_a_manifest_survives_the_way_out_and_back(manifest: CheckpointManifest):
    assert decode(manifest.encode()) == manifest
    assert manifest.bytes == sum(entry.bytes for entry in manifest.files.values())


@given(manifests, st.data())
def test_every_changed_byte_is_noticed(manifest: CheckpointManifest, data: st.DataObject):
    text = bytearray(manifest.encode())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ManifestError):
        decode(bytes(text))


@given(manifests, st.data())
def test_every_manifest_that_is_cut_off_is_noticed(manifest: CheckpointManifest, data: st.DataObject):
    text = manifest.encode()
    with pytest.raises(ManifestError):
        decode(text[: data.draw(st.integers(0, len(text) - 1))])


def written(folder: Path, name: str, step: int, sequence: int) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "data").write_bytes(b"x" * step)
    manifest = CheckpointManifest(step, sequence, {}, {"data": file_entry(path / "data")}, {})
    (path / MANIFEST).write_bytes(manifest.encode())
    return path


def test_the_last_completed_checkpoint_is_the_newest_whatever_its_step(tmp_path: Path):
    written(tmp_path, "step-00000002", 2, 3)
    written(tmp_path, "step-00000009", 9, 1)
    written(tmp_path, "step-00000002.1", 2, 4)
    assert [(path.name, one.sequence) for path, one in complete(tmp_path)] == [
        ("step-00000002.1", 4),
        ("step-00000002", 3),
        ("step-00000009", 1),
    ]
    assert broken(tmp_path) == []


def test_what_has_no_whole_manifest_is_told_with_the_reason(tmp_path: Path):
    written(tmp_path, "step-00000001", 1, 1)
    (tmp_path / "step-00000002").mkdir()
    torn = written(tmp_path, "step-00000003", 3, 2) / MANIFEST
    torn.write_bytes(torn.read_bytes()[:-20])
    (tmp_path / "notes").mkdir()
    assert [path.name for path, _ in complete(tmp_path)] == ["step-00000001"]
    found = [str(one) for one in broken(tmp_path)]
    assert len(found) == 2
    assert "step-00000003 is not used" in found[0]
    assert "never completed" in found[1]
    assert complete(tmp_path / "absent") == []


def test_a_manifest_of_another_format_is_not_read(tmp_path: Path):
    body = json.dumps({"format": 99}).encode() + b"\n"
    text = body + b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"
    with pytest.raises(ManifestError, match="format 99"):
        decode(text)
    (tmp_path / MANIFEST).mkdir()
    with pytest.raises(ManifestError, match=r"can ?not be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "data is missing"),
        (lambda path: path.write_bytes(b"xx"), "data has 2 bytes instead of 3"),
        (lambda path: path.write_bytes(b"xyx"), "data is damaged"),
        (lambda path: path.write_bytes(b"xxx"), None),
    ],
)
def test_files_are_held_against_the_manifest(tmp_path: Path, damage: Callable[[Path], object], words: str | None):
    path = written(tmp_path, "step-00000003", 3, 1)
    damage(path / "data")
    found = problems(path, read(path))
    assert found == [] if words is None else [words in one for one in found] == [True]
    assert problems(path, read(path), []) == []
