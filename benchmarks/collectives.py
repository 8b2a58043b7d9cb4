"""What checked collectives cost: plain gloo, torch's own debug wrapper and weft's, on the same calls in one run.

    python benchmarks/collectives.py [--ranks 4] [--calls 200]

The same all-reduce is made over groups of each kind in turn, so that a busy machine disturbs all alike; the middle call
counts.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from weft.training.checked_collectives import Checks, watch_of
from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks

ELEMENTS = {"4 KB": 1 << 10, "1 MB": 1 << 18, "16 MB": 1 << 22}


def rank(reporter: Reporter, calls: int) -> dict[str, dict[str, float]]:
    """Be one rank: time all-reduces of each size over groups of each kind, in turn."""
    del reporter
    torch.set_num_threads(1)
    plain = dist.new_group(backend="gloo")
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    detail = dist.new_group(backend="gloo")
    watch = watch_of()
    assert watch is not None
    kinds: dict[str, tuple[Any, Checks]] = {
        "gloo": (plain, Checks()),
        "gloo, TORCH_DISTRIBUTED_DEBUG=DETAIL": (detail, Checks()),
        "checked, only counted": (None, Checks(compare=False)),
        "checked, every call compared": (None, Checks()),
        "checked, results compared too": (None, Checks(payloads=True)),
    }
    found: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    for name, elements in ELEMENTS.items():
        tensor = torch.ones(elements)
        spent: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(max(20, calls * 4096 // max(4096, elements))):
            for kind, (group, checks) in kinds.items():
                watch.checks = checks
                begun = time.monotonic()
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
                spent[kind].append(time.monotonic() - begun)
        for kind, values in spent.items():
            found[kind][name] = median(values)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--calls", type=int, default=200, help="calls of the smallest size")
    chosen = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    found = Ranks("collectives:rank", chosen.ranks, {"calls": chosen.calls}, checks=Checks()).run()[0]
    print(f"{'milliseconds a call, times plain gloo':40}" + "".join(f"{name:>18}" for name in ELEMENTS))
    for kind, values in found.items():
        cells = [f"{1000 * values[name]:9.3f} {values[name] / found['gloo'][name]:7.2f}x" for name in ELEMENTS]
        print(f"{kind:40}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    main()
