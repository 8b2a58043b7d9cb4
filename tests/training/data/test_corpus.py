import errno
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.core.errors import FailedError, LimitReachedError, UsageError
from weft.specs.job import DataSpec
from weft.training.data import Corpus, open_corpus
from weft.training.data import corpus as corpus_module
from weft.training.data.corpus import _only_one


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / "b.txt").write_text("second")
    (folder / "a.txt").write_text("first")
    (folder / "inner" / "c.md").write_text("third")
    (folder / "inner" / "LICENSE").write_text("MIT")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / ".hidden").write_text("never")
    return folder


def open_in(folder: Path, cache: str = "cache", **data: object) -> Corpus:
    return open_corpus(DataSpec.model_validate({"corpus": str(folder), **data}), folder.parent / cache)


def test_text_files_are_joined_in_the_order_of_their_names(texts: Path) -> None:
    corpus = open_in(texts)
    assert bytes(corpus.read(0, len(corpus)).astype(np.uint8)) == b"first\0second\0third\0"
    assert bytes(corpus.read(4, 4).astype(np.uint8)) == b"t\0se"
    assert corpus.read(0, 3).dtype == np.int64


def test_the_manifest_tells_what_is_inside(texts: Path) -> None:
    corpus = open_in(texts)
    saved = json.loads((corpus.folder / "manifest.json").read_text())
    assert saved["digest"] == corpus.manifest.digest
    assert [file["path"] for file in saved["files"]] == ["a.txt", "b.txt", "inner/c.md"]
    assert saved["files"][1] == {
        "path": "b.txt", "bytes": 6, "tokens": 7, "sha256": hashlib.sha256(b"second").hexdigest(), "licence": None,
    }  # fmt: skip
    assert saved["files"][2]["licence"] == "inner/LICENSE"
    assert (saved["tokens"], saved["largest"], saved["skipped"]) == (19, ord("t"), ["picture.png"])


def test_the_digest_follows_the_content_and_not_the_place(texts: Path) -> None:
    first = open_in(texts)
    moved = texts.rename(texts.parent / "elsewhere")
    again = open_in(moved)
    assert again.manifest.digest == first.manifest.digest
    assert again.folder != first.folder
    (moved / "a.txt").write_text("FIRST")
    assert open_in(moved).manifest.digest != first.manifest.digest


def test_a_second_opening_builds_nothing(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_in(texts)
    monkeypatch.setattr(corpus_module, "_build", None)
    assert open_in(texts).manifest == first.manifest


def test_a_cache_inside_the_corpus_is_not_learned(texts: Path) -> None:
    data = DataSpec(corpus=str(texts))
    first = open_corpus(data, texts / "runs" / "cache")
    again = open_corpus(data, texts / "runs" / "cache")
    assert (len(again), again.folder) == (19, first.folder)


def test_the_standard_library_is_a_corpus(tmp_path: Path) -> None:
    corpus = open_corpus(DataSpec(), tmp_path)
    names = [file.path for file in corpus.manifest.files]
    assert names == sorted(names)
    assert "argparse.py" in names
    assert not any(name.startswith(("test/", "site-packages/", "_sysconfigdata")) for name in names)
    assert {file.licence for file in corpus.manifest.files} == {"PSF-2.0"}
    assert len(corpus) > 5_000_000
    corpus.check_vocabulary(256)


def test_token_files_are_mapped_where_they_lie(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    np.arange(10, dtype=np.uint16).tofile(folder / "a.bin")
    np.arange(10, 15, dtype=np.uint32).tofile(folder / "b.bin")
    (folder / "b.bin.json").write_text('{"integers": "uint32"}')
    (folder / "empty.bin").touch()
    np.save(folder / "c.npy", np.array([70000, 3], dtype=np.uint32))
    corpus = open_in(folder)
    assert corpus.read(0, 17).tolist() == [*range(15), 70000, 3]
    assert corpus.read(8, 8).tolist() == [*range(8, 15), 70000]
    assert corpus.manifest.largest == 70000
    assert [path.name for path in corpus.folder.iterdir()] == ["manifest.json"]
    with pytest.raises(UsageError, match=r"token 70000.*vocabulary is 256; write vocabulary = 70001"):
        corpus.check_vocabulary(256)


def test_how_bin_files_hold_tokens_can_be_said_in_the_job(tmp_path: Path) -> None:
    np.arange(6, dtype=np.uint32).tofile(tmp_path / "a.bin")
    assert open_in(tmp_path / "a.bin", integers="uint32").read(0, 6).tolist() == list(range(6))
    assert len(open_in(tmp_path / "a.bin")) == 12


@pytest.mark.parametrize(("name", "content", "problem"), [
    ("a.bin", b"abc", "3 bytes, which is not a whole number of uint16"),
    ("a.npy", b"abc", "not an array of tokens"),
    ("a.bin.json", b"{", "not JSON"),
    ("a.bin.json", b'{"integers": "int8"}', 'write {"integers": "uint16"}'),
])  # fmt: skip
def test_bad_token_files_are_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"\1\0")
    (folder / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        open_in(folder)
    assert problem in str(caught.value)
    assert str(folder) in str(caught.value)


def test_an_array_of_another_shape_or_type_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), dtype=np.int64))
    with pytest.raises(UsageError, match="2x3 int64; write one row of uint8"):
        open_in(tmp_path / "a.npy")


def test_missing_empty_and_textless_corpora_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no corpus folder"):
        open_in(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"the corpus folder .*empty is empty; put text"):
        open_in(tmp_path / "empty")
    (tmp_path / "empty" / "picture.png").write_bytes(b"\0")
    with pytest.raises(UsageError, match="holds no text"):
        open_in(tmp_path / "empty")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix == ".part"]


def test_a_name_that_no_system_can_open_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        open_in(tmp_path / ("x" * 5000))


def test_a_cache_that_cannot_be_written_is_named(texts: Path) -> None:
    (texts.parent / "cache").write_text("a file, not a folder")
    with pytest.raises(FailedError, match=r"the corpus cache .*cache cannot be written"):
        open_in(texts)


def test_a_full_disk_leaves_nothing_behind(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FailedError, match="No space left"):
        open_in(texts)
    assert all(path.suffix == ".lock" for path in (texts.parent / "cache").iterdir())


def test_a_damaged_cache_is_not_trusted(texts: Path) -> None:
    kept = open_in(texts).folder
    (kept / "tokens.bin").write_bytes(b"short")
    with pytest.raises(FailedError, match="does not hold the 19 tokens"):
        open_in(texts)
    manifest = (kept / "manifest.json").read_text()
    (kept / "manifest.json").write_text(manifest.replace('"b.txt"', '"x.txt"'))
    with pytest.raises(FailedError, match="does not match its own digest"):
        open_in(texts)
    (kept / "manifest.json").write_text("{")
    with pytest.raises(FailedError, match="is damaged"):
        open_in(texts)


def test_waiting_for_another_builder_has_a_limit(texts: Path) -> None:
    opened = open_in(texts)
    lock = next(opened.folder.parent.glob("*.lock"))
    (opened.folder / "manifest.json").unlink()
    data = DataSpec(corpus=str(texts))
    with _only_one(lock, 1), pytest.raises(LimitReachedError, match="longest_wait_s"):
        open_corpus(data, opened.folder.parent, longest_wait_s=0.1)
    assert open_corpus(data, opened.folder.parent).manifest == opened.manifest


def test_those_who_come_at_once_share_one_corpus(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    build = corpus_module._build

    def counted(*arguments: Any) -> None:
        built.append(arguments[-1])
        build(*arguments)

    monkeypatch.setattr(corpus_module, "_build", counted)
    # Each opens the lock anew, so threads exclude each other as processes do.
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(open_in, [texts] * 8))
    assert len({corpus.manifest.digest for corpus in opened}) == 1
    assert len(built) == 1
    assert len([path for path in (texts.parent / "cache").iterdir() if path.is_dir()]) == 1
