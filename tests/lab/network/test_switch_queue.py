"""A port marks above one depth and cuts above another: the kernel's program against a model, and on a lab's packets."""

import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.builders import read_only_lab
from tests.lab.conftest import Weft

from weft.mrc.wire.packets import CONTROL_DSCP, DATA_DSCP, TRIMMED_DSCP, TRIMMED_LAST_HOP_DSCP
from weft_lab.measurements.bench import StreamRequest, StreamResult, planned, run_mrc
from weft_lab.measurements.rates import mean_bps
from weft_lab.measurements.stream import warm_up
from weft_lab.network import faults, switch_queue
from weft_lab.network.ebpf import KernelArray, load_program, tried_out
from weft_lab.network.lab import Lab
from weft_lab.network.machine import LabMachine, NamespaceKeeper
from weft_lab.network.plan import LabPlan, LabSpec, queue_for, small_fabric
from weft_lab.network.switch_queue import KEPT_BYTES, MARK_MS, TRIM_MS, WORDS, SwitchPort, settings_of

RATE = 200_000_000
ROOT = (pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="programs of the kernel need root"))
FRONT = 14 + 40 + 8


def packet_of(dscp: int, ecn: int, size: int, label: int = 0x12345) -> bytes:
    head = struct.pack(">IHBB", 6 << 28 | (dscp << 2 | ecn) << 20 | label, 8 + size, 17, 64) + bytes(32)
    payload = bytes(at * 7 & 0xFF for at in range(size))
    return bytes(12) + b"\x86\xdd" + head + struct.pack(">HHHH", 1, 2, 8 + size, 0) + payload


def expected(packet: bytes, kind: str, ahead_ms: int) -> tuple[bytes, str]:
    """Return what a port makes of a packet that meets so deep a queue, and which counter grows."""
    traffic = struct.unpack_from(">I", packet, 14)[0] >> 20 & 0xFF
    dscp, ecn = traffic >> 2, traffic & 3
    if kind == "nic" or dscp in (CONTROL_DSCP, TRIMMED_DSCP, TRIMMED_LAST_HOP_DSCP):
        return packet, ""
    deepest = TRIM_MS * 1.5 if kind == "last hop" else TRIM_MS
    if dscp == DATA_DSCP and ahead_ms > deepest and len(packet) > FRONT + KEPT_BYTES:
        to = TRIMMED_LAST_HOP_DSCP if kind == "last hop" else TRIMMED_DSCP
        label = struct.unpack_from(">I", packet, 14)[0] & 0xFFFFF
        cut = packet_of(to, 0, KEPT_BYTES, label)[:FRONT] + packet[FRONT : FRONT + KEPT_BYTES]
        return cut, "trimmed"
    if kind == "switch" and ahead_ms > MARK_MS and ecn:
        return packet_of(dscp, 3, len(packet) - FRONT), "marked"
    return packet, ""


@ROOT[0]
@ROOT[1]
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from((CONTROL_DSCP, DATA_DSCP, DATA_DSCP, TRIMMED_DSCP, TRIMMED_LAST_HOP_DSCP, 0, 63)),
    st.integers(0, 3), st.integers(0, 3000), st.sampled_from(("nic", "switch", "last hop")),
    st.sampled_from((-1000, 0, 1, 3, 5, 7, 8, 11, 200)), st.integers(10**6, 10**11),
)  # fmt: skip
def test_a_port_does_what_the_model_says(dscp, ecn, size, kind, ahead_ms, rate):
    array = KernelArray.make(len(WORDS))
    try:
        loaded = load_program("weft_port", switch_queue.program(array.descriptor))
        told = settings_of(SwitchPort("", "", rate, kind))
        packet = packet_of(dscp, ecn, size)
        now = time.monotonic_ns()
        array.write([(told | {"tail_ns": now + ahead_ms * 10**6}).get(name, 0) for name in WORDS])
        _, after = tried_out(loaded, packet)
        os.close(loaded)
        left = dict(zip(WORDS, array.read(), strict=True))
    finally:
        array.close()
    wanted, counter = expected(packet, kind, ahead_ms)
    assert after == wanted
    assert {name: left[name] for name in ("marked", "trimmed")} == {
        name: int(name == counter) for name in ("marked", "trimmed")
    }
    assert left["passed"] == 1
    # The queue is empty later by what the packet takes now, from now on where it was empty before.
    takes = len(after) * told["byte_ps"] // 1000
    began = left["tail_ns"] - takes
    assert began == now + ahead_ms * 10**6 if ahead_ms > 10 else began >= now + ahead_ms * 10**6


@ROOT[0]
@ROOT[1]
def test_what_is_no_ipv6_is_left_alone():
    array = KernelArray.make(len(WORDS))
    loaded = load_program("weft_port", switch_queue.program(array.descriptor))
    other = bytes(12) + b"\x08\x06" + bytes(60)
    assert tried_out(loaded, other)[1] == other
    assert array.read() == [0] * len(WORDS)
    array.close()
    os.close(loaded)


def test_every_egress_has_a_port_and_the_last_hop_is_known():
    plan = read_only_lab().plan
    found = list(switch_queue.ports(plan, {"link0-p0-i0": RATE // 2}))
    assert len({(port.namespace, port.device) for port in found}) == len(found) == 2 * len(plan.topology.links)
    kinds = [port.kind for port in found]
    nics = plan.topology.nics * plan.addressing.shape.planes
    assert kinds.count("nic") == kinds.count("last hop") == nics
    assert sum(port.rate_bps == RATE // 2 for port in found) == 2


def test_ports_that_trim_have_a_class_for_control_and_keep_it_at_another_rate():
    spec = LabSpec("w", small_fabric(2, 1, 1, RATE), RATE, queue_for(RATE), trims=True)
    assert LabSpec.from_json(spec.as_json()) == spec
    plan = LabPlan(spec)
    first, again = plan.shaper("p0", RATE, first=True), plan.shaper("p0", RATE // 4)
    assert "htb default 20" in first[0]
    assert [line.split()[:2] for line in first[1:]] == [line.split()[:2] for line in again]
    assert all(f"ceil {RATE // 4}bit" in line for line in again if line.startswith("class"))
    assert "tbf" in LabPlan(replace(spec, trims=False)).shaper("p0", RATE, first=True)[0]


def test_a_user_namespace_falls_back_with_a_sentence():
    said = switch_queue.missing(LabMachine(NamespaceKeeper(1, 1)))
    assert said is not None
    assert "need root" in said


def _streams(made: Lab, sources: range, seconds: float) -> list[StreamResult]:
    found: dict[int, StreamResult] = {}

    def carry(source: int) -> None:
        found[source] = run_mrc(made, StreamRequest((source, 0), [], seconds))

    threads = [threading.Thread(target=carry, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[source] for source in sources]


def _total(results: list[StreamResult], name: str) -> int:
    return sum(int(one.stream.statistics[name]) for one in results)


@ROOT[0]
@ROOT[1]
@pytest.mark.timeout(300)
def test_skips_cuts_and_smaller_windows_happen_on_real_packets(lab: Callable[..., Lab], weft: Weft, capsys):
    made = lab("--hosts", "6", "--planes", "2", "--spines", "3", "--rate", "50Mb/s", "--trims")
    assert made.record.spec.trims
    warm_up(lambda _said: None)
    # Five to one: what is cut is cut at the last hop, and shares are fair.
    results = _streams(made, range(1, 6), 12)
    ports = switch_queue.counts(made.plan)
    assert [one.stream.error for one in results] == [None] * 5
    assert ports["nic"][1:] == (0, 0)
    assert ports["last hop"].marked == 0
    assert ports["last hop"].trimmed > 0
    assert 0 < _total(results, "trims") <= ports["last hop"].trimmed + ports["switch"].trimmed
    began = max(one.stream.began_ns for one in results) / 1e9 + 1
    ended = min(one.stream.began_ns / 1e9 + one.stream.now_s for one in results)
    shares = [
        mean_bps(one.stream.samples, began - one.stream.began_ns / 1e9, ended - one.stream.began_ns / 1e9)
        for one in results
    ]
    # One plane's spine links are slow: they mark, their paths are skipped, and the window shrinks.
    slow = planned(made, "slow link1-p0-* 15Mb/s")
    made.change(slow.names, slow.step)
    before = switch_queue.counts(made.plan)
    (alone,) = _streams(made, range(5, 6), 6)
    after = switch_queue.counts(made.plan)
    made.change(slow.names, faults.heal)
    said = alone.stream.statistics
    with capsys.disabled():
        sys.stdout.write(
            f"\nincast 5:1: {[round(one / 1e6, 1) for one in shares]} Mb/s, "
            f"cut {ports['last hop'].trimmed} at the last hop, windows made smaller {_total(results, 'window_cuts')}"
            f"\nslow spines: {after['switch'].marked - before['switch'].marked} marked, "
            f"{after['switch'].trimmed - before['switch'].trimmed} cut; skips {said['skips']}, trims {said['trims']}, "
            f"windows made smaller {said['window_cuts']}\n"
        )
    mean = sum(shares) / len(shares)
    assert all(abs(share - mean) <= mean / 10 for share in shares), shares
    assert after["switch"].marked > before["switch"].marked
    assert said["marks"] > 0
    assert said["skips"] > 0
    assert said["trims"] > 0
    assert said["window_cuts"] > 0
    assert weft("status") == 0
