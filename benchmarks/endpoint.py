"""One endpoint in two worlds: what a simulation decided is decided again by the rules, and by an endpoint from bytes.

    python benchmarks/endpoint.py [--calls 1000000] [--seed 0] [--plain]

Drawn incasts with marks, trims, losses and ports that go down run in the readable simulator; every call into an end is
noted. Each journal is then replayed twice: call by call by the rules, and packet by packet as datagrams by the code of
an endpoint's thread, whose own journal must come out equal. Prints calls, how many differ, and CPU seconds.
"""

import argparse
import sys
import time
from collections import Counter

from tests.transport.drawn import drawn_run, replayed

_PER_RUN = 400_000


def main() -> int:
    """Draw runs until there are enough calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="do not compile")
    chosen = parser.parse_args()
    counted: Counter[str] = Counter()
    calls = differ = 0
    spent = {"simulated": 0.0, "replayed": 0.0}
    seed = chosen.seed
    while calls < chosen.calls:
        begun = time.process_time()
        run = drawn_run(seed, rows=_PER_RUN)
        spent["simulated"] += time.process_time() - begun
        begun = time.process_time()
        by_rules, by_packets = replayed(run, fast=not chosen.plain)
        spent["replayed"] += time.process_time() - begun
        counted += run.counted
        calls += len(run.rows)
        differ += (by_rules < len(run.rows)) + (by_packets < len(run.rows))
        seed += 1
    for name, count in sorted(counted.items()):
        print(f"{name:16} {count:10,}")
    times = ", ".join(f"{name} {seconds:.0f} CPU s" for name, seconds in spent.items())
    print(f"{seed - chosen.seed} runs, {calls:,} calls, {differ} replays of {2 * (seed - chosen.seed)} differ; {times}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
