"""Working folders: what git ignores stays out, the same files give the same bytes, and there is a limit."""

import subprocess
from io import BytesIO
from pathlib import Path

import pytest

from weft.core.errors import UsageError
from weft.engines.local import archive


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("print(1)\n")
    (folder / "inner" / "b.txt").write_text("b")
    (folder / "data.bin").write_text("much")
    return folder


def names(snapshots: Path, packed: bytes) -> set[str]:
    kept = snapshots / archive.keep(snapshots, BytesIO(packed))
    return {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}


def test_what_git_ignores_stays_out(folder: Path, tmp_path: Path):
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("data.bin\n")
    (tmp_path / "snapshots").mkdir()
    assert names(tmp_path / "snapshots", archive.pack(folder)) == {".gitignore", "a.py", "inner/b.txt"}


def test_without_git_everything_but_what_builds_leave_behind_goes_along(folder: Path, tmp_path: Path):
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_text("x")
    (tmp_path / "snapshots").mkdir()
    assert names(tmp_path / "snapshots", archive.pack(folder)) == {"a.py", "inner/b.txt", "data.bin"}


def test_the_same_files_are_kept_once(folder: Path, tmp_path: Path):
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir()
    first = archive.keep(snapshots, BytesIO(archive.pack(folder)))
    (folder / "a.py").touch()
    assert archive.keep(snapshots, BytesIO(archive.pack(folder))) == first
    (folder / "a.py").write_text("print(2)\n")
    assert archive.keep(snapshots, BytesIO(archive.pack(folder))) != first
    assert len(list(snapshots.iterdir())) == 2


def test_a_folder_that_is_too_large_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive, "MOST_BYTES", 10)
    with pytest.raises(UsageError, match=r"ignore data with \.gitignore"):
        archive.pack(folder)


@pytest.mark.parametrize("packed", [b"", b"no archive", b"\0" * 10_000])
def test_what_is_no_archive_leaves_nothing_behind(packed: bytes, tmp_path: Path):
    try:
        archive.keep(tmp_path, BytesIO(packed))
    except UsageError:
        assert list(tmp_path.iterdir()) == []
    else:
        (kept,) = tmp_path.iterdir()
        assert list(kept.iterdir()) == []
