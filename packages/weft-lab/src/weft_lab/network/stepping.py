"""Another network namespace for this thread, for as long as it takes: sockets and programs are made there and stay."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from weft.core.errors import FailedError

_NEW_NETWORK = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def stepped_into(path: str) -> Iterator[None]:
    """Let this thread live in the network namespace at `path` for a while."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(path, os.O_RDONLY)
        try:
            if _LIBC.setns(there, _NEW_NETWORK):
                why = os.strerror(ctypes.get_errno())
                raise FailedError(f"this process cannot step into the network namespace {path}: {why}")
            try:
                yield
            finally:
                _LIBC.setns(home, _NEW_NETWORK)
        finally:
            os.close(there)
    finally:
        os.close(home)
