"""How much memory a run will use, said before it begins and refused where it does not fit."""

from pathlib import Path
from typing import Any

from weft.core import quantity
from weft.core.errors import UsageError
from weft.mrc import columns

_AROUND_PAIR = 6000
"""Bytes of a queue pair outside its columns: its flow, its ports, its place in tables."""
_PER_PACKET = 48 + 26
"""Bytes of a packet in flight: six words on a wire, and every other one in a queue as well."""


def planned_bytes(params: Any, pairs: int, packets: int = 0) -> tuple[int, int]:
    """Return the bytes that a run will use at most, as far as is known: for queue pairs, and for packets in flight.

    A packet in flight stands on a wire or in a queue; both keep the room that they once needed.
    """
    row = params[0]
    slots, evs = int(row["slot_mask"]) + 1, int(row["evs"])
    rows = columns.SENDER.itemsize * 2 + columns.RECEIVER.itemsize
    halves = slots * columns.PACKET.itemsize + 2 * evs * (columns.EV.itemsize + 2) + rows
    halves += 2 * int(row["planes"]) * columns.PLANE.itemsize + slots // 2 + _AROUND_PAIR
    return pairs * halves, packets * _PER_PACKET


def check_memory(pair_bytes: int, packet_bytes: int, free_bytes: int | None) -> str:
    """Return what is planned in one sentence, or raise where it does not fit into what is free."""
    total = pair_bytes + packet_bytes
    shown = quantity.SIZE.about
    text = f"memory: at most {shown(total)}, {shown(pair_bytes)} for queue pairs and the rest for packets in flight"
    if free_bytes is not None and total > free_bytes:
        raise UsageError(
            f"{text}; {shown(free_bytes)} are free, so use fewer gpus, a smaller window or a larger machine"
        )
    return text


def free_memory() -> int | None:
    """Return the bytes that are free on this machine, where it says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) * 1024 if found else None
