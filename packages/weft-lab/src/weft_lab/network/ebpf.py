"""eBPF by hand: instructions with labels, and the system call that loads, attaches and reads programs and arrays.

No compiler and no library is needed, so a lab needs no more than the kernel: programs are attached to a device's
egress by tcx (Linux 6.6) and stay until the device goes. The program's arrays are found again through the kernel's own
numbers, so that nothing has to be pinned in a file system.
"""

import ctypes
import os
import platform
import struct
from contextlib import suppress
from dataclasses import dataclass, field

from weft.core.errors import FailedError

_CALL_NUMBERS = {"x86_64": 321, "aarch64": 280}
_LIBC = ctypes.CDLL(None, use_errno=True)
(_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _LOAD, _ATTACH, _TEST_RUN, _PROGRAM_BY_ID, _MAP_BY_ID, _INFO, _QUERY) = (
    *(0, 1, 2, 5, 8, 10, 13, 14, 15, 16),
)
_ARRAY, _CLASSIFIER, _EGRESS = 2, 3, 47
_LOG_BYTES = 1 << 16
_ATTRIBUTES = 144
_MAP_IN_REGISTER = 1
LOAD_64, CALL, EXIT, ALWAYS = 0x18, 0x85, 0x95, 0x05


@dataclass
class Assembler:
    """Instructions in order, with places to jump to."""

    code: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """Opcode, target, source, offset, number."""
    labels: dict[str, int] = field(default_factory=dict)
    jumps: dict[int, str] = field(default_factory=dict)

    def put(self, opcode: int, to: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> None:
        """Add one instruction."""
        self.code.append((opcode, to, source, offset, number))

    def label(self, name: str) -> None:
        """Give the next instruction a name."""
        self.labels[name] = len(self.code)

    def jump(self, where: str, opcode: int = ALWAYS, to: int = 0, source: int = 0, number: int = 0) -> None:
        """Jump to a label, always or as `opcode` compares."""
        self.jumps[len(self.code)] = where
        self.put(opcode, to, source, 0, number)

    def load_map(self, to: int, descriptor: int) -> None:
        """Put an array of the kernel into a register."""
        self.put(LOAD_64, to, _MAP_IN_REGISTER, 0, descriptor)
        self.put(0)

    def call(self, helper: int) -> None:
        """Call one of the kernel's helpers; arguments in registers 1 to 5, the answer in 0."""
        self.put(CALL, number=helper)

    def assembled(self) -> bytes:
        """Return the program as the kernel reads it."""
        lines: list[bytes] = []
        for place, (opcode, to, source, offset, number) in enumerate(self.code):
            # A jump counts from the instruction behind it.
            away = self.labels[self.jumps[place]] - place - 1 if place in self.jumps else offset
            lines.append(struct.pack("<BBhi", opcode, to | source << 4, away, number))
        return b"".join(lines)


def _bpf(command: int, attributes: bytes) -> int:
    """Make the system call; raise `OSError` where it fails."""
    number = _CALL_NUMBERS.get(platform.machine())
    if number is None:
        raise FailedError(f"the number of the system call bpf is not known on {platform.machine()}")
    room = ctypes.create_string_buffer(attributes.ljust(_ATTRIBUTES, b"\0"), _ATTRIBUTES)
    answer = int(_LIBC.syscall(number, command, room, _ATTRIBUTES))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


class KernelArray:
    """One record of 64-bit numbers that a program of the kernel and we share."""

    def __init__(self, descriptor: int, words: int) -> None:
        """Own an open descriptor."""
        self.descriptor, self.words = descriptor, words

    @classmethod
    def make(cls, words: int) -> "KernelArray":
        """Make a new one, all zero."""
        return cls(_bpf(_MAP_CREATE, struct.pack("<4I", _ARRAY, 4, 8 * words, 1)), words)

    def read(self) -> list[int]:
        """Return its numbers."""
        key, value = ctypes.c_uint32(0), (ctypes.c_int64 * self.words)()
        _bpf(_MAP_LOOKUP, struct.pack("<IxxxxQQ", self.descriptor, ctypes.addressof(key), ctypes.addressof(value)))
        return list(value)

    def write(self, numbers: list[int]) -> None:
        """Write all of its numbers."""
        key, value = ctypes.c_uint32(0), (ctypes.c_int64 * self.words)(*numbers)
        at = (ctypes.addressof(key), ctypes.addressof(value))
        _bpf(_MAP_UPDATE, struct.pack("<IxxxxQQQ", self.descriptor, *at, 0))

    def close(self) -> None:
        """Let it go; the program that uses it keeps it."""
        os.close(self.descriptor)


def load_program(name: str, code: bytes) -> int:
    """Give the kernel a traffic classifier; return its descriptor, or raise with what the verifier says."""
    text, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(_LOG_BYTES)

    def attributes(level: int) -> bytes:
        logged = (level, _LOG_BYTES if level else 0, ctypes.addressof(log) if level else 0)
        at = (ctypes.addressof(text), ctypes.addressof(licence))
        # Type, instructions, code, licence; log; kernel version, flags; name.
        return struct.pack("<IIQQIIQII16s", _CLASSIFIER, len(code) // 8, *at, *logged, 0, 0, name.encode()[:15])

    try:
        return _bpf(_LOAD, attributes(0))
    except OSError as first:
        with suppress(OSError):
            return _bpf(_LOAD, attributes(1))
        said = [line for line in log.value.decode(errors="replace").splitlines() if line]
        raise OSError(first.errno, f"{first.strerror}; {' / '.join(said[-3:])}") from None


def attach_to_egress(descriptor: int, device: int) -> None:
    """Let a program see every packet that leaves by a device of this thread's network, as long as the device lives."""
    _bpf(_ATTACH, struct.pack("<IIII", device, descriptor, _EGRESS, 0))


def array_at_egress(device: int, words: int) -> KernelArray | None:
    """Return the first array of the first program at a device's egress, or None where there is none."""
    programs = (ctypes.c_uint32 * 4)()
    asked = struct.pack("<IIIIQIxxxxQQQQ", device, _EGRESS, 0, 0, ctypes.addressof(programs), 4, 0, 0, 0, 0)
    _bpf(_QUERY, asked)
    if not programs[0]:
        return None
    program = _bpf(_PROGRAM_BY_ID, struct.pack("<I", programs[0]))
    try:
        arrays = (ctypes.c_uint32 * 4)()
        # A `bpf_prog_info` whose only pointer is that of its arrays: how many fit stands at 52, where at 56.
        info = ctypes.create_string_buffer(struct.pack("<52xIQ", 4, ctypes.addressof(arrays)), 64)
        _bpf(_INFO, struct.pack("<IIQ", program, 64, ctypes.addressof(info)))
        return KernelArray(_bpf(_MAP_BY_ID, struct.pack("<I", arrays[0])), words) if arrays[0] else None
    finally:
        os.close(program)


def tried_out(descriptor: int, packet: bytes) -> tuple[int, bytes]:
    """Return what a program answers to a packet, and the packet afterwards."""
    given, room = ctypes.create_string_buffer(packet, len(packet)), ctypes.create_string_buffer(1 << 16)
    asked = ctypes.create_string_buffer(
        struct.pack(
            "<IIIIQQ", descriptor, 0, len(packet), len(room), ctypes.addressof(given), ctypes.addressof(room)
        ).ljust(_ATTRIBUTES, b"\0"),
        _ATTRIBUTES,
    )
    if _LIBC.syscall(_CALL_NUMBERS[platform.machine()], _TEST_RUN, asked, _ATTRIBUTES) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _, answer, _, size = struct.unpack_from("<IIII", asked)
    return answer, room.raw[:size]
