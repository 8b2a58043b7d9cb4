"""Every health check: what it detects, from which value on, how long it takes, how a node is repaired; and test suites.

How often each was wrong on healthy machines is measured by `benchmarks/health.py` and stands in docs/local.md.
"""

from collections.abc import Iterable

from weft.core.errors import UsageError
from weft.core.extras import missing
from weft.core.plugins import entry_points
from weft.engines.health import active_tests, counters, external_reports, kernel_log
from weft.engines.health.checks import CheckSetting, HealthCheck, HealthReport


def _gpus(setting: CheckSetting) -> HealthReport:
    """Ask about every GPU; the library's package comes with an extra, and a machine may do without."""
    try:
        from weft.engines.health.nvml import gpus
    except ModuleNotFoundError as error:
        return HealthReport("gpus", (), note=str(missing(error) or error))
    return gpus(setting)


_BUILT_IN = (
    HealthCheck("kernel", "passive", "GPU driver errors (XID), machine checks, disks, flapping links, stuck CPUs",
                "one line of its class; weft health catalogue lists them", "below 0.1 s", kernel_log.kernel, "xid"),
    HealthCheck("ecc", "passive", "memory modules that correct, or no longer can",
                f"1 uncorrectable; {counters.CORRECTED_PER_HOUR:g} corrected an hour", "below 0.1 s",
                counters.ecc, "ecc"),
    HealthCheck("throttling", "passive", "cooling that does not keep up",
                f"{counters.THROTTLES_PER_HOUR:g} an hour on a core", "below 0.1 s", counters.throttling, "throttling"),
    HealthCheck("links", "passive", "cables and optics that flap",
                f"{counters.FLAPS_PER_HOUR:g} downs an hour", "below 0.1 s", counters.links, "link"),
    HealthCheck("nics", "passive", "NIC ports with symbol, CRC and link integrity errors",
                "errors an hour; 120 symbol errors", "below 0.1 s", counters.nics, "nic"),
    HealthCheck("gpus", "passive", "GPUs with memory errors, row remaps, NVLink errors, heat, held clocks",
                f"1 uncorrected error; {counters.HOT_C} degrees", "below 1 s", _gpus, "ecc"),
    HealthCheck("trainer", "passive", "machines that trainings have found wrong, silent or slow",
                "diverged, hung or stopped", "below 1 s", external_reports.trainer),
    HealthCheck("prober", "passive", "links that lose packets", "the prober's own verdict", "below 0.1 s",
                external_reports.prober, "link"),
    HealthCheck("matmul", "active", "cores that compute wrongly, or slowly",
                f"1 wrong bit; {active_tests.SLOW_SHARE:.0%} of the median core", "1 s", active_tests.matmul, "matmul"),
    HealthCheck("memory", "active", "stuck and coupled bits", "1 wrong bit", "0.5 s for 64 MiB",
                active_tests.memory, "memory"),
    HealthCheck("pair", "active", "a network path that corrupts or does not answer", "1 wrong byte", "0.5 s",
                active_tests.pair, "link"),
    HealthCheck("all-reduce", "active", "a communication stack that sums wrongly or hangs", "1 wrong bit",
                "5 s, most of it starting processes", active_tests.all_reduce),
    HealthCheck("devices", "active", "GPUs that compute, keep or copy wrongly, or compute slowly",
                f"1 wrong bit; {active_tests.SLOW_SHARE:.0%} of the median GPU", "2 s for each GPU",
                active_tests.devices, "matmul"),
)  # fmt: skip
CHECKS: dict[str, HealthCheck] = {check.name: check for check in _BUILT_IN}
"""Every health check of weft's own."""
PASSIVE = tuple(name for name, check in CHECKS.items() if check.kind == "passive")
ACTIVE = tuple(name for name, check in CHECKS.items() if check.kind == "active")
SUITES: dict[str, tuple[str, ...]] = {
    "idle": ("matmul", "memory", "devices"),
    "preflight": ("kernel", "ecc", "gpus", "matmul", "memory", "pair", "devices"),
    "diagnose": (*PASSIVE, "matmul", "memory", "pair", "devices", "all-reduce"),
    "validate": ("matmul", "memory", "pair", "devices", "all-reduce"),
}
"""The checks of each test that a decision may call for (`cluster.records.actions.RunTest`)."""


def known() -> dict[str, HealthCheck]:
    """Return every check by name: weft's own, and those of other distributions (entry points `weft.health_checks`)."""
    found = dict(CHECKS)
    for name, check in entry_points("weft.health_checks").items():
        if not isinstance(check, HealthCheck) or check.name != name:
            raise UsageError(f"the plugin {name!r} of weft.health_checks is no HealthCheck of that name")
        if name in found or name in SUITES:
            raise UsageError(f"the plugin {name!r} of weft.health_checks has the name of a check that there is already")
        found[name] = check
    return found


def named(names: Iterable[str]) -> list[HealthCheck]:
    """Return the checks called `names`, each once; a suite stands for its checks."""
    checks = known()
    wanted: dict[str, HealthCheck] = {}
    for name in names:
        if name not in checks and name not in SUITES:
            raise UsageError(f"there is no health check {name!r}; there are: {', '.join((*checks, *SUITES))}")
        for each in SUITES.get(name, (name,)):
            wanted[each] = checks[each]
    return list(wanted.values())


def run(names: Iterable[str], setting: CheckSetting) -> list[HealthReport]:
    """Run checks one after the other."""
    return [check.run(setting) for check in named(names)]
