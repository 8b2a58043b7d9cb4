"""How often health checks are wrong on a machine that is right: alarms in many runs, and the share that fits them.

A machine in use is the hard case: other work must not look like a slow core. The bound is the largest rate of alarms
that would still show as few as were seen in one of twenty such measurements (Clopper and Pearson, 1934).
"""

import os
import sys
import time

RUNS = 60
SKIPPED = ("all-reduce", "trainer", "prober")
"""Starting processes a hundred times says little; the others read what they are given."""


def bound(alarms: int, runs: int) -> float:
    """Return the largest rate under which so few alarms come in one of twenty measurements."""
    low, high = alarms / runs, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        term, total = (1 - middle) ** runs, 0.0
        for count in range(alarms + 1):
            total += term
            term *= (runs - count) / (count + 1) * middle / max(1e-300, 1 - middle)
        low, high = (middle, high) if total > 0.05 else (low, middle)  # noqa: PLR2004 - one in twenty
    return high


def main() -> None:
    """Run every program again and again and count."""
    # Before numpy is loaded: one thread computes, so that a core is tested by itself.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    from weft.engines.health.checks import CheckSetting
    from weft.engines.health.registry import CHECKS

    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"{runs} runs of each, load {load:.1f} for each core")
    print(f"{'program':12} {'alarms':>7} {'at most':>8} {'s a run':>8}")
    for name, program in CHECKS.items():
        if name in SKIPPED:
            continue
        first = program.run(CheckSetting(seconds=0.2, mebibytes=16))
        if first.note:
            print(f"{name:12} {'-':>7} {'-':>8} {'-':>8}  {first.note}")
            continue
        began = time.monotonic()
        reports = [program.run(CheckSetting(seconds=0.2, mebibytes=16, seed=seed)) for seed in range(runs)]
        alarms = sum(not report.passed for report in reports)
        spent = (time.monotonic() - began) / runs
        print(f"{name:12} {alarms:7} {bound(alarms, runs):8.1%} {spent:8.3f}")


if __name__ == "__main__":
    main()
