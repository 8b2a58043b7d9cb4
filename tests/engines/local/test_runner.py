"""The process around a job waits for a full disk instead of failing the job, and loses nothing that it printed."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from weft.engines.local import runner
from weft.engines.local.atomic_files import claim, patiently, read_document, write_document

FAILS_AT_FIRST = """
import errno, os, sys, time
from pathlib import Path
from weft.engines.local import runner
ends = time.monotonic() + float(sys.argv[2])
def failing(function, writes):
    def called(*arguments, **more):
        if time.monotonic() < ends and writes(*arguments):
            raise OSError(int(sys.argv[3]), "the disk of the test")
        return function(*arguments, **more)
    return called
os.fsync = failing(os.fsync, lambda *_: True)
os.open = failing(os.open, lambda path, flags, *_: flags & os.O_CREAT)
os.write = failing(os.write, lambda *_: True)
os.mkdir = failing(os.mkdir, lambda *_: True)
sys.exit(runner.main(Path(sys.argv[1])))
"""


def order(folder: Path, *commands: str, **more: object) -> Path:
    (folder / "attempt").mkdir()
    environment = {"PATH": os.environ["PATH"]}
    argvs = [{"argv": ["sh", "-c", command], "environment": environment} for command in commands]
    document = {"commands": argvs, "work": str(folder / "work"), "grace_s": 0.2, **more}
    write_document(folder / "attempt" / runner.ORDER, document)
    return folder / "attempt"


def said(file: Path) -> dict[str, Any]:
    found = read_document(file)
    assert found is not None
    return found


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_for_a_while_fails_no_job(tmp_path: Path, number: int):
    (tmp_path / "snapshot" / "inner").mkdir(parents=True)
    (tmp_path / "snapshot" / "inner" / "file").write_text("as submitted")
    attempt = order(tmp_path, "cat inner/file; seq 20000", "echo two", snapshot=str(tmp_path / "snapshot"))
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", FAILS_AT_FIRST, str(attempt), "0.7", str(number)], check=True)
    assert time.monotonic() - began > 0.7
    assert said(attempt / runner.EXIT)["status"] == 0
    assert (attempt / "log-0").read_text() == "as submitted" + "".join(f"{each}\n" for each in range(1, 20001))
    assert (attempt / "log-1").read_text() == "two\n"
    assert len(said(attempt / runner.CHILDREN)["children"]) == 2
    assert not list(attempt.rglob("*.part"))


def test_a_process_that_stays_behind_does_not_hold_the_job(tmp_path: Path):
    attempt = order(tmp_path, "setsid sh -c 'while :; do echo x; done' & sleep 0.1; echo $!")
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", runner.__name__, str(attempt)], check=True)
    assert time.monotonic() - began < 10
    assert said(attempt / runner.EXIT)["status"] == 0


def test_what_can_never_be_written_is_dropped_and_the_job_goes_on(tmp_path: Path):
    attempt = order(tmp_path, "head -c 200000 /dev/zero; echo end >&2; exit 3")
    subprocess.run(["sh", "-c", f"ulimit -f 100; exec {sys.executable} -m {runner.__name__} {attempt}"], check=True)
    assert said(attempt / runner.EXIT)["status"] == 3


def test_a_claim_that_is_tried_again_is_still_ours(tmp_path: Path):
    assert claim(tmp_path / "claim", "me")
    assert claim(tmp_path / "claim", "me")
    assert not claim(tmp_path / "claim", "somebody else")


def test_only_what_may_pass_is_tried_again():
    tries: list[int] = []

    def action() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "full")
        return "done"

    assert patiently(action) == "done"

    def missing() -> None:
        raise FileNotFoundError(errno.ENOENT, "not there")

    with pytest.raises(FileNotFoundError):
        patiently(missing)


def test_a_file_that_cannot_be_read_just_now_is_not_taken_for_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert read_document(tmp_path / "none") is None

    def failing(*_: object, **__: object) -> str:
        raise OSError(errno.EIO, "the disk of the test")

    monkeypatch.setattr(os, "read", failing)
    (tmp_path / "none").write_text("{}")
    with pytest.raises(OSError, match="the disk of the test"):
        read_document(tmp_path / "none")
