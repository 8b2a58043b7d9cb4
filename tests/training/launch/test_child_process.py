import signal
import time

from weft.training.launch.child_process import ChildProcess
from weft.training.launch.ranks import fork_server


def started(seconds: float) -> ChildProcess:
    process = fork_server().Process(target=time.sleep, args=(seconds,), daemon=True)
    process.start()
    return ChildProcess(process)


def test_a_process_is_watched_until_it_ends() -> None:
    child = started(60)
    assert child.is_alive()
    assert child.exitcode is None
    child.kill()
    child.join()
    assert not child.is_alive()
    assert child.exitcode == -signal.SIGKILL
    # A signal to one that has gone reaches nobody.
    child.signal(signal.SIGTERM)


def test_a_process_that_ends_by_itself_says_how() -> None:
    child = started(0)
    child.join()
    assert child.exitcode == 0
