"""What exact sums cost: the tree over micro-batches against a plain all-reduce, in one run on the same gradients.

    python benchmarks/exact.py [RANKS] [MEGABYTES]

Each rank fills its buckets with made-up gradients of four micro-batches and exchanges them, in turns exact and plain.
Printed are the medians of adding up the micro-batches and of the exchange, and their ratios.
"""

import sys
import time
from statistics import median

import torch
import torch.distributed as dist

from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks
from weft.training.parallel.reducer import Family, Reducer, Share

_ROUNDS = 9
_MICRO_BATCHES = 4
_TENSORS = 16


def _round(reducer: Reducer, share: Share, gradients: list[torch.Tensor], rank: int) -> tuple[float, float]:
    """Return the seconds of taking gradients and of waiting for the exchange."""
    parameters = [parameter for bucket in reducer.buckets for parameter in bucket.parameters]
    dist.barrier()
    begin = time.perf_counter()
    reducer.begin({"dense": share}, 1.0)
    for position in share.positions[rank]:
        reducer.at({"dense": position})
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
            reducer.take(parameter)
    taken = time.perf_counter()
    reducer.wait()
    return taken - begin, time.perf_counter() - taken


def exchange(reporter: Reporter, megabytes: int) -> list[float]:
    """Be one rank; returns medians: taking and waiting, exact, then plain."""
    del reporter
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    elements = megabytes * 2**20 // 4 // _TENSORS
    chance = torch.Generator().manual_seed(rank)
    gradients = [torch.randn(elements, generator=chance) for _ in range(_TENSORS)]
    positions = tuple(tuple(range(one * _MICRO_BATCHES, (one + 1) * _MICRO_BATCHES)) for one in range(ranks))
    share = Share(positions)
    reducers = []
    for exact in (True, False):
        parameters = tuple(torch.nn.Parameter(torch.zeros(elements)) for _ in range(_TENSORS))
        family = Family("dense", parameters, dist.group.WORLD)
        reducers.append(Reducer([family], bucket_bytes=4 * 2**20, exact=exact, overlap=False))
    times = [[_round(reducer, share, gradients, rank) for reducer in reducers] for _ in range(_ROUNDS)][1:]
    return [median(turn[which][part] for turn in times) for which in (0, 1) for part in (0, 1)]


def main(ranks: int = 2, megabytes: int = 64) -> None:
    """Measure and print."""
    found = Ranks("exact:exchange", ranks, {"megabytes": megabytes}).run()
    exact_take, exact_wait, plain_take, plain_wait = (median(column) for column in zip(*found, strict=True))
    print(f"{ranks} ranks, {megabytes} MiB of gradients, {_MICRO_BATCHES} micro-batches each, median of {_ROUNDS - 1}")
    print(f"  exact  adding up {exact_take * 1e3:7.1f} ms, exchange {exact_wait * 1e3:7.1f} ms")
    print(f"  plain  adding up {plain_take * 1e3:7.1f} ms, exchange {plain_wait * 1e3:7.1f} ms")
    print(f"ratio of adding up {exact_take / plain_take:.2f}, of the exchange {exact_wait / plain_wait:.2f}")
    print(f"ratio of both {(exact_take + exact_wait) / (plain_take + plain_wait):.2f}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
