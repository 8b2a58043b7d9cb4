from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.units import Millijoules, Milliwatts, Picoseconds
from weft.training.metrics.energy import (
    EnergyMeter,
    EnergyPart,
    EnergyReport,
    Nvml,
    Rapl,
    Reading,
    completed,
    difference,
    estimate,
)


def zone(folder: Path, name: str, label: str, energy_uj: int) -> Path:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "name").write_text(f"{label}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text("262143328850\n")
    return path


def test_packages_are_read_and_their_parts_are_not_counted_twice(tmp_path: Path):
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 900_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    meter = EnergyMeter([Rapl(tmp_path)])
    zone(tmp_path, "intel-rapl:0", "package-0", 3_500_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 3_000_000)
    report = meter.lap()
    assert [(part.name, part.source, part.energy_mj) for part in report.parts] == [
        ("package-0", "rapl", 2500),
        ("package-1", "rapl", 0),
    ]
    assert report.joules == 2.5
    assert report.measured


def test_a_counter_that_may_not_be_read_is_left_out(tmp_path: Path):
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (zone(tmp_path, "intel-rapl:1", "package-1", 1) / "energy_uj").unlink()
    assert [reading.name for reading in Rapl(tmp_path).read()] == ["package-0"]
    assert Rapl(tmp_path / "none").read() == []


@given(st.integers(1, 10**6), st.data())
def test_a_counter_that_wraps_counts_on(limit: int, data: st.DataObject):
    start = data.draw(st.integers(0, limit))
    spent = data.draw(st.integers(0, limit))
    before = [Reading("package-0", "rapl", start, 1, limit)]
    after = [Reading("package-0", "rapl", (start + spent) % (limit + 1), 1, limit)]
    assert [part.energy_mj for part in difference(before, after).parts] == [spent]


def test_a_counter_that_was_reset_counts_from_zero():
    parts = difference([Reading("GPU 0", "nvml", 500)], [Reading("GPU 0", "nvml", 40)]).parts
    assert [part.energy_mj for part in parts] == [40]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a driver with three GPUs, of which the second has no energy counter."""
    counted = iter(range(1, 100))

    def energy(handle: int) -> int:
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return (handle + 1 << 40) + 7 * next(counted)

    def handle_of(index: int) -> int:
        if index not in range(3):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle_of)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", energy)


def test_a_machine_without_a_driver_has_no_gpu_counters(monkeypatch: pytest.MonkeyPatch):
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert Nvml().read() == []


@pytest.mark.usefixtures("driver")
def test_gpus_are_read_and_one_without_a_counter_is_left_out():
    counters = Nvml()
    assert [(one.name, one.counter >> 40) for one in counters.read()] == [("GPU 0", 1), ("GPU 2", 3)]
    report = EnergyMeter([counters]).lap()
    assert [part.energy_mj for part in report.parts] == [14, 14]
    assert report.measured


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("asked", "found"), [([2], ["GPU 2"]), ([0, 7], ["GPU 0"]), ([], []), ([1], [])])
def test_only_the_gpus_that_are_asked_for_and_exist_are_read(asked: list[int], found: list[str]):
    assert [one.name for one in Nvml(asked).read()] == found


def test_what_is_guessed_is_said_to_be():
    guess = estimate("GPU 0", Picoseconds(2 * 10**12), Milliwatts(700_000), Picoseconds(10**12), Milliwatts(100_000))
    assert guess.energy_mj == 1_500_000
    report = completed(EnergyReport(()), guess, "nvml")
    assert report.joules == pytest.approx(1500)
    assert not report.measured
    assert report.as_json()["parts"] == [{"name": "GPU 0", "source": "estimate", "joules": 1500.0}]


def test_a_reading_makes_the_guess_unneeded_and_machines_add_up():
    guess = EnergyPart("GPU 0", "estimate", Millijoules(9))
    read = EnergyReport((EnergyPart("GPU 0", "nvml", Millijoules(4)),))
    assert completed(read, guess, "nvml") == read
    assert completed(read, guess, "rapl").parts == (*read.parts, guess)
    assert (read + read).joules == 0.008
    assert not EnergyReport(()).measured
