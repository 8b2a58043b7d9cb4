"""MRC on loopback next to gloo, in one run: all-reduces by size and number of ranks, time and processor time.

    python benchmarks/wire.py [--ranks 2,4] [--sizes 1024,1048576] [--rounds 3] [--only gloo,mrc]

Rounds of the transports alternate, so that a busy machine is busy for all of them; the median of each counts. Time is
that of rank 0. Processor time is that of all ranks, by GB of the tensor; other programs do not change it much. What
stands behind a figure is the ratio to gloo's: above 1 is better for speed, below 1 for processor time.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = tuple(1 << power for power in range(10, 29, 2))
BYTES_A_ROUND, MOST_TURNS = 256 << 20, 200
TRANSPORTS = ("gloo", "mrc", "mrc without check", "mrc, shared memory")


def _groups(names: list[str]) -> dict[str, Any]:
    """Return the groups by name."""
    from weft.transport import torch_backend
    from weft.transport.endpoint import EndpointSettings

    bare = EndpointSettings(check=False, authenticate=False)
    wirings = {
        "mrc": torch_backend.Wiring(),
        "mrc without check": torch_backend.Wiring(endpoint=bare),
        "mrc, shared memory": torch_backend.Wiring(shared=True),
    }
    groups: dict[str, Any] = {}
    for name in names:
        if name == "gloo":
            groups[name] = dist.group.WORLD
        else:
            torch_backend.register(wirings[name])
            groups[name] = dist.new_group(backend=torch_backend.BACKEND)
    return groups


def _measured(group: Any, tensor: torch.Tensor, turns: int) -> tuple[float, float]:
    """Return seconds and processor seconds of one all-reduce."""
    dist.barrier()
    begun, before = time.perf_counter(), time.process_time()
    for _ in range(turns):
        dist.all_reduce(tensor, group=group)
    took, spent = time.perf_counter() - begun, torch.tensor(time.process_time() - before, dtype=torch.float64)
    dist.all_reduce(spent)
    return took / turns, float(spent) / turns


def _rank(rank: int, port: int, asked: argparse.Namespace, ranks: int, answers: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    groups = _groups(asked.only)
    for size in asked.sizes:
        tensor = torch.zeros(size // 4)
        turns = max(1, min(MOST_TURNS, BYTES_A_ROUND // size // 4))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in groups}
        for turn in range(asked.rounds + 1):
            for name, group in groups.items():
                one = _measured(group, tensor, turns)
                if turn > 0:
                    found[name].append(one)
        if rank == 0:
            answers.put((size, found))
    dist.barrier()
    os._exit(0)


def _text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _print(size: int, found: dict[str, list[tuple[float, float]]]) -> None:
    took = {name: statistics.median(one[0] for one in rows) for name, rows in found.items()}
    spent = {name: statistics.median(one[1] for one in rows) for name, rows in found.items()}
    for name in found:
        speed = f"{took['gloo'] / took[name]:5.2f} x" if "gloo" in took else ""
        less = f"{spent[name] / spent['gloo']:5.2f} x" if "gloo" in spent else ""
        print(
            f"{_text(size):>8}  {name:20} {took[name] * 1e6:10.0f} us {speed}   "
            f"{spent[name] / size * 1e9:9.2f} CPU s per GB {less}",
            flush=True,
        )


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _names(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=_numbers, default=[2, 4])
    parser.add_argument("--sizes", type=_numbers, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=_names, default=None)
    asked = parser.parse_args()
    asked.only = [one for one in TRANSPORTS if asked.only is None or one.replace(", ", " ") in asked.only]
    context = mp.get_context("spawn")
    for count in asked.ranks:
        print(f"{count} ranks", flush=True)
        answers = context.Queue()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        ranks = [context.Process(target=_rank, args=(rank, port, asked, count, answers)) for rank in range(count)]
        for rank in ranks:
            rank.start()
        for _ in asked.sizes:
            _print(*answers.get(timeout=900))
        for rank in ranks:
            rank.join()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
