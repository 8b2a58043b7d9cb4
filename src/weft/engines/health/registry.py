"""Every health program: what it can catch, from when on it speaks, how long it takes; and the suites of tests.

How often each was wrong on healthy machines is measured by `benchmarks/health.py` and stands in docs/local.md.
"""

from collections.abc import Iterable

from weft.core.errors import UsageError
from weft.engines.health import active_tests, counters, external_reports, kernel_log, nvml
from weft.engines.health.checks import CheckSetting, HealthCheck, HealthReport

CHECKS: dict[str, HealthCheck] = {
    program.name: program
    for program in (
        HealthCheck("kernel", "passive", "GPU driver errors (XID), machine checks, disks, flapping links, stuck CPUs",
                f"one line of its class; {kernel_log.FLAPS} links down", "below 0.1 s", kernel_log.kernel),
        HealthCheck("ecc", "passive", "memory modules that correct, or no longer can",
                f"1 uncorrectable; {counters.CORRECTED_PER_HOUR:g} corrected an hour", "below 0.1 s", counters.ecc),
        HealthCheck("throttling", "passive", "cooling that does not keep up",
                f"{counters.THROTTLES_PER_HOUR:g} an hour on a core", "below 0.1 s", counters.throttling),
        HealthCheck("links", "passive", "cables and optics that flap",
                f"{counters.FLAPS_PER_HOUR:g} downs an hour", "below 0.1 s", counters.links),
        HealthCheck("gpus", "passive", "GPUs with memory errors, waiting row remaps, heat, held clocks",
                f"1 uncorrected error; {nvml.HOT_C} degrees", "below 1 s", nvml.gpus),
        HealthCheck("trainer", "passive", "machines that trainings have found wrong, silent or slow",
                "diverged, hung or stopped", "below 1 s", external_reports.trainer),
        HealthCheck("prober", "passive", "links that lose packets", "the prober's own verdict", "below 0.1 s",
                external_reports.prober),
        HealthCheck("matmul", "active", "cores that compute wrongly, or slowly",
                f"1 wrong bit; {active_tests.SLOW_SHARE:.0%} of the median core", "1 s", active_tests.matmul),
        HealthCheck("memory", "active", "stuck and coupled bits", "1 wrong bit", "0.5 s for 64 MiB",
                active_tests.memory),
        HealthCheck("pair", "active", "a network path that corrupts or does not answer", "1 wrong byte", "0.5 s",
                active_tests.pair),
        HealthCheck("all-reduce", "active", "a communication stack that sums wrongly or hangs", "1 wrong bit",
                "5 s, most of it starting processes", active_tests.all_reduce),
        HealthCheck("devices", "active", "GPUs that compute, keep or copy wrongly, or compute slowly",
                f"1 wrong bit; {active_tests.SLOW_SHARE:.0%} of the median GPU", "2 s for each GPU",
                active_tests.devices),
    )
}  # fmt: skip

PASSIVE = tuple(name for name, program in CHECKS.items() if program.kind == "passive")
ACTIVE = tuple(name for name, program in CHECKS.items() if program.kind == "active")
SUITES: dict[str, tuple[str, ...]] = {
    "idle": ("matmul", "memory", "devices"),
    "preflight": ("kernel", "ecc", "gpus", "matmul", "memory", "pair", "devices"),
    "diagnose": (*PASSIVE, "matmul", "memory", "pair", "devices", "all-reduce"),
    "validate": ("matmul", "memory", "pair", "devices", "all-reduce"),
}
"""The programs of each test that a decision may call for (`cluster.actions.RunTest`)."""


def named(names: Iterable[str]) -> list[HealthCheck]:
    """Return the programs called `names`, each once; a suite stands for its programs."""
    wanted: dict[str, HealthCheck] = {}
    for name in names:
        if name not in CHECKS and name not in SUITES:
            known = ", ".join((*CHECKS, *SUITES))
            raise UsageError(f"there is no health program {name!r}; there are: {known}")
        for each in SUITES.get(name, (name,)):
            wanted[each] = CHECKS[each]
    return list(wanted.values())


def run(names: Iterable[str], setting: CheckSetting) -> list[HealthReport]:
    """Run programs one after the other."""
    return [program.run(setting) for program in named(names)]
