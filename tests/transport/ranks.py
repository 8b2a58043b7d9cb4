"""What the ranks of the backend's tests do; each function is one rank's part."""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from weft.transport.torch_backend import links_of

_SIZES = (1, 5, 1000, 50_001, 700_003)


def _same(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(found, wanted), f"{name}: rank {dist.get_rank()} has {found.flatten()[:4]}"


def collectives(reporter: Any) -> None:
    """Every collective gives what torch promises."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = sum(range(ranks))
    for size in _SIZES:
        base = torch.arange(size, dtype=torch.float32) % 97
        x = base + rank
        dist.all_reduce(x)
        _same("all_reduce", x, base * ranks + total)
        x = torch.full((size,), rank)
        dist.broadcast(x, 1)
        _same("broadcast", x, torch.ones_like(x))
        given = torch.full((size,), float(rank))
        out = torch.zeros(ranks * size)
        dist.all_gather_single(out, given)
        _same("all_gather", out, torch.arange(ranks).float().repeat_interleave(size))
        parts = [torch.zeros(size) for _ in range(ranks)]
        dist.all_gather(parts, given)
        _same("all_gather list", torch.stack(parts), torch.arange(ranks).float()[:, None].expand(ranks, size))
        whole = torch.arange(ranks).float().repeat_interleave(size) + rank
        kept, mine = whole.clone(), torch.zeros(size)
        dist.reduce_scatter_single(mine, whole)
        _same("reduce_scatter", mine, torch.full((size,), float(rank * ranks + total)))
        _same("its input", whole, kept)
        out = torch.zeros(ranks * size)
        dist.all_to_all_single(out, torch.full((ranks * size,), float(rank)))
        _same("all_to_all", out, torch.arange(ranks).float().repeat_interleave(size))
        mine = torch.zeros(size)
        dist.scatter(mine, [torch.full((size,), float(k)) for k in range(ranks)] if rank == 0 else None, 0)
        _same("scatter", mine, given)
        gathered = [torch.zeros(size) for _ in range(ranks)] if rank == ranks - 1 else None
        dist.gather(given, gathered, ranks - 1)
        if gathered is not None:
            _same("gather", torch.stack(gathered), torch.arange(ranks).float()[:, None].expand(ranks, size))
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        got = torch.zeros(size)
        waits = [dist.isend(given, after, tag=3), dist.irecv(got, before, tag=3)]
        for wait in waits:
            assert wait is not None
            wait.wait()
        _same("send", got, torch.full((size,), float(before)))
    _kinds(rank, ranks, total)


def _kinds(rank: int, ranks: int, total: int) -> None:
    for kind in (torch.bfloat16, torch.float16, torch.float64):
        x = torch.full((3000,), float(rank), dtype=kind)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        _same("average", x, torch.full((3000,), total / ranks, dtype=kind))
    x = torch.tensor([rank == 0, True, False])
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    _same("bool", x, torch.tensor([True, True, False]))
    x = torch.tensor([1 << rank, 3], dtype=torch.int16)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    _same("int16", x, torch.tensor([(1 << ranks) - 1, 3 * ranks], dtype=torch.int16))
    x = torch.tensor([1 << rank])
    dist.all_reduce(x, op=dist.ReduceOp.BOR)
    _same("bits", x, torch.tensor([(1 << ranks) - 1]))
    x = torch.ones(40, 60).t() * rank
    dist.all_reduce(x)
    _same("not contiguous", x, torch.full((60, 40), float(total)))
    dist.barrier()
    said: list[Any] = [{"from": rank}]
    dist.broadcast_object_list(said, 0)
    assert said == [{"from": 0}]
    group = dist.new_group([0, 1])
    if rank <= 1:
        x = torch.full((3,), float(rank))
        dist.all_reduce(x, group=group)
        _same("in a group", x, torch.ones(3))


def bits(reporter: Any, size: int) -> list[str]:
    """Return the bits of a sum of numbers that are not added exactly, as every rank and every turn has it."""
    found: list[str] = []
    for _ in range(3):
        x = torch.randn(size, generator=torch.Generator().manual_seed(dist.get_rank()))
        dist.all_reduce(x)
        found.append(bytes(x.view(torch.uint8).numpy()).hex()[:4096] + str(x.view(torch.int32).sum().item()))
    return found


def again(reporter: Any, port: int) -> float:
    """Destroy the group and form it again in the same process."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    dist.init_process_group("mrc", store=store, rank=rank, world_size=ranks)
    x = torch.full((50_000,), float(rank))
    dist.all_reduce(x)
    dist.barrier()
    dist.destroy_process_group()
    return float(x[0])


def widow(reporter: Any) -> str:
    """Wait for a rank that dies, and return what is said of it."""
    x = torch.ones(100_000)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        # Its parent would take a kill for a failure of the run; a rank that stops answers no more either.
        time.sleep(0.2)
        links = links_of()
        assert links is not None
        for plane in range(links.endpoint.underlay.planes):
            links.endpoint.cut(plane)
        time.sleep(12)
        return "dead"
    begun = time.monotonic()
    try:
        for _ in range(1000):
            dist.all_reduce(x)
            time.sleep(0.01)
    except RuntimeError as error:
        return f"{error} after {time.monotonic() - begun:.1f} s"
    return "nothing"


class Net(nn.Module):
    """Something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def _trained(model: nn.Module, steps: int, cuts: dict[int, list[int]]) -> list[str]:
    """Train, cut planes before named steps, and return the bits of every loss."""
    rank = dist.get_rank()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found: list[str] = []
    for step in range(steps):
        links = links_of()
        for plane in cuts.get(step, []):
            assert links is not None
            links.endpoint.cut(plane)
        chance = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(16, 64, generator=chance)
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            mean = loss.detach().clone()
            dist.all_reduce(mean)
        found.append(mean.item().hex())
    return found


def ddp(reporter: Any, steps: int, cuts: dict[int, list[int]]) -> list[str]:
    """Train with DDP and return the bits of every loss."""
    torch.manual_seed(0)
    return _trained(DistributedDataParallel(Net(), bucket_cap_mb=1), steps, cuts)


def fsdp(reporter: Any, steps: int) -> list[str]:
    """Train with FSDP2."""
    torch.manual_seed(0)
    model = Net()
    fully_shard(model.first)
    fully_shard(model)
    return _trained(model, steps, {})


def tensor_parallel(reporter: Any) -> float:
    """Compute with tensor parallelism and return how far that is from one rank alone."""
    torch.manual_seed(0)
    alone, spread = Net(), Net()
    spread.load_state_dict(alone.state_dict())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(spread, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    return float((alone(x) - spread(x)).abs().max())


def pipeline(reporter: Any) -> float:
    """Run a pipeline of as many stages as ranks and return how far it is from one rank alone."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Linear(32, 32) for _ in range(ranks)]
    stage = PipelineStage(layers[rank], rank, ranks, torch.device("cpu"))
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    schedule = ScheduleGPipe(stage, 4)
    out = schedule.step(x) if rank == 0 else schedule.step()
    if rank < ranks - 1 or out is None:
        return 0.0
    wanted = x
    for layer in layers:
        wanted = layer(wanted)
    return float((wanted - out).abs().max())


def ddp_somewhere(reporter: Any, steps: int) -> tuple[str, list[str]]:
    """Train with DDP and return over what, and the bits of every loss."""
    links = links_of()
    assert links is not None
    return type(links.endpoint.underlay).__name__, ddp(reporter, steps, {})
