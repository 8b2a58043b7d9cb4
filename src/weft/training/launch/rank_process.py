"""A rank's own process: it takes its place, does its work and says how it went.

A spare does everything that needs no place beforehand. Who starts ranks, and what becomes of those that fail, is
`ranks`'s business and a supervisor's.
"""

import ctypes
import faulthandler
import importlib
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from weft.core.errors import WeftError
from weft.training.launch.rank_place import Inbox, RankPlace, RankSetting, Reporter

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST_KEPT, _LARGEST_KEPT = 1 << 30, 32 << 20

Target = Callable[..., Any]


def _named(target: str | Target) -> Target:
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def keep_memory() -> None:
    """Have the C library keep large blocks that are freed, instead of giving them back to the kernel.

    Buffers of megabytes come and go with every block and micro-batch, above all where weights are gathered, and pages
    that went back are cleared again one by one: a sixth of such a step. 32 MiB is the most that glibc takes here; other
    C libraries have no such choice.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_MMAP_THRESHOLD, _LARGEST_KEPT)
        tune(_TRIM_THRESHOLD, _MOST_KEPT)


def rank_main(target: str | Target, setting: RankSetting, pipe: Connection, arguments: dict[str, Any]) -> None:
    """Be one rank, or a spare for any: join the group, do the work, say how it went."""
    from weft.training.launch.process_group import leave

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A crash in native code ends a rank without a message of ours; this prints where every thread was.
    faulthandler.enable()
    reporter = Reporter(pipe)
    status = 1
    try:
        keep_memory()
        place = RankPlace(setting, reporter, Inbox(pipe))
        if not place.waiting:
            place.take()
        if setting.orders is not None:
            from weft.training.recovery import supervisor_link

            supervisor_link.begin(setting.orders, setting.generation, reporter.heard, place)
        result = _named(target)(reporter=reporter, **arguments)
        leave()
        reporter.send("done", result)
        status = 0
    except WeftError as error:
        blamed = {one.rank for one in getattr(error, "evidence", ())}
        if blamed and setting.orders is not None:
            # The guard names who was wrong; who reports it is no more to blame than the others.
            reporter.send("diverged", (blamed.pop() if len(blamed) == 1 else None, str(error)))
        reporter.send("failed", (type(error).__name__, str(error)))
        status = error.exit_status
    except BaseException:  # noqa: BLE001 - whatever it was, the parent must hear of it
        reporter.send("failed", ("", traceback.format_exc()))
    finally:
        pipe.close()
        # Threads of collectives that wait for dead ranks must not hold the process.
        os._exit(status)
