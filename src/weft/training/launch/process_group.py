"""The group of ranks: joining it, cutting it off when one of them is dead, and saying the same thing everywhere."""

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from weft.core.errors import WeftError


def backend_of(wanted: str) -> str:
    """Return torch's name of the backend that a job asks for, ready to be used."""
    if wanted == "mrc":
        from weft.transport.torch_backend import BACKEND

        return BACKEND
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def join(wanted: str = "auto") -> bool:
    """Join the group of ranks with the backend that is wanted; returns whether this call made it."""
    if dist.is_initialized():
        return False
    backend = backend_of(wanted)
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return True


def leave() -> None:
    """Let what this rank still owes its peers arrive: MRC's packets are sent again by the process, not the kernel."""
    if "weft.transport.torch_backend" in sys.modules:
        from weft.transport.torch_backend import links_of

        links = links_of()
        if links is not None:
            links.close()


_sockets: dict[int, int] = {}
"""Connections of this process's groups: inode by file number."""


@contextlib.contextmanager
def connecting() -> Iterator[None]:
    """Note the connections that are made inside the `with` block as those of process groups."""
    before = _connections()
    yield
    _sockets.update({number: inode for number, inode in _connections().items() if before.get(number) != inode})


def _connections() -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, ValueError):
            if str(entry.readlink()).startswith("socket:"):
                found[int(entry.name)] = os.fstat(int(entry.name)).st_ino
    return found


def cut_off() -> None:
    """End every collective of this process, whichever thread waits in it; what it then raises is a closed connection.

    gloo's own abort leaves those waiting who wait for a peer that is stopped, or alive and itself in trouble. Their
    connections are shut down here instead. May be called from any thread, and again.
    """
    for number, inode in list(_sockets.items()):
        with contextlib.suppress(OSError):
            # The number may be another file's by now, which must not be touched: the copy is what is looked at.
            copy = socket.socket(fileno=os.dup(number))
            with copy:
                if os.fstat(copy.fileno()).st_ino == inode and copy.family in (socket.AF_INET, socket.AF_INET6):
                    # One that listens has no peer, and gloo takes the end of it for a fatal error.
                    copy.getpeername()
                    copy.shutdown(socket.SHUT_RDWR)
    leave()


def part() -> None:
    """Give up all process groups of this process, so that others can be made."""
    cut_off()
    _sockets.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def from_everybody(value: Any) -> list[Any]:
    """Return the `value` of every rank, in their order, on every rank."""
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, value)
    return answers


def shared(make: Callable[[], Any]) -> Any:
    """Return what `make` returns on rank 0, on every rank; raise what it raises there, everywhere.

    A rank that is still to take its place in a group answers for itself.
    """
    if not dist.is_initialized():
        return make()
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer[0] = make()
        except WeftError as error:
            answer[1] = error
    dist.broadcast_object_list(answer, 0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]
