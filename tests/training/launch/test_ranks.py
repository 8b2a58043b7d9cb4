import os
import signal
from pathlib import Path

import pytest

from weft.core.errors import FailedError, UsageError
from weft.training.launch.rank_place import RankSetting, keep_to_one
from weft.training.launch.ranks import Ranks


def test_ranks_join_speak_and_return():
    notes: list[int] = []
    ranks = Ranks("tests.training.ranks:total", 3, {"add": 1}, on_message=lambda _, __, note: notes.append(note))
    assert ranks.run() == [6, 6, 6]
    assert sorted(notes) == [0, 1, 2]


def test_one_rank_is_enough():
    assert Ranks("tests.training.ranks:total", 1, {"add": 5}).run() == [5]


def test_ranks_that_share_all_processors_evenly_keep_to_one_each():
    ours = sorted(os.sched_getaffinity(0))[:2]
    assert [_kept(ours, rank, 4) for rank in range(4)] == [{ours[rank % len(ours)]} for rank in range(4)]


def test_ranks_that_would_share_processors_unevenly_are_left_to_the_scheduler():
    ours = sorted(os.sched_getaffinity(0))[:2]
    if len(ours) > 1:
        assert _kept(ours, 0, 3) == _kept(ours, 0, 1) == set(ours)


def test_a_rank_has_its_processor_when_it_works():
    found = Ranks("tests.training.ranks:processors", 2 * len(os.sched_getaffinity(0)), {}).run()
    assert {len(one) for one in found} == {1}
    assert set().union(*found) == os.sched_getaffinity(0)


def test_ranks_keep_the_memory_of_large_blocks_that_they_free():
    (faults,) = Ranks("tests.training.ranks:faults_of_large_blocks", 1, {}).run()
    assert faults * os.sysconf("SC_PAGE_SIZE") < 4 << 20


def test_a_rank_that_crashes_says_where_it_was(tmp_path: Path):
    said = tmp_path / "said"
    with pytest.raises(FailedError, match="SIGABRT"):
        Ranks("tests.training.ranks:crash", 1, {"said": str(said)}).run()
    assert "in crash" in said.read_text()


def _kept(processors: list[int], rank: int, ranks: int) -> set[int]:
    """Return where a rank may run that was started on `processors`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        keep_to_one(RankSetting(rank, ranks, 0))
        return os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("usage", UsageError, "ask rightly"),
        ("bug", FailedError, "ZeroDivisionError: a bug"),
        ("kill", FailedError, "rank 1 died \\(signal SIGKILL\\)"),
    ],
)
def test_a_rank_that_fails_is_heard_and_ends_all(how: str, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        Ranks("tests.training.ranks:stumble", 3, {"how": how}).run()


def test_ctrl_c_before_the_first_step_is_an_interruption():
    def interrupt(rank: int, kind: str, content: object) -> None:
        del kind, content
        if rank == 0:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Ranks("tests.training.ranks:linger", 2, {}, on_message=interrupt).run()


def test_no_rank_is_left_running():
    pids: list[int] = []
    ranks = Ranks("tests.training.ranks:pid", 2, {}, on_message=lambda _, __, pid: pids.append(pid))
    ranks.run()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
