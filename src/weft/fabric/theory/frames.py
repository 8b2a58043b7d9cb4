"""What a packet weighs on the wire, how many are in flight, and how long one takes."""

from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds, transfer_ps
from weft.mrc.wire.overhead import FRAME_OVERHEAD_BYTES


def frame_bytes(payload_bytes: int) -> int:
    """Return how many bytes of wire time a packet of `payload_bytes` takes."""
    return payload_bytes + FRAME_OVERHEAD_BYTES


def in_flight(rate_bps: int, round_trip_ps: int, size_bytes: int) -> float:
    """Return how many packets of `size_bytes` fill a round trip: the bandwidth-delay product in packets."""
    return rate_bps * round_trip_ps / PICOSECONDS_PER_SECOND / (8 * size_bytes)


def rotation_ps(entropy_values: int, size_bytes: int, rate_bps: int) -> Picoseconds:
    """Return how long a sender at `rate_bps` needs to use each of its entropy values once."""
    return transfer_ps(entropy_values * size_bytes, rate_bps)
