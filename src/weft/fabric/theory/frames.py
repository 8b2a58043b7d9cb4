"""What a packet weighs on the wire, how many are in flight, and how long one takes."""

from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds, transfer_ps

HEADER_BYTES = 40 + 40 + 8 + 12 + 4 + 4 + 16 + 4
"""Outer IPv6, inner IPv6, UDP, BTH, METH, TSETH, RETH and ICRC: what MRC puts before and after the payload."""

ETHERNET_BYTES = 14 + 4 + 8 + 12
"""Header, checksum, preamble and the gap to the next frame."""


def frame_bytes(payload_bytes: int) -> int:
    """Return how many bytes of wire time a packet of `payload_bytes` takes."""
    return payload_bytes + HEADER_BYTES + ETHERNET_BYTES


def payload_share(payload_bytes: int) -> float:
    """Return the share of the wire that carries payload: 96.1 % at 4 KiB, the published "about 770 of 800 Gb/s"."""
    return payload_bytes / frame_bytes(payload_bytes)


def in_flight(rate_bps: int, round_trip_ps: int, size_bytes: int) -> float:
    """Return how many packets of `size_bytes` fill a round trip: the bandwidth-delay product in packets."""
    return rate_bps * round_trip_ps / PICOSECONDS_PER_SECOND / (8 * size_bytes)


def rotation_ps(entropy_values: int, size_bytes: int, rate_bps: int) -> Picoseconds:
    """Return how long a sender at `rate_bps` needs to use each of its entropy values once."""
    return transfer_ps(entropy_values * size_bytes, rate_bps)
