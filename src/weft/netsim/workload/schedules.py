"""Collectives as traffic: every send of a schedule becomes a flow that waits for the sends it depends on.

Pure: a schedule, the NICs of its ranks and a size go in, flows come out. Any transport then carries them. Sends between
ranks that share a scale-up domain do not cross the fabric; they become the time that those after them wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.collectives.schedule import Schedule
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.netsim.model.flow import Flow


@dataclass(frozen=True)
class Near:
    """What a send inside a scale-up domain costs."""

    latency_ps: int
    """Before its first byte."""
    bytes_per_second: int
    """Of one rank."""

    def takes_ps(self, size: int) -> int:
        """Return the time of one send of `size` bytes."""
        return self.latency_ps + size * PICOSECONDS_PER_SECOND // self.bytes_per_second


class Beginning(NamedTuple):
    """When the first flows of a schedule begin, and how its flows are named and numbered."""

    at_ps: int = 0
    """How long after the flows that they wait for, or from the start, they begin."""
    after: Sequence[int] = ()
    """Numbers of the flows that they wait for."""
    offset: int = 0
    """Number of the first flow."""
    name: str = ""
    """What all names begin with."""


AT_ONCE = Beginning()


def flows_of_schedule(
    schedule: Schedule,
    nics: Sequence[int],
    size: int,
    *,
    begin: Beginning = AT_ONCE,
    near: Near | None = None,
) -> list[Flow]:
    """Return the flows of a schedule over a buffer of `size` bytes; rank r sits at `nics[r]`.

    With `near`, sends that do not leave their domain (`Schedule.far`) become waiting time; without, all are flows.
    """
    name = begin.name
    sizes = schedule.sent_bytes(size)
    numbers: dict[int, int] = {}
    # For a send that is no flow: the flows that it came after, and the time since the last of them.
    folded: dict[int, tuple[tuple[int, ...], int]] = {}
    flows: list[Flow] = []
    for send in range(len(schedule)):
        if len(schedule.before_of(send)):
            waits, wait_ps = _before(schedule, send, numbers, folded)
        else:
            waits, wait_ps = tuple(begin.after), begin.at_ps
        if near is not None and not schedule.far[send]:
            folded[send] = waits, wait_ps + near.takes_ps(int(sizes[send]))
            continue
        numbers[send] = begin.offset + len(flows)
        source, target = nics[int(schedule.source[send])], nics[int(schedule.target[send])]
        label = f"{name}{'.' if name else ''}{send}:{source}-{target}"
        flows.append(Flow(label, source, target, int(sizes[send]), wait_ps, waits))
    return flows


def _before(
    schedule: Schedule, send: int, numbers: dict[int, int], folded: dict[int, tuple[tuple[int, ...], int]]
) -> tuple[tuple[int, ...], int]:
    """Return the flows that a send waits for, and the longest time that it waits after the last of them."""
    waits: set[int] = set()
    wait_ps = 0
    for earlier in schedule.before_of(send).tolist():
        if earlier in numbers:
            waits.add(numbers[earlier])
        else:
            others, since_ps = folded[earlier]
            waits.update(others)
            wait_ps = max(wait_ps, since_ps)
    return tuple(sorted(waits)), wait_ps
