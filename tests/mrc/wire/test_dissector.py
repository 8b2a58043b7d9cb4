"""The dissector, run by tshark on drawn packets of both forms: every field reads as it was written."""

import random
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from weft.mrc.wire import packets
from weft.mrc.wire.dissector import PRINTED_UDP_PORT, dissector
from weft.mrc.wire.headers import HEADERS, Bth, Header, Reth
from weft.mrc.wire.packets import UDP_PORT, Packet, encode, ev_fields, headers_of

PACKETS = 400
OPCODES = (0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE)
RAW_IP = 101
FIELDS = [f"mrc.{kind.__name__.lower()}.{name}" for kind in HEADERS for name, _ in kind.layout if name]
MORE = ["mrc.ev", "mrc.trimmed", "mrc.sequence", "mrc.payload", "mrc.icrc", "_ws.malformed", "_ws.col.Protocol"]
needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark (apt-get install tshark)")


def drawn_header(kind: type[Header], chance: random.Random) -> Header:
    values = {}
    for name, width in kind.layout:
        low, high = (-(2 ** (-width - 1)), 2 ** (-width - 1) - 1) if width < 0 else (0, 2**width - 1)
        if name:
            values[name] = chance.choice([low, high, chance.randint(low, high)])
    return kind(**values)


def drawn_packet(chance: random.Random, partition: int | None = None) -> Packet:
    base = drawn_header(Bth, chance)
    assert isinstance(base, Bth)
    more = {"opcode": chance.choice(OPCODES), "version": 0}
    bth = Bth(**{**vars(base), **more, "partition": base.partition if partition is None else partition})
    headers = [drawn_header(kind, chance) for kind in headers_of(bth)]
    payload = chance.randbytes(chance.choice([0, 1, 12, 16, 300])) if bth.opcode <= packets.ONLY_IMMEDIATE else b""
    headers = [Reth(one.address, one.key, len(payload)) if isinstance(one, Reth) else one for one in headers]
    return Packet(bth, tuple(headers), payload)


def published(packet: Packet, ev: int, port: int, trimmed: bool) -> bytes:
    """Return a packet as the specification has it: outer and inner IPv6, UDP, headers, payload, ICRC."""
    whole = encode(packet)
    if trimmed:
        whole = whole[: len(whole) - len(packet.payload) - 4]
    source, label = ev_fields(ev)
    udp = struct.pack("!HHHH", source, port, 8 + len(whole), 0) + whole
    inner = struct.pack("!IHBB", 6 << 28 | label, len(udp), 17, 64) + bytes(31) + b"\x01" + udp
    return struct.pack("!IHBB", 6 << 28 | 7, len(inner), 41, 64) + bytes(31) + b"\x02" + inner


def unprivileged(packet: Packet, ev: int, form: str, chance: random.Random) -> bytes:
    """Return a packet as a plain socket sends it: the EV in front, tags or an ICRC behind."""
    body = ev.to_bytes(4, "big") + b"".join(header.encode() for header in (packet.bth, *packet.headers))
    if form == "icrc":
        body += packet.payload + bytes(4)
    else:
        body += (77).to_bytes(8, "big") + chance.randbytes(8)
        if packet.payload and form == "tagged":
            body += packet.payload + chance.randbytes(8)
    udp = struct.pack("!HHHH", 40_000, 50_000, 8 + len(body), 0) + body
    return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\2") + udp


def decoded(folder: Path, frames: list[bytes]) -> list[dict[str, str]]:
    """Return what tshark reads in every frame."""
    lua, capture = folder / "mrc.lua", folder / "drawn.pcap"
    lua.write_text(dissector())
    rows = [struct.pack("<IIII", at, 0, len(frame), len(frame)) + frame for at, frame in enumerate(frames)]
    capture.write_bytes(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65_535, RAW_IP) + b"".join(rows))
    wanted = [word for name in (*FIELDS, *MORE) for word in ("-e", name)]
    ran = subprocess.run(
        ["tshark", "-X", f"lua_script:{lua}", "-r", str(capture), "-T", "fields", "-E", "separator=|", *wanted],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "Lua" not in ran.stderr, ran.stderr
    return [dict(zip((*FIELDS, *MORE), line.split("|"), strict=True)) for line in ran.stdout.splitlines()]


def number(text: str) -> int:
    return {"True": 1, "False": 0}[text] if text in ("True", "False") else int(text, 0)


def expected(packet: Packet) -> dict[str, int]:
    return {
        f"mrc.{type(header).__name__.lower()}.{name}": getattr(header, name)
        for header in (packet.bth, *packet.headers)
        for name, _ in header.layout
        if name
    }


@needs_tshark
@pytest.mark.parametrize("seed", [1, 2])
def test_tshark_reads_every_field_of_both_forms_as_it_was_written(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sent: list[tuple[Packet, int, str]] = []
    frames: list[bytes] = []
    for _ in range(PACKETS):
        form = chance.choice(["published", "trimmed", "icrc", "tagged", "cut"])
        own_port = form in ("published", "trimmed")
        packet = drawn_packet(chance, None if own_port else Bth.partition)
        if form in ("trimmed", "cut") and not packet.payload:
            form = "published" if own_port else "tagged"
        # A length of 12 makes a trimmed tagged packet as long as a whole one with an ICRC; nobody writes 12 bytes.
        if form == "cut" and len(packet.payload) == 12:
            form = "tagged"
        ev = chance.getrandbits(32)
        sent.append((packet, ev, form))
        port = chance.choice([UDP_PORT, PRINTED_UDP_PORT])
        frames.append(
            published(packet, ev, port, form == "trimmed") if own_port else unprivileged(packet, ev, form, chance)
        )
    for (packet, ev, form), row in zip(sent, decoded(tmp_path, frames), strict=True):
        found: dict[str, Any] = {name: number(text) for name, text in row.items() if name in FIELDS and text}
        assert found == expected(packet), form
        assert (row["_ws.col.Protocol"], row["_ws.malformed"], number(row["mrc.ev"])) == ("MRC", "", ev)
        assert number(row["mrc.trimmed"]) == (form in ("trimmed", "cut"))
        shown = packet.payload.hex() if form not in ("trimmed", "cut") else ""
        assert row["mrc.payload"] == shown
        assert row["mrc.sequence"] == ("77" if form in ("tagged", "cut") else "")


@needs_tshark
def test_bytes_that_are_no_mrc_stay_what_they_were(tmp_path: Path) -> None:
    chance = random.Random(3)
    bodies = [chance.randbytes(chance.randint(0, 200)) for _ in range(PACKETS)]
    ports = [chance.choice([UDP_PORT, 50_000]) for _ in bodies]
    frames = [
        struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(body), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\2")
        + struct.pack("!HHHH", 40_000, port, 8 + len(body), 0)
        + body
        for body, port in zip(bodies, ports, strict=True)
    ]
    assert all(row["_ws.col.Protocol"] != "MRC" for row in decoded(tmp_path, frames))


def test_every_field_of_every_header_is_declared() -> None:
    text = dissector()
    assert all(f'"{name}"' in text for name in FIELDS)
    assert len(re.findall(r"ProtoField\.", text)) == len(FIELDS) + 7
