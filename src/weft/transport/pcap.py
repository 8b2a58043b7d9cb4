"""The packets that an endpoint kept, as a classic pcap file that any dissector opens.

A socket sees neither IP nor UDP headers, so these are written anew: addresses and ports are right, times are those of
the endpoint's clock. Only the first 128 bytes of a packet are kept, of outgoing data only the headers. Inside UDP the
four bytes of the EV come first, then MRC as it is.
"""

import ipaddress
import socket
import struct
from pathlib import Path
from typing import Any

from weft.transport.endpoint import Endpoint
from weft.transport.memory.layout import CAPTURE_BYTES

_MAGIC, _RAW_IP = 0xA1B23C4D, 101
"""Nanosecond pcap; packets begin with their IP header."""
_PS_PER_NS, _NS = 1000, 10**9
_UDP, _UDP_HEAD = 17, 8
_HERE_V4, _HERE_V6 = "127.0.0.1", "::1"


def write_pcap(endpoint: Endpoint, file: Path) -> int:
    """Write what was kept to `file`; returns how many packets that are."""
    hub = endpoint.state.hub[0]
    count = min(int(hub["capture_at"]), len(endpoint.state.capture_rows))
    with file.open("wb") as out:
        out.write(struct.pack("<IHHiIII", _MAGIC, 2, 4, 0, 0, CAPTURE_BYTES + 48, _RAW_IP))
        for row, data in zip(endpoint.state.capture_rows[:count].tolist(), endpoint.state.capture[:count], strict=True):
            time_ps, way, index, value, kept, total = row
            head = _headers(endpoint, way, index, value, total)
            moment = int(hub["base_ns"]) + time_ps // _PS_PER_NS
            body = data[:kept].tobytes()
            out.write(struct.pack("<IIII", moment // _NS, moment % _NS, len(head) + len(body), len(head) + total))
            out.write(head + body)
    return count


def _headers(endpoint: Endpoint, way: int, index: int, value: int, total: int) -> bytes:
    """Return IP and UDP headers as the kernel will have put them in front."""
    far = _far(endpoint, index, value)
    here: tuple[Any, ...] = (_HERE_V4 if endpoint.underlay.family == socket.AF_INET else _HERE_V6, endpoint.port)
    source, target = (here, far) if way == 0 else (far, here)
    udp = struct.pack("!HHHH", source[1], target[1], _UDP_HEAD + total, 0)
    ends = ipaddress.ip_address(source[0]).packed, ipaddress.ip_address(target[0]).packed
    if endpoint.underlay.family == socket.AF_INET:
        size = 20 + _UDP_HEAD + total
        return struct.pack("!BBHHHBBH4s4s", 0x45, 0, size & 0xFFFF, 0, 0, 64, _UDP, 0, *ends) + udp
    return struct.pack("!IHBB16s16s", 6 << 28, (_UDP_HEAD + total) & 0xFFFF, _UDP, 64, *ends) + udp


def _far(endpoint: Endpoint, index: int, value: int) -> tuple[Any, ...]:
    """Return the peer's address for an EV, as it stands in the endpoint's table."""
    values = endpoint.state.sender.evs[index]["value"].tolist()
    name = endpoint.state.names[index, values.index(value) if value in values else 0].tobytes()
    port = int.from_bytes(name[2:4], "big")
    if endpoint.underlay.family == socket.AF_INET:
        return str(ipaddress.IPv4Address(name[4:8])), port
    return str(ipaddress.IPv6Address(name[8:24])), port
