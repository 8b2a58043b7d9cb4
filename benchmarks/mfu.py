"""How much of this machine's measured matrix speed a training step uses (MFU), through `weft.start` and nothing else.

On a GPU: a decoder of about a billion parameters, bf16, with and without compilation. Elsewhere: a small one in fp32.
The peak is measured on the same device in the same run, on random matrices, and the best one counts; the operations of
a step are counted from the model's dimensions (recomputation does not count, attention counts its lower triangle).
"""

import argparse
import json
import platform
import tempfile
import time

import torch

import weft
from weft.specs import JobSpec

LARGE = {"layers": 16, "width": 2048, "heads": 16, "kv_heads": 8, "ffn": 8192, "vocabulary": 32768}
SMALL = {"layers": 4, "width": 256, "heads": 4, "kv_heads": 2, "ffn": 768, "vocabulary": 512}


def job(*, length: int, micro: int, compiled: bool) -> JobSpec:
    """Return the job that is measured."""
    gpu = torch.cuda.is_available()
    return JobSpec.model_validate(
        {
            "name": "mfu",
            "steps": 10**6,
            "model": LARGE if gpu else SMALL,
            "batch": {"sequences": micro, "micro": micro, "length": length},
            "plan": {"precision": "bf16" if gpu else "fp32", "exact": False, "compile": compiled},
            "checkpoint": {"every": 0},
        }
    )


def measure(spec: JobSpec, steps: int) -> dict[str, float]:
    """Train a few steps and return the median step's figures."""
    lines: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = weft.start(spec, folder=folder, on_step=lambda line: lines.append(dict(line)))
        model = weft.spread(run)
        optimizer = weft.adamw(model.parameters(), spec.optimizer)
        run.attach(model, optimizer)
        begun, first_s = time.perf_counter(), 0.0
        for step in run.steps():
            model.forward_backward(step)
            step.reduce()
            optimizer.step()
            run.finish(step)
            if step.number == 0:
                first_s = time.perf_counter() - begun
            if step.number == steps:
                break
        warm = sorted(lines[3:], key=lambda line: line["tokens_per_s"])
        middle = warm[len(warm) // 2]
        parameters = sum(one.numel() for one in model.parameters())
        peak = run.peak
        run.close(save=False)
    return {
        "parameters": parameters,
        "tokens_per_s": round(middle["tokens_per_s"]),
        "tflops": round(middle["mfu"] * peak / 1e12, 3),
        "peak_tflops": round(peak / 1e12, 3),
        "first_step_s": round(first_s, 1),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if torch.cuda.is_available() else 0.0,
    }


def main() -> None:
    """Measure and print one line for each setting, JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=16)
    steps = parser.parse_args().steps
    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
    print(json.dumps({"device": name, "torch": torch.__version__}))
    shapes = ((2048, 16), (4096, 8)) if gpu else ((128, 4),)
    rows: list[dict[str, float]] = []
    for compiled in (False, True) if gpu else (False,):
        for length, micro in shapes:
            figures = measure(job(length=length, micro=micro, compiled=compiled), steps)
            rows.append({"length": length, "micro": micro, "compiled": compiled, **figures})
            print(json.dumps(rows[-1]), flush=True)
    # A warm device is slower than a cold one; the best peak of the whole run is the honest divisor for every row.
    peak = max(row["peak_tflops"] for row in rows)
    for row in rows:
        print(f"length {row['length']}, compiled {row['compiled']}: MFU {row['tflops'] / peak:.1%} of {peak} TFLOP/s")


if __name__ == "__main__":
    main()
