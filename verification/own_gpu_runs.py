"""Our own trainer on one H200 against the planner: measure the GPU as `weft site measure` does, predict, train, compare.

    python -m verification.own_gpu_runs

The jobs are those of `benchmarks/mfu.py`, not compiled, at three lengths. The program fails where an error is above the
bar. It takes about three minutes on an H200.
"""

import sys

from benchmarks.mfu import job
from benchmarks.mfu import measure as train

from weft.engines.supervisor.probes import in_turns, probe_jobs
from weft.planning.calibration.microbenchmarks import calibrate, measured_site
from weft.planning.calibration.step_probes import with_step
from weft.planning.report import plan_job
from weft.specs import load_site
from weft.specs.gpus import gpu_type_named
from weft.training.launch.machine_times import devices, measure

BAR = 0.10
JOBS = ((2048, 16), (4096, 8), (1024, 8))
"""Tokens of a sequence, sequences of a micro-batch."""


def main() -> int:
    """Compare and print; return 1 where a job is above the bar."""
    count, memory = devices()
    if not count:
        sys.stderr.write("own_gpu_runs: no GPU here; it needs an H200\n")
        return 2
    times = measure(1, 0.5)
    if "H200" not in times.device:
        sys.stderr.write(f"own_gpu_runs: this is an {times.device}; it needs an H200, whose data sheet it takes\n")
        return 2
    found = with_step(calibrate(times, 1), in_turns(probe_jobs(1)[:1], 2)[0].seconds)
    base = load_site("laptop").model_copy(update={"gpu": gpu_type_named("h200").gpu})
    site = measured_site(base, found, name="here", ranks=1, memory_bytes=memory)
    worst = 0.0
    for length, micro in JOBS:
        spec = job(length=length, micro=micro, compiled=False)
        told = float(plan_job(site, spec).chosen.times.step_s[0])
        seconds = length * micro / float(train(spec, 12)["tokens_per_s"])
        error = told / seconds - 1
        worst = max(worst, abs(error))
        print(
            f"{micro:3} x {length}: predicted {told:.3f} s  measured {seconds:.3f} s  error {100 * error:+.1f} %",
            flush=True,
        )
    print(f"{times.device}: worst {100 * worst:.1f} %")
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main())
