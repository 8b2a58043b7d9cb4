"""A host's ports as the kernel sees them: which planes have a link, at the moment it changes (rtnetlink).

A NIC knows at once when its own link goes; an endpoint in a lab learns it here. Addresses and routes are not looked at.
"""

import fcntl
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from weft.core.errors import WeftError

_RTMGRP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_IFLA_IFNAME = 3
_IFF_UP_AND_LOWER_UP = 0x1 | 0x10000
_HEADER = struct.Struct("=IHHII")
_GET_FLAGS, _IFF_UP_AND_RUNNING = 0x8913, 0x1 | 0x40
_REQUEST = struct.Struct("=16sH22x")
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")


@dataclass(frozen=True)
class PortChange:
    """A port has come up or gone down."""

    plane: int
    up: bool


class PortWatch:
    """Watches the ports of the host in whose network it was made."""

    def __init__(self) -> None:
        """Begin to listen, then look how the ports are now: no change can fall between."""
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self.socket.bind((0, _RTMGRP_LINK))
        self.socket.setblocking(False)
        self.up = {plane: _is_up(plane) for plane in _planes()}

    def fileno(self) -> int:
        """Return what can be waited for."""
        return self.socket.fileno()

    def close(self) -> None:
        """Listen no more."""
        self.socket.close()

    def changes(self) -> list[PortChange]:
        """Return what has changed since the last call; never waits."""
        found: list[PortChange] = []
        with suppress(BlockingIOError):
            while True:
                for change in changes_in(self.socket.recv(65_536)):
                    if self.up.get(change.plane) != change.up:
                        self.up[change.plane] = change.up
                        found.append(change)
        return found


def follow(watch: PortWatch, changed: Callable[[int, bool], None]) -> Callable[[], None]:
    """Call `changed` for every port that is down, then at every change, in a thread; return what ends that."""
    for plane, up in watch.up.items():
        if not up:
            changed(plane, False)
    end = os.eventfd(0, os.EFD_CLOEXEC)

    def listen() -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(watch, selectors.EVENT_READ)
            ready.register(end, selectors.EVENT_READ)
            while all(key.fd != end for key, _ in ready.select()):
                # An endpoint that has just ended takes no more words.
                with suppress(WeftError):
                    for change in watch.changes():
                        changed(change.plane, change.up)

    thread = threading.Thread(target=listen, name="weft-ports", daemon=True)
    thread.start()

    def stop() -> None:
        os.eventfd_write(end, 1)
        thread.join()
        watch.close()
        os.close(end)

    return stop


def changes_in(message: bytes) -> Iterator[PortChange]:
    """Yield the port changes that a message of the kernel speaks of."""
    at = 0
    while at + _HEADER.size <= len(message):
        length, kind, *_ = _HEADER.unpack_from(message, at)
        if length < _HEADER.size:
            return
        body = message[at + _HEADER.size : at + length]
        if kind in (_RTM_NEWLINK, _RTM_DELLINK) and len(body) >= _LINK.size:
            flags = _LINK.unpack_from(body)[3]
            plane = _plane_of(_name_in(body[_LINK.size :]))
            if plane is not None:
                up = kind == _RTM_NEWLINK and flags & _IFF_UP_AND_LOWER_UP == _IFF_UP_AND_LOWER_UP
                yield PortChange(plane, up)
        at += -(-length // 4) * 4


def _name_in(attributes: bytes) -> str:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == _IFLA_IFNAME:
            return attributes[at + _ATTRIBUTE.size : at + length].rstrip(b"\0").decode()
        at += -(-length // 4) * 4
    return ""


def _plane_of(device: str) -> int | None:
    number = device.removeprefix("p")
    return int(number) if device.startswith("p") and number.isdecimal() else None


def _planes() -> list[int]:
    return [plane for _, name in socket.if_nameindex() if (plane := _plane_of(name)) is not None]


def _is_up(plane: int) -> bool:
    # Asked by a socket: /sys may show another network than that of a thread which has only stepped in.
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as asking, suppress(OSError):
        answer = fcntl.ioctl(asking, _GET_FLAGS, _REQUEST.pack(f"p{plane}".encode(), 0))
        return _REQUEST.unpack(answer)[1] & _IFF_UP_AND_RUNNING == _IFF_UP_AND_RUNNING
    return False
