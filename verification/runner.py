"""Runs the experiments and writes what they found: `python -m verification [NAME ...]`.

What each one found is kept in build/verification; docs/verification.md and its pictures are written from there once
every experiment has been run. Exit status 1 where anything does not hold.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from verification import fabrics, paths
from verification.findings import Experiment, Finding
from weft.netsim import compiling

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
    "htsim": fabrics.htsim,
}
LONGEST_FIRST = ("balance", "S15", "S18", "S10", "S14")
PAGE = Path("docs/verification.md")
PICTURES = Path("docs/pictures")
KEPT = Path("build/verification")
WORKERS = 2


def run_one(name: str) -> tuple[str, Experiment, bytes | None, float]:
    """Run one experiment and draw it."""
    began = time.perf_counter()
    found = ALL[name]()
    return name, _plain(found), _picture(found), time.perf_counter() - began


def _plain(found: Experiment) -> Experiment:
    """Return the experiment without what can not travel between processes."""
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


def page(outcomes: dict[str, tuple[Experiment, bool]]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Verification",
        "",
        "Published results beside what the simulator finds. `make verify` runs every experiment on two cores, checks",
        "every row and writes this page; `python -m verification S15` runs one. Each experiment also switches the",
        "mechanism that it is about off and shows that the result is then another. R and S numbers are those of the fact",
        "sheet on MRC (arXiv 2605.04333 and 2606.18170); times are scaled down where it says so.",
        "",
        "| experiment | rows that hold |",
        "|---|---|",
    ]
    for name, (found, _) in outcomes.items():
        held = sum(finding.holds for finding in found.findings)
        lines.append(f"| [{name}: {found.title}](#{name.lower()}) | {held} of {len(found.findings)} |")
    for name, (found, picture) in outcomes.items():
        lines += ["", f"## {name}", "", f"**{found.title}.** {found.setting}", ""]
        lines += ["| what | expected | found | |", "|---|---|---|---|"]
        for row in found.findings:
            lines.append(f"| {row.what} | {row.expected} | {row.found} | {'yes' if row.holds else '**no**'} |")
        if found.remark:
            lines += ["", found.remark]
        if picture:
            lines += ["", f"![{found.title}](pictures/verification-{name.lower()}.svg)"]
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    """Run the experiments called `names`, or all."""
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"there is no experiment called {unknown[0]}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    wanted = sorted(names or ALL, key=lambda name: (name not in LONGEST_FIRST, name))
    # Compiled once here, so that the workers only load.
    compiling.prepare(say=print)
    ALL["S13"]()
    holds = True
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        for name, found, picture, took in pool.imap_unordered(run_one, wanted):
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
        print(f"  {'holds' if row.holds else 'FAILS'}  {row.what}: {row.found} (expected {row.expected})", flush=True)


def _write_page() -> None:
    found = {name: kept for name in ALL if (kept := _kept(name)) is not None}
    missing = [name for name in ALL if name not in found]
    if missing:
        print(f"verification: no page yet; {', '.join(missing)} not run")
        return
    PAGE.write_text(page(found))
    print(f"verification: {PAGE}")
