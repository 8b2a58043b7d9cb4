"""Claims about MRC on fabrics that nobody chose: `python -m verification.drawn_fabrics KIND [--cases 40] [--seed 7]`.

Draws fabrics (2 to 64 T0s, 2, 4 or 8 planes, ports of 100, 200 or 400G), message sizes, patterns and seeds, runs each
and prints a line for each case and the worst ones. `healthy` checks balance and needless retransmission, `faults` the
recovery from a dead T1 and a dead NIC port, `incast` what a victim beside the receiver keeps. Exit status 1 where a
case does not hold.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from verification.findings import network_of, scenario, simulate, site_of
from weft.core.seeds import Seed
from weft.netsim.report import SimulationReport

_MOST_PACKETS = 400_000
_PATTERNS = {"healthy": ("permutation", "permutation", "ring", "all-to-all")}
_PAYLOAD = 4096
_MIB = 2**20
_MOST_RESENT, _MOST_RECOVERY_US, _LEAST_OF_VICTIM = 1.1, 100.0, 0.99
_BALANCE = {8 * _MIB: 1.15, 2 * _MIB: 1.25}
"""The least message and how much slower than ideal its slowest flow may be; shorter ones have no such limit."""
_INCAST_US = 1000


@dataclass(frozen=True)
class Case:
    """One drawn fabric with its traffic."""

    t0s: int
    """T0s in a plane."""
    down: int
    """NICs below a T0, and uplinks of one."""
    planes: int
    """Planes."""
    rate_gbps: int
    """Rate of a port."""
    size: int
    """Bytes of a message, or of a rank's whole buffer."""
    pattern: str
    """`permutation`, `ring` or `all-to-all`."""
    seed: int
    """Seed of the run."""
    fan: int = 0
    """Senders of an incast."""

    @property
    def nics(self) -> int:
        """Return how many NICs there are."""
        return self.t0s * self.down


def drawn(seed: int, kind: str, most_packets: int) -> Iterator[Case]:
    """Yield cases without end; one of more packets is drawn again."""
    stream = Seed(seed).stream("fabrics", kind)
    while True:
        t0s, down = round(2 ** stream.uniform(1, 6)), int(stream.choice([16, 24, 32, 64, 128, 256]))
        planes, rate = int(stream.choice([2, 4, 8])), int(stream.choice([100, 200, 400]))
        size = round(2 ** stream.uniform(18, 25))
        pattern = str(stream.choice(_PATTERNS.get(kind, ("permutation",))))
        fan = round(2 ** stream.uniform(3, 7.65)) if kind == "incast" else 0
        case = Case(t0s, down, planes, rate, size, pattern, int(stream.integers(2**31)), fan)
        fits = case.nics > fan + down
        if fits and _packets(case) <= most_packets:
            yield case


def _ranks(case: Case) -> int:
    return min(case.nics, 48 if case.pattern == "all-to-all" else 256)


def _packets(case: Case) -> int:
    each = -(-case.size // _PAYLOAD)
    if case.fan:
        return max(case.fan * each, 4 * case.planes * case.rate_gbps * _INCAST_US // (8 * _PAYLOAD) * 1000)
    return each * {"permutation": case.nics, "all-to-all": _ranks(case), "ring": 2}[case.pattern]


def _traffic(case: Case) -> dict[str, Any]:
    if case.pattern == "permutation":
        return {"pattern": "permutation", "across": True, "size": f"{case.size} B"}
    ranks = _ranks(case)
    shared = {"pattern": "collective", "ranks": ranks, "stride": case.nics // ranks}
    if case.pattern == "all-to-all":
        return {**shared, "kind": "all-to-all", "size": f"{case.size * ranks} B"}
    return {**shared, "kind": "all-reduce", "size": f"{case.size} B"}


def simulated(case: Case, **more: Any) -> SimulationReport:
    """Run a case."""
    site = site_of(case.planes, gpus=case.nics, radix=2 * case.down, rate_gbps=case.rate_gbps)
    return simulate(scenario(_traffic(case), **more), site, seed=case.seed)


def healthy(case: Case, **more: Any) -> dict[str, Any]:
    """Run a fabric in which nothing breaks."""
    found = simulated(case, **more)
    gone = found.trimmed + found.lost + found.dropped
    if any(flow.failure for flow in found.flows):
        return {"failed": sum(1 for flow in found.flows if flow.failure), "wrong": ["failed"]}
    slowest = max(flow.arrived_ps if found.chained else flow.completion_ps or 0 for flow in found.flows)
    limit = next((most for least, most in _BALANCE.items() if case.size >= least), 0.0)
    row = {
        "over_ideal": round(slowest / found.ideal_ps, 4), "resent": found.total("resent"), "gone": gone,
        "retired": found.total("retired"), "spurious": found.total("spurious"), "marked": found.marked,
    }  # fmt: skip
    wrong = [
        *(["resent"] if row["resent"] > _MOST_RESENT * gone else []),
        *(["retired"] if row["retired"] > 0 else []),
        *(["balance"] if case.pattern == "permutation" and limit and row["over_ideal"] > limit else []),
    ]
    return {**row, "wrong": wrong}


def faulty(case: Case, **more: Any) -> dict[str, Any]:
    """Run a permutation in which a T1 and a NIC's port die."""
    stream = Seed(case.seed).stream("faults")
    plane, t1, port, nic = (int(stream.integers(n)) for n in (case.planes, case.down, case.planes, case.nics))
    faults = [
        {"kind": "switch-down", "target": f"t1-p{plane}-i{t1}", "at": "20 us"},
        {"kind": "port-down", "target": f"link0-p{port}-i{nic}", "at": "30 us"},
    ]
    found = simulated(case, faults=faults, **more)
    recovery = np.concatenate([np.array(fault.recovery_ps, np.float64) for fault in found.faults]) / 10**6
    p50, p99, most = np.percentile(recovery, (50, 99, 100)) if recovery.size else (0.0, 0.0, 0.0)
    failed = sum(1 for flow in found.flows if flow.failure)
    row = {
        "pairs": int(recovery.size), "p50_us": round(p50, 1), "p99_us": round(p99, 1), "most_us": round(most, 1),
        "unrecovered": sum(fault.unrecovered for fault in found.faults), "failed": failed,
        "round_trip_us": round(network_of(site_of(case.planes, gpus=case.nics, radix=2 * case.down,
                                                  rate_gbps=case.rate_gbps)).round_trip_ps / 10**6, 1),
    }  # fmt: skip
    wrong = [*(["recovery"] if p99 >= _MOST_RECOVERY_US else []), *(["failed"] if failed else [])]
    return {**row, "wrong": wrong}


def incast(case: Case, **more: Any) -> dict[str, Any]:
    """Run an incast that lasts a millisecond, and beside it a victim that sends all the while, and that victim alone."""
    lasting = case.planes * case.rate_gbps * 10**9 * _INCAST_US // (8 * 10**6)
    home = case.down
    senders = [nic for nic in range(case.nics) if nic // case.down != 1][: case.fan + 1]
    size = max(case.size, lasting // case.fan)
    flows = [{"source": nic, "destination": home, "size": f"{size} B"} for nic in senders[1:]]
    victim = {"source": senders[0], "destination": home + 1, "size": f"{2 * lasting} B"}
    site = site_of(case.planes, gpus=case.nics, radix=2 * case.down, rate_gbps=case.rate_gbps)

    def received(traffic: list[dict[str, Any]]) -> tuple[float, SimulationReport]:
        spec = scenario({"pattern": "flows", "flows": traffic}, until_us=_INCAST_US, **more)
        found = simulate(spec, site, seed=case.seed)
        (mine,) = (n for n, ends in enumerate(found.pairs) if ends == (senders[0], home + 1))
        return float(found.series.received[-1, mine]), found

    got, found = received([*flows, victim])
    alone, _ = received([victim])
    row = {"kept": round(got / alone, 4), "retired": found.total("retired"), "resent": found.total("resent"),
           "gone": found.trimmed + found.lost + found.dropped, "dropped": found.dropped}  # fmt: skip
    return {**row, "wrong": [] if got >= _LEAST_OF_VICTIM * alone else ["victim"]}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {"healthy": healthy, "faults": faulty, "incast": incast}


def _one(kind: str, case: Case, more: dict[str, Any]) -> tuple[Case, dict[str, Any]]:
    return case, KINDS[kind](case, **more)


def main(arguments: list[str]) -> int:
    """Run drawn cases and return 1 where one does not hold."""
    options = argparse.ArgumentParser(description="Claims about MRC on fabrics that nobody chose.")
    options.add_argument("kind", choices=KINDS)
    options.add_argument("--cases", type=int, default=40)
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--packets", type=int, default=_MOST_PACKETS, help="data packets of a case at most")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--mrc", default="{}", help="the table transport.mrc, as JSON")
    chosen = options.parse_args(arguments)
    more = {"transport": {"mrc": json.loads(chosen.mrc)}}
    cases = [
        case for case, _ in zip(drawn(chosen.seed, chosen.kind, chosen.packets), range(chosen.cases), strict=False)
    ]
    wrong = 0
    with get_context("spawn").Pool(chosen.workers) as pool:
        for case, row in pool.imap_unordered(partial(_called, chosen.kind, more), cases):
            wrong += bool(row["wrong"])
            print(_line(case, row), flush=True)
    print(f"{chosen.kind}: {len(cases) - wrong} of {len(cases)} hold (seed {chosen.seed})")
    return 1 if wrong else 0


def _called(kind: str, more: dict[str, Any], case: Case) -> tuple[Case, dict[str, Any]]:
    return _one(kind, case, more)


def _line(case: Case, row: dict[str, Any]) -> str:
    said = f"{case.t0s} T0s of {case.down}, {case.planes} x {case.rate_gbps}G, {case.size / _MIB:.2f} MiB, "
    said += (f"{case.fan} to 1" if case.fan else case.pattern) + f", seed {case.seed}"
    return f"{said}: " + ", ".join(f"{key} {value}" for key, value in row.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
