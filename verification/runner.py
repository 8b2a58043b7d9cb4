"""Runs the experiments and writes what they found: `python -m verification [--engine reference] [NAME ...]`.

What each one found is kept in build/verification; docs/verification.md and its pictures are written from there once
every experiment but the longest has been run. Exit status 1 where anything does not hold and nothing is known of why.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from verification import fabrics, mathematics, paths, rings, rivals, scale, thresholds
from verification.findings import Experiment, Finding, use
from weft.netsim.host import compiling

ALL: dict[str, Callable[[], Experiment]] = {
    "S2": paths.s2,
    "S9": paths.s9,
    "S10": paths.s10,
    "S11": paths.s11,
    "S12": paths.s12,
    "S13": paths.s13,
    "S14": fabrics.s14,
    "S15": fabrics.s15,
    "S16": fabrics.s16,
    "S18": fabrics.s18,
    "balance": fabrics.balance,
    "scale": scale.scale,
    "scale-64": scale.scale_64,
    "full-131k": scale.full,
    "threshold": thresholds.threshold,
    "collective": thresholds.collective,
    "htsim": fabrics.htsim,
}
RIVALS: dict[str, Callable[[], Experiment]] = {
    "S3": rivals.s3,
    "S4": rings.s4,
    "S5": rings.s5,
    "S6": rings.s6,
    "S7": rivals.s7,
    "S8": rivals.s8,
    "S17": rivals.s17,
    "S19": rivals.s19,
    "S20": rivals.s20,
    "mathematics": mathematics.mathematics,
}
"""Run by name, or all of them as `rivals`; they have a page of their own."""
KNOWN = ALL | RIVALS
LONG = ("scale-64", "full-131k")
"""Experiments of minutes of processor time that a page may be without; it says so."""
LONGEST_FIRST = ("full-131k", "scale-64", "scale", "S5", "S4", "S6", "balance", "S15", "S18", "S10", "S14")
ENGINES = ("engine", "reference")
PAGES = {Path("docs/verification.md"): ALL, Path("docs/rivals.md"): RIVALS}
PICTURES = Path("docs/pictures")
KEPT = Path("build/verification")
WORKERS = 2


def run_one(name: str, engine: str = ENGINES[0]) -> tuple[str, Experiment, bytes | None, float]:
    """Run one experiment and draw it."""
    use(engine)
    began = time.perf_counter()
    found = KNOWN[name]()
    return name, _plain(found), _picture(found), time.perf_counter() - began


def _plain(found: Experiment) -> Experiment:
    """Return the experiment without what cannot travel between processes."""
    return Experiment(found.name, found.title, found.setting, found.findings, remark=found.remark)


def _picture(found: Experiment) -> bytes | None:
    if found.draw is None:
        return None
    import io

    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "weft", "font.size": 10, "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=(8.0, 3.6), layout="constrained")
        found.draw(figure)
        held = io.BytesIO()
        figure.savefig(held, format="svg", metadata={"Date": None})
    return held.getvalue()


_HEADS = {
    "verification.md": (
        "# Verification",
        "",
        "Published results beside what the simulator finds. `make verify` runs every experiment on two cores, checks",
        "every row and writes this page; `python -m verification S15` runs one, `--engine reference` does it on the readable",
        "simulator. Rows that begin with *off* switch the mechanism off that the experiment is about",
        "and show that the result is then another. R numbers are results of arXiv 2605.04333 (P1) in the order of its",
        "figures, S numbers ours; times are scaled down where it says so.",
        "",
    ),
    "rivals.md": (
        "# Rivals",
        "",
        "What everybody else runs, on the same fabric and with the same traffic: RoCE (ECMP, PFC, DCQCN, go-back-N) with 1",
        "to 16 queue pairs for a flow, REPS, adaptive routing in switches. `python -m verification rivals` runs every",
        "experiment and writes this page; `python -m verification S4` runs one. R numbers are results of arXiv 2605.04333",
        "(P1) in the order of its figures, S numbers ours; rows without an expectation are there to be compared.",
        "",
        "S3 to S7 and S17 stand beside the paper's test beds C and D. MRC names its paths by structured EVs there, 126 bytes",
        'around 4,096 (`transport.forwarding = "structured"`): of 400 Gb/s these let 388.1 through, SRv6\'s second IPv6 header',
        "(166 bytes) 384.4, and the published rate on test bed D is 390 (R21). That follows from the figure, it is not said in",
        "the paper. S19 and S20 keep SRv6. RoCE has 82 bytes, over IPv4: 392.2 of 400 Gb/s, which is what perftest shows. In S4",
        "and S5, which stand beside cluster C, RoCE is set as AMD recommends it for that cluster's NICs, and flows are posted as",
        "RCCL posts them; elsewhere DCQCN has the values of its paper and every queue pair takes its part of a flow.",
        "",
    ),
}


def page(outcomes: dict[str, tuple[Experiment, bool]], file: str = "verification.md") -> str:
    """Return the page called `file` as Markdown."""
    lines = [
        *_HEADS[file],
        "| experiment | rows that hold |",
        "|---|---|",
    ]
    for name, (found, _) in outcomes.items():
        if not found.findings:
            lines.append(f"| {name}: {found.title} | not run |")
            continue
        asked = [finding for finding in found.findings if finding.expected]
        held = sum(finding.holds for finding in asked)
        lines.append(f"| [{name}: {found.title}](#{name.lower()}) | {held} of {len(asked)} |")
    for name, (found, picture) in outcomes.items():
        if not found.findings:
            continue
        lines += ["", f"## {name}", "", f"**{found.title}.** {found.setting}", ""]
        lines += ["| what | expected | found | holds |", "|---|---|---|---|"]
        for row in found.findings:
            lines.append(f"| {row.what} | {row.expected} | {row.found} | {_verdict(row)} |")
        if found.remark:
            lines += ["", found.remark]
        if picture:
            lines += ["", f"![{found.title}](pictures/verification-{name.lower()}.svg)"]
    return "\n".join(lines) + "\n"


def _verdict(row: Finding) -> str:
    if row.holds:
        return "yes" if row.expected else ""
    return f"**no**: {row.why}" if row.why else "**no**"


def main(arguments: list[str]) -> int:
    """Run the experiments called in `arguments`, or all."""
    options = argparse.ArgumentParser(description="Published results beside what the simulator finds.")
    options.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="which of the two simulators runs them")
    options.add_argument("--workers", type=int, default=WORKERS, help="experiments at once")
    options.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(KNOWN)}; the page's where absent")
    chosen = options.parse_args(arguments)
    names: list[str] = list(RIVALS) if chosen.names == ["rivals"] else chosen.names
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        print(f"there is no experiment called {unknown[0]}; there are {', '.join(KNOWN)}", file=sys.stderr)
        return 2
    wanted = sorted(names or ALL, key=lambda name: (name not in LONGEST_FIRST, name))
    # Compiled once here, so that the workers only load.
    compiling.prepare(say=print)
    run_one("S13", chosen.engine)
    holds = True
    with multiprocessing.get_context("spawn").Pool(chosen.workers) as pool:
        for name, found, picture, took in pool.imap_unordered(partial(run_one, engine=chosen.engine), wanted):
            holds = holds and found.holds
            _keep(name, found, picture)
            _tell(name, found, took)
    _write_page()
    return 0 if holds else 1


def _keep(name: str, found: Experiment, picture: bytes | None) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in asdict(found).items() if key != "draw"}
    (KEPT / f"{name}.json").write_text(json.dumps({**kept, "picture": picture is not None}, indent=2))
    if picture is not None:
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"verification-{name.lower()}.svg").write_bytes(picture)


def _kept(name: str) -> tuple[Experiment, bool] | None:
    file = KEPT / f"{name}.json"
    if not file.exists():
        return None
    table: dict[str, Any] = json.loads(file.read_text())
    drawn = bool(table.pop("picture"))
    table["findings"] = tuple(Finding(**row) for row in table["findings"])
    return Experiment(**table), drawn


def _tell(name: str, found: Experiment, took: float) -> None:
    print(f"{name}: {found.title} ({took:.0f} s)", flush=True)
    for row in found.findings:
        word = "holds" if row.holds else "known" if row.why else "FAILS"
        print(f"  {word}  {row.what}: {row.found} (expected {row.expected or 'nothing'})", flush=True)


def _write_page() -> None:
    for file, names in PAGES.items():
        found = {name: kept for name in names if (kept := _kept(name)) is not None}
        missing = [name for name in names if name not in found and name not in LONG]
        if missing:
            print(f"verification: {file} stays as it is; {', '.join(missing)} not run")
            continue
        unknown = {name: (Experiment(name, "takes minutes; run by name", "", ()), False) for name in LONG}
        file.write_text(page({name: found.get(name) or unknown[name] for name in names}, file.name))
        print(f"verification: {file}")
