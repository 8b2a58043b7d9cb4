"""What an endpoint tells of itself: counters, metrics and a capture that other programs read."""

import struct

from prometheus_client import CollectorRegistry, generate_latest
from tests.transport.pairs import two

from weft.mrc.wire.packets import decode
from weft.transport.pcap import write_pcap
from weft.transport.statistics import Metrics, statistics


def test_counters_add_up_over_evs_and_planes() -> None:
    with two(1 << 20) as pair:
        pair.here.lose(1, 0.2)
        for turn in range(3):
            pair.send(turn)
        found = statistics(pair.here)
    (one,) = found["queue_pairs"]
    assert one["peer"] == "there"
    assert one["failure"] == ""
    for name in ("sent", "resent"):
        total = one["counters"][name]
        assert sum(plane[name] for plane in one["planes"]) == total
        assert sum(ev[name] for ev in one["evs"]) == total
    assert one["counters"]["delivered_bytes"] == 3 << 20
    assert found["endpoint"]["packets_out"] >= one["counters"]["sent"] - found["endpoint"]["shim_out"]


def test_metrics_are_prometheus_text() -> None:
    with two(1 << 16) as pair:
        pair.send()
        registry = CollectorRegistry()
        registry.register(Metrics(pair.here))
        text = generate_latest(registry).decode()
    assert 'weft_wire_pair_total{peer="there",what="sent"} 2.0' in text
    assert 'weft_wire_plane_total{peer="there",plane="0",what="sent"}' in text
    assert 'weft_wire_evs{peer="there",plane="3",state="GOOD"} 1.0' in text


def test_a_capture_is_a_pcap_file_of_mrc_packets(tmp_path) -> None:
    file = tmp_path / "wire.pcap"
    with two(64, capture_rows=100, authenticate=False) as pair:
        pair.send()
        count = write_pcap(pair.here, file)
    data = file.read_bytes()
    magic, major, minor, _, _, _, link = struct.unpack_from("<IHHiIII", data)
    assert (magic, major, minor, link) == (0xA1B23C4D, 2, 4, 101)
    at, found = 24, 0
    opcodes: set[int] = set()
    while at < len(data):
        _, _, kept, whole = struct.unpack_from("<IIII", data, at)
        packet = data[at + 16 : at + 16 + kept]
        assert packet[0] == 0x45
        ev, body = packet[28:32], packet[32:]
        # Of data on its way out only the headers are kept: its payload is the kernel's to gather.
        opcodes.add(decode(body, front=ev).bth.opcode if kept == whole else body[0])
        at += 16 + kept
        found += 1
    assert found == count > 1
    assert {0xCB, 0xDC} <= opcodes, "the write with its immediate and its SACK"
