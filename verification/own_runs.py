"""Our own trainer on this machine against the planner: measure the machine, predict, train, compare.

    python verification/own_runs.py [--ranks 4] [--rounds 3] [--json]

Measuring and training take turns, and the middle of the rounds counts, so that other work on the machine meets both.
The program fails where a job's error is above the bar.
"""

import argparse
import json
import os
import statistics
import sys
from typing import Any

from weft.engines.supervisor.bare_step import bare_job, trained_step_s
from weft.planning.calibrate import calibrate, measured_site, with_step
from weft.planning.report import plan_job
from weft.specs import JobSpec, SiteSpec, load_job, load_site
from weft.training.measure import devices, measure

BAR = 0.10
JOBS: dict[str, dict[str, Any]] = {
    "tiny-gpt, dp 2 x pp 2": {},
    "tiny-gpt, dp 4": {"plan": {"dp": 4}},
    "wider, dp 2 x pp 2": {"model": {"layers": 4, "width": 256, "heads": 4, "kv_heads": 2, "ffn": 768}},
    "longer, dp 4": {"plan": {"dp": 4}, "batch": {"sequences": 8, "micro": 1, "length": 512}},
}


def job_named(name: str, steps: int) -> JobSpec:
    """Return one of the jobs, short and without pauses for checkpoints and evaluation."""
    table = load_job("tiny-gpt").as_written()
    for key, value in JOBS[name].items():
        table[key] = {**table[key], **value} if key in ("model", "batch") else value
    table.update(steps=steps, checkpoint={"every": steps}, evaluation={"every": steps})
    return JobSpec.model_validate(table)


def site_here(ranks: int) -> SiteSpec:
    """Return this machine as it is now."""
    found = calibrate(measure(ranks), os.cpu_count() or 1)
    site = measured_site(load_site("laptop"), found, name="here", ranks=ranks, memory_bytes=devices()[1] // ranks)
    return with_step(site, predicted_s(site, bare_job(ranks)), trained_step_s(bare_job(ranks)))


def predicted_s(site: SiteSpec, job: JobSpec) -> float:
    """Return the step time that the planner tells."""
    return float(plan_job(site, job).chosen.step_s[0])


def main() -> int:
    """Compare and print; return 1 where a job is above the bar."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=24)
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name in JOBS:
        job = job_named(name, asked.steps)
        predicted, measured = [], []
        for _ in range(asked.rounds):
            predicted.append(predicted_s(site_here(asked.ranks), job))
            measured.append(trained_step_s(job))
        middle = statistics.median(predicted), statistics.median(measured)
        rows.append(
            {"job": name, "predicted_s": middle[0], "measured_s": middle[1], "error": middle[0] / middle[1] - 1}
        )
        if not asked.json:
            row = rows[-1]
            print(
                f"{name:<26} predicted {middle[0]:6.3f} s  measured {middle[1]:6.3f} s  error {100 * row['error']:+6.1f} %"
            )
    if asked.json:
        print(json.dumps(rows, indent=2))
    return int(any(abs(row["error"]) > BAR for row in rows))


if __name__ == "__main__":
    sys.exit(main())
