"""Runs health checks in a process of their own and prints their reports as JSON, one line.

One thread computes, so that a core is tested by itself; the engine and the command line start it this way.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from weft.core.errors import WeftError


def main(arguments: list[str]) -> int:
    """Run the programs that are named."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from weft.engines.health.checks import CheckSetting
    from weft.engines.health.registry import run

    parser = argparse.ArgumentParser(prog="weft-health")
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    for name in ("state", "kernel-log", "survey", "runs"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args(arguments)
    setting = CheckSetting(
        given.seconds, given.mebibytes, given.seed, given.state, given.kernel_log, survey=given.survey, runs=given.runs
    )
    try:
        reports = run(given.programs, setting)
    except WeftError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    sys.stdout.write(json.dumps([report.as_json() for report in reports]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
