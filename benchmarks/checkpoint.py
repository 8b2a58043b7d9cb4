"""How long a training waits for a checkpoint: the copy alone, against the copy and the write.

    python benchmarks/checkpoint.py [MEGABYTES]

Saves a state of that size a few times, once waiting for the files and once not, and prints both and their ratio.
"""

import sys
import tempfile
import time
from statistics import median

import torch

from weft.training.checkpoint.store import CheckpointStore

_ROUNDS = 5


def main(megabytes: int) -> None:
    """Measure and print."""
    chance = torch.Generator().manual_seed(0)
    state = {f"layer {n}": torch.randn(megabytes * 2**20 // 4 // 16, generator=chance) for n in range(16)}
    waits: list[float] = []
    writes: list[float] = []
    with tempfile.TemporaryDirectory() as folder, CheckpointStore(folder, keep=1) as store:
        store.save(0, state, {}).wait()
        for step in range(1, _ROUNDS + 1):
            begin = time.perf_counter()
            handle = store.save(step, state, {})
            waits.append(time.perf_counter() - begin)
            handle.wait()
            writes.append(time.perf_counter() - begin)
    print(f"state of {megabytes} MiB, median of {_ROUNDS}: training waits {median(waits) * 1e3:.1f} ms")
    print(f"complete on disk with digests after {median(writes) * 1e3:.1f} ms")
    print(f"ratio {median(writes) / median(waits):.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
