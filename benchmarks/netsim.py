"""What the simulator costs: packet-hops per CPU second and peak memory by size, on one core and on all.

The full protocol, each size in a process of its own. The sizes 128, 1,024 and 8,192 are htsim's permutation (2 MiB
each, UET, one plane of 400 Gb/s); 131,072 is the whole fabric with MRC over 8 planes. With `--rival PATH` the binary of
uet-htsim runs on the same files, written by this program, and its printed completion times are compared. "CPU s" is the
run alone; "process" is all that the process took, with imports, building the fabric and the report, as the rival's is:

    python benchmarks/netsim.py --sizes 128,1024 --rival htsim_uec
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.core.seeds import Seed
from weft.netsim.run import run
from weft.netsim.setup import set_up, set_up_files, transports_of
from weft.specs import load_scenario, load_site

LEAVES = {128: (8, 16), 1024: (32, 32), 8192: (128, 64)}
"""Leaves and hosts below each, by hosts."""
SIZE = 2 * 2**20
WHOLE = 131_072
RIVAL = (
    "-sender_cc_only -sender_cc_algo nscc -load_balancing_algo mixed -paths 64 -linkspeed 400000 -mtu 4160 -end 1000"
)
_FINISHED = re.compile(r"finished at ([\d.]+)")


def write_files(folder: Path, hosts: int, seed: int) -> tuple[Path, Path]:
    """Write the permutation and the leaf-spine of `hosts` in htsim's formats."""
    to = Seed(seed).stream("permutation").permutation(hosts)
    for place in range(hosts):
        if to[place] == place:
            other = (place + 1) % hosts
            to[place], to[other] = to[other], to[place]
    lines = [f"{source}->{int(end)} id {source + 1} start 0 size {SIZE}" for source, end in enumerate(to)]
    matrix, topology = folder / f"{hosts}.cm", folder / f"{hosts}.topo"
    matrix.write_text("\n".join([f"Nodes {hosts}", f"Connections {hosts}", *lines]) + "\n")
    leaves, below = LEAVES[hosts]
    tier = "Tier {}\nDownlink_speed_Gbps 400\nRadix_Down {}\n{}Downlink_Latency_ns 500\n"
    topology.write_text(
        f"Nodes {hosts}\nTiers 2\nPodsize {hosts}\n"
        + tier.format(0, below, f"Radix_Up {below}\n")
        + tier.format(1, leaves, "")
    )
    return matrix, topology


def measure(hosts: int, threads: int, folder: Path, seed: int, size: int | None) -> dict[str, Any]:
    """Run one size here and return what it took."""
    if hosts in LEAVES:
        scenario = load_scenario("htsim-permutation")
        setup = set_up_files(scenario, load_site(scenario.site), write_files(folder, hosts, seed), seed)
    else:
        scenario = load_scenario("full-131k")
        if size is not None and scenario.traffic is not None:
            traffic = scenario.traffic.model_copy(update={"size": size})
            scenario = scenario.model_copy(update={"traffic": traffic})
        setup = set_up(scenario.model_copy(update={"gpus": hosts}), load_site(scenario.site), seed)
    (transport,) = transports_of(setup, () if hosts not in LEAVES else ("uet",))
    report = run(setup, transport, engine="engine", threads=threads)
    found = report.as_json()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "hosts": hosts,
        "threads": threads,
        "cpu_s": report.cpu_s,
        "wall_s": report.wall_s,
        "hops": report.packet_hops,
        "hops_per_cpu_s": report.packet_hops / report.cpu_s,
        "peak_bytes": peak,
        "fct_us": found["fct_us"],
        "hash": found["hash"],
    }


def rival(binary: str, files: tuple[Path, Path], options: str) -> tuple[float, list[float]]:
    """Run htsim on the same files; return its CPU seconds and the completion times that it printed, sorted."""
    matrix, topology = files
    command = [binary, "-tm", str(matrix), "-topo", str(topology), *options.split()]
    with tempfile.TemporaryDirectory() as folder:
        spent_s, printed = _timed([*command, "-o", f"{folder}/log"])
    return spent_s, sorted(float(found) for found in _FINISHED.findall(printed))


def in_a_process(arguments: argparse.Namespace, hosts: int, threads: int) -> dict[str, Any]:
    """Measure one size in a process of its own, so that memory is its own too."""
    command = [sys.executable, __file__, "--one", str(hosts), "--threads", str(threads), "--seed", str(arguments.seed)]
    if arguments.size is not None:
        command += ["--size", str(arguments.size)]
    spent_s, done = _timed(command)
    return {**json.loads(done.splitlines()[-1]), "process_s": spent_s}


def _timed(command: Sequence[str]) -> tuple[float, str]:
    """Return the CPU seconds of a whole process, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    """Print a table of sizes, and the ratio to a rival where one is given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="128,1024,8192,131072")
    parser.add_argument("--threads", type=int, default=0, help="only this many threads; one core and all where absent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, help="bytes of a flow of the whole fabric, instead of 8 MiB")
    parser.add_argument("--rival", help="htsim's binary")
    parser.add_argument("--rival-options", default=RIVAL)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(arguments.one, arguments.threads or 1, Path(folder), arguments.seed, arguments.size)
        print(json.dumps(found))
        return
    print("hosts    threads  CPU s   process  wall s  M hops  M hops/CPU s  peak GB  fct mean / p99 us")
    for hosts in (int(word) for word in arguments.sizes.split(",")):
        ours: list[dict[str, Any]] = []
        for threads in (arguments.threads,) if arguments.threads else (1, 2):
            found = in_a_process(arguments, hosts, threads)
            ours.append(found)
            fct = found["fct_us"]
            print(
                f"{hosts:<8} {threads:<8} {found['cpu_s']:<7.2f} {found['process_s']:<8.2f} {found['wall_s']:<7.2f} "
                f"{found['hops'] / 1e6:<7.1f} "
                f"{found['hops_per_cpu_s'] / 1e6:<13.2f} {found['peak_bytes'] / 1e9:<8.2f} "
                f"{fct['mean']} / {fct['p99']}",
                flush=True,
            )
        if arguments.rival and hosts in LEAVES:
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                cpu_s, times = rival(
                    arguments.rival, write_files(Path(folder), hosts, arguments.seed), arguments.rival_options
                )
            mean = sum(times) / max(1, len(times))
            print(f"{'':<8} rival: {cpu_s:.2f} CPU s, {time.perf_counter() - started:.1f} s, mean {mean:.2f} us")
            ratios = f"{cpu_s / ours[0]['cpu_s']:.1f} to the run, {cpu_s / ours[0]['process_s']:.1f} to the process"
            print(f"{'':<8} ratio of CPU seconds, {ours[0]['threads']} thread(s): {ratios}")


if __name__ == "__main__":
    main()
