"""The bytes around a payload, added up from the header tables: the one place that knows what a packet costs.

The fabric's figures, the planner and the simulator take their overheads from here.
"""

from weft.mrc.wire.headers import Bth
from weft.mrc.wire.icrc import ICRC_BYTES
from weft.mrc.wire.packets import MIDDLE, headers_of

ETHERNET_BYTES = 14 + 4 + 8 + 12
"""Header, frame check sequence, preamble and the gap to the next frame."""
IPV6_BYTES = 40
UDP_BYTES = 8


def transport_bytes(opcode: int) -> int:
    """Return the bytes from the base transport header to the ICRC of a packet without payload."""
    bth = Bth(opcode, 0, 0, timestamped=1)
    return Bth.size() + sum(header.size() for header in headers_of(bth)) + ICRC_BYTES


def frame_overhead(opcode: int = MIDDLE, *, ipv6_headers: int = 2) -> int:
    """Return the wire time, in bytes, that a packet takes beside its payload; SRv6 puts a second IPv6 header around."""
    return ETHERNET_BYTES + ipv6_headers * IPV6_BYTES + UDP_BYTES + transport_bytes(opcode)


FRAME_OVERHEAD_BYTES = frame_overhead()
"""Around the payload of a data packet over SRv6: 166 (arXiv 2605.04333)."""
CONGESTION_OVERHEAD_BYTES = IPV6_BYTES + UDP_BYTES + transport_bytes(MIDDLE)
"""What NSCC counts around a payload, 88: UDP's length and 40 more (facts section 4.4)."""


def payload_share(payload_bytes: int) -> float:
    """Return the share of the wire that carries payload: 96.1 % at 4 KiB, the published "about 770 of 800 Gb/s"."""
    return payload_bytes / (payload_bytes + FRAME_OVERHEAD_BYTES)
