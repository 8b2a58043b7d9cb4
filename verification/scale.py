"""Claims that must hold at every size: balance and false losses from two T0s to the whole fabric, over drawn seeds."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from verification.findings import Experiment, Finding, above, scenario, simulate, site_of, within
from weft.core.seeds import Seed
from weft.netsim.report import SimulationReport
from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.specs import load_scenario, load_site

T0S = (2, 4, 8)
SIZES = {"8 MiB": 1.15, "2 MiB": 1.25}
"""Messages, and how much slower than the ideal their slowest flow may be."""
SEEDS = 5
_NIC_OF_T0 = 256
_MOST_RESENT = 1.1
_SETTING = (
    f"8 x 100G, T0s of 256 NICs and 256 uplinks in each plane, 256 EVs; {SEEDS} seeds that follow from the commit."
)
_REMARK = (
    "A message of 2 MiB has left its NIC before most of its acknowledgements are there: what a NIC knows of its paths comes "
    "too late for it, and its slowest packet meets the queue that chance has made longest."
)
_TOO_SHORT = "half of it is sent before anything is known of any path, and 256 EVs are few for that"


def drawn_seeds(count: int = SEEDS) -> list[int]:
    """Return seeds that nobody chose: they follow from the commit that is checked out."""
    git = shutil.which("git") or "git"
    head = subprocess.run([git, "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, check=False)  # noqa: S603  fixed
    stream = Seed(int(head.stdout[:8] or b"0", 16)).stream("verification")
    return [int(seed) for seed in stream.integers(0, 2**31, size=count)]


def _permutation(t0s: int, size: str, seed: int, **mrc: Any) -> SimulationReport:
    traffic = {"pattern": "permutation", "across": True, "size": size}
    return simulate(scenario(traffic, transport={"mrc": mrc}), site_of(gpus=t0s * _NIC_OF_T0), seed=seed)


def _over_ideal(report: SimulationReport) -> float:
    return float(report.completions_us().max()) * 10**6 / report.ideal_ps


def _needless(report: SimulationReport) -> float:
    """Return packets sent again for each one that was trimmed, lost or dropped; 0 where none was sent again."""
    return report.total("resent") / max(1, report.trimmed + report.lost + report.dropped)


def _sizes(all_t0s: tuple[int, ...]) -> list[Finding]:
    """Return what a permutation at full load shows on fabrics of so many T0s."""
    seeds = drawn_seeds()
    found: list[Finding] = []
    for size, most in SIZES.items():
        for t0s in all_t0s:
            runs = [_permutation(t0s, size, seed) for seed in seeds]
            slowest = [_over_ideal(each) for each in runs]
            said = f"{t0s} T0s, {size}"
            found += [
                replace(
                    within(f"{said}: slowest flow over ideal, mean of {SEEDS} seeds", float(np.mean(slowest)), 1, most),
                    why=_TOO_SHORT if size == "2 MiB" else "",
                ),
                Finding(f"{said}: the same, worst seed", "", f"{max(slowest):.4g}", holds=True),
                within(
                    f"{said}: packets sent again for each trimmed or lost", max(map(_needless, runs)), 0, _MOST_RESENT
                ),
                within(f"{said}: EVs retired", sum(each.total("retired") for each in runs), 0, 0),
            ]
    return found


def scale_64() -> Experiment:
    """A permutation at full load on a fabric of 64 T0s."""
    return Experiment("scale-64", "The same with 16,384 NICs", _SETTING, tuple(_sizes((64,))), remark=_REMARK)


def scale() -> Experiment:
    """A permutation at full load on fabrics of two to eight T0s."""
    seeds, found = drawn_seeds(), _sizes(T0S)
    for size, what, mrc, least in (
        ("8 MiB", "nothing is passed over", {"skip": False}, 1.05),
        ("8 MiB", "every pair draws its paths alone, as published", {"ev": {"placed": False}}, 1.02),
        ("2 MiB", "every pair draws its paths alone, as published", {"ev": {"placed": False}}, 1.02),
    ):
        off, on = (float(np.mean([_over_ideal(_permutation(8, size, seed, **each)) for seed in seeds[:2]]))
                   for each in (mrc, {}))  # fmt: skip
        found.append(above(f"off: 8 T0s, {size}: {what}, slowest flow over that with it", off / on, least))
    title = "A permutation at full load on small and large fabrics"
    return Experiment("scale", title, _SETTING, tuple(found), remark=_REMARK)


def full() -> Experiment:
    """The whole fabric, in order and with faults."""
    runs = {name: _whole(name) for name in ("full-131k", "full-131k-faults")}
    healthy, faulty = runs.values()
    recovery = np.concatenate([np.array(fault.recovery_ps, np.float64) for fault in faulty.faults]) / 10**6
    return Experiment(
        "full-131k", "Every NIC of 131,072 sends 8 MiB", "The built-in scenarios `full-131k` and `full-131k-faults`: 512 "
        "T0s, 8 planes; with faults a T1 dies after 30 us and a NIC port after 40 us.",
        (
            within("slowest flow over ideal", _over_ideal(healthy), 1, 1.15),
            within("packets sent again for each trimmed or lost", _needless(healthy), 0, _MOST_RESENT),
            within("EVs retired", healthy.total("retired"), 0, 0),
            within("recovery, median", float(np.median(recovery)), 10, 99, "us", "R4: tens of microseconds"),
            within("recovery, 99th percentile", float(np.percentile(recovery, 99)), 10, 99, "us", "R4: the same"),
        ),
    )  # fmt: skip


def _whole(name: str) -> SimulationReport:
    spec = load_scenario(name)
    setup = set_up(spec, load_site(spec.site), 0)
    (chosen,) = transports_of(setup)
    return run(setup, chosen, engine="engine", threads=1)
