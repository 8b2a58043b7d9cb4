"""Every fault line, in whatever log it stands and among whatever else, gives its action; healthy lines give none."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.health.recorded_faults import FAULTS, GPUS, OF_PROGRAMS, OFTEN, healthy_lines

from weft.cluster.health.faults import FaultAction, FaultMonitor, catalogue_of, gpu_numbers, pci_key
from weft.cluster.health.kernel_lines import kernel_message
from weft.cluster.health.tickets import REPAIRS
from weft.engines.health.fault_data import shipped_catalogue

NUMBERS = gpu_numbers(GPUS)
_HOUR_MS = 3_600_000


def monitor() -> FaultMonitor:
    return FaultMonitor(shipped_catalogue(), NUMBERS)


PREFIXES: dict[str, Callable[[str], str]] = {
    "bare": lambda text: text,
    "dmesg": lambda text: f"[12345.678901] {text}",
    "dmesg-T": lambda text: f"[Thu Nov 19 03:04:05 2026] {text}",
    "dmesg-thread": lambda text: f"[12345.678901][ T1234] {text}",
    "dmesg-x": lambda text: f"kern  :err   : [12345.678901] {text}",
    "dmesg-iso": lambda text: f"2026-11-19T03:04:05,678901+00:00 {text}",
    "dmesg-raw": lambda text: f"<3>[12345.678901] {text}",
    "kmsg": lambda text: f"3,1234,12345678901,-;{text}",
    "kmsg-caller": lambda text: f"6,1234,12345678901,-,caller=T12;{text}",
    "syslog": lambda text: f"Nov  9 03:04:05 gpu-017 kernel: {text}",
    "syslog-time": lambda text: f"Nov 19 03:04:05 gpu-017.example.org kernel: [12345.678901] {text}",
    "journal-precise": lambda text: f"Nov 19 03:04:05.123456 gpu-017 kernel: {text}",
    "journal-iso": lambda text: f"2026-11-19T03:04:05+0000 gpu-017 kernel: {text}",
    "journal-iso-precise": lambda text: f"2026-11-19T03:04:05.123456+00:00 gpu-017 kernel: {text}",
    "journal-monotonic": lambda text: f"[12345.678901] gpu-017 kernel: {text}",
    "rsyslog-priority": lambda text: f"<3>2026-11-19T03:04:05.123456+00:00 gpu-017 kernel: {text}",
    "json": lambda text: json.dumps({"_TRANSPORT": "kernel", "PRIORITY": "3", "MESSAGE": text}),
    "json-bytes": lambda text: json.dumps({"_TRANSPORT": "kernel", "MESSAGE": list(text.encode())}),
}


def test_there_are_faults_enough() -> None:
    assert len({line for line, *_ in FAULTS}) + len(OFTEN) >= 60
    assert {action for _, action, _ in FAULTS} == {str(action) for action in FaultAction} - {"ignore"}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_fault_gives_its_action_and_its_gpu_in_every_format(prefix: str) -> None:
    for line, action, gpu in FAULTS:
        found = monitor().take(PREFIXES[prefix](line), 0)
        assert found is not None, line
        assert (str(found.action), found.gpu) == (action, gpu), line


@pytest.mark.parametrize(("line", "count", "action"), OFTEN)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_is_healthy_once_is_a_fault_when_it_is_frequent(prefix: str, line: str, count: int, action: str) -> None:
    watch, written = monitor(), PREFIXES[prefix](line)
    verdicts = [watch.take(written, at * (_HOUR_MS - 1) // count) for at in range(count)]
    assert [each is not None for each in verdicts] == [False] * (count - 1) + [True]
    assert str(verdicts[-1].action) == action  # pyrefly: ignore[missing-attribute] - it is there, as just asserted
    slow = monitor()
    assert not any(slow.take(written, at * (_HOUR_MS // (count - 1) + 1)) for at in range(3 * count))


@pytest.mark.parametrize("line", OF_PROGRAMS)
def test_what_a_program_did_takes_no_node_out_however_often(line: str) -> None:
    watch = monitor()
    assert not any(watch.take(PREFIXES[name](line), 0) for name in PREFIXES for _ in range(50))


def test_a_healthy_month_gives_no_action() -> None:
    watch = monitor()
    for number, (at_ms, text) in enumerate(healthy_lines(31, 30, 400)):
        write = list(PREFIXES.values())[number % len(PREFIXES)]
        assert watch.take(write(text), at_ms) is None, text


@given(seed=st.integers(0, 2**20), data=st.data())
def test_any_interleaving_of_healthy_lines_changes_nothing_about_a_fault(seed: int, data: st.DataObject) -> None:
    line, action, gpu = data.draw(st.sampled_from(FAULTS))
    prefix = PREFIXES[data.draw(st.sampled_from(sorted(PREFIXES)))]
    quiet = [text for _, text in healthy_lines(seed, 1, 12)]
    at = data.draw(st.integers(0, len(quiet)))
    watch = monitor()
    found = [watch.take(prefix(text), 0) for text in (*quiet[:at], line, *quiet[at:])]
    kept = [each for each in found if each is not None]
    assert [(str(each.action), each.gpu) for each in kept] == [(action, gpu)]


@given(st.text(max_size=300))
def test_no_line_breaks_the_reader(line: str) -> None:
    for write in PREFIXES.values():
        monitor().take(write(line), 0)
    kernel_message(line)


@pytest.mark.parametrize(
    "line",
    [
        "Nov 19 03:04:05 gpu-017 python[12]: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "2026-11-19T03:04:05+0000 gpu-017 logger: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        '{"_TRANSPORT":"syslog","SYSLOG_IDENTIFIER":"kernel","MESSAGE":"NVRM: Xid (PCI:0000:1b:00): 79, lost"}',
        '{"SYSLOG_IDENTIFIER":"python","MESSAGE":"NVRM: Xid (PCI:0000:1b:00): 79, lost"}',
        "30,1234,12345678901,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "daemon:err   : [12345.678901] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        " SUBSYSTEM=pci NVRM: Xid (PCI:0000:1b:00): 79",
        "[12.5] app[3]: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    ],
)
def test_what_others_write_into_the_log_is_not_the_kernel(line: str) -> None:
    assert monitor().take(line, 0) is None


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))
def test_a_pci_address_is_the_same_in_all_its_forms(domain: int, bus: int, device: int, function: int) -> None:
    key = (domain, bus, device)
    for text in (
        f"{domain:04x}:{bus:02x}:{device:02x}.{function}", f"PCI:{domain:04x}:{bus:02x}:{device:02x}",
        f"{domain:08X}:{bus:02X}:{device:02X}.{function}",
    ):  # fmt: skip
        assert pci_key(text) == key
    assert pci_key("no address") is None


def test_one_devices_errors_are_not_added_to_anothers() -> None:
    watch = monitor()
    for number in range(2, 52):
        for _ in range(2):
            assert watch.take(f"mlx5_core 0000:{number:02x}:00.0 eth{number}: Link down", 0) is None


def test_a_verdict_becomes_evidence_that_calls_for_a_known_repair() -> None:
    for line, action, gpu in FAULTS:
        found = monitor().take(line, 7)
        assert found is not None
        one = found.evidence(7)
        assert one.severity == ("warning" if action == "cordon" else "fatal")
        assert one.gpu == (gpu if action == "degrade" else None)
        if action in ("degrade", "reset", "reboot", "replace"):
            assert one.repair in REPAIRS


def test_the_catalogue_has_a_source_and_a_known_repair_for_each_entry() -> None:
    catalogue = shipped_catalogue()
    assert all(entry.source and entry.meaning for entry in catalogue.entries)
    assert {entry.repair for entry in catalogue.entries} <= set(REPAIRS)
    wanted = {79, 48, 63, 64, 74, 94, 95, 119, 120, 31, 13, 43, 45, 62, 92, 109, 140, *range(143, 158)}
    assert wanted <= set(catalogue.xids)


def test_an_entry_that_is_never_reached_is_refused() -> None:
    table = {"numbers": [1], "meaning": "x", "action": "ignore", "source": "s"}
    document = {"sources": {"s": "S", "xid": "X"}, "xid": [table, table], "line": [], "condition": []}
    with pytest.raises(ValueError, match="XID 1 stands twice"):
        catalogue_of(document)
