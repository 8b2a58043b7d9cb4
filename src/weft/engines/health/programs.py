"""Every health program: what it can catch, from when on it speaks, how long it takes; and the suites of tests.

How often each was wrong on healthy machines is measured by `benchmarks/health.py` and stands in docs/local.md.
"""

from collections.abc import Iterable

from weft.core.errors import UsageError
from weft.engines.health import active, counters, kernel, nvml, witnesses
from weft.engines.health.base import Program, Report, Setting

PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        Program("kernel", "passive", "GPU driver errors (XID), machine checks, disks, flapping links, stuck CPUs",
                f"one line of its class; {kernel.FLAPS} links down", "below 0.1 s", kernel.kernel),
        Program("ecc", "passive", "memory modules that correct, or no longer can",
                f"1 uncorrectable; {counters.CORRECTED_PER_HOUR:g} corrected an hour", "below 0.1 s", counters.ecc),
        Program("throttling", "passive", "cooling that does not keep up",
                f"{counters.THROTTLES_PER_HOUR:g} an hour on a core", "below 0.1 s", counters.throttling),
        Program("links", "passive", "cables and optics that flap",
                f"{counters.FLAPS_PER_HOUR:g} downs an hour", "below 0.1 s", counters.links),
        Program("gpus", "passive", "GPUs with memory errors, waiting row remaps, heat, held clocks",
                f"1 uncorrected error; {nvml.HOT_C} degrees", "below 1 s", nvml.gpus),
        Program("trainer", "passive", "machines that trainings have found wrong, silent or slow",
                "diverged, hung or stopped", "below 1 s", witnesses.trainer),
        Program("prober", "passive", "links that lose packets", "the prober's own verdict", "below 0.1 s",
                witnesses.prober),
        Program("matmul", "active", "cores that compute wrongly, or slowly",
                f"1 wrong bit; {active.SLOW_SHARE:.0%} of the median core", "1 s", active.matmul),
        Program("memory", "active", "stuck and coupled bits", "1 wrong bit", "0.5 s for 64 MiB", active.memory),
        Program("pair", "active", "a network path that corrupts or does not answer", "1 wrong byte", "0.5 s",
                active.pair),
        Program("all-reduce", "active", "a communication stack that sums wrongly or hangs", "1 wrong bit",
                "5 s, most of it starting processes", active.all_reduce),
        Program("devices", "active", "GPUs that compute, keep or copy wrongly, or compute slowly",
                f"1 wrong bit; {active.SLOW_SHARE:.0%} of the median GPU", "2 s for each GPU", active.devices),
    )
}  # fmt: skip

PASSIVE = tuple(name for name, program in PROGRAMS.items() if program.kind == "passive")
ACTIVE = tuple(name for name, program in PROGRAMS.items() if program.kind == "active")
SUITES: dict[str, tuple[str, ...]] = {
    "idle": ("matmul", "memory", "devices"),
    "preflight": ("kernel", "ecc", "gpus", "matmul", "memory", "pair", "devices"),
    "diagnose": (*PASSIVE, "matmul", "memory", "pair", "devices", "all-reduce"),
    "validate": ("matmul", "memory", "pair", "devices", "all-reduce"),
}
"""The programs of each test that a decision may call for (`cluster.actions.RunTest`)."""


def named(names: Iterable[str]) -> list[Program]:
    """Return the programs called `names`, each once; a suite stands for its programs."""
    wanted: dict[str, Program] = {}
    for name in names:
        if name not in PROGRAMS and name not in SUITES:
            known = ", ".join((*PROGRAMS, *SUITES))
            raise UsageError(f"there is no health program {name!r}; there are: {known}")
        for each in SUITES.get(name, (name,)):
            wanted[each] = PROGRAMS[each]
    return list(wanted.values())


def run(names: Iterable[str], setting: Setting) -> list[Report]:
    """Run programs one after the other."""
    return [program.run(setting) for program in named(names)]
