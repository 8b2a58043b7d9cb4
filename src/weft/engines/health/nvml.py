"""What NVIDIA's management library says of GPUs, where there is one: errors, remapped rows, NVLink, heat, throttling.

These are the fields that DCGM watches too (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, _ROW_REMAP_FAILURE, _ROW_REMAP_PENDING,
_NVLINK_*_ERROR_COUNT_TOTAL, _GPU_TEMP, _CLOCKS_EVENT_REASONS), asked without DCGM.

Where there is no library or no driver the report says so, and nothing else of weft minds.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import pynvml

from weft.engines.health.checks import CheckSetting, Finding, HealthReport
from weft.engines.health.counters import HOT_C, Counts, increments

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
        found += _links(count, setting)
    finally:
        pynvml.nvmlShutdown()
    return HealthReport("gpus", tuple(found), {"gpus": float(count)}, time.monotonic() - began)


def _asked(question: Callable[..., _Found], *about: object) -> _Found | None:
    """Return the library's answer; nothing where a GPU does not know, as small ones do not of ECC."""
    try:
        return question(*about)
    except pynvml.NVMLError:
        return None


_NVLINK_PER_HOUR = {
    "replay": (pynvml.NVML_NVLINK_ERROR_DL_REPLAY, 100.0),
    "recovery": (pynvml.NVML_NVLINK_ERROR_DL_RECOVERY, 5.0),
    "CRC": (pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA, 100.0),
}
"""Counters of NVLink errors, and how many an hour one link may have: replays are repaired by the link itself, a
recovery trains it anew (NVML API, NvLink error counters)."""


def _links(count: int, setting: CheckSetting) -> list[Finding]:
    """Read the error counters and states of every NVLink; a GPU with fewer active links than the others is degraded."""
    counts: Counts = {}
    active: dict[int, int] = {}
    for number in range(count):
        handle = _asked(pynvml.nvmlDeviceGetHandleByIndex, number)
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS) if handle is not None else ():
            state = _asked(pynvml.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                break
            active[number] = active.get(number, 0) + bool(state)
            for kind, (counter, _) in _NVLINK_PER_HOUR.items():
                if (errors := _asked(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, counter)) is not None:
                    counts[f"{number}/{link}/{kind}"] = float(errors)
    found = [
        Finding("nvlink", "fatal", f"{links} of {max(active.values())} NVLinks are active", number)
        for number, links in active.items()
        if links < max(active.values())
    ]
    if counts:
        new = increments("nvlink", counts, setting)
        for name, errors in new.hour.items():
            gpu, link, kind = name.split("/")
            if errors / new.hours > _NVLINK_PER_HOUR[kind][1]:
                text = f"NVLink {link} counts {errors / new.hours:,.0f} {kind} errors an hour"
                found.append(Finding("nvlink", "warning", text, int(gpu)))
    return found


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
