"""A health check: room that is left for checkpoints."""

import shutil

from weft.engines.health.checks import CheckSetting, Finding, HealthCheck, HealthReport

LEAST_FREE = 0.02
"""Share of the root file system that must be free."""


def disk_space(setting: CheckSetting) -> HealthReport:
    """Look at the root file system."""
    del setting
    usage = shutil.disk_usage("/")
    free = usage.free / usage.total
    findings = () if free >= LEAST_FREE else (Finding("disk-space", "warning", f"{free:.1%} of the disk is free"),)
    return HealthReport("disk-space", findings, {"free_share": free})


CHECK = HealthCheck(
    "disk-space", "passive", "disks without room for checkpoints", f"less than {LEAST_FREE:.0%} free", "below 0.1 s",
    disk_space,
)  # fmt: skip
