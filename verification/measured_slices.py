"""Slices of Llama 3 and DeepSeek measured on 8 B200 against the planner: step times, and the peak memory of each stage.

    python verification/measured_slices.py TABLE.csv [--json]

TABLE.csv is the release table of SimuMax 1.2 (columns case, model, parallel, layer_num, mbc, real_ms,
max_allocated_mb_by_rank, max_reserved_mb_by_rank). Memory is not fitted to it beyond two byte counts, of a gradient on
its way and of what is alive in a backward pass. The expert imbalance and the time to launch a block were read off it,
and B200's share lies between it and MLPerf. The program fails where a bar is missed.
"""

import argparse
import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from verification.published_runs import LLAMA_70B, LLAMA_405B, LLAMA_BPS
from weft.planning.cost_model.machine import usual_machine
from weft.planning.cost_model.memory import stage_memory
from weft.planning.cost_model.plans import Dimensions, Latent, Plans, Workload, one_plan
from weft.planning.cost_model.step import step_times
from weft.specs.software import SoftwareSpec

GPUS, LENGTH = 8, 4096
MEMORY_MEAN_BAR, MEMORY_WORST_BAR = 0.03, 0.08
MIXTURE_MEAN_BAR, MIXTURE_WORST_BAR = 0.15, 0.30
DENSE_MEAN_BAR, DENSE_WORST_BAR = 0.08, 0.15
# Megatron as the table's authors ran it: cross-entropy fused, sums of gradients not, nothing hidden.
SOFTWARE = SoftwareSpec(
    precision="bf16", overlap_tensor=False, overlap_tensor_backward=False, overlap_data=False, overlap_pipeline=False,
    fused_loss=True, fold=True, host_us=5000.0, host_expert_us=7000.0, host_latent_us=7500.0,
)  # fmt: skip
_LATENT = Latent(kv_rank=512, query_rank=1536, rope_width=64, value_width=128)
MODELS = {
    "llama3-70b": LLAMA_70B,
    "llama3-405b": LLAMA_405B,
    "deepseekv2": Dimensions(
        60, 5120, 128, 128, 128, 1536, 102_400, tied=False, experts=160, top_k=6, shared=3072, dense_layers=1,
        dense_ffn=12_288, latent=_LATENT,
    ),
    "deepseekv3": Dimensions(
        61, 7168, 128, 128, 128, 2048, 129_280, tied=False, experts=256, top_k=8, shared=2048, dense_layers=1,
        dense_ffn=18_432, latent=_LATENT,
    ),
}  # fmt: skip


def _row(line: dict[str, str]) -> dict[str, Any]:
    """Return what is measured and predicted of one case."""
    sizes = {axis: int(size) for axis, size in re.findall(r"(tp|pp|ep)(\d+)", line["parallel"])}
    tp, pp, ep = (sizes.get(axis, 1) for axis in ("tp", "pp", "ep"))
    dp = GPUS // tp // pp
    model = replace(MODELS[line["model"]], layers=int(line["layer_num"]))
    work = Workload(model, int(line["mbc"]) * dp, LENGTH)
    plan = one_plan(dp=dp, tp=tp, pp=pp, ep=ep, zero=1)
    machine = usual_machine("B200", GPUS, LLAMA_BPS)
    step_s = float(step_times(work, plan, machine, SOFTWARE).step_s[0])
    measured_s = float(line["real_ms"]) / 1e3
    return {
        "case": line["case"], "mixture": model.experts > 1, "measured_s": measured_s, "predicted_s": step_s,
        "error": step_s / measured_s - 1, "memory": _memory(line, work, plan),
    }  # fmt: skip


def _memory(line: dict[str, str], work: Workload, plan: Plans) -> list[dict[str, float]]:
    """Return the peak memory of the first and last stage in MiB, as predicted and as measured."""
    allocated, reserved = (
        {int(rank): float(size) for rank, size in (part.split(":") for part in line[name].split())}
        for name in ("max_allocated_mb_by_rank", "max_reserved_mb_by_rank")
    )
    found: list[dict[str, float]] = []
    for stage, rank in (("first", 0), ("last", GPUS - 1)) if plan.pp[0] > 1 else (("last", 0),):
        predicted = float(stage_memory(work, plan, SOFTWARE, "first" if stage == "first" else "last").total[0]) / 2**20
        found.append({"measured": allocated[rank], "predicted": predicted, "error": predicted / allocated[rank] - 1,
                      "reserved_over_allocated": reserved[rank] / allocated[rank]})  # fmt: skip
    return found


def _judged(name: str, errors: list[float], mean_bar: float, worst_bar: float) -> bool:
    mean, worst = float(np.mean(np.abs(errors))), float(np.max(np.abs(errors)))
    print(f"{name}: {len(errors)} rows, mean {mean:.1%}, worst {worst:.1%}", file=sys.stderr)
    return mean > mean_bar or worst > worst_bar


def main() -> int:
    """Print every row and the summary; return 1 where a bar is missed."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("table", type=Path, help="the release table of SimuMax 1.2")
    options.add_argument("--json", action="store_true", help="print JSON")
    asked = options.parse_args()
    with asked.table.open(newline="", encoding="utf-8") as lines:
        rows = [_row(line) for line in csv.DictReader(lines)]
    if asked.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            memory = "  ".join(f"{each['predicted']:7,.0f} MiB {each['error']:+.1%}" for each in row["memory"])
            print(
                f"{row['case']:42}{row['measured_s']:8.3f} s{row['predicted_s']:8.3f} s{row['error']:+8.1%}  {memory}"
            )
    memory = [each["error"] for row in rows for each in row["memory"]]
    missed = _judged("memory of stages", memory, MEMORY_MEAN_BAR, MEMORY_WORST_BAR)
    dense, mixed = ([row["error"] for row in rows if row["mixture"] is mixture] for mixture in (False, True))
    missed |= _judged("steps of dense models", dense, DENSE_MEAN_BAR, DENSE_WORST_BAR)
    missed |= _judged("steps of mixtures", mixed, MIXTURE_MEAN_BAR, MIXTURE_WORST_BAR)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
