"""Tests that work the machine: products, memory, a pair of endpoints, a small all-reduce; every answer is checked.

Whole numbers small enough to be exact make every comparison one of bits, so a wrong answer is proof and healthy
machines never fail. Speeds are figures; only a core or device far slower than its neighbours is a warning, because a
machine in use is never quiet. Where there are GPUs, `training.launch.device_checks` does the same on each of them.
"""

import contextlib
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.core.seeds import Seed
from weft.engines.health.checks import CheckSetting, Finding, HealthReport

SLOW_SHARE = 0.5
"""A core at less than this share of the median core's speed is suspect."""
_SIZE = 256
_LARGEST = 15
_SLICES = 2
_LEAST_S = 0.02
_CHUNK = 2**18
_HOST = "127.0.0.1"
_PATIENCE_S = 60.0
_MEBI = 2**20

Words = NDArray[np.uint64]


def matmul(setting: CheckSetting) -> HealthReport:
    """Multiply matrices on every core in turn, and check every product by another way of computing it."""
    began = time.monotonic()
    found: list[Finding] = []
    speeds: dict[int, float] = {}
    with _pinned() as cores:
        share_s = max(_LEAST_S, setting.seconds / max(1, len(cores)) / _SLICES)
        # Each core has several turns spread over the test, so that a neighbour's burst does not look like a slow core.
        for turn in range(_SLICES):
            for core in cores:
                _pin(core)
                speed, wrong = _products(Seed(setting.seed).branch("matmul", turn, core), share_s)
                speeds[core] = max(speeds.get(core, 0.0), speed)
                if wrong:
                    found.append(Finding("matmul", "fatal", f"core {core}: {wrong}"))
    median = float(np.median(list(speeds.values())))
    found += [
        Finding("matmul", "warning", f"core {core} computes at {speed / median:.0%} of the median core's speed")
        for core, speed in speeds.items()
        if speed < SLOW_SHARE * median
    ]
    figures = {
        "cores": float(len(speeds)),
        "median_gflop_per_s": median / 1e9,
        "least_gflop_per_s": min(speeds.values()) / 1e9,
    }
    return HealthReport("matmul", tuple(found), figures, time.monotonic() - began)


def _products(seed: Seed, seconds: float) -> tuple[float, str | None]:
    """Multiply for a while; returns the speed in operations per second of CPU time, and what was wrong."""
    draw = seed.stream("numbers")
    left, right = (draw.integers(-_LARGEST, _LARGEST + 1, (_SIZE, _SIZE)) for _ in range(2))
    weights = draw.integers(1, 2**20, _SIZE)
    # Freivalds: a product is right if it does to a random vector what its factors do, one after the other.
    expected = left @ (right @ weights)
    first, second = _single(left), _single(right)
    deadline, products = time.monotonic() + seconds, 0
    spent = -time.thread_time()
    while products == 0 or time.monotonic() < deadline:
        product = first @ second
        products += 1
        if not np.array_equal(product.astype(np.int64) @ weights, expected):
            return 0.0, f"product {products} of whole numbers was wrong"
    spent += time.thread_time()
    return 2 * _SIZE**3 * products / max(spent, 1e-9), None


def _single(numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    return numbers.astype(np.float32)


@contextlib.contextmanager
def _pinned() -> Iterator[list[int]]:
    """Yield the cores that this process may use, and give it all of them back afterwards."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, cores)


def _pin(core: int) -> None:
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})


def memory(setting: CheckSetting) -> HealthReport:
    """Write patterns into memory, read them back, and name the first bit that has changed."""
    began = time.monotonic()
    try:
        words: Words = np.empty(setting.mebibytes * _MEBI // 8, dtype=np.uint64)
        found = [one for one in (_pattern(words, name, setting.seed) for name in PATTERNS) if one is not None]
    except MemoryError:
        return HealthReport("memory", (), note=f"{setting.mebibytes} MiB are not free")
    spent = time.monotonic() - began
    figures = {"mebibytes": float(setting.mebibytes), "gb_per_s": 2 * len(PATTERNS) * words.nbytes / spent / 1e9}
    return HealthReport("memory", tuple(found), figures, spent)


PATTERNS = ("zeros", "ones", "alternating", "inverted", "addresses", "random")
_FIXED = {"zeros": 0, "ones": 2**64 - 1, "alternating": 0xAAAA_AAAA_AAAA_AAAA, "inverted": 0x5555_5555_5555_5555}


def _pattern(words: Words, name: str, seed: int) -> Finding | None:
    """Write one pattern, read it back, and return what was wrong."""
    step = _CHUNK
    for start in range(0, len(words), step):
        words[start : start + step] = _content(name, start, min(step, len(words) - start), seed)
    for start in range(0, len(words), step):
        part = words[start : start + step]
        changed = part ^ _content(name, start, len(part), seed)
        at = np.flatnonzero(changed)
        if at.size:
            bits = int(changed[at[0]])
            bit = (bits & -bits).bit_length() - 1
            return Finding("memory", "fatal", f"pattern {name}: bit {bit} of word {start + int(at[0]):,} has changed")
    return None


def _content(name: str, start: int, count: int, seed: int) -> Words:
    if name in _FIXED:
        return np.full(count, _FIXED[name], dtype=np.uint64)
    if name == "addresses":
        return np.arange(start, start + count, dtype=np.uint64)
    return Seed(seed).stream("memory", start).integers(0, 2**64, count, dtype=np.uint64)


def pair(setting: CheckSetting, address: tuple[str, int] | None = None) -> HealthReport:
    """Send bytes to an endpoint and have them back, and check that they are the same; this machine's own by default."""
    began = time.monotonic()
    content = Seed(setting.seed).stream("pair").bytes(_MEBI)
    with contextlib.ExitStack() as stack:
        if address is None:
            listener = stack.enter_context(socket.create_server((_HOST, 0)))
            address = listener.getsockname()[:2]
            threading.Thread(target=answer, args=(listener, 1), daemon=True).start()
        try:
            link = stack.enter_context(socket.create_connection(address, timeout=_PATIENCE_S))
            spent, digest = _exchange(link, content, setting.mebibytes)
        except OSError as error:
            finding = Finding("pair", "fatal", f"{address[0]}:{address[1]} does not answer: {error}")
            return HealthReport("pair", (finding,), seconds=time.monotonic() - began)
    expected = 0
    for _ in range(setting.mebibytes):
        expected = zlib.crc32(content, expected)
    found = () if digest == expected else (Finding("pair", "fatal", "bytes came back changed"),)
    figures = {"mebibytes": float(setting.mebibytes), "gbit_per_s": 8 * setting.mebibytes * _MEBI / spent / 1e9}
    return HealthReport("pair", found, figures, time.monotonic() - began)


def _exchange(link: socket.socket, content: bytes, times: int) -> tuple[float, int]:
    """Send `content` again and again while it comes back; returns the seconds and the digest of what came."""
    sender = threading.Thread(target=_send, args=(link, content, times), daemon=True)
    spent, digest, left = -time.monotonic(), 0, times * len(content)
    sender.start()
    while left:
        part = link.recv(min(_CHUNK, left))
        if not part:
            raise ConnectionError("the other end has closed")
        digest = zlib.crc32(part, digest)
        left -= len(part)
    sender.join()
    return spent + time.monotonic(), digest


def _send(link: socket.socket, content: bytes, times: int) -> None:
    with contextlib.suppress(OSError):
        for _ in range(times):
            link.sendall(content)
        link.shutdown(socket.SHUT_WR)


def answer(listener: socket.socket, times: int) -> None:
    """Be the other end of `times` tests: send back what comes."""
    for _ in range(times):
        with contextlib.suppress(OSError):
            link, _ = listener.accept()
            with link:
                link.settimeout(_PATIENCE_S)
                while part := link.recv(_CHUNK):
                    link.sendall(part)


def all_reduce(setting: CheckSetting) -> HealthReport:
    """Add up numbers over a few processes, as a training does, and check the sum on each of them."""
    began = time.monotonic()
    try:
        from weft.training.launch import device_checks
    except ImportError:
        return HealthReport("all-reduce", (), note="torch is not installed")
    wrong, seconds = device_checks.all_reduce(setting.ranks, setting.seed)
    found = tuple(Finding("all-reduce", "fatal", text) for text in wrong)
    figures = {"ranks": float(setting.ranks), "ms_per_mebibyte": seconds * 1000}
    return HealthReport("all-reduce", found, figures, time.monotonic() - began)


def devices(setting: CheckSetting) -> HealthReport:
    """Multiply matrices and write patterns on every GPU, and copy between each two of them."""
    began = time.monotonic()
    try:
        from weft.training.launch import device_checks
    except ImportError:
        return HealthReport("devices", (), note="torch is not installed")
    checked = device_checks.devices(setting.seconds, setting.mebibytes, setting.seed)
    if not checked.count:
        return HealthReport("devices", (), note="there is no GPU here")
    found = [Finding(check, "fatal", text, gpu) for check, gpu, text in checked.wrong]
    found += [
        Finding("devices", "warning", f"GPU {gpu} computes at {share:.0%} of the median GPU's speed", gpu)
        for gpu, share in checked.speed_shares.items()
        if share < SLOW_SHARE
    ]
    return HealthReport("devices", tuple(found), checked.figures, time.monotonic() - began)
