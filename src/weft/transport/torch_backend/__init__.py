"""MRC as a backend of torch.distributed, for CPU processes; GPUs use NCCL.

    import weft.transport.torch_backend
    torch.distributed.init_process_group("mrc", ...)

Collectives run as programs in the endpoint's compiled thread. Their order of sums is fixed, so that a result is equal
on every rank and in every run. A peer that dies is named in the error of everybody who waits for it.
"""

from weft.transport.torch_backend.group import BACKEND, MrcGroup, links_of, register
from weft.transport.torch_backend.links import RankLinks, Wiring

__all__ = ["BACKEND", "MrcGroup", "RankLinks", "Wiring", "links_of", "register"]

register()
