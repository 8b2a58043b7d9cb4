"""Published runs that nothing was fitted to, predicted through files alone, and the errors of each class.

    python -m verification.held_out_runs [--json] [--kept DIR]

Every row of `held_out/runs.csv` becomes a site file and a job file, with a preset of `[software]` and nothing else about
the software, and is read and planned as a user's would be. No constant of the planner comes from these rows; the widths
of its intervals do, next to the errors of `published_runs.py` with each model left out. The program fails where a bar is
missed, or where fewer than nine in ten rows lie inside the printed interval.
"""

import argparse
import csv
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.core.toml import written
from weft.planning.cost_model.confidence import Confidence, confidence_of
from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.plans import Workload, dimensions_of, software_of, written_plan
from weft.planning.cost_model.step import step_times
from weft.specs import load_job, load_site

SOURCES = {
    "megatron-bridge-26.04.01": "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md, container 26.04.01",
    "megatron-bridge-26.02": "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md, container 26.02",
    "megatron-bridge-25.11": "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md, container 25.11",
    "megatron-bridge-25.09": "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md, container 25.09",
    "nemo-25.04": "NVIDIA NeMo user guide, performance summary of container 25.04",
    "dgxc-25.05": "NVIDIA/dgxc-benchmarking v25.05, READMEs of llama3.1, nemotron, grok1 and deepseek_v3",
    "automodel-2025.10": "NVIDIA-NeMo/Automodel, docs/performance-summary.md of 2025-10-02",
    "torchtitan-2025": "pytorch/torchtitan, docs/performance.md and its benchmark of asynchronous TP of June 2025: H100 with "
    "96 GB of HBM2e, limited to 500 W",
    "dgxc-24.11": "NVIDIA/dgxc-benchmarking 24.09 and 24.11, READMEs of llama3.1 405b and nemotron 340b",
}
"""Where the rows come from; read November 2026. Rows given in tokens per second and GPU were turned into step times.
Experts were kept balanced by force (a note below the tables), so the rows of mixtures say `imbalance = 0`. Left out are
hybrid models with state-space blocks, runs that drop tokens, and rows whose batch no plan divides."""
SITES = {
    "H100": "h100-400g-16k", "B200": "b200-400g-16k", "GB200": "gb200-4x200g-32k", "GB300": "gb300-4x200g-32k",
}  # fmt: skip
"""Site file that a type of GPU is put into."""
DATA = Path(__file__).parent / "held_out"
DENSE_MEAN_BAR, DENSE_WORST_BAR = 0.08, 0.21
MIXTURE_MEAN_BAR, MIXTURE_WORST_BAR = 0.15, 0.40
INSIDE_BAR = 0.9


@dataclass(frozen=True)
class HeldOutRun:
    """One published run, predicted."""

    source: str
    """Key of `SOURCES`."""
    gpu: str
    """GPU type."""
    model: str
    """Model, by its table in `models.toml`."""
    precision: str
    """Precision of the products."""
    gpus: int
    """GPUs."""
    mixture: bool
    """Whether it has experts."""
    step_s: float
    """Published time of a step."""
    predicted_s: float
    """What the planner says."""
    confidence: Confidence
    """How far off the planner says that it may be."""

    @property
    def error(self) -> float:
        """Return predicted over published time, less one."""
        return self.predicted_s / self.step_s - 1

    @property
    def inside(self) -> bool:
        """Return whether the published time lies in the printed interval."""
        low, high = self.confidence.interval(self.predicted_s)
        return low <= self.step_s <= high


def runs(folder: Path) -> Iterator[HeldOutRun]:
    """Yield every row, predicted from files that are written to `folder`."""
    models = tomllib.loads((DATA / "models.toml").read_text(encoding="utf-8"))
    with (DATA / "runs.csv").open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            site, job = folder / f"site-{number}.toml", folder / f"job-{number}.toml"
            site.write_text(written(_site_table(row)), encoding="utf-8")
            job.write_text(written(_job_table(row, models[row["model"]])), encoding="utf-8")
            yield _predicted(row, str(site), str(job))


def _site_table(row: dict[str, str]) -> dict[str, object]:
    # Racks of 72 have one 400G NIC for each GPU in these tables' GB200 systems, and one of 800G in GB300's.
    fabric: dict[str, object] = {"gpus": max(int(row["gpus"]), 8)}
    if row["gpu"] == "GB200":
        fabric |= {"nic_rate": "400 Gb/s", "port_rate": "100 Gb/s"}
    gpu = {"kind": row["gpu"], **_pairs(row["hardware"])}
    return {"extends": SITES[row["gpu"]], "name": "held-out", "gpu": gpu, "fabric": fabric}


def _pairs(text: str) -> dict[str, object]:
    """Return what a cell of the table adds: keys and values as in TOML, with semicolons between them."""
    return tomllib.loads(text.replace(";", "\n"))


def _job_table(row: dict[str, str], model: dict[str, object]) -> dict[str, object]:
    tp, pp, cp, chunks = (int(row[name]) for name in ("tp", "pp", "cp", "chunks"))
    plan: dict[str, object] = {"dp": int(row["gpus"]) // (tp * pp * cp), "tp": tp, "pp": pp, "cp": cp,
                               "ep": int(row["ep"]), "shard": int(row["shard"]), "zero": 1, "recompute": row["recompute"]}  # fmt: skip
    if chunks > 1:
        plan |= {"schedule": "interleaved", "chunks": chunks}
    software: dict[str, object] = {"preset": row["preset"], "precision": row["precision"]}
    if "experts" in model:
        software["imbalance"] = 0.0
    # What a recipe says beyond its preset (Megatron-Bridge, scripts/performance/configs).
    software |= _pairs(row["software"])
    batch = {"sequences": int(row["sequences"]), "micro": int(row["micro"]), "length": int(row["length"])}
    return {"name": "held-out", "steps": 50, "model": model, "batch": batch, "plan": plan, "software": software}


def _predicted(row: dict[str, str], site_file: str, job_file: str) -> HeldOutRun:
    site, job = load_site(site_file), load_job(job_file)
    assert job.plan != "auto"
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)
    machine, software, plans = machine_of(site), software_of(job, site), written_plan(job, job.plan)
    return HeldOutRun(
        source=row["source"],
        gpu=row["gpu"],
        model=row["model"],
        precision=row["precision"],
        gpus=int(row["gpus"]),
        mixture=job.model.experts is not None,
        step_s=float(row["step_s"]),
        predicted_s=float(step_times(work, plans, machine, software).step_s[0]),
        confidence=confidence_of(work, plans, 0, machine, software),
    )


def _judged(name: str, rows: list[HeldOutRun], mean_bar: float, worst_bar: float) -> bool:
    errors = np.abs([row.error for row in rows])
    # The bar for the worst is for classes that are recommended without a mark.
    plain = [abs(row.error) for row in rows if row.confidence.unmatched is None]
    inside = sum(row.inside for row in rows)
    print(f"{name}: {len(rows)} rows, mean {errors.mean():.1%}, worst {errors.max():.1%} (unmarked "
          f"{max(plain, default=0.0):.1%}), {inside} inside the printed interval", file=sys.stderr)  # fmt: skip
    return bool(errors.mean() > mean_bar or max(plain, default=0.0) > worst_bar or inside < INSIDE_BAR * len(rows))


def main() -> int:
    """Print every row and the summary; return 1 where a bar is missed."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true", help="print JSON")
    options.add_argument("--kept", type=Path, help="keep the site and job files there")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.kept or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(runs(folder))
    if asked.json:
        print(json.dumps([{**vars(row), "confidence": vars(row.confidence), "error": row.error} for row in rows]))
    else:
        for row in rows:
            mark = " " if row.inside else "!"
            print(f"{row.source:25}{row.gpu:6}{row.model:15}{row.precision:6}{row.gpus:5}{row.step_s:8.2f} s"
                  f"{row.predicted_s:8.2f} s{row.error:+8.1%} +-{row.confidence.share:4.0%} {mark}"
                  f"{'?' if row.confidence.unmatched else ''}")  # fmt: skip
    missed = False
    for kind in dict.fromkeys((row.gpu, row.precision, row.mixture) for row in rows):
        own = [row for row in rows if (row.gpu, row.precision, row.mixture) == kind]
        _judged(f"{kind[0]} {kind[1]} {'mixtures' if kind[2] else 'dense'}", own, 1.0, 1.0)
    for mixture, mean_bar, worst_bar in (
        (False, DENSE_MEAN_BAR, DENSE_WORST_BAR),
        (True, MIXTURE_MEAN_BAR, MIXTURE_WORST_BAR),
    ):
        name = "all mixtures" if mixture else "all dense models"
        missed |= _judged(name, [row for row in rows if row.mixture is mixture], mean_bar, worst_bar)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
