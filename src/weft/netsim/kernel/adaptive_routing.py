"""Adaptive routing: the uplink with the shortest queue of those that lead to a packet's destination."""

from weft.core.compile.rules import rule
from weft.netsim.host.host_state import Column
from weft.netsim.kernel.layout import (
    DATA_BYTES,
    DOWN,
    FIRST_NIC,
    FIRST_PORT,
    FIRST_SECOND,
    FIRST_UPLINK,
    INDEX,
    NICS,
    NUMBER,
    PLANE,
    POD_T0,
    POD_T1,
    PORT_MASK,
    SECOND_SHIFT,
    SECONDS,
    T0S,
    T1S,
    TIER,
    TIERS,
    UPLINK_MASK,
    UPLINK_SHIFT,
    UPS,
    Fabric,
)

_TIE_SHIFT, _TIE_MASK = 16, (1 << 48) - 1
_THREE_TIERS = 3
_SEEN_DOWN, _KNOWN_DEAD = 1, 2


@rule
def with_uplink(fabric: Fabric, node: Column, goal: int, key: int) -> int:
    """Return a packet's goal with the uplink that this switch chooses for it, where it goes up from here."""
    to = goal & PORT_MASK
    t0 = fabric.t0_of[to]
    if node[TIER] == 0:
        if 0 <= to - node[FIRST_NIC] < node[NICS]:
            return goal
        first_down = fabric.figures[FIRST_UPLINK] + (node[PLANE] * fabric.figures[T0S] + t0) * fabric.figures[UPS]
        chosen = _shortest(fabric, node[FIRST_PORT] + fabric.figures[DOWN], first_down, fabric.figures[UPS], key)
        return (goal & ~(UPLINK_MASK << UPLINK_SHIFT)) | (chosen << UPLINK_SHIFT)
    pod = t0 // fabric.figures[POD_T0]
    if node[TIER] != 1 or fabric.figures[TIERS] != _THREE_TIERS or pod == node[INDEX]:
        return goal
    t1 = pod * fabric.figures[POD_T1] + ((goal >> UPLINK_SHIFT) & UPLINK_MASK)
    first_down = fabric.figures[FIRST_SECOND] + (node[PLANE] * fabric.figures[T1S] + t1) * fabric.figures[SECONDS]
    chosen = _shortest(fabric, node[FIRST_PORT] + fabric.figures[POD_T0], first_down, fabric.figures[SECONDS], key)
    return (goal & ~(UPLINK_MASK << SECOND_SHIFT)) | (chosen << SECOND_SHIFT)


@rule
def _shortest(fabric: Fabric, first_port: int, first_down: int, count: int, key: int) -> int:
    """Return the number of the uplink with the fewest data bytes waiting; ties go round from the packet's key."""
    # The low bits of the key decide on marks; ties go by others, so that the two have nothing to do with each other.
    start = ((key >> _TIE_SHIFT) & _TIE_MASK) % count
    best = -1
    fewest = 0
    for step in range(count):
        number = start + step if start + step < count else start + step - count
        port = fabric.ports[first_port + number]
        # Of its own link a switch sees both kinds of death; of the far one only what routing has learned.
        if fabric.dead[port[NUMBER] >> 1] != 0 or fabric.dead[first_down + number] & _KNOWN_DEAD:
            continue
        if best < 0 or port[DATA_BYTES] < fewest:
            best = number
            fewest = port[DATA_BYTES]
    return best if best >= 0 else start
