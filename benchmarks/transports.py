"""What a packet-hop costs by transport: CPU time on the same fabric with the same traffic, and its ratio to MRC's.

A permutation on one plane of 400 Gb/s, each transport and size in a process of its own, on one core; the best of a few
runs, the first of which compiles and is not counted:

    python benchmarks/transports.py --sizes 128,1024 --runs 3
"""

import argparse
import json
import subprocess
import sys

from weft.netsim.run import run
from weft.netsim.setup import Setup, set_up, transports_of
from weft.specs import load_site
from weft.specs.scenario import ScenarioSpec

TRANSPORTS = ("mrc", "uet", "random", "reps", "adaptive", "roce:1", "roce:8", "roce:16")
RADIX = {64: 16, 128: 16, 1024: 64}
"""Ports of a switch by hosts; half of them go down."""
LIMIT = 3.0
"""What no transport may exceed, times MRC's."""


def setup_of(hosts: int, size: str) -> Setup:
    """Return a permutation of `size` for each of `hosts` NICs."""
    site = load_site("bed-64x400g")
    fabric = site.fabric.model_copy(update={"gpus": hosts, "radix": RADIX[hosts]})
    table = {
        "name": "transports", "site": site.name,
        "traffic": {"pattern": "permutation", "across": True, "size": size},
    }  # fmt: skip
    return set_up(ScenarioSpec.model_validate(table), site.model_copy(update={"fabric": fabric}), 1)


def measure(name: str, hosts: int, size: str, runs: int) -> dict[str, float]:
    """Run one transport here and return packet-hops, the least CPU seconds, and its slowest flow."""
    setup = setup_of(hosts, size)
    (transport,) = transports_of(setup, (name,))
    run(setup_of(64, "64 KiB"), transport, engine="engine", threads=1)
    reports = [run(setup, transport, engine="engine", threads=1) for _ in range(runs)]
    return {
        "hops": reports[0].packet_hops,
        "cpu_s": min(report.cpu_s for report in reports),
        "slowest_us": float(reports[0].completions_us().max()),
    }


def in_a_process(name: str, hosts: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one transport in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--sizes", str(hosts)]
    command += ["--flow", arguments.flow, "--runs", str(arguments.runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print a table of transports for each size; return 1 where one costs more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="128,1024", help=f"hosts, of {', '.join(map(str, RADIX))}")
    parser.add_argument("--flow", default="2 MiB", help="bytes that every host sends")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = [int(word) for word in arguments.sizes.split(",")]
    if arguments.one:
        print(json.dumps(measure(arguments.one, sizes[0], arguments.flow, arguments.runs)))
        return 0
    worst = 0.0
    print("hosts    transport  M hops  CPU s   ns a hop  times MRC's  slowest us")
    for hosts in sizes:
        base = 0.0
        for name in TRANSPORTS:
            found = in_a_process(name, hosts, arguments)
            cost = found["cpu_s"] / found["hops"] * 1e9
            base = base or cost
            worst = max(worst, cost / base)
            print(
                f"{hosts:<8} {name:<10} {found['hops'] / 1e6:<7.2f} {found['cpu_s']:<7.2f} {cost:<9.0f} "
                f"{cost / base:<12.2f} {found['slowest_us']:.1f}",
                flush=True,
            )
    print(f"the most: {worst:.2f} times MRC's ({'within' if worst <= LIMIT else 'above'} {LIMIT:g})")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
