"""The socket of an endpoint: opened with what suits it or refused in one sentence; addresses as the kernel has them."""

import contextlib
import ctypes
import errno
import socket
import struct
from collections.abc import Sequence
from typing import Any

from weft.core.errors import FailedError, UsageError
from weft.mrc.wire.packets import CONTROL_DSCP, DATA_DSCP, ECN_CAPABLE
from weft.transport.memory.layout import PREFIX
from weft.transport.underlay import Underlay

_BUFFER = 4 << 20
_OVERHEAD_MOST = 128
_UDP_NO_CHECK6_TX, _UDP_NO_CHECK6_RX = 101, 102
_IP_MTU_DISCOVER, _IP_MTU, _IPV6_MTU_DISCOVER, _IPV6_MTU, _DISCOVER_DO = 10, 14, 23, 24, 2
_SO_RCVBUFFORCE = 33
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_IP_TOS, _IP_RECVTOS, _IPV6_RECVTCLASS, _IPV6_TCLASS = 1, 13, 66, 67
_MESSAGE_HEAD = 16
_MOST_FILTERED = 256
_LOAD_HALF, _SKIP_UNLESS, _RETURN = 0x28, 0x15, 0x06
_ALL_BYTES = 0xFFFFFFFF


def packed(family: int, address: tuple[Any, ...]) -> bytes:
    """Return a socket address as the kernel has it."""
    port = int(address[1]).to_bytes(2, "big")
    head = family.to_bytes(2, "little") + port
    if family == socket.AF_INET:
        return head + socket.inet_pton(family, address[0]) + bytes(8)
    return head + bytes(4) + socket.inet_pton(family, address[0]) + int(address[3]).to_bytes(4, "little")


def open_socket(underlay: Underlay, port: int) -> socket.socket:
    """Return a bound socket with the largest buffers that the system gives, or say why there is none."""
    with underlay.inside():
        sock = socket.socket(underlay.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF, _SO_RCVBUFFORCE):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        if underlay.family == socket.AF_INET6:
            # The ICRC covers more than UDP's sum, which would cost a pass over every byte.
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_NO_CHECK6_TX, 1)
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _DISCOVER_DO)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _DISCOVER_DO)
        level, kind = _class_option(underlay.family)
        sock.setsockopt(level, kind, DATA_DSCP << 2 | ECN_CAPABLE)
        sock.setsockopt(level, _IPV6_RECVTCLASS if kind == _IPV6_TCLASS else _IP_RECVTOS, 1)
        underlay.bind(sock, port)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"UDP port {port} is in use; choose another, or 0 for any") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise UsageError(f"UDP port {port} may not be bound: {error.strerror}; choose one above 1023") from None
        raise FailedError(f"no socket can be opened: {error.strerror}") from None
    return sock


def _class_option(family: int) -> tuple[int, int]:
    """Return level and type of a packet's traffic class, as an option and as a message."""
    return (socket.IPPROTO_IPV6, _IPV6_TCLASS) if family == socket.AF_INET6 else (socket.IPPROTO_IP, _IP_TOS)


def class_message(family: int) -> int:
    """Return the word of a control message that says that it holds a traffic class."""
    level, kind = _class_option(family)
    return level | kind << 32


def control_message(family: int) -> tuple[int, int, int]:
    """Return the message that gives a packet the class of control packets, as words: its length, kind and number."""
    # A number of four bytes, the rest of its word is filled up.
    return _MESSAGE_HEAD + 4, class_message(family), CONTROL_DSCP << 2


def source_of(family: int, address: tuple[Any, ...] | None, port: int) -> tuple[int, int]:
    """Return the first word of the address that a peer's packets come from, and which of its bits are known.

    Family and port always are. Of IPv4's address, which is in that word, the network is where it is given.
    """
    name = packed(family, address or ("0.0.0.0" if family == socket.AF_INET else "::", port, 0, 0))  # noqa: S104
    mask = b"\xff" * (5 if address and family == socket.AF_INET else 4)
    known = int.from_bytes(mask, "little")
    return int.from_bytes(name[:8], "little") & known, known


def admit(sock: socket.socket, ports: Sequence[int]) -> None:
    """Let the kernel drop what does not come from one of `ports`, before it takes room from what does.

    The thread looks at every packet's source again: where there are too many ports, or no filters, that is enough.
    """
    if len(ports) > _MOST_FILTERED:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    # A filter of a UDP socket sees the UDP header first, and in it the source port.
    program = [struct.pack("HBBI", _LOAD_HALF, 0, 0, 0)]
    for port in sorted(set(ports)):
        program += [struct.pack("HBBI", _SKIP_UNLESS, 0, 1, port), struct.pack("HBBI", _RETURN, 0, 0, _ALL_BYTES)]
    program.append(struct.pack("HBBI", _RETURN, 0, 0, 0))
    code = ctypes.create_string_buffer(b"".join(program))
    with contextlib.suppress(OSError):
        sock.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
        )


def held(sock: socket.socket) -> int:
    """Return how many bytes of payload a receive buffer like ours surely holds: the kernel counts its own overhead."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 3


def refuse_small_mtu(underlay: Underlay, name: str, address: tuple[Any, ...]) -> None:
    """Refuse a way that does not take full packets."""
    needed = underlay.payload + PREFIX + _OVERHEAD_MOST
    level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if underlay.family == socket.AF_INET6 else (0, _IP_MTU)
    with underlay.inside():
        probe = socket.socket(underlay.family, socket.SOCK_DGRAM)
    with probe:
        try:
            probe.connect(address)
            mtu = probe.getsockopt(level, option)
        except OSError:
            # A way that is down now may come up; what it takes is seen then.
            return
    if mtu < needed:
        raise UsageError(
            f"the way to {name} takes packets of {mtu} bytes, but a payload of {underlay.payload} needs {needed};"
            f" raise the MTU or lower the payload to {max(1, mtu - PREFIX - _OVERHEAD_MOST)}"
        )
