"""The group of ranks: joining it, and saying the same thing everywhere."""

import os
import sys
from collections.abc import Callable
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


def shared(make: Callable[[], Any]) -> Any:
    """Return what `make` returns on rank 0, on every rank; raise what it raises there, everywhere."""
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
