"""Every fault line, in whatever log it stands and among whatever else, gives its action; healthy lines give none."""

import datetime
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.health.recorded_faults import FAULTS, GPUS, OF_PROGRAMS, OFTEN, healthy_lines

from weft.cluster.health.faults import FaultAction, FaultMonitor, catalogue_of, gpu_numbers, most_at_once, pci_key
from weft.cluster.health.kernel_lines import kernel_message, said_at_ms
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
    "rfc3164-priority": lambda text: f"<3>Nov 19 03:04:05 gpu-017 kernel: [  123.456789] {text}",
    "rfc5424": lambda text: f"<3>1 2026-11-19T03:04:05.123456Z gpu-017 kernel - - - {text}",
    "rfc5424-data": lambda text: f'<3>1 2026-11-19T03:04:05Z gpu kernel - - [a x="]"][b y="\\""] [ 1.5] {text}',
    "dmesg-x-iso": lambda text: f"kern  :err   : 2025-01-25T10:34:54,859532+00:00 {text}",
    "dmesg-H": lambda text: f"[Nov19 03:04] {text}",
    "dmesg-H-step": lambda text: f"[  +0.000012] {text}",
    "dmesg-d": lambda text: f"[12345.678901 <    0.000012>] {text}",
    "dmesg-dT": lambda text: f"[Thu Nov 19 03:04:05 2026 <    0.000012>] {text}",
    "dmesg-colours": lambda text: f"\x1b[32m[   12.345678] \x1b[0m\x1b[31m{text}\x1b[0m",
    "dmesg-T-german": lambda text: f"[Do Mär 19 03:04:05 2026] {text}",
    "dmesg-T-french": lambda text: f"[jeu. nov.  9 03:04:05 2026] {text}",
    "dmesg-T-russian": lambda text: f"[Чт ноя 19 03:04:05 2026] {text}",
    "dmesg-T-japanese": lambda text: f"[木 11月 19 03:04:05 2026] {text}",
    "dmesg-T-korean": lambda text: f"[목 11월 19 03:04:05 2026] {text}",
    "journal-french": lambda text: f"nov. 19 03:04:05 gpu-017 kernel: {text}",
    "journal-chinese": lambda text: f"11月 19 03:04:05 gpu-017 kernel: {text}",
    "journal-full": lambda text: f"Thu 2026-11-19 03:04:05 UTC gpu-017 kernel: {text}",
    "journal-unix": lambda text: f"1763521445.123456 gpu-017 kernel: {text}",
    "journal-delta": lambda text: f"[12345.678901 <    0.000012 >] gpu-017 kernel: {text}",
    "busybox": lambda text: f"Nov 19 03:04:05 gpu-017 kern.err kernel: [  123.456789] {text}",
    "openwrt": lambda text: f"Thu Nov 19 03:04:05 2026 kern.err kernel: [  123.456789] {text}",
    "talos": lambda text: f"10.5.0.2: kern:     err: [2026-11-19T03:04:05.123456789Z]: {text}",
    "cri": lambda text: f"2026-11-19T03:04:05.123456789Z stdout F [12345.678901] {text}",
    "docker": lambda text: json.dumps({"log": f"[1.5] {text}\n", "stream": "stdout", "time": "2026-11-19T03:04:05Z"}),
    "dmesg-json": lambda text: f'         "msg": {json.dumps(text)}',
    "json-sse": lambda text: "data: " + json.dumps({"_TRANSPORT": "kernel", "MESSAGE": text}),
    "windows": lambda text: f"[  123.456789] {text}\r\n",
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
        "Nov 19 03:04:05 python[12]: kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "Nov 19 03:04:05 gpu app.py kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "<30>Nov 19 03:04:05 gpu kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "<3>1 2026-11-19T03:04:05Z gpu python - - - NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "2026-11-19T03:04:05.123456789Z stderr F NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "2026-11-19T03:04:05.123456789Z stderr F Nov 19 03:04:05 g app: NVRM: Xid (PCI:0000:1b:00): 79, lost",
        '{"log":"NVRM: Xid (PCI:0000:1b:00): 79, lost\\n","stream":"stderr","time":"2026-11-19T03:04:05Z"}',
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


IN_PIECES = ("NVRM: The NVIDIA GPU 0000:df:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has",
             "NVRM: fallen off the bus and is not responding to commands.")  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_message_in_pieces_is_read_as_one_however_they_are_written(prefix: str) -> None:
    write = PREFIXES[prefix]
    for goes_on in (write, lambda text: f"               {text}"):
        watch = monitor()
        found = [watch.take(line, 0) for line in (write(IN_PIECES[0]), *map(goes_on, IN_PIECES[1:]))]
        assert [(str(each.action), each.gpu) for each in found if each] == [("reboot", 7)]


def test_what_a_program_writes_behind_the_kernel_is_not_read_as_its_piece() -> None:
    watch = monitor()
    lines = ("Nov 19 03:04:05 g kernel: NVRM: loading", "Nov 19 03:04:05 g app: x", "   NVRM: fallen off the bus")
    assert [watch.take(line, 0) for line in lines] == [None] * 3


_SEEN = datetime.datetime(2026, 3, 4, 5, 6, 7, 500_000, datetime.UTC)
_SEEN_MS = round(_SEEN.timestamp() * 1000)


@given(days=st.integers(0, 360), form=st.sampled_from(range(10)))
def test_a_line_tells_when_it_was_said(days: int, form: int) -> None:
    at = _SEEN - datetime.timedelta(days=days)
    now_ms, up_ms = _SEEN_MS + 1000, 86_400_000
    said_ms = round(at.timestamp() * 1000)
    since_boot = (said_ms - now_ms + up_ms) / 1000
    whole = form in (2, 3, 4)
    iso = at.isoformat()
    line = (
        f"3,1,{round(since_boot * 1e6)},-;x", f"[{since_boot:.6f}] x" if since_boot > 0 else f"{iso} g kernel: x",
        f"{at:%b %e %H:%M:%S} g kernel: x", f"[{at:%a %b %e %H:%M:%S %Y}] x", f"<3>{at:%b %d %H:%M:%S} g kernel: x",
        f"<3>1 {at.isoformat()} g kernel - - - x", f"kern  :err   : {at.isoformat()} x".replace(".", ","),
        at.astimezone(datetime.timezone(datetime.timedelta(hours=8))).isoformat() + " stdout F [1.5] x",
        json.dumps({"__REALTIME_TIMESTAMP": str(said_ms * 1000), "_TRANSPORT": "kernel", "MESSAGE": "x"}),
        json.dumps({"log": "x", "stream": "stdout", "time": at.isoformat()}),
    )[form]  # fmt: skip
    assert said_at_ms(line, now_ms, up_ms) == said_ms - (500 if whole else 0), line


@given(st.text(max_size=200))
def test_no_line_breaks_the_clock(line: str) -> None:
    for write in PREFIXES.values():
        said_at_ms(write(line), 0, 0)
    assert said_at_ms("NVRM: no time here", 0, 0) is None
    assert said_at_ms("[Sat Feb 30 25:61:00 2026] x", 0, 0) is None


def test_a_clock_that_is_set_back_begins_to_count_anew() -> None:
    watch = monitor()
    line, count, _ = OFTEN[0]
    for boot in range(3):
        start_ms = 10 * _HOUR_MS * (3 - boot)
        assert not any(watch.take(line, start_ms + at) for at in range(count - 1))


@given(st.lists(st.integers(0, 500)), st.integers(1, 100))
def test_most_at_once_is_the_fullest_window(times: list[int], within_ms: int) -> None:
    windows = (sum(start <= each < start + within_ms for each in times) for start in times)
    assert most_at_once(times, within_ms) == max(windows, default=0)


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
