"""What a switch's port does before it queues a packet: marks above a depth, cuts to headers above another.

Linux here has neither RED nor trimming, so a small program of the kernel stands in front of every shaper. It keeps the
time at which the queue behind it will be empty (the generic cell rate algorithm: bytes at the port's rate, from now on
if that time has passed), and that time less now is the depth which a packet meets. Data packets (by their DSCP) that
meet more than `mark_ns` are marked by ECN, those that meet more than `trim_ns` lose their payload and go on in the
class of control packets. The last hop to a NIC marks nothing and cuts at one and a half times the depth (facts, section
4): what waits there is an incast, which no other path would avoid.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from weft.core.errors import UsageError
from weft.mrc.wire.packets import CONTROL_DSCP, DATA_DSCP, TRIMMED_DSCP, TRIMMED_LAST_HOP_DSCP
from weft_lab.network.ebpf import Assembler, KernelArray, array_at_egress, attach_to_egress, load_program
from weft_lab.network.machine import NAMESPACES, LabMachine
from weft_lab.network.plan import HIGH_CLASS, LabPlan
from weft_lab.network.stepping import stepped_into

MARK_MS, TRIM_MS = 2, 6
"""Depths, in milliseconds of the port's rate, above which packets are marked and cut."""
_NEVER_NS = 1 << 60
KEPT_BYTES = 60
"""Bytes that a cut packet keeps behind its UDP header: EV, the longest headers of data, sequence number and tag."""
_ETHERNET, _IPV6, _UDP = 14, 40, 8
_TRIMMED_BYTES = _ETHERNET + _IPV6 + _UDP + KEPT_BYTES
_TRAFFIC_AT, _LENGTH_AT, _UDP_LENGTH_AT = _ETHERNET, _ETHERNET + 4, _ETHERNET + _IPV6 + 4
_IPV6_PROTOCOL = 0xDD86
_ECN_BITS = 0x30
"""Of the second byte of an IPv6 header: the lower end of the traffic class."""
# Of `struct __sk_buff`.
_SKB_LENGTH, _SKB_PROTOCOL, _SKB_PRIORITY = 0, 16, 32
# Numbers of the kernel's helpers.
_LOOKUP, _NOW, _STORE, _LOAD, _CHANGE_TAIL = 1, 5, 9, 26, 38
WORDS = ("tail_ns", "byte_ps", "mark_ns", "trim_ns", "trimmed_class", "passed", "marked", "trimmed")
"""What program and lab share of one port: when its queue is empty, its rate and depths, and what it has counted."""
_AT = {name: 8 * place for place, name in enumerate(WORDS)}
_MOV, _MOV_NUMBER, _ADD, _ADD_NUMBER, _SUB, _MUL, _DIV_NUMBER = 0xBF, 0xB7, 0x0F, 0x07, 0x1F, 0x2F, 0x37
_AND_NUMBER, _OR, _OR_NUMBER, _LEFT, _RIGHT = 0x57, 0x4F, 0x47, 0x67, 0x77
_GET8, _GET32, _GET64, _PUT8, _PUT32, _PUT64, _PUT32_NUMBER, _PUT16_NUMBER, _PUT8_NUMBER = (
    *(0x71, 0x61, 0x79, 0x73, 0x63, 0x7B, 0x62, 0x6A, 0x72),
)
_EQUAL, _NOT_EQUAL, _AT_MOST, _ABOVE = 0x15, 0x55, 0xBD, 0x2D
_AT_MOST_NUMBER = 0xB5
_ATOMIC, _ATOMIC_ADD, _EXCHANGE = 0xDB, 0x00, 0xF1
_SKB, _PORT, _CLASS, _NOW_NS, _STACK = 6, 7, 8, 9, 10
_BYTES, _KEY, _START, _SEEN = -16, -4, -24, -32
"""Places on the program's stack."""


class PortCounts(NamedTuple):
    """What one port has done."""

    passed: int
    """Packets."""
    marked: int
    trimmed: int


@dataclass(frozen=True)
class SwitchPort:
    """One egress of the lab."""

    namespace: str
    device: str
    rate_bps: int
    kind: str
    """`nic`, `switch`, or `last hop` for a switch's port to a NIC."""


def program(descriptor: int) -> bytes:
    """Return the program of a port whose numbers stand in the array with this descriptor."""
    code = Assembler()
    code.put(_MOV, _SKB, 1)
    code.put(_GET32, 2, _SKB, _SKB_PROTOCOL)
    code.jump("done", _NOT_EQUAL, 2, number=_IPV6_PROTOCOL)
    code.put(_PUT32_NUMBER, _STACK, offset=_KEY)
    code.load_map(1, descriptor)
    _address(code, 2, _KEY)
    code.call(_LOOKUP)
    code.jump("done", _EQUAL, 0)
    code.put(_MOV, _PORT, 0)
    _bytes(code, _LOAD, _TRAFFIC_AT, _BYTES, 2)
    code.jump("done", _NOT_EQUAL, 0)
    # The traffic class lies across the first two bytes of the header, behind the version.
    code.put(_GET8, 1, _STACK, _BYTES)
    code.put(_AND_NUMBER, 1, number=0xF)
    code.put(_LEFT, 1, number=4)
    code.put(_GET8, _CLASS, _STACK, _BYTES + 1)
    code.put(_RIGHT, _CLASS, number=4)
    code.put(_OR, _CLASS, 1)
    code.call(_NOW)
    code.put(_MOV, _NOW_NS, 0)
    code.put(_GET64, 1, _PORT, _AT["tail_ns"])
    code.put(_PUT64, _STACK, 1, _SEEN)
    code.jump("waits", _ABOVE, 1, _NOW_NS)
    code.put(_MOV, 1, _NOW_NS)
    code.label("waits")
    code.put(_PUT64, _STACK, 1, _START)
    _by_class(code)
    _mark(code)
    _trim(code)
    code.label("high")
    code.put(_MOV_NUMBER, 1, number=HIGH_CLASS)
    code.put(_PUT32, _SKB, 1, _SKB_PRIORITY)
    _charge(code)
    code.label("done")
    code.put(_MOV_NUMBER, 0, number=0)
    code.put(0x95)
    return code.assembled()


def _address(code: Assembler, register: int, place: int) -> None:
    code.put(_MOV, register, _STACK)
    code.put(_ADD_NUMBER, register, number=place)


def _bytes(code: Assembler, helper: int, at: int, place: int, count: int) -> None:
    """Load or store bytes of the packet, from or to a place on the stack."""
    code.put(_MOV, 1, _SKB)
    code.put(_MOV_NUMBER, 2, number=at)
    _address(code, 3, place)
    code.put(_MOV_NUMBER, 4, number=count)
    code.put(_MOV_NUMBER, 5, number=0)
    code.call(helper)


def _count(code: Assembler, name: str) -> None:
    code.put(_MOV_NUMBER, 1, number=1)
    code.put(_ATOMIC, _PORT, 1, _AT[name], _ATOMIC_ADD)


def _by_class(code: Assembler) -> None:
    """Go where the class and the depth that a packet meets lead."""
    code.put(_MOV, 1, _CLASS)
    code.put(_RIGHT, 1, number=2)
    for dscp in (CONTROL_DSCP, TRIMMED_DSCP, TRIMMED_LAST_HOP_DSCP):
        code.jump("high", _EQUAL, 1, number=dscp)
    code.put(_GET64, 2, _STACK, _START)
    code.put(_SUB, 2, _NOW_NS)
    code.jump("mark?", _NOT_EQUAL, 1, number=DATA_DSCP)
    code.put(_GET32, 4, _SKB, _SKB_LENGTH)
    # What is no longer than what would be kept is not worth cutting.
    code.jump("mark?", _AT_MOST_NUMBER, 4, number=_TRIMMED_BYTES)
    code.put(_GET64, 3, _PORT, _AT["trim_ns"])
    code.jump("trim", _ABOVE, 2, 3)


def _mark(code: Assembler) -> None:
    """Mark a packet that says that it may be marked and meets more than is allowed."""
    code.label("mark?")
    code.put(_GET64, 3, _PORT, _AT["mark_ns"])
    code.jump("charge", _AT_MOST, 2, 3)
    code.put(_AND_NUMBER, _CLASS, number=3)
    code.jump("charge", _EQUAL, _CLASS)
    code.put(_GET8, 1, _STACK, _BYTES + 1)
    code.put(_OR_NUMBER, 1, number=_ECN_BITS)
    code.put(_PUT8, _STACK, 1, _BYTES + 1)
    _bytes(code, _STORE, _TRAFFIC_AT + 1, _BYTES + 1, 1)
    _count(code, "marked")
    code.jump("charge")


def _trim(code: Assembler) -> None:
    """Cut a packet to its headers, say its new lengths, and give it the class that tells the receiver."""
    code.label("trim")
    code.put(_MOV, 1, _SKB)
    code.put(_MOV_NUMBER, 2, number=_TRIMMED_BYTES)
    code.put(_MOV_NUMBER, 3, number=0)
    code.call(_CHANGE_TAIL)
    code.jump("charge", _NOT_EQUAL, 0)
    code.put(_GET8, 1, _STACK, _BYTES + 1)
    code.put(_AND_NUMBER, 1, number=0xF)
    code.put(_GET64, 2, _PORT, _AT["trimmed_class"])
    code.put(_OR, 1, 2)
    code.put(_PUT8, _STACK, 1, _BYTES + 1)
    # Both classes of cut packets begin with the same four bits, behind the version.
    code.put(_PUT8_NUMBER, _STACK, offset=_BYTES, number=0x60 | TRIMMED_DSCP >> 2)
    _bytes(code, _STORE, _TRAFFIC_AT, _BYTES, 2)
    code.put(_PUT16_NUMBER, _STACK, offset=_BYTES, number=socket.htons(_UDP + KEPT_BYTES))
    _bytes(code, _STORE, _LENGTH_AT, _BYTES, 2)
    _bytes(code, _STORE, _UDP_LENGTH_AT, _BYTES, 2)
    _count(code, "trimmed")


def _charge(code: Assembler) -> None:
    """Let the queue be empty later by what this packet takes."""
    code.label("charge")
    code.put(_GET32, 2, _SKB, _SKB_LENGTH)
    code.put(_GET64, 3, _PORT, _AT["byte_ps"])
    code.put(_MUL, 2, 3)
    code.put(_DIV_NUMBER, 2, number=1000)
    code.put(_GET64, 1, _STACK, _START)
    code.put(_ADD, 1, 2)
    code.put(_GET64, 0, _STACK, _SEEN)
    code.put(_MOV, 3, 0)
    code.put(_ATOMIC, _PORT, 1, _AT["tail_ns"], _EXCHANGE)
    code.jump("counted", 0x1D, 0, 3)
    # Another processor was quicker: the queue is behind its packet, so the time of ours is simply added.
    code.put(_ATOMIC, _PORT, 2, _AT["tail_ns"], _ATOMIC_ADD)
    code.label("counted")
    _count(code, "passed")


def settings_of(port: SwitchPort) -> dict[str, int]:
    """Return the numbers that a port's program works by."""
    depth = {"nic": (0, 0), "switch": (MARK_MS, TRIM_MS), "last hop": (0, 1.5 * TRIM_MS)}[port.kind]
    mark, trim = (round(ms * 10**6) or _NEVER_NS for ms in depth)
    dscp = TRIMMED_LAST_HOP_DSCP if port.kind == "last hop" else TRIMMED_DSCP
    return {
        "byte_ps": 8 * 10**12 // port.rate_bps, "mark_ns": mark, "trim_ns": trim, "trimmed_class": dscp << 6 & 0xF0,
    }  # fmt: skip


def ports(plan: LabPlan, slow: Mapping[str, int]) -> Iterator[SwitchPort]:
    """Return every egress of a lab; `slow` has the rates of links that are not as the others."""
    links = plan.topology.links
    for link in range(len(links)):
        rate = slow.get(plan.topology.name_of_link(link), plan.spec.rate_bps)
        from_nic = int(links.lower[link]) < plan.topology.nics
        (below, near), (above, far) = plan.ends(link)
        yield SwitchPort(below, near, rate, "nic" if from_nic else "switch")
        yield SwitchPort(above, far, rate, "last hop" if from_nic else "switch")


def missing(machine: LabMachine) -> str | None:
    """Return in a sentence why no switch can mark and trim here, or None where it can."""
    if machine.keeper is not None:
        return "marks and trims need root: the kernel takes programs for its queues from nobody else"
    array = None
    try:
        array = KernelArray.make(len(WORDS))
        os.close(load_program("weft_port", program(array.descriptor)))
    except OSError as error:
        return (
            f"this kernel takes no program for its queues ({error.strerror}); marks and trims need Linux 6.6 or newer "
            "with CONFIG_BPF_SYSCALL, CONFIG_NET_SCH_INGRESS or CONFIG_NET_CLS_ACT, and CONFIG_NET_SCH_HTB"
        )
    finally:
        if array is not None:
            array.close()
    return None


def put_in(plan: LabPlan) -> None:
    """Put a program in front of every queue of a lab."""
    for port in ports(plan, {}):
        with stepped_into(str(NAMESPACES / port.namespace)):
            array = KernelArray.make(len(WORDS))
            try:
                array.write([settings_of(port).get(name, 0) for name in WORDS])
                loaded = load_program("weft_port", program(array.descriptor))
                try:
                    attach_to_egress(loaded, socket.if_nametoindex(port.device))
                except OSError as error:
                    raise UsageError(
                        f"no program can be put before the queue of {port.device} ({error.strerror}); marks and trims "
                        "need Linux 6.6 or newer"
                    ) from None
                finally:
                    os.close(loaded)
            finally:
                array.close()


def _shared(port: SwitchPort) -> KernelArray | None:
    if not Path(NAMESPACES / port.namespace).exists():
        return None
    with stepped_into(str(NAMESPACES / port.namespace)):
        return array_at_egress(socket.if_nametoindex(port.device), len(WORDS))


def change_rates(plan: LabPlan, slow: Mapping[str, int]) -> None:
    """Tell the programs the rates that their ports have now."""
    for port in ports(plan, slow):
        array = _shared(port)
        if array is not None:
            try:
                now = dict(zip(WORDS, array.read(), strict=True))
                if now["byte_ps"] != settings_of(port)["byte_ps"]:
                    array.write([*(now | settings_of(port)).values()])
            finally:
                array.close()


def counts(plan: LabPlan) -> dict[str, PortCounts]:
    """Return what the ports of switches have done, by kind of port."""
    found = {kind: PortCounts(0, 0, 0) for kind in ("nic", "switch", "last hop")}
    for port in ports(plan, {}):
        array = _shared(port)
        if array is not None:
            try:
                now = dict(zip(WORDS, array.read(), strict=True))
            finally:
                array.close()
            before = found[port.kind]
            found[port.kind] = PortCounts(*(one + now[name] for one, name in zip(before, before._fields, strict=True)))
    return found
