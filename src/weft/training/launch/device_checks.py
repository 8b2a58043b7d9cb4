"""Checks of devices that need torch: products, memory and copies on GPUs, and a small all-reduce over processes.

The numbers are whole and small, so every answer is exact and a wrong one is proof. Thresholds and what follows are the
caller's business (`engines.health`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from weft.core.errors import FailedError
from weft.core.seeds import Seed
from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks

_SIZE = 4096
_LARGEST = 3
_MEBI = 2**20
_PATTERNS = (0, -1, 0x5555_5555, -0x5555_5556)
_TURNS = 8


@dataclass(frozen=True)
class Checked:
    """What was found on the GPUs."""

    count: int
    """How many there are."""
    wrong: list[tuple[str, int, str]] = field(default_factory=list)
    """Check, GPU and what was wrong."""
    speed_shares: Mapping[int, float] = field(default_factory=dict)
    """Speed of each in that of the median one."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured."""


def devices(seconds: float, mebibytes: int, seed: int) -> Checked:
    """Work every GPU for `seconds`, write patterns into `mebibytes` of each, copy between neighbours."""
    count = torch.cuda.device_count()
    if not count:
        return Checked(0)
    wrong: list[tuple[str, int, str]] = []
    speeds: dict[int, float] = {}
    for gpu in range(count):
        speeds[gpu], problem = _products(gpu, seconds, seed)
        if problem:
            wrong.append(("matmul", gpu, problem))
        if problem := _memory(gpu, mebibytes):
            wrong.append(("memory", gpu, problem))
    rates = [_copy(gpu, (gpu + 1) % count, mebibytes, seed, wrong) for gpu in range(count if count > 1 else 0)]
    median = float(torch.tensor(list(speeds.values())).median())
    figures = {"gpus": float(count), "median_tflop_per_s": median / 1e12}
    if rates:
        figures["least_copy_gb_per_s"] = min(rates) / 1e9
    return Checked(count, wrong, {gpu: speed / median for gpu, speed in speeds.items()}, figures)


def _products(gpu: int, seconds: float, seed: int) -> tuple[float, str | None]:
    """Multiply in bfloat16 for a while: sums of products of small whole numbers are exact in float32."""
    device = torch.device("cuda", gpu)
    draw = torch.Generator(device).manual_seed(Seed(seed).branch("matmul", gpu).word() & (2**63 - 1))
    left, right = (
        torch.randint(-_LARGEST, _LARGEST + 1, (_SIZE, _SIZE), device=device, generator=draw).to(torch.bfloat16)
        for _ in range(2)
    )
    weights = torch.randint(1, 2**10, (_SIZE, 1), device=device, generator=draw).double()
    expected = left.double() @ (right.double() @ weights)
    torch.cuda.synchronize(device)
    began, done = time.monotonic(), 0
    while done == 0 or time.monotonic() - began < seconds:
        product = torch.mm(left, right, out_dtype=torch.float32)
        done += 1
        if not torch.equal(product.double() @ weights, expected):
            return 0.0, f"product {done} of whole numbers was wrong"
    torch.cuda.synchronize(device)
    return 2.0 * _SIZE**3 * done / (time.monotonic() - began), None


def _memory(gpu: int, mebibytes: int) -> str | None:
    words = torch.empty(mebibytes * _MEBI // 4, dtype=torch.int32, device=torch.device("cuda", gpu))
    for pattern in _PATTERNS:
        words.fill_(pattern)
        bad = (words != pattern).nonzero()
        if bad.numel():
            return f"pattern {pattern & 0xFFFF_FFFF:#010x} has changed at word {int(bad[0]):,}"
    torch.arange(words.numel(), dtype=torch.int32, out=words)
    bad = (words[1:] - words[:-1] != 1).nonzero()
    return f"addresses have changed at word {int(bad[0]):,}" if bad.numel() else None


def _copy(source: int, target: int, mebibytes: int, seed: int, wrong: list[tuple[str, int, str]]) -> float:
    """Copy between two GPUs and compare; returns bytes per second."""
    draw = torch.Generator().manual_seed(Seed(seed).branch("copy", source).word() & (2**63 - 1))
    content = torch.randint(-(2**31), 2**31, (mebibytes * _MEBI // 4,), dtype=torch.int32, generator=draw)
    here = content.to(torch.device("cuda", source))
    torch.cuda.synchronize()
    there = torch.empty_like(here, device=torch.device("cuda", target))
    began = time.monotonic()
    for _ in range(_TURNS):
        there.copy_(here)
    torch.cuda.synchronize()
    spent = time.monotonic() - began
    if not torch.equal(there.cpu(), content):
        wrong.append(("pair", source, f"a copy to GPU {target} came out changed"))
    return _TURNS * content.numel() * 4 / spent


def all_reduce(ranks: int, seed: int) -> tuple[list[str], float]:
    """Add up numbers over `ranks` processes; returns what was wrong and the seconds of one sum of a mebibyte."""
    try:
        answers = Ranks("weft.training.launch.device_checks:add_up", ranks, {"seed": seed}).run()
    except FailedError as error:
        return [str(error).splitlines()[0]], 0.0
    return [text for text, _ in answers if text], max(seconds for _, seconds in answers)


def add_up(seed: int, reporter: Reporter) -> tuple[str, float]:
    """Be one rank of the all-reduce."""
    del reporter
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = (
        torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    )
    draws = [
        torch.from_numpy(Seed(seed).stream("all-reduce", each).integers(-1000, 1000, _MEBI // 4)).float()
        for each in range(ranks)
    ]
    expected = torch.stack(draws).sum(0)
    spent = 0.0
    for _ in range(_TURNS):
        numbers = draws[rank].clone().to(device)
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(numbers)
        spent += time.monotonic() - began
        if not torch.equal(numbers.cpu(), expected):
            return f"rank {rank} has another sum", spent
    return "", spent / _TURNS
