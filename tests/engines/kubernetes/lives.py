"""Engines that are killed: a program that is asked for one life after the other, each ending at a given write.

It loads everything once and forks, so that a life costs no start-up. A line `N` on standard input asks for a life that
ends itself with SIGKILL after its Nth write (0: never); the answer is a line when that life is over.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from weft.engines.kubernetes.api.access import load
from weft.engines.kubernetes.controller.controller_main import Leading, control
from weft.engines.kubernetes.controller.settings import Settings


def live(writes: int, config: str, pool: str) -> None:
    """Be an engine until the given write."""
    left = writes

    async def after(method: str, path: str) -> None:
        nonlocal left
        del path
        if method != "GET":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    settings = Settings(pool=pool, namespace=pool, heart_s=0.2, resync_s=1.0)
    leading = Leading(namespace=pool, identity="same", lease_s=5.0)
    asyncio.run(control(load(None, {}, Path(config)), settings, leading, after=after))


def main(config: str, pool: str) -> None:
    """Serve lives."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(int(line.split()[1]))
            live(int(line.split()[0]), config, pool)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
