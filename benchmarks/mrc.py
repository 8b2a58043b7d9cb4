"""What the protocol's rules cost for one packet in CPU time, plain and compiled, in one run.

Many queue pairs each send a window, receive it, acknowledge packet by packet and take the SACKs in, so that one round
is one packet through every rule of the common path: next_data, receive, take_sack, on_sack.
"""

import time
from typing import Any

import numpy as np

from weft.core.compile.rules import compiled, rule
from weft.mrc import columns
from weft.mrc.rules.acks import on_sack
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.receiver import DataHeader, receive, start_receiver, take_sack
from weft.mrc.rules.sender import next_data, post, start_sender
from weft.mrc.rules.settings import settings
from weft.specs.transport import MrcSpec

QUEUE_PAIRS, BURST = 64, 128


@rule
def exchange(s: Any, r: Any, sends: Any, replies: Any, rounds: int) -> int:
    """Let every queue pair send, receive and acknowledge a burst, `rounds` times; return the packets."""
    packets = 0
    now_ps = 0
    for _ in range(rounds):
        for i in range(s.qp.shape[0]):
            post(s, i, 0, 1, len(sends) * 4096, -1)
            for k in range(len(sends)):
                next_data(s, i, now_ps + k * 1000, -1, sends[k])
            for k in range(len(sends)):
                row = sends[k]
                receive(r, i, DataHeader(row["psn"], row["value"], 0, 0, row["ack_request"], 4096, -1), now_ps)
                take_sack(r, i, replies[k])
            for k in range(len(sends)):
                on_sack(s, i, replies[k], now_ps + 13_000_000 + k * 1000)
            packets += len(sends)
        now_ps += 14_000_000
    return packets


def _world() -> tuple[Any, ...]:
    params = settings(MrcSpec(), planes=8, rate_bps=800 * 10**9)
    s, r = columns.make_sender(params, QUEUE_PAIRS), columns.make_receiver(params, QUEUE_PAIRS)
    for i in range(QUEUE_PAIRS):
        start_sender(s, i, i, 0, Paths(256, 256, np.zeros(256, np.int64)))
        start_receiver(r, i, i, 0)
    return s, r, np.zeros(BURST, columns.SEND), np.zeros(BURST, columns.REPLY)


def _seconds_for_one(run: Any, rounds: int) -> float:
    world = _world()
    start = time.process_time()
    packets = run(*world, rounds)
    assert world[0].qp["completed"].sum() == QUEUE_PAIRS * rounds, "the transfers did not finish"
    return (time.process_time() - start) / packets


def main() -> None:
    """Print both costs and their ratio."""
    fast = compiled(exchange)
    start = time.process_time()
    fast(*_world(), 1)
    print(f"compiled in {time.process_time() - start:.1f} s")
    plain_s, fast_s = _seconds_for_one(exchange, 1), _seconds_for_one(fast, 100)
    print(f"one packet: plain {plain_s * 1e6:.1f} us, compiled {fast_s * 1e9:.0f} ns, ratio {plain_s / fast_s:.0f}")


if __name__ == "__main__":
    main()
