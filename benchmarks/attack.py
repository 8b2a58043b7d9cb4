"""Forged packets at a pair under load: goodput with and without them, in one run, and that nothing else changes.

    python benchmarks/attack.py [--packets N] [--spoofed SHARE]

Two endpoints send each other 16 MiB again and again, each message compared to the byte. An attacker, a process of
another user where this one is root's, knows ports, queue pair numbers, sequence numbers, keys and addresses, and has
overheard genuine packets. It sends N packets (10,000,000) of every kind, to both ends; where this is root's, a share
(1 in 20) goes through a raw socket under the name of the peer. Turns with and without attack alternate.
"""

import argparse
import multiprocessing as mp
import os
import socket
import statistics
import sys
import time
from typing import Any

import numpy as np

from weft.testing.forger import Forger, Overheard, bursts, send_burst, spoofed
from weft.transport.endpoint import Endpoint, EndpointSettings
from weft.transport.underlay import Loopback

SIZE, TURN_S, POOL = 16 << 20, 2.0, 6_000
NOBODY = 65534
REASONS = ("too_short", "unknown_opcode", "wrong_version", "wrong_length", "wrong_reason", "no_queue_pair",
           "wrong_source", "wrong_tag", "stale", "wrong_ev", "wrong_key", "out_of_bounds")  # fmt: skip


class Side:
    """One end of the pair."""

    def __init__(self, seed: int) -> None:
        """Open an endpoint with memory to send from and to."""
        self.endpoint = Endpoint(Loopback(planes=4), EndpointSettings(seed=seed, capture_rows=300))
        self.given = np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)
        self.taken = np.zeros(SIZE, np.uint8)
        self.source, self.target = self.endpoint.register(self.given), self.endpoint.register(self.taken)
        self.pair = self.endpoint.offer("the other")

    def overheard(self) -> Overheard:
        """Return all that an attacker may know of packets to this end."""
        state = self.endpoint.state
        rows = state.capture_rows[: int(state.hub[0]["capture_at"])]
        heard = [
            data[: row[4]].tobytes()
            for row, data in zip(rows, state.capture, strict=False)
            if row[1] == 1 and row[4] == row[5]
        ]
        number = int(state.peers[self.pair.index]["number"])
        return Overheard(
            number, int(state.receiver.qp[0]["expected"]), self.target.address, self.target.key, tuple(heard)
        )


def _attack(ends: list[tuple[Overheard, int, int]], count: int, share: float, going: Any, done: Any) -> None:
    """Send packets to both ends: of each, what is known, its port, and the port that its packets come from."""
    pools = [Forger(seed, known).packets(POOL) for seed, (known, _, _) in enumerate(ends)]
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    root = os.getuid() == 0
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) if root and share else None
    if root:
        os.setuid(NOBODY)
    pieces = [list(bursts(pool)) for pool in pools]
    sent = sent_raw = turn = 0
    while sent < count:
        going.wait()
        _, port, far = ends[turn % 2]
        sent += send_burst(plain, *pieces[turn % 2][turn // 2 % len(pieces[turn % 2])], port)
        while raw is not None and sent_raw < share * sent:
            packet = pools[turn % 2][sent_raw % POOL]
            raw.sendto(spoofed(packet, far, port), ("127.0.0.1", 0))
            sent, sent_raw = sent + 1, sent_raw + 1
        turn += 1
        done.value = sent


def _goodput(here: Side, there: Side, seconds: float) -> tuple[float, float]:
    """Return GB/s while the pair talks for `seconds`, and the longest that one message took."""
    spent, count, longest = 0.0, 0, 0.0
    while spent < seconds:
        there.taken[:] = 0
        begun = time.perf_counter()
        here.pair.write(here.source, 0, SIZE, there.target.address, there.target.key, immediate=count)
        if there.pair.wait(30) is None or here.pair.wait(30) is None:
            sys.exit("the pair stands still: no message in 30 s")
        took = time.perf_counter() - begun
        if not np.array_equal(here.given, there.taken):
            sys.exit("wrong bytes have landed")
        spent, count, longest = spent + took, count + 1, max(longest, took)
    return count * SIZE / spent / 1e9, longest


def main() -> None:
    """Attack and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=10_000_000)
    parser.add_argument("--spoofed", type=float, default=0.05)
    given = parser.parse_args()
    here, there = Side(1), Side(2)
    here.pair.connect(there.pair.card)
    there.pair.connect(here.pair.card)
    for turn in range(150):
        here.pair.write(here.source, turn, 1 + turn % 50, there.target.address, there.target.key, immediate=1)
        there.pair.wait(10), here.pair.wait(10)
    context = mp.get_context("spawn")
    going, done = context.Event(), context.Value("q", 0)
    ends = [(there.overheard(), there.endpoint.port, here.endpoint.port),
            (here.overheard(), here.endpoint.port, there.endpoint.port)]  # fmt: skip
    attacker = context.Process(target=_attack, args=(ends, given.packets, given.spoofed, going, done), daemon=True)
    attacker.start()
    time.sleep(3)
    calm: list[float] = []
    attacked: list[float] = []
    stalls: list[float] = []
    while attacker.is_alive():
        calm.append(_goodput(here, there, TURN_S)[0])
        going.set()
        found, longest = _goodput(here, there, TURN_S)
        going.clear()
        if not attacker.is_alive():
            break
        attacked.append(found)
        stalls.append(longest)
        print(f"{done.value:>12,} packets  {calm[-1]:5.2f} GB/s calm  {found:5.2f} attacked"
              f"  longest message {longest * 1e3:4.0f} ms", flush=True)  # fmt: skip
    counted = {name: sum(int(side.endpoint.state.hub[0][name]) for side in (here, there)) for name in REASONS}
    print({name: count for name, count in counted.items() if count})
    print(f"{done.value:,} forged packets: 0 wrong bytes, the pair lives,"
          f" median goodput {statistics.median(attacked) / statistics.median(calm):.2f} of undisturbed,"
          f" longest message {max(stalls) * 1e3:.0f} ms")  # fmt: skip
    here.endpoint.close()
    there.endpoint.close()


if __name__ == "__main__":
    main()
