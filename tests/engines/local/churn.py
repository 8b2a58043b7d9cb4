"""A program that runs engines and lets each be killed by SIGKILL at a seeded point; the test beside it judges.

Everything is loaded once and every engine is a fork of this process, so that a hundred lives take seconds. What an
engine has acknowledged is written down before it goes on, as a client would have seen it.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.engines.local.conftest import submission

from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home

JOBS_PER_LIFE = 2
MOST_PULSES = 30
LIFE_S = 1.5


def bomb(pulses: int) -> Callable[[str], None]:
    """Return a pulse that kills this process at its n-th call."""
    left = [pulses]

    def pulse(name: str) -> None:
        del name
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return pulse


def life(home: Home, number: int, acknowledged: Path, marks: Path, rng: random.Random) -> None:
    """Be one engine: take in new jobs, cancel an old one now and then, and work until the bomb goes off."""
    engine = LocalEngine(home, pulse=bomb(rng.randint(1, MOST_PULSES)))
    for job in range(JOBS_PER_LIFE):
        seconds = rng.choice((0.0, 0.05, 0.3, 1.0))
        script = f"echo $$ >> {marks}/$WEFT_JOB; sleep {seconds}"
        # The key of a life before this one: its answer may have been lost.
        for key in (f"life-{number - 1:04d}-{job}", f"life-{number:04d}-{job}")[number == 0 :]:
            (entry,) = engine.submit(submission("sh", "-c", script, key=key, nodes=rng.choice((1, 1, 2))))
            with acknowledged.open("a") as file:
                file.write(f"{key} {entry.job.id}\n")
    if rng.random() < 0.2 and (waiting := [one.job.id for one in engine.entries]):
        engine.cancel(rng.choice(waiting))
    deadline = time.monotonic() + LIFE_S
    while time.monotonic() < deadline:
        if not engine.tick():
            time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, lives: int, seed: int) -> None:
    """Live `lives` times in `folder`."""
    home, acknowledged, marks = Home(folder / "cluster"), folder / "acknowledged", folder / "marks"
    for number in range(lives):
        child = os.fork()
        if child == 0:
            try:
                life(home, number, acknowledged, marks, random.Random(seed * 10_000 + number))
            finally:
                os._exit(99)
        _, how = os.waitpid(child, 0)
        if not (os.WIFSIGNALED(how) and os.WTERMSIG(how) == signal.SIGKILL):
            sys.exit(f"life {number} ended otherwise: {how}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
