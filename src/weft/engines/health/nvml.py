"""What NVIDIA's management library says of GPUs, where it is installed: errors, remapped rows, heat, throttling.

Spoken to directly (ctypes); no package is needed, and without the library the report says so.
"""

import ctypes
import time

from weft.engines.health.checks import CheckSetting, Finding, HealthReport

HOT_C = 90
"""Degrees Celsius: GPUs slow themselves down from about here on."""
_UNCORRECTED, _VOLATILE = 1, 0
_TEMPERATURE_OF_GPU = 0
_HARDWARE_SLOWDOWN = 0x8 | 0x40 | 0x80
"""Clocks held down by hardware: slowdown, thermal, power brake (nvml.h, nvmlClocksEventReason*)."""


def gpus(setting: CheckSetting) -> HealthReport:
    """Ask about every GPU."""
    del setting
    began = time.monotonic()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return HealthReport("gpus", (), note="there is no NVIDIA management library here")
    if library.nvmlInit_v2() != 0:
        return HealthReport("gpus", (), note="the NVIDIA management library finds no driver")
    try:
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = [one for number in range(count.value) for one in _judge(library, number)]
    finally:
        library.nvmlShutdown()
    return HealthReport("gpus", tuple(found), {"gpus": float(count.value)}, time.monotonic() - began)


def _judge(library: ctypes.CDLL, number: int) -> list[Finding]:
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)) != 0:
        return [Finding("nvml", "fatal", f"GPU {number} does not answer", number)]
    found: list[Finding] = []
    errors = ctypes.c_ulonglong()
    if library.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE, ctypes.byref(errors)) == 0 and errors.value:
        found.append(
            Finding("ecc", "fatal", f"{errors.value} uncorrected memory errors since the driver started", number)
        )
    found += _rows(library, handle, number)
    heat, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
    if library.nvmlDeviceGetTemperature(handle, _TEMPERATURE_OF_GPU, ctypes.byref(heat)) == 0 and heat.value >= HOT_C:
        found.append(Finding("thermal", "warning", f"{heat.value} degrees Celsius", number))
    asked = library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
    if asked == 0 and reasons.value & _HARDWARE_SLOWDOWN:
        found.append(Finding("throttling", "warning", f"hardware holds the clocks down ({reasons.value:#x})", number))
    return found


def _rows(library: ctypes.CDLL, handle: ctypes.c_void_p, number: int) -> list[Finding]:
    """Return what is known of remapped memory rows."""
    corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
    known = library.nvmlDeviceGetRemappedRows(
        handle, ctypes.byref(corrected), ctypes.byref(uncorrected), ctypes.byref(pending), ctypes.byref(failed)
    )
    if known != 0:
        return []
    if failed.value:
        return [Finding("ecc", "fatal", "a memory row could not be remapped", number)]
    return [Finding("ecc", "warning", "a remapped row waits for a reset", number)] if pending.value else []
