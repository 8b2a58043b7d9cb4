"""What NVIDIA's management library says of GPUs, where there is one: errors, remapped rows, heat, throttling.

Where there is no library or no driver the report says so, and nothing else of weft minds.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import pynvml

from weft.engines.health.checks import CheckSetting, Finding, HealthReport
from weft.engines.health.counters import HOT_C

_HARDWARE_SLOWDOWN = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)
"""Clocks held down by hardware, not by a limit that somebody has set."""

_NO_DRIVER = "the NVIDIA management library finds no driver"
_Found = TypeVar("_Found")


def gpus(setting: CheckSetting) -> HealthReport:
    """Ask about every GPU."""
    del setting
    began = time.monotonic()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = error == pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        note = "there is no NVIDIA management library here" if missing else _NO_DRIVER
        return HealthReport("gpus", (), note=note)
    try:
        count = _asked(pynvml.nvmlDeviceGetCount) or 0
        found = [one for number in range(count) for one in _judge(number)]
    finally:
        pynvml.nvmlShutdown()
    return HealthReport("gpus", tuple(found), {"gpus": float(count)}, time.monotonic() - began)


def _asked(question: Callable[..., _Found], *about: object) -> _Found | None:
    """Return the library's answer; nothing where a GPU does not know, as small ones do not of ECC."""
    try:
        return question(*about)
    except pynvml.NVMLError:
        return None


def _judge(number: int) -> list[Finding]:
    handle = _asked(pynvml.nvmlDeviceGetHandleByIndex, number)
    if handle is None:
        return [Finding("nvml", "fatal", f"GPU {number} does not answer", number)]
    found: list[Finding] = []
    kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    if errors := _asked(pynvml.nvmlDeviceGetTotalEccErrors, handle, *kinds):
        found.append(Finding("ecc", "fatal", f"{errors} uncorrected memory errors since the driver started", number))
    _, _, pending, failed = _asked(pynvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
    if failed:
        found.append(Finding("ecc", "fatal", "a memory row could not be remapped", number))
    elif pending:
        found.append(Finding("ecc", "warning", "a remapped row waits for a reset", number))
    heat = _asked(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    if heat is not None and heat >= HOT_C:
        found.append(Finding("thermal", "warning", f"{heat} degrees Celsius", number))
    reasons = _asked(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    if reasons & _HARDWARE_SLOWDOWN:
        found.append(Finding("throttling", "warning", f"hardware holds the clocks down ({reasons:#x})", number))
    return found
