"""What passes a device of a lab, as pcapng on standard output (`python -m weft_lab.agents.capture DEVICE NAME ...`).

It runs inside the namespace of the device's node and needs nothing but the standard library: a packet socket gives
every frame with the kernel's time of it. It ends after so many packets or seconds, or when its standard input does:
whoever started it is gone then, or has enough.
"""

import select
import socket
import struct
import sys
import time
from collections.abc import Iterator

_EVERY_PROTOCOL = 0x0003
_SO_TIMESTAMPNS = 35
_ETHERNET = 1
_SNAPPED = 262_144
_RCVBUF = 8 << 20
_SO_RCVBUFFORCE = 33
_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_MAGIC = 0x1A2B3C4D
_IF_NAME, _IF_DESCRIPTION, _IF_TSRESOL, _APPLICATION = 2, 3, 9, 4
_NANOSECONDS = 9
_NS = 1_000_000_000
_TICK_S = 0.1
_WORD = 4


def option(code: int, value: bytes) -> bytes:
    """Return one option of a pcapng block, padded to whole words."""
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % _WORD)


def block(kind: int, body: bytes) -> bytes:
    """Return a block of pcapng: its length stands at both ends."""
    size = 12 + len(body)
    return struct.pack("<II", kind, size) + body + struct.pack("<I", size)


def header(device: str, description: str) -> bytes:
    """Return the section header and the one interface of a file."""
    end = option(0, b"")
    section = struct.pack("<IHHq", _MAGIC, 1, 0, -1) + option(_APPLICATION, b"weft lab capture") + end
    resolution = option(_IF_TSRESOL, bytes([_NANOSECONDS]))
    names = option(_IF_NAME, device.encode()) + option(_IF_DESCRIPTION, description.encode())
    interface = struct.pack("<HHI", _ETHERNET, 0, _SNAPPED) + names + resolution + end
    return block(_SECTION, section) + block(_INTERFACE, interface)


def packet(at_ns: int, frame: bytes, whole: int) -> bytes:
    """Return the block of one frame; `whole` is how long it was on the wire."""
    head = struct.pack("<IIIII", 0, at_ns >> 32, at_ns & 0xFFFFFFFF, len(frame), whole)
    return block(_PACKET, head + frame + bytes(-len(frame) % _WORD))


def frames(device: str, most: int, seconds: float) -> Iterator[tuple[int, bytes]]:
    """Yield what passes a device, with its time, until `most` packets or `seconds` are over (0: no limit)."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RCVBUF)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sock.bind((device, _EVERY_PROTOCOL))
        sock.setblocking(False)
        deadline = time.monotonic() + seconds if seconds else float("inf")
        count = 0
        while time.monotonic() < deadline and not (most and count >= most):
            # A limit on each wait, so that the end of the time is noticed on a silent link too.
            ready = select.select([sock, sys.stdin], [], [], _TICK_S)[0]
            if sys.stdin in ready:
                break
            if not ready:
                continue
            data, ancillary, _, _ = sock.recvmsg(_SNAPPED, socket.CMSG_SPACE(16))
            at = next((value for _, kind, value in ancillary if kind == _SO_TIMESTAMPNS), b"")
            now_ns = time.time_ns()
            count += 1
            yield _nanoseconds(at) if at else now_ns, data


def _nanoseconds(stamp: bytes) -> int:
    seconds, nanoseconds = struct.unpack("=qq", stamp)
    return seconds * _NS + nanoseconds


def main(device: str, description: str, most: str, seconds: str) -> None:
    """Write what passes a device; say on standard error how many packets that were."""
    out = sys.stdout.buffer
    out.write(header(device, description))
    out.flush()
    count = 0
    # Ctrl-C ends a capture and loses nothing of it.
    try:
        for at_ns, frame in frames(device, int(most), float(seconds)):
            out.write(packet(at_ns, frame, len(frame)))
            count += 1
    except KeyboardInterrupt:
        pass
    out.flush()
    sys.stderr.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
