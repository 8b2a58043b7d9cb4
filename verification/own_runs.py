"""Our own trainer on this machine against the planner: measure the machine, predict, train, compare.

    python verification/own_runs.py [--rounds 5] [--json]

The machine is measured as `weft site measure` does it, with probes that are none of the jobs here. Probes and jobs are
trained in turns, and the least tenth of the steps of each counts, so that other work on the machine meets both. The
program fails where a job's error is above the bar. It takes about fifteen minutes. What other programs take of the
processors meanwhile is taken off and told; on an idle machine it is nothing.
"""

import argparse
import json
import sys
from functools import partial
from itertools import zip_longest
from typing import Any

from weft.core.processors import processors
from weft.engines.supervisor.probes import in_turns, probe_jobs
from weft.planning.calibration.microbenchmarks import calibrate, measured_site
from weft.planning.calibration.step_probes import fitted, times_of
from weft.specs import JobSpec, load_job, load_site
from weft.training.launch.machine_times import devices, measure

BAR = 0.10
RANKS = 4
"""What the plans of the jobs are written for."""
PARTS = ("compute_s", "tensor_s", "pipeline_s", "bubble_s", "data_s", "optimizer_s")
JOBS: dict[str, dict[str, Any]] = {
    "tiny-gpt, dp 2 x pp 2": {},
    "tiny-gpt, dp 4": {"plan": {"dp": 4}},
    "wider, dp 2 x pp 2": {"model": {"layers": 4, "width": 256, "heads": 4, "kv_heads": 2, "ffn": 768}},
    "longer, dp 4": {"plan": {"dp": 4}, "batch": {"sequences": 8, "micro": 1, "length": 512}},
    "deeper, dp 4": {"plan": {"dp": 4}, "model": {"layers": 10, "width": 96, "kv_heads": 4, "ffn": 256}},
    "other vocabulary, dp 4": {
        "plan": {"dp": 4},
        "model": {"layers": 3, "width": 144, "ffn": 384, "vocabulary": 1500},
    },
    "many micro-batches, dp 2 x pp 2": {"batch": {"sequences": 32, "micro": 1, "length": 64}},
    "tiny-gpt, dp 2 x tp 2": {"plan": {"dp": 2, "tp": 2}, "steps": 10},
    "tiny-gpt, ZeRO 3 over dp 4": {"plan": {"dp": 4, "shard": 4}, "steps": 12},
    "wider, dp 2 x tp 2": {
        "plan": {"dp": 2, "tp": 2},
        "model": {"layers": 3, "width": 192, "heads": 6, "kv_heads": 2, "ffn": 512},
        "steps": 10,
    },
    "longer, ZeRO 3 over dp 4": {
        "plan": {"dp": 4, "shard": 4},
        "batch": {"sequences": 8, "micro": 1, "length": 256},
        "steps": 12,
    },
    "narrower and deeper, dp 2 x tp 2": {
        "plan": {"dp": 2, "tp": 2},
        "model": {"layers": 6, "width": 96, "heads": 4, "kv_heads": 4, "ffn": 288},
        "batch": {"sequences": 4, "micro": 1, "length": 192},
        "steps": 10,
    },
    "longer, dp 2 x tp 2": {
        "plan": {"dp": 2, "tp": 2},
        "model": {"layers": 3, "width": 160, "heads": 4, "kv_heads": 4, "ffn": 416},
        "batch": {"sequences": 4, "micro": 1, "length": 384},
        "steps": 10,
    },
    "wider, ZeRO 3 over dp 4": {
        "plan": {"dp": 4, "shard": 4},
        "model": {"layers": 3, "width": 224, "heads": 7, "kv_heads": 7, "ffn": 640},
        "batch": {"sequences": 16, "micro": 2, "length": 96},
        "steps": 12,
    },
    "deeper, ZeRO 3 over dp 4": {
        "plan": {"dp": 4, "shard": 4},
        "model": {"layers": 5, "width": 160, "heads": 5, "kv_heads": 5, "ffn": 448},
        "batch": {"sequences": 16, "micro": 1, "length": 64},
        "steps": 12,
    },
    "widest, ZeRO 3 over dp 4": {
        "plan": {"dp": 4, "shard": 4},
        "model": {"layers": 2, "width": 288, "heads": 6, "kv_heads": 3, "ffn": 768},
        "batch": {"sequences": 4, "micro": 1, "length": 128},
        "steps": 12,
    },
    "deeper, dp 2 x pp 2": {
        "model": {"layers": 8, "width": 96, "heads": 3, "kv_heads": 3, "ffn": 256},
        "batch": {"sequences": 12, "micro": 1, "length": 160},
    },
    "widest, dp 4": {
        "plan": {"dp": 4},
        "model": {"layers": 2, "width": 320, "heads": 5, "kv_heads": 5, "ffn": 896},
        "batch": {"sequences": 8, "micro": 1, "length": 64},
    },
    "one micro-batch, dp 2 x tp 2": {
        "plan": {"dp": 2, "tp": 2},
        "model": {"layers": 5, "ffn": 320},
        "batch": {"sequences": 4, "micro": 2, "length": 128},
        "steps": 10,
    },
}
STEPS = 14


def job_named(name: str) -> JobSpec:
    """Return one of the jobs, short and without pauses for checkpoints and evaluation."""
    table = load_job("tiny-gpt").as_written()
    table.update(steps=STEPS, checkpoint={"every": 0}, evaluation={"every": 0})
    for key, value in JOBS[name].items():
        table[key] = {**table[key], **value} if key in ("model", "batch") else value
    return JobSpec.model_validate(table)


def compared(rounds: int) -> list[dict[str, Any]]:
    """Return what was predicted and measured of every job."""
    found = calibrate(measure(RANKS, 0.2), processors())
    make = partial(measured_site, load_site("laptop"), name="here", ranks=RANKS, memory_bytes=devices()[1] // RANKS)
    probes, jobs = probe_jobs(RANKS), [job_named(name) for name in JOBS]

    # Probes and jobs stand beside each other in every round: a machine's speed drifts within one.
    times = in_turns([one for pair in zip_longest(probes, jobs) for one in pair if one is not None], rounds)
    site = make(fitted(found, make, [one for one in times if one.job in probes]))
    rows: list[dict[str, Any]] = []
    for name, one in zip(JOBS, (one for one in times if one.job in jobs), strict=True):
        told = times_of(site, one.job)
        step_s = float(told.step_s[0])
        rows.append(
            {
                "job": name, "predicted_s": step_s, "measured_s": one.seconds, "error": step_s / one.seconds - 1,
                "others": one.others,
                "parts_s": {part: float(getattr(told, part)[0]) for part in PARTS},
            }
        )  # fmt: skip
    return rows


def main() -> int:
    """Compare and print; return 1 where a job is above the bar."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    if asked.rounds < 1:
        options.error(f"--rounds {asked.rounds}: each job is trained at least once; write 1 or more")
    rows = compared(asked.rounds)
    errors = [abs(row["error"]) for row in rows]
    if asked.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            told = f"predicted {row['predicted_s']:6.3f} s  measured {row['measured_s']:6.3f} s"
            print(f"{row['job']:<32} {told}  error {100 * row['error']:+6.1f} %  others {100 * row['others']:2.0f} %")
        print(f"mean error {100 * sum(errors) / len(errors):.1f} %, worst {100 * max(errors):.1f} %")
    return int(max(errors) > BAR)


if __name__ == "__main__":
    sys.exit(main())
