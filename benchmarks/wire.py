"""MRC on loopback next to gloo, in one run: bus bandwidth of a 64 MiB all-reduce, latency of a 4 KiB one.

Two processes, fp32. Rounds of the three (gloo, mrc with and without its check) alternate, so that a busy machine is
busy for all of them; the median of each counts. Bus bandwidth is 2 (n - 1) / n x bytes / time. Processor time of rank 0
stands beside it, which other programs do not change much.
"""

import os
import socket
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
LARGE, SMALL = 64 << 20, 4096
ROUNDS, TURNS = 5, 3
SMALL_TURNS = 100


def _groups() -> dict[str, Any]:
    """Return the three groups by name."""
    from weft.transport import torch_backend
    from weft.transport.endpoint import EndpointSettings

    groups: dict[str, Any] = {"gloo": dist.group.WORLD}
    for name, check in (("mrc", True), ("mrc without check", False)):
        torch_backend.register(torch_backend.Wiring(endpoint=EndpointSettings(check=check)))
        groups[name] = dist.new_group(backend=torch_backend.BACKEND)
    return groups


def _times(group: Any, tensor: torch.Tensor, turns: int) -> list[float]:
    found: list[float] = []
    for _ in range(turns):
        begun = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        found.append(time.perf_counter() - begun)
    return found


def _rank(rank: int, port: int, answers: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    groups = _groups()
    large, small = torch.zeros(LARGE // 4), torch.zeros(SMALL // 4)
    times: dict[str, list[list[float]]] = {name: [[], [], []] for name in groups}
    for turn in range(ROUNDS + 1):
        for name, group in groups.items():
            dist.barrier()
            before = time.process_time()
            long = _times(group, large, TURNS)
            spent = (time.process_time() - before) / TURNS
            short = _times(group, small, SMALL_TURNS)
            if turn > 0:
                for kept, found in zip(times[name], (long, short, [spent]), strict=True):
                    kept.extend(found)
    if rank == 0:
        answers.put(times)
    dist.barrier()
    os._exit(0)


def main() -> None:
    """Measure and print."""
    context = mp.get_context("spawn")
    answers = context.Queue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    ranks = [context.Process(target=_rank, args=(rank, port, answers)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    times = answers.get(timeout=600)
    for rank in ranks:
        rank.join()
    factor = 2 * (RANKS - 1) / RANKS
    rate = {name: factor * LARGE / statistics.median(both[0]) / 1e9 for name, both in times.items()}
    wait = {name: statistics.median(both[1]) * 1e6 for name, both in times.items()}
    spent = {name: statistics.median(both[2]) * 1e3 for name, both in times.items()}
    for name in times:
        ratios = "".join(f"  {each[name] / each['gloo']:.2f} x" for each in (rate, spent, wait))
        print(
            f"{name:18} 64 MiB: {rate[name]:5.2f} GB/s, {spent[name]:4.0f} ms of processor"
            f"   4 KiB: {wait[name]:6.0f} us {ratios} gloo's"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
