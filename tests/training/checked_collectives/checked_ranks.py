"""What ranks do in tests of checked collectives."""

import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from weft.core.errors import WeftError
from weft.training.checked_collectives import CheckedGroup, watch_of
from weft.training.launch.rank_place import Reporter


def _caught(work: Any) -> str:
    """Return what `work` raises, so that a test sees every rank's error and not the first one only."""
    try:
        work()
    except WeftError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def mistaken(reporter: Reporter, case: str) -> str:
    del reporter
    rank = dist.get_rank()
    watch = watch_of()
    assert watch is not None
    dist.all_reduce(torch.ones(2))
    watch.step = 8 if case == "step" and rank == 1 else 7

    def work() -> None:
        if case == "shape":
            dist.all_reduce(torch.ones(5 if rank == 1 else 4))
        elif case == "kind":
            dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(3))
        elif case == "root":
            dist.broadcast(torch.ones(3), src=int(rank == 1))
        elif case == "step":
            dist.all_reduce(torch.ones(3))
        elif case == "transfer":
            dist.send(torch.ones(3), 1) if rank == 0 else dist.recv(torch.ones(4), 0)
        elif case == "dtype":
            kind = torch.float32 if rank else torch.int32
            dist.all_gather_single(torch.ones(8, dtype=kind), torch.ones(4, dtype=kind))

    return _caught(work)


def absent(reporter: Reporter) -> str:
    """Rank 1 stays away from the group of ranks 0 and 1, and rank 2 waits for rank 0."""
    del reporter
    rank = dist.get_rank()
    pair = dist.new_group([0, 1], group_desc="pair")
    dist.barrier()
    watch = watch_of()
    assert watch is not None
    watch.deadline_s = 1.5
    if rank == 1:
        # Long enough that nobody is saved by the end of this process.
        time.sleep(6)
        return ""
    return _caught(lambda: dist.all_reduce(torch.ones(1), group=pair if rank == 0 else None))


def unsent(reporter: Reporter) -> str:
    """Rank 1 waits for a tensor that rank 0 does not send."""
    del reporter
    watch = watch_of()
    assert watch is not None
    dist.barrier()
    watch.deadline_s = 1.0
    if dist.get_rank() == 0:
        time.sleep(3)
        return ""
    return _caught(lambda: dist.recv(torch.empty(2), 0))


def disturbed(reporter: Reporter) -> tuple[str, list[float]]:
    del reporter
    watch = watch_of()
    assert watch is not None
    watch.step = 3
    tensor = torch.ones(4)
    caught = _caught(lambda: dist.all_reduce(tensor))
    # Whoever leaves closes its connections, which would end the wait of the others before their time.
    time.sleep(1.5)
    return caught, tensor.tolist()


def everything(reporter: Reporter) -> list[dict[str, Any]]:
    """Use every form of collective that FSDP2, DTensor, pipelines and functional collectives need."""
    del reporter
    rank, ranks = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    assert isinstance(world, CheckedGroup)
    given = torch.arange(4.0) + rank
    totals = torch.empty(4 // ranks)
    dist.reduce_scatter_single(totals, given.clone())
    assert totals.tolist() == [2.0 * (2 * rank + index) + 1 for index in range(2)]
    swapped = torch.empty(4)
    dist.all_to_all_single(swapped, given)
    assert swapped.tolist() == [float(2 * rank + index + other) for other in (0, 1) for index in (0, 1)]
    held: list[Any] = [None, None]
    dist.all_gather_object(held, {"rank": rank})
    assert held == [{"rank": 0}, {"rank": 1}]
    parts = [torch.empty(2), torch.empty(2)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert torch.stack(parts).sum() == 2
    dist.gather(torch.ones(1), [torch.empty(1)] * 2 if rank == 0 else None, dst=0)
    dist.reduce(torch.ones(1), dst=1)
    own, other = torch.full((3,), float(rank)), torch.empty(3)
    requests = [dist.P2POp(dist.isend, own, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(requests):
        work.wait()
    assert other.tolist() == [1.0 - rank] * 3
    assert functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", world)).tolist() == [2.0, 2.0]
    mesh = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("one", "all"))
    layer = torch.nn.Linear(4, 4)
    fully_shard(layer, mesh=mesh["all"])
    layer(torch.ones(2, 4)).sum().backward()
    spread = distribute_tensor(torch.arange(8.0).view(4, 2), mesh["all"], [Shard(0)])
    assert spread.redistribute(placements=[Replicate()]).to_local().sum() == 28
    return world.watch.account.as_json()
