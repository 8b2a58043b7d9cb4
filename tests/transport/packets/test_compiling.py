"""The compiled thread is kept where the simulator's rules are, and compiled by one process at a time."""

import fcntl
from pathlib import Path

import pytest

from weft.transport.packets.compiling import one_at_a_time


def test_the_first_compilation_is_locked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with one_at_a_time():
        (lock,) = (tmp_path / "weft").glob("wire-*/lock")
        with lock.open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
