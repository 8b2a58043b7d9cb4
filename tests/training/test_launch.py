import os
import signal

import pytest

from weft.core.errors import FailedError, UsageError
from weft.training.launch import Ranks


def test_ranks_join_speak_and_return():
    notes: list[int] = []
    ranks = Ranks("tests.training.ranks:total", 3, {"add": 1}, on_message=lambda _, __, note: notes.append(note))
    assert ranks.run() == [6, 6, 6]
    assert sorted(notes) == [0, 1, 2]


def test_one_rank_is_enough():
    assert Ranks("tests.training.ranks:total", 1, {"add": 5}).run() == [5]


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("usage", UsageError, "ask rightly"),
        ("bug", FailedError, "ZeroDivisionError: a bug"),
        ("kill", FailedError, "rank 1 ended without a word \\(signal SIGKILL\\)"),
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
