"""Captures of a lab's links: pcapng as its specification has it, and tshark's word on real packets of a real lab."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc.wire.dissector import dissector
from weft_lab.agents import capture

root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark (apt-get install tshark)")


def blocks(data: bytes) -> list[tuple[int, bytes]]:
    """Return kind and body of every block; lengths must stand at both ends and be whole words."""
    found = []
    while data:
        kind, size = struct.unpack_from("<II", data)
        assert size % 4 == 0
        assert struct.unpack_from("<I", data, size - 4) == (size,)
        found.append((kind, data[8 : size - 4]))
        data = data[size:]
    return found


@given(st.lists(st.tuples(st.integers(0, 2**63), st.binary(max_size=200)), max_size=5))
def test_a_file_is_made_of_whole_blocks_that_keep_time_and_bytes(frames: list[tuple[int, bytes]]) -> None:
    data = capture.header("p0", "link0-p0-i0") + b"".join(capture.packet(at, one, len(one)) for at, one in frames)
    section, interface, *packets = blocks(data)
    assert (section[0], interface[0]) == (0x0A0D0D0A, 1)
    assert b"link0-p0-i0" in interface[1]
    for (kind, body), (at, frame) in zip(packets, frames, strict=True):
        which, high, low, kept, whole = struct.unpack_from("<IIIII", body)
        assert (kind, which, high << 32 | low, kept, whole) == (6, 0, at, len(frame), len(frame))
        assert body[20 : 20 + kept] == frame


@root
@pytest.mark.root
@needs_tshark
def test_tshark_reads_every_packet_of_a_link_under_load(weft, lab, tmp_path: Path) -> None:
    lab("--hosts", "2", "--planes", "2", "--spines", "1")
    file, lua = tmp_path / "link.pcapng", tmp_path / "mrc.lua"
    lua.write_text(dissector())
    words = ["lab", "capture", "link0-p0-i0", "-o", str(file), "--seconds", "0", "--name", weft.name, "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "weft", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as command:
        part = tmp_path / ".link.pcapng.part.pcapng"
        deadline = time.monotonic() + 60
        while not part.exists() and command.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert weft("bench", "--seconds", "2", "--fault", "loss link0-p1-i1 5%") == 0, weft.said
        command.send_signal(2)
        said = json.loads(command.communicate(timeout=30)[0])
    read = subprocess.run(
        ["tshark", "-X", f"lua_script:{lua}", "-r", str(file), "-T", "fields", "-e", "udp.srcport",
         "-e", "_ws.col.Protocol", "-e", "_ws.malformed"],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    rows = [line.split("\t") for line in read.stdout.splitlines()]
    datagrams = [row for row in rows if row[0]]
    assert said["packets"] == len(rows)
    assert len(datagrams) > 1_000
    assert all(row[1] == "MRC" for row in datagrams)
    assert not any(row[2] for row in rows)


@root
@pytest.mark.root
def test_a_capture_of_no_link_or_of_several_is_refused(weft, lab, tmp_path: Path) -> None:
    lab("--hosts", "2", "--planes", "2", "--spines", "1")
    for words, message in (
        (("link0-*",), "means"),
        (("link9-p0-i0",), "link9-p0-i0"),
        (("link0-p0-i0", "--seconds", "-1"), "--seconds -1"),
        (("link0-p0-i0", "--packets", "-1"), "--packets -1"),
    ):
        assert weft("capture", *words, "-o", str(tmp_path / "x.pcapng")) == 2, weft.said
        assert any(message in line for line in weft.said), weft.said
        assert list(tmp_path.iterdir()) == []
