"""Health checks: what is wrong is found and named, and what is right is left alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from weft.core.errors import UsageError
from weft.engines.health import active_tests, counters
from weft.engines.health import kernel_log as kernel
from weft.engines.health.checks import CheckSetting
from weft.engines.health.registry import ACTIVE, CHECKS, PASSIVE, SUITES, named, run

QUICK = CheckSetting(seconds=0.05, mebibytes=2)


@pytest.mark.parametrize(
    ("line", "check", "severity"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "xid", "fatal"),
        ("NVRM: Xid (PCI:0000:3b:00): 94, pid=1, Contained", "xid", "warning"),
        ("NVRM: Xid (0000:01:00): 31, Ch 0000000b", "xid", "note"),
        ("NVRM: Xid (PCI:0000:3b:00): 9999, new", "xid", "warning"),
        ("mce: [Hardware Error]: CPU 3: Uncorrected error", "mce", "fatal"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "ecc", "note"),
        ("EDAC MC0: 1 UE memory read error", "ecc", "fatal"),
        ("blk_update_request: I/O error, dev nvme0n1, sector 2", "disk", "warning"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s!", "stall", "warning"),
        ("mlx5_core 0000:5e:00.0 eth4: Link is down", "link", "note"),
    ],
)
def test_lines_of_the_kernel_are_classed(line: str, check: str, severity: str):
    found = kernel.classify(f"[ 12.3] {line}")
    assert found is not None
    assert (found.check, found.severity) == (check, severity)


@given(st.text(max_size=200))
def test_no_line_breaks_the_reader(line: str):
    kernel.classify(line)


def test_a_link_that_flaps_is_a_warning_and_a_healthy_log_is_silent(tmp_path: Path):
    log = tmp_path / "kernel.log"
    log.write_text("eth0: NIC Link is Down\n" * 3 + "usb 1-1: new device\n")
    report = kernel.kernel(CheckSetting(kernel_log=log))
    assert [(one.check, one.severity) for one in report.findings] == [("link", "warning")]
    log.write_text("usb 1-1: new high-speed USB device\neth0: NIC Link is Up\n")
    assert kernel.kernel(CheckSetting(kernel_log=log)).passed


def counter(system: Path, path: str, value: int) -> None:
    (system / path).parent.mkdir(parents=True, exist_ok=True)
    (system / path).write_text(f"{value}\n")


def test_counters_are_judged_by_what_is_new(tmp_path: Path):
    system, state = tmp_path / "sys", tmp_path / "state"
    setting = CheckSetting(system=system, state=state)
    counter(system, "devices/system/edac/mc/mc0/ue_count", 0)
    counter(system, "devices/system/edac/mc/mc0/ce_count", 10**9)
    counter(system, "class/net/eth0/carrier_down_count", 0)
    counter(system, "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", 0)
    counters.ecc(setting)
    assert counters.links(setting).passed
    assert counters.throttling(setting).passed
    assert counters.ecc(setting).passed, "the old errors are no news"
    counter(system, "devices/system/edac/mc/mc0/ue_count", 1)
    counter(system, "class/net/eth0/carrier_down_count", 9)
    counter(system, "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", 10**6)
    assert [one.severity for one in counters.ecc(setting).findings] == ["fatal"]
    assert "eth0 went down 9 times" in counters.links(setting).findings[0].text
    assert "cpu0" in counters.throttling(setting).findings[0].text


def test_what_the_prober_and_trainings_have_seen_is_taken_up(tmp_path: Path):
    survey = tmp_path / "survey.json"
    links: list[dict[str, Any]] = [
        {"link": "link0-p0-i0", "health": "lossy", "loss": 0.02},
        {"link": "link1-p0-i0", "health": "fine", "loss": 0.0},
    ]  # fmt: skip
    survey.write_text(json.dumps({"links": links}))
    (report,) = run(["prober"], CheckSetting(survey=survey))
    assert [one.text for one in report.findings] == ["link0-p0-i0 is lossy, loses 2.0%"]
    survey.write_text("{}")
    with pytest.raises(UsageError, match="no survey of the prober"):
        run(["prober"], CheckSetting(survey=survey))
    folder = tmp_path / "runs" / "tiny-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "job.json").write_text("{}")
    (report,) = run(["trainer"], CheckSetting(runs=tmp_path / "runs"))
    assert report.passed


def test_a_healthy_machine_passes_every_quick_test():
    for name in ("matmul", "memory", "pair"):
        (report,) = run([name], QUICK)
        fatal = [one for one in report.findings if one.severity == "fatal"]
        assert not fatal, fatal
        assert all(value > 0 for value in report.figures.values())


def test_a_core_that_multiplies_wrongly_is_found(monkeypatch: pytest.MonkeyPatch):
    class Lies(np.ndarray[Any, Any]):
        """Numbers whose products have one wrong element, as a broken multiplier would make them."""

        @override
        def __matmul__(self, other: Any) -> Any:
            made = np.asarray(self) @ np.asarray(other)
            made[7 % len(made)] += 1
            return made

    monkeypatch.setattr(active_tests, "_single", lambda numbers: numbers.astype("f4").view(Lies))
    (report,) = run(["matmul"], QUICK)
    assert any("was wrong" in one.text and one.severity == "fatal" for one in report.findings)


def test_a_flipped_bit_in_memory_is_named(monkeypatch: pytest.MonkeyPatch):
    content = active_tests._content
    calls = []

    def flip(name: str, start: int, count: int, seed: int) -> Any:
        found = content(name, start, count, seed)
        calls.append(name)
        if name == "addresses" and calls.count("addresses") == 1:
            found[77] ^= np.uint64(1 << 13)
        return found

    monkeypatch.setattr(active_tests, "_content", flip)
    (report,) = run(["memory"], QUICK)
    assert [one.text for one in report.findings] == ["pattern addresses: bit 13 of word 77 has changed"]


def test_a_path_that_changes_a_byte_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(active_tests.zlib, "crc32", lambda part, before=0: before + (len(part) == active_tests._MEBI))
    (report,) = run(["pair"], QUICK)
    assert [one.text for one in report.findings] == ["bytes came back changed"]


def test_an_endpoint_that_does_not_answer_is_proof():
    report = active_tests.pair(QUICK, ("127.0.0.1", 1))
    assert [one.severity for one in report.findings] == ["fatal"]


@pytest.mark.slow
def test_a_small_all_reduce_is_right_on_every_rank():
    (report,) = run(["all-reduce"], QUICK)
    assert report.passed, report.findings


def test_every_program_says_what_it_is_and_stands_in_a_suite_or_is_passive():
    assert set(PASSIVE) | set(ACTIVE) == set(CHECKS)
    for program in CHECKS.values():
        assert program.catches
        assert program.threshold
        assert program.takes
    assert set(ACTIVE) <= {name for members in SUITES.values() for name in members}
    with pytest.raises(UsageError, match="no health check 'x'"):
        named(["x"])
