"""What agents share on disk: one key, and epochs of which each has one coordinator."""

import threading
from pathlib import Path

import pytest

from weft.core.errors import FailedError
from weft.engines.supervisor.hosts.gang_folder import CoordinatorAddress, GangFolder


def at_once(count: int, work: object) -> list[object]:
    assert callable(work)
    found: list[object] = []
    gate = threading.Barrier(count)

    def one() -> None:
        gate.wait()
        found.append(work())

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_agents_find_one_key_that_nobody_else_can_read(tmp_path: Path):
    (key,) = set(at_once(16, lambda: GangFolder(tmp_path).key()))
    assert isinstance(key, bytes)
    assert len(key) == 32
    assert GangFolder(tmp_path / "other").key() != key
    assert [path.name for path in (tmp_path / ".coordination").iterdir()] == ["key"]
    assert (tmp_path / ".coordination" / "key").stat().st_mode & 0o077 == 0
    assert (tmp_path / ".coordination").stat().st_mode & 0o077 == 0


def test_an_epoch_has_one_coordinator_whoever_tries(tmp_path: Path):
    for epoch in range(1, 6):
        assert sorted(map(bool, at_once(8, lambda epoch=epoch: GangFolder(tmp_path).claim(epoch)))) == [False] * 7 + [
            True
        ]
        assert GangFolder(tmp_path).highest() == epoch
        assert GangFolder(tmp_path).address(epoch) is None
    where = CoordinatorAddress("10.0.0.1", 4711, 3, 17)
    GangFolder(tmp_path).announce(5, where)
    assert GangFolder(tmp_path).address(5) == where
    assert GangFolder(tmp_path).highest() == 5


def test_the_newest_state_is_found_and_older_ones_go(tmp_path: Path):
    folder = GangFolder(tmp_path)
    assert folder.saved() is None
    for epoch in (1, 2):
        folder.claim(epoch)
        folder.save(epoch, f"state of {epoch}".encode())
    folder.claim(3)
    assert folder.saved() == b"state of 2"
    assert not (tmp_path / ".coordination" / "state-1").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedError, match=r"\.coordination cannot be made"):
        GangFolder(tmp_path / "file")
