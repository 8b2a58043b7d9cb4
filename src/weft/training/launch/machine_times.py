"""What this machine reaches: products, attention, a whole block and messages, timed on every rank at once.

Ranks of a machine share its caches, memory and cores, so each figure is taken while all of them do the same. The raw
times go to `planning.calibration.microbenchmarks`, which turns them into the planner's figures; nothing is decided
here. Single kernels of a GPU are recorded once and replayed, so that a slow or busy processor that launches them does
not count: in a step it is far ahead.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from weft.planning.calibration.microbenchmarks import AttentionTime, BlockTime, MachineTimes, MessageTime, ProductTime
from weft.planning.cost_model.parameter_shapes import head_width
from weft.specs.job import ModelSpec
from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks
from weft.training.model import Decoder, Rotary

_SIDES_CPU = (32, 64, 128, 256, 512)
_SIDES_CUDA = (256, 512, 1024, 2048, 4096, 8192)
_MESSAGES = (64, 1 << 20, 1 << 22)
_TINY = ModelSpec(layers=1, width=16, heads=2, ffn=32)
_TINY_LENGTH = 4
_REPEATS = 3
_REPLAYED = 16
"""Launches of one kernel that are recorded together."""


def measure(ranks: int, seconds: float = 0.3) -> MachineTimes:
    """Start `ranks` ranks, take every figure for about `seconds` each, and return the middle one of all ranks."""
    found: list[MachineTimes] = Ranks(
        "weft.training.launch.machine_times:measure_rank", ranks, {"seconds": seconds}
    ).run()
    found.sort(key=lambda times: sum(product.seconds for product in times.products))
    return found[len(found) // 2]


def measure_needs(
    ranks: int, products: Sequence[tuple[int, int, int]], messages: Sequence[int], seconds: float = 0.3
) -> MachineTimes:
    """Time products (m, n, k), the memory and all-reduces of so many bytes with `ranks` busy ranks; the slowest's."""
    asked = {"seconds": seconds, "products": list(products), "messages": list(messages)}
    found: list[MachineTimes] = Ranks("weft.training.launch.machine_times:measure_asked", ranks, asked).run()
    first = found[0]
    return replace(
        first,
        products=tuple(max(same, key=_seconds) for same in zip(*(one.products for one in found), strict=True)),
        messages=tuple(max(same, key=_seconds) for same in zip(*(one.messages for one in found), strict=True)),
        copy_bytes_per_s=min(one.copy_bytes_per_s for one in found),
    )


def _seconds(one: ProductTime | MessageTime) -> float:
    return one.seconds


def measure_asked(
    reporter: Reporter, seconds: float, products: list[tuple[int, int, int]], messages: list[int]
) -> MachineTimes:
    """Take the figures that were asked for on this rank, in step with the others."""
    del reporter
    torch.set_num_threads(1)
    bench = _Bench(torch.device("cuda" if torch.cuda.is_available() else "cpu"), seconds)
    return MachineTimes(
        device=_named(bench.device), ranks=dist.get_world_size(),
        value_bytes=2 if bench.kind == torch.bfloat16 else 4,
        products=tuple(_product(*sides, bench) for sides in products), blocks=(), attention=AttentionTime(0.0, 1.0),
        copy_bytes_per_s=_copies(bench), messages=tuple(_message(size, bench) for size in messages),
    )  # fmt: skip


def _named(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def _product(m: int, n: int, k: int, bench: "_Bench") -> ProductTime:
    left, right = (torch.randn(size, dtype=bench.kind, device=bench.device) for size in ((m, k), (k, n)))
    return ProductTime(m, n, k, bench.kernel(lambda: torch.mm(left, right)))


def measure_rank(reporter: Reporter, seconds: float) -> MachineTimes:
    """Take every figure on this rank, in step with the others."""
    del reporter
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench = _Bench(device, seconds)
    sides = _SIDES_CUDA if device.type == "cuda" else _SIDES_CPU
    products = [_product(4 * side, 4 * side, side, bench) for side in sides]
    whole = _ordinary(device)
    # So many tokens that what is done for each weight does not count.
    batch, length = (8, 2048) if device.type == "cuda" else (2, 128)
    return MachineTimes(
        device=_named(device),
        ranks=dist.get_world_size() if dist.is_initialized() else 1,
        value_bytes=2 if bench.kind == torch.bfloat16 else 4,
        products=tuple(products),
        blocks=(
            _block(_TINY, 1, _TINY_LENGTH, bench),
            _block(whole, batch, length, bench),
            _block(whole, 2, 4 * length, bench),
        ),
        attention=_attention(whole, 2, length, bench),
        copy_bytes_per_s=_copies(bench),
        messages=tuple(_message(size, bench) for size in _MESSAGES) if dist.get_world_size() > 1 else (),
    )


class _Bench:
    """Times a call over and over, beginning together with the other ranks."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device = device
        self.kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._seconds = seconds

    def time(self, call: Callable[[], object], *, together: bool = False) -> float:
        """Return the seconds of one call, the middle of a few rounds; `together` where all must call as often."""
        call()
        once = max(self._round(call, 1), 1e-7)
        count = max(1, int(self._seconds / _REPEATS / once))
        if together:
            agreed = torch.tensor([count])
            dist.all_reduce(agreed, dist.ReduceOp.MIN)
            count = int(agreed)
        rounds = sorted(self._round(call, count) / count for _ in range(_REPEATS))
        return rounds[_REPEATS // 2]

    def kernel(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call that launches a kernel or two, without those of launching them."""
        if self.device.type != "cuda":
            return self.time(call)
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            # What a first call sets up must not be recorded.
            call()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            for _ in range(_REPLAYED):
                call()
        return self.time(recorded.replay) / _REPLAYED

    def _round(self, call: Callable[[], object], count: int) -> float:
        if dist.is_initialized():
            dist.barrier()
        self._settle()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        self._settle()
        return time.perf_counter() - begin

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _ordinary(device: torch.device) -> ModelSpec:
    """Return a model whose block is of an ordinary size for the device."""
    if device.type == "cuda":
        return ModelSpec(layers=1, width=4096, heads=32, kv_heads=8, ffn=14336)
    return ModelSpec(layers=1, width=192, heads=4, kv_heads=2, ffn=576)


def _block(spec: ModelSpec, batch: int, length: int, bench: _Bench) -> BlockTime:
    """Time forward and backward passes of one block of the decoder as the trainer runs it."""
    device, kind = bench.device, bench.kind
    model = Decoder(spec, embed=False, head=False).to(device)
    hidden = torch.randn(batch, length, spec.width, device=device, requires_grad=True)
    rotary = Rotary(spec, None)

    def both() -> None:
        with torch.autocast(device.type, dtype=kind, enabled=kind != torch.float32):
            out, _ = next(iter(model.layers.values()))(hidden, rotary)
        out.sum().backward()
        _forget(model)

    return BlockTime(spec, batch, length, bench.time(both))


def _attention(spec: ModelSpec, batch: int, length: int, bench: _Bench) -> AttentionTime:
    """Time the attention kernel alone."""
    side = head_width(spec)
    q = torch.randn(batch, spec.heads, length, side, dtype=bench.kind, device=bench.device)
    seconds = bench.kernel(lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    return AttentionTime(2.0 * batch * spec.heads * side * length * length, seconds)


def _forget(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def _copies(bench: _Bench) -> float:
    """Return the bytes per second that an addition reads and writes, on tensors that no cache holds."""
    size = 1 << (26 if bench.device.type == "cuda" else 22)
    left = torch.randn(size, device=bench.device)
    out = torch.empty_like(left)
    return 2 * 4 * size / bench.kernel(lambda: torch.add(left, left, out=out))


def _message(size: int, bench: _Bench) -> MessageTime:
    """Time an all-reduce of `size` bytes over all ranks, as gradients take it."""
    values = torch.zeros(max(1, size // 4), device=bench.device)
    return MessageTime(size, bench.time(lambda: dist.all_reduce(values), together=True))


def devices() -> tuple[int, int]:
    """Return the GPUs of this machine and the memory of one, or 0 and the machine's own memory."""
    if torch.cuda.is_available():
        return torch.cuda.device_count(), torch.cuda.get_device_properties(0).total_memory
    return 0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
