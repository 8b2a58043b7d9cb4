"""Published training runs against the planner: what was measured, what is predicted, and the error of each row.

    python verification/published_runs.py [--json]

Kernels and collectives inside a domain are measured one by one (the catalogue of GPU types). What is fitted here is one
share for each GPU type, of the speed of single kernels that lasts inside a step, and one cost of quantising a value.
Everything else is data sheets, the plan that was run, and habits of the software that a preset of `[software]` names.
Each model and precision is also predicted with constants fitted on the others of the same GPU type alone. The program
fails where a bar is missed.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft.collectives.costs import Column
from weft.planning.calibration.run_calibration import pace_of
from weft.planning.cost_model.confidence import Confidence, confidence_of
from weft.planning.cost_model.machine import Machine, usual_machine, with_efficiency
from weft.planning.cost_model.memory import memory_of
from weft.planning.cost_model.plans import Dimensions, Plans, Workload, one_plan
from weft.planning.cost_model.step import step_times
from weft.specs.software import PRESETS, SoftwareSpec

MEGATRON = "Narayanan 2021, arXiv 2104.04473, table 1"
SELECTIVE = "Korthikanti 2022, arXiv 2205.05198, table 5"
LLAMA = "Llama 3, arXiv 2407.21783, table 4"
WEAK = "NVIDIA dgxc-benchmarking v25.03"
RACKS = "NVIDIA dgxc-benchmarking v25.05"
ZERO = "Narayanan 2021, arXiv 2104.04473, table 2 (DeepSpeed ZeRO-3)"

MEAN_BAR, WORST_BAR, INSIDE_BAR = 0.08, 0.15, 0.05
FP8_MEAN_BAR, FP8_WORST_BAR = 0.05, 0.14
CALIBRATED_MEAN_BAR, CALIBRATED_WORST_BAR, MOST_GROWTH = 0.03, 0.05, 16
INTERVAL_BAR = 0.9
LIKE = {"GB200": "H100"}
"""Whose share a type takes that has one family of runs alone."""

OF_2021 = PRESETS["megatron-2021"]
SEQUENCE_2022 = PRESETS["megatron-2022"]
# The 2022 paper's baseline has neither sequence parallelism nor what it hides.
FULL_2022 = SEQUENCE_2022.model_copy(update={"sequence_parallel": False, "overlap_tensor_backward": False})
LLAMA_3 = PRESETS["megatron-2024"]
RECIPES = PRESETS["nemo-2025"].model_copy(update={"precision": "bf16"})
RECIPES_FP8 = RECIPES.model_copy(update={"precision": "fp8"})


@dataclass(frozen=True)
class Run:
    """One published run."""

    paper: str
    """Where it was published."""
    name: str
    """What it is called here."""
    gpu: str
    """GPU type."""
    nic_bps: int
    """Rate of one GPU's NIC."""
    work: Workload
    """Model and batch."""
    plan: Plans
    """How it was spread."""
    practice: SoftwareSpec
    """Habits of the software."""
    step_s: float
    """Published time of a step, or derived from the published speed."""
    calculon: float | None = None
    """Calculon's error on this row, as a share, where known."""
    model: str = ""
    """What is left out together: runs of one model on one type of GPU in one precision; by its name where empty."""

    @property
    def family(self) -> str:
        """Return what is left out together with it."""
        return self.model or f"{self.gpu} {self.name.split()[0]}"

    def machine(self) -> Machine:
        """Return the machine that it ran on."""
        return usual_machine(self.gpu, int(self.plan.ranks[0]), self.nic_bps)

    def confidence(self) -> Confidence:
        """Return how far off the planner says that it may be."""
        return confidence_of(self.work, self.plan, 0, self.machine(), self.practice)

    def error(self, **shares: float) -> float:
        """Return predicted over published time, less one."""
        machine = with_efficiency(self.machine(), **shares)
        return float(step_times(self.work, self.plan, machine, self.practice).step_s[0]) / self.step_s - 1


def gpt(layers: int, width: int, heads: int) -> Dimensions:
    """Return a GPT of the Megatron papers."""
    return Dimensions(layers, width, heads, heads, width // heads, 4 * width, 51_200, gated=False)


LLAMA_405B = Dimensions(126, 16_384, 128, 8, 128, 53_248, 128_256, tied=False)
LLAMA_8B = Dimensions(32, 4_096, 32, 8, 128, 14_336, 128_256, tied=False)
NEMOTRON_15B = Dimensions(32, 6_144, 48, 8, 128, 24_576, 256_000, tied=False, gated=False)
LLAMA_70B = Dimensions(80, 8_192, 64, 8, 128, 28_672, 128_256, tied=False)

# heads, width, layers, tp, pp, GPUs, batch, micro, chunks, TFLOP/s of a GPU, Calculon's error
_MEGATRON_ROWS = {
    "1.7B": (24, 2304, 24, 1, 1, 32, 512, 16, 1, 137, -0.214),
    "3.6B": (32, 3072, 30, 2, 1, 64, 512, 16, 1, 138, -0.169),
    "7.5B": (32, 4096, 36, 4, 1, 128, 512, 16, 1, 142, -0.109),
    "18.4B": (48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135, -0.082),
    "39.1B": (64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138, -0.088),
    "76.1B": (80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140, -0.133),
    "145.6B": (96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148, -0.135),
    "310.1B": (128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155, -0.155),
    "529.6B": (128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163, -0.105),
    "1008B": (160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163, -0.152),
}
# layers, width, heads, pp, chunks, GPUs, batch, micro, full s, sequence + selective s, Calculon's two errors
_SELECTIVE_ROWS = {
    "22B": (48, 6144, 64, 1, 1, 8, 4, 4, 1.42, 1.10, -0.0172, 0.0333),
    "175B": (96, 12288, 96, 8, 3, 64, 64, 1, 18.13, 13.75, -0.0056, -0.0081),
    "530B": (105, 20480, 128, 35, 3, 280, 280, 1, 49.05, 37.83, 0.0172, -0.0887),
    "1T": (128, 25600, 160, 64, 1, 512, 512, 1, 94.42, 71.49, -0.0460, -0.0762),
}
# GPUs, cp, length, sequences, TFLOP/s of a GPU
_LLAMA_ROWS = ((8192, 1, 8192, 2048, 430), (16384, 1, 8192, 2048, 400), (16384, 16, 131_072, 128, 380))
# GPUs, batch, seconds
_WEAK_405B = ((576, 252, 17.50), (1152, 504, 17.60), (2304, 1008, 17.70))
_WEAK_70B = (
    (64, 128, 14.61), (128, 256, 14.70), (256, 512, 14.72), (512, 1024, 14.80), (1024, 2048, 14.86),
    (2048, 4096, 14.84),
)  # fmt: skip
# parameters, layers, width, heads, GPUs, batch, micro, TFLOP/s of a GPU
_ZERO_ROWS = (
    ("174.6B", 96, 12288, 96, 384, 1536, 4, 144), ("174.6B", 96, 12288, 96, 768, 1536, 2, 88),
    ("174.6B", 96, 12288, 96, 1536, 1536, 1, 44), ("529.6B", 105, 20480, 128, 640, 2560, 4, 138),
    ("529.6B", 105, 20480, 128, 1120, 2240, 2, 98), ("529.6B", 105, 20480, 128, 2240, 2240, 1, 48),
)  # fmt: skip
# GPUs, batch, fp8 seconds, bf16 seconds; then GPUs, batch, bf16 seconds
_SMALL_8B = (
    (8, 128, 9.44, 12.78), (16, 256, 9.47, 12.99), (32, 512, 9.60, 13.00), (64, 1024, 9.64, 13.00),
    (128, 2048, 9.73, 13.16),
)  # fmt: skip
_SMALL_15B = (
    (16, 64, 2.039, 2.812), (32, 128, 2.046, 2.824), (64, 256, 2.048, 2.845), (128, 512, 2.059, 2.859),
    (256, 1024, 2.075, 2.852), (512, 2048, 2.12, 2.875), (1024, 4096, 2.094, 2.895), (2048, 8192, 2.12, 2.887),
)  # fmt: skip
_RACKS_405B = ((128, 64, 9.347), (256, 128, 9.484), (512, 256, 9.508))
ZERO_REASON = (
    "step time does not fall with more GPUs: three passes of all weights at about 20 GB/s, one NIC's worth for each "
    "node of eight; the planner assumes collectives that use every NIC and hide behind compute"
)
# length, micro-batch, compiled, tokens per second: benchmarks/mfu.py on one H200 (docs/training.md)
_OWN_ROWS = ((2048, 16, True, 76_829), (4096, 8, True, 72_275), (2048, 16, False, 60_924), (4096, 8, False, 58_274))
OWN = "weft, benchmarks/mfu.py on one H200"
OWN_BAR = 0.10
SELENE_BPS, LLAMA_BPS = 200 * 10**9, 400 * 10**9


def megatron_flops(work: Workload) -> float:
    """Return the operations that the 2021 paper counts for a step: full recomputation included (equation 3)."""
    model, length = work.model, work.length
    layers, width = model.layers, model.width
    ends = model.vocabulary / (16 * layers * width)
    return 96 * work.sequences * length * layers * width**2 * (1 + length / (6 * width) + ends)


def runs() -> list[Run]:
    """Return every published run that the planner is held against."""
    found: list[Run] = []
    for name, (heads, width, layers, tp, pp, gpus, batch, micro, chunks, speed, theirs) in _MEGATRON_ROWS.items():
        work = Workload(gpt(layers, width, heads), batch, 2048)
        plan = one_plan(dp=gpus // tp // pp, tp=tp, pp=pp, micro=micro, chunks=chunks, recompute="full",
                        schedule="interleaved" if chunks > 1 else "1f1b")  # fmt: skip
        seconds = megatron_flops(work) / (gpus * speed * 1e12)
        found.append(Run(MEGATRON, name, "A100", SELENE_BPS, work, plan, OF_2021, seconds, theirs))
    for name, (layers, width, heads, pp, chunks, gpus, batch, micro, *figures) in _SELECTIVE_ROWS.items():
        work = Workload(gpt(layers, width, heads), int(batch), 2048)
        for kind, practice, seconds, theirs in (
            ("full", FULL_2022, figures[0], figures[2]),
            ("selective", SEQUENCE_2022, figures[1], figures[3]),
        ):
            plan = one_plan(dp=gpus // 8 // pp, tp=8, pp=pp, micro=micro, chunks=chunks, recompute=kind,
                            schedule="interleaved" if chunks > 1 else "1f1b")  # fmt: skip
            found.append(Run(SELECTIVE, f"{name} {kind}", "A100", SELENE_BPS, work, plan, practice, seconds, theirs))
    return found + llama_runs() + weak_runs() + small_runs() + rack_runs()


def llama_runs() -> list[Run]:
    """Return the runs of the Llama 3 paper.

    One layer to a chunk: 126 layers and the two ends fill 16 stages of 8 (section 3.3.2: the first chunk has only the
    embedding, the last only the output). Gradients are summed whole and scattered once a step. Operations are counted
    with causal attention, which is what its masks compute.
    """
    found: list[Run] = []
    for gpus, cp, length, sequences, speed in _LLAMA_ROWS:
        work = Workload(LLAMA_405B, sequences, length)
        plan = one_plan(dp=gpus // (8 * 16 * cp), tp=8, pp=16, cp=cp, zero=1, schedule="interleaved", chunks=8)
        seconds = LLAMA_405B.flops_per_token(length, causal=True) * work.tokens / (gpus * speed * 1e12)
        found.append(
            Run(LLAMA, f"405B {gpus} {length}", "H100", LLAMA_BPS, work, plan, LLAMA_3, seconds, model="405B bf16")
        )
    return found


def weak_runs() -> list[Run]:
    """Return NVIDIA's weak scaling of Llama 3.1 on H100."""
    found: list[Run] = []
    for model, name, tp, pp, chunks, rows in (
        (LLAMA_405B, "405B", 8, 9, 7, _WEAK_405B),
        (LLAMA_70B, "70B", 4, 4, 5, _WEAK_70B),
    ):
        for gpus, batch, seconds in rows:
            plan = one_plan(dp=gpus // (tp * pp * 2), tp=tp, pp=pp, cp=2, zero=1, schedule="interleaved", chunks=chunks)
            work = Workload(model, batch, 8192)
            found.append(
                Run(WEAK, f"{name} {gpus}", "H100", LLAMA_BPS, work, plan, RECIPES, seconds, model=f"{name} bf16")
            )
    return found


def small_runs() -> list[Run]:
    """Return NVIDIA's weak scaling of Llama 3.1 8B and Nemotron-4 15B on H100, in fp8 and bf16."""
    found: list[Run] = []
    for name, model, length, rows in (
        ("8B", LLAMA_8B, 8192, _SMALL_8B),
        ("15B", NEMOTRON_15B, 4096, _SMALL_15B),
    ):
        for gpus, batch, *seconds in rows:
            plan = (
                one_plan(dp=gpus // 2, cp=2, zero=1) if name == "8B" else one_plan(dp=gpus // 4, tp=4, micro=4, zero=1)
            )
            work = Workload(model, batch, length)
            for practice, each in zip((RECIPES_FP8, RECIPES), seconds, strict=True):
                what = f"{name} {practice.precision}"
                found.append(Run(WEAK, f"{what} {gpus}", "H100", LLAMA_BPS, work, plan, practice, each, model=what))
    return found


def rack_runs() -> list[Run]:
    """Return NVIDIA's weak scaling of Llama 3.1 405B on GB200 racks of 72, of which 64 work."""
    found: list[Run] = []
    for gpus, batch, seconds in _RACKS_405B:
        plan = one_plan(dp=gpus // 64, tp=4, pp=8, cp=2, zero=1, schedule="interleaved", chunks=8)
        work = Workload(LLAMA_405B, batch, 8192)
        found.append(Run(RACKS, f"GB200 405B {gpus}", "GB200", LLAMA_BPS, work, plan, RECIPES, seconds))
    return found


def zero_runs() -> list[Run]:
    """Return the runs that the planner does not match; see `ZERO_REASON`."""
    found: list[Run] = []
    for name, layers, width, heads, gpus, batch, micro, speed in _ZERO_ROWS:
        work = Workload(gpt(layers, width, heads), batch, 2048)
        plan = one_plan(dp=gpus, zero=3, micro=micro, recompute="full")
        practice = SoftwareSpec(flash=False, sequence_parallel=False, dropout=True, gradient_bytes=2)
        seconds = megatron_flops(work) / (gpus * speed * 1e12)
        found.append(Run(ZERO, f"{name} {gpus}", "A100", SELENE_BPS, work, plan, practice, seconds))
    return found


def own_runs() -> list[Run]:
    """Return our own measured steps on one GPU, compiled first; none of them is used to fit anything."""
    model = Dimensions(16, 2048, 16, 8, 128, 8192, 32_768)
    found: list[Run] = []
    for length, micro, compiled, speed in _OWN_ROWS:
        work = Workload(model, micro, length)
        name = f"1.07B {length}{'' if compiled else ' eager'}"
        found.append(
            Run(OWN, name, "H200", LLAMA_BPS, work, one_plan(micro=micro), SoftwareSpec(), work.tokens / speed)
        )
    return found


def fitted(rows: list[Run]) -> dict[str, float]:
    """Return what suits `rows` best: least mean absolute error on a fixed grid.

    The share of its kernels' speed that a type of GPU keeps in a step comes from the rows that are not quantised, what
    quantising costs from those that are.
    """
    plain = [row for row in rows if not row.practice.quantised]
    narrow = [row for row in rows if row.practice.quantised]
    found = {"sustained": _best("sustained", np.arange(0.60, 1.001, 0.01), plain, {})} if plain else {}
    if narrow:
        found["quantise"] = _best("quantise", np.arange(0.0, 20.1, 0.5), narrow, found)
    return found


def _best(name: str, grid: Column, rows: list[Run], others: dict[str, float]) -> float:
    shares = [{**others, name: round(float(value), 3)} for value in grid]
    return min(shares, key=lambda each: float(np.mean([abs(row.error(**each)) for row in rows])))[name]


def papers_left_out(rows: list[Run]) -> dict[str, list[float]]:
    """Return, for each A100 paper, the errors with what was fitted to the other one: harder than leaving out a model.

    The two disagree: on the same plan (530B, 35 stages of tensor-parallel 8) the later one's software is 10 % faster.
    """
    found: dict[str, list[float]] = {}
    for paper, other in ((MEGATRON, SELECTIVE), (SELECTIVE, MEGATRON)):
        shares = fitted([row for row in rows if row.paper == other])
        found[paper] = [row.error(**shares) for row in rows if row.paper == paper]
    return found


def left_out(rows: list[Run]) -> dict[str, tuple[dict[str, float], list[float]]]:
    """Return, family by family, what is fitted without it and the errors on its rows.

    Where no other run of the same GPU is known, another type's share is taken: that is how an unseen GPU is predicted.
    """
    found: dict[str, tuple[dict[str, float], list[float]]] = {}
    for family in dict.fromkeys(row.family for row in rows):
        own = [row for row in rows if row.family == family]
        others = [row for row in rows if row.family != family and row.gpu == own[0].gpu]
        shares = fitted(others or [row for row in rows if row.gpu == LIKE[own[0].gpu]])
        found[family] = shares, [row.error(**shares) for row in own]
    return found


def calibrated_errors(rows: list[Run]) -> list[float]:
    """Return the errors on each family's other runs, up to 16 times as large, once its smallest one set the pace.

    A family is one model, precision and software in weak scaling: the same share of the batch on each replica.
    """
    found: list[float] = []
    for family in dict.fromkeys((row.paper, row.family) for row in rows):
        own = sorted(
            (row for row in rows if (row.paper, row.family) == family), key=lambda row: float(row.plan.ranks[0])
        )
        first = own[0]
        share = first.work.sequences / float(first.plan.dp[0])
        others = [
            row
            for row in own[1:]
            if 1 < float(row.plan.ranks[0] / first.plan.ranks[0]) <= MOST_GROWTH
            and row.practice == first.practice
            and row.work.length == first.work.length
            and row.work.sequences / float(row.plan.dp[0]) == share
        ]
        if others:
            pace = pace_of(first.work, first.plan, first.machine(), first.practice, first.step_s)
            found += [row.error(pace=pace) for row in others]
    return found


Line: TypeAlias = tuple[Run, float, float]
"""A run, its error, and its error with constants fitted without its paper."""


def _document(row: Run, error: float, apart: float) -> dict[str, Any]:
    """Return a row as plain values."""
    found = {"paper": row.paper, "run": row.name, "published_s": row.step_s, "predicted_s": row.step_s * (1 + error)}
    return {**found, "error": error, "error_left_out": apart, "calculon": row.calculon}


def _print(table: list[Line]) -> None:
    """Print the rows for people."""
    print(
        f"{'run':20}{'published':>11}{'predicted':>11}{'error':>9}{'left out':>10}{'Calculon':>10}{'memory':>10} fits"
    )
    for row, error, apart in table:
        theirs = "" if row.calculon is None else f"{row.calculon:+.1%}"
        memory = float(memory_of(row.work, row.plan, row.practice).total[0])
        fits = "yes" if memory <= row.machine().memory_bytes else "NO"
        times = f"{row.step_s:9.2f} s{row.step_s * (1 + error):9.2f} s"
        print(f"{row.name:20}{times}{error:+9.1%}{apart:+10.1%}{theirs:>10}{memory / 2**30:6.0f} GiB {fits}")
    print(f"\n{OWN}, with H100's constants; eager code makes more passes over memory than is counted")
    for row in own_runs():
        print(f"{row.name:20}{row.step_s:9.3f} s{row.step_s * (1 + row.error()):9.3f} s{row.error():+9.1%}")
    print("\nnot matched:", ZERO_REASON)
    for row in zero_runs():
        print(f"{row.name:20}{row.step_s:9.2f} s{row.step_s * (1 + row.error()):9.2f} s{row.error():+9.1%}")


def main() -> int:
    """Print every row and the summary; return 1 where a bar is missed."""
    options = argparse.ArgumentParser(description="Published runs against the planner.")
    options.add_argument("--json", action="store_true", help="print JSON")
    wanted = options.parse_args()
    rows = runs()
    outside = left_out(rows)
    apart = {id(row): error for family, (_, errors) in outside.items()
             for row, error in zip([row for row in rows if row.family == family], errors, strict=True)}  # fmt: skip
    table = [(row, row.error(), apart[id(row)]) for row in rows]
    inside = float(np.mean([abs(error) for _, error, _ in table]))
    compiled = [row for row in own_runs() if "eager" not in row.name]
    missed = inside > INSIDE_BAR or any(abs(row.error()) > OWN_BAR for row in compiled)
    if wanted.json:
        print(json.dumps([_document(*line) for line in table], indent=2))
    else:
        _print(table)
    by_paper: dict[str, list[float]] = {}
    for family, (_, errors) in outside.items():
        own = next(row for row in rows if row.family == family)
        by_paper.setdefault(f"{own.paper}{' fp8' if own.practice.quantised else ''}", []).extend(errors)
    for paper, errors in by_paper.items():
        mean, worst = float(np.mean(np.abs(errors))), float(np.max(np.abs(errors)))
        narrow = paper.endswith("fp8")
        missed |= mean > (FP8_MEAN_BAR if narrow else MEAN_BAR) or worst > (FP8_WORST_BAR if narrow else WORST_BAR)
        print(f"each model left out: {paper}: mean {mean:.1%}, worst {worst:.1%}", file=sys.stderr)
    for paper, errors in papers_left_out(rows).items():
        print(f"whole paper left out: {paper}: mean {np.mean(np.abs(errors)):.1%}, worst {np.max(np.abs(errors)):.1%}",
              file=sys.stderr)  # fmt: skip
    grown = np.abs(calibrated_errors(rows))
    missed |= bool(grown.mean() > CALIBRATED_MEAN_BAR or grown.max() > CALIBRATED_WORST_BAR)
    print(f"calibrated on the smallest run of a family, {len(grown)} runs 2 to {MOST_GROWTH} times as large: mean "
          f"{grown.mean():.1%}, worst {grown.max():.1%}", file=sys.stderr)  # fmt: skip
    intervals = [row.confidence().interval(row.step_s * (1 + apart)) for row, _, apart in table]
    inside_interval = [low <= row.step_s <= high for (row, _, _), (low, high) in zip(table, intervals, strict=True)]
    missed |= float(np.mean(inside_interval)) < INTERVAL_BAR
    print(f"inside the printed interval, each model left out: {sum(inside_interval)} of {len(table)}", file=sys.stderr)
    calculon = [abs(row.calculon) for row in rows if row.calculon is not None]
    ours = [abs(error) for row, error, _ in table if row.calculon is not None]
    print(f"all rows, constants of the catalogue: mean {inside:.1%}; on Calculon's {len(calculon)} rows ours "
          f"{np.mean(ours):.1%}, worst {max(ours):.1%}, Calculon's {np.mean(calculon):.1%}, worst {max(calculon):.1%}",
          file=sys.stderr)  # fmt: skip
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
