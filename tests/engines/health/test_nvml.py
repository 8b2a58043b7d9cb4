"""What NVIDIA's library says becomes findings; what it does not know, or its absence, is no finding."""

from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from weft.engines.health.checks import CheckSetting
from weft.engines.health.nvml import HOT_C, gpus

SETTING = CheckSetting()


class Driver:
    """A library that answers by a table: what is not in it is not supported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, **answers: Any) -> None:
        self.shut = 0
        self._answers: dict[str, Any] = {"nvmlDeviceGetCount": count, **answers}
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlShutdown", self._shutdown)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", self._handle)
        for name in (
            "nvmlDeviceGetCount", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
            "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):  # fmt: skip
            monkeypatch.setattr(pynvml, name, self._answer(name))

    def _shutdown(self) -> None:
        self.shut += 1

    def _handle(self, number: int) -> int:
        if number in self._answers.get("silent", ()):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return number

    def _answer(self, name: str) -> Callable[..., Any]:
        def answer(*_: Any) -> Any:
            if name not in self._answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self._answers[name]

        return answer


def refuse(code: int) -> Callable[[], None]:
    def init() -> None:
        raise pynvml.NVMLError(code)

    return init


@pytest.mark.parametrize(
    ("code", "note"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "there is no NVIDIA management library here"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the NVIDIA management library finds no driver"),
        (pynvml.NVML_ERROR_UNKNOWN, "the NVIDIA management library finds no driver"),
    ],
)
def test_without_library_or_driver_the_report_says_so(code: int, note: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pynvml, "nvmlInit", refuse(code))
    report = gpus(SETTING)
    assert (report.findings, report.note, report.passed) == ((), note, True)


@pytest.mark.parametrize("count", [0, 1, 8])
def test_gpus_that_know_nothing_of_themselves_pass(count: int, monkeypatch: pytest.MonkeyPatch):
    driver = Driver(monkeypatch, count)
    report = gpus(SETTING)
    assert report.passed
    assert report.figures == {"gpus": float(count)}
    assert driver.shut == 1


@pytest.mark.parametrize(
    ("answers", "check", "severity"),
    [
        ({"nvmlDeviceGetTotalEccErrors": 3}, "ecc", "fatal"),
        ({"nvmlDeviceGetRemappedRows": (1, 1, 0, 1)}, "ecc", "fatal"),
        ({"nvmlDeviceGetRemappedRows": (1, 1, 1, 1)}, "ecc", "fatal"),
        ({"nvmlDeviceGetRemappedRows": (1, 1, 1, 0)}, "ecc", "warning"),
        ({"nvmlDeviceGetTemperature": HOT_C}, "thermal", "warning"),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": 0x8}, "throttling", "warning"),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": 0x40}, "throttling", "warning"),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": 0x80 | 0x4}, "throttling", "warning"),
    ],
)
def test_each_fault_is_one_finding_on_its_gpu(
    answers: dict[str, Any], check: str, severity: str, monkeypatch: pytest.MonkeyPatch
):
    Driver(monkeypatch, 2, **answers)
    found = gpus(SETTING).findings
    assert [(one.check, one.severity, one.gpu) for one in found] == [(check, severity, 0), (check, severity, 1)]


@pytest.mark.parametrize(
    "answers",
    [
        {"nvmlDeviceGetTotalEccErrors": 0},
        {"nvmlDeviceGetRemappedRows": (5, 5, 0, 0)},
        {"nvmlDeviceGetTemperature": HOT_C - 1},
        {"nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x1 | 0x2},
    ],
)
def test_what_a_healthy_gpu_says_is_no_finding(answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    Driver(monkeypatch, 1, **answers)
    assert gpus(SETTING).findings == ()


def test_a_gpu_that_does_not_answer_is_proof(monkeypatch: pytest.MonkeyPatch):
    driver = Driver(monkeypatch, 3, silent={1})
    (found,) = gpus(SETTING).findings
    assert (found.check, found.severity, found.gpu) == ("nvml", "fatal", 1)
    assert driver.shut == 1
