"""A connection between two processes of one run over TCP: every frame is proved by the run's key, none is trusted else.

Both sides send a nonce; a frame is its length, a tag (HMAC-SHA256 over its number and content with a key of the
connection and the direction) and its content. So a frame cannot be made up, changed, repeated or sent back, and what
does not prove itself ends the connection before anything reads it. Lengths are bounded before memory is taken. Content
is not hidden: whoever reads the network reads it.
"""

import contextlib
import hmac
import secrets
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

from weft.training.launch.wire_values import WireValues

_MAGIC = b"weft/1\n\0"
_NONCE, _TAG = 16, 16
_HEAD = struct.Struct(">I")
_LARGEST = 64 << 20
"""Bytes of one frame: orders and digests of a large model take a few."""
_FIRST_LARGEST = 64 << 10
"""Bytes of the first frame, whose sender is not known yet."""
_PART = 4 << 20
_CONTENT_LARGEST = 1 << 40
_PATIENCE_S = 5.0
"""How long the other side may take for a part of what it says; whoever is busy says so meanwhile."""


class ChannelError(OSError):
    """The other side has gone, or what it sent proves nothing."""


class AuthenticatedChannel:
    """One end; `dial` and `welcome` make these. Sending is safe from several threads, hearing from one."""

    def __init__(self, connection: socket.socket, values: WireValues, ours: bytes, theirs: bytes) -> None:
        """Speak with the key `ours` and hear with `theirs`."""
        self._socket, self._values = connection, values
        self._ours, self._theirs = ours, theirs
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._sent = self._heard = 0
        self._buffer = bytearray()
        self._lock = threading.Lock()
        self.largest = _FIRST_LARGEST

    @classmethod
    def dial(cls, address: tuple[str, int], key: bytes, values: WireValues) -> "AuthenticatedChannel":
        """Connect to a process of this run that listens at `address`."""
        connection = socket.create_connection(address, _PATIENCE_S)
        return cls._greeted(connection, key, values, (b"dials", b"listens"))

    @classmethod
    def welcome(cls, connection: socket.socket, key: bytes, values: WireValues) -> "AuthenticatedChannel":
        """Take a connection that somebody has made."""
        return cls._greeted(connection, key, values, (b"listens", b"dials"))

    @classmethod
    def _greeted(
        cls, connection: socket.socket, key: bytes, values: WireValues, roles: tuple[bytes, bytes]
    ) -> "AuthenticatedChannel":
        try:
            connection.settimeout(_PATIENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            mine = secrets.token_bytes(_NONCE)
            connection.sendall(_MAGIC + mine)
            other = _exactly(connection, len(_MAGIC) + _NONCE)
            nonces = {roles[0]: mine, roles[1]: _nonce(other)}
            both = nonces[b"dials"] + nonces[b"listens"]
            ours, theirs = (hmac.digest(key, role + both, "sha256") for role in roles)
            return cls(connection, values, ours, theirs)
        except BaseException:
            connection.close()
            raise

    def fileno(self) -> int:
        """Return what can be waited for."""
        return self._socket.fileno()

    def trust(self) -> None:
        """Take large frames from now on: the other side has proved itself by a small one."""
        self.largest = _LARGEST

    def send(self, value: object) -> None:
        """Send a value; raises `ChannelError` where it cannot be sent."""
        self._send(self._values.encode(value))

    def send_if_free(self, value: object) -> None:
        """Send a value unless something is being sent right now, or nobody takes it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            with contextlib.suppress(ChannelError):
                self.send(value)

    def send_bytes(self, content: Any) -> None:
        """Send bytes of any length, in parts."""
        view = memoryview(content).cast("B")
        self.send(len(view))
        for begin in range(0, len(view), _PART):
            self._send(bytes(view[begin : begin + _PART]))

    def _send(self, content: bytes) -> None:
        if len(content) > _LARGEST:
            raise ChannelError(f"a frame of {len(content):,} bytes is longer than {_LARGEST:,}")
        with self._lock:
            tag = _tag(self._ours, self._sent, content)
            self._sent += 1
            try:
                self._socket.sendall(_HEAD.pack(len(content)) + tag + content)
            except OSError as error:
                raise ChannelError(f"it cannot be reached ({error})") from None

    def recv(self) -> Any:
        """Wait for the next value and return it."""
        return self._values.decode(self._content())

    def recv_bytes(self, largest: int = _CONTENT_LARGEST) -> bytes:
        """Wait for bytes that `send_bytes` has sent, so many at most."""
        length = self.recv()
        if not isinstance(length, int) or not 0 <= length <= largest:
            raise ChannelError("an impossible length")
        content = bytearray()
        while len(content) < length:
            content += self._content()
        return bytes(content)

    def arrived(self) -> Iterator[Any]:
        """Return the values that are there already, without waiting; raises `ChannelError` at the end."""
        while self._readable.poll(0):
            part = self._socket.recv(1 << 20)
            self._buffer += part
            if not part:
                yield from self._whole()
                raise ChannelError("it has hung up")
        yield from self._whole()

    def _whole(self) -> Iterator[Any]:
        while (content := self._cut()) is not None:
            yield self._values.decode(content)

    def _content(self) -> bytes:
        while (content := self._cut()) is None:
            try:
                part = self._socket.recv(1 << 20)
            except OSError as error:
                raise ChannelError(f"it says nothing ({error})") from None
            if not part:
                raise ChannelError("it has hung up")
            self._buffer += part
        return content

    def _cut(self) -> bytes | None:
        """Take the next frame off what has arrived, if it is whole and proved."""
        if len(self._buffer) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(self._buffer)
        if length > self.largest:
            raise ChannelError(f"a frame of {length:,} bytes is longer than {self.largest:,}")
        end = _HEAD.size + _TAG + length
        if len(self._buffer) < end:
            return None
        tag, content = bytes(self._buffer[_HEAD.size : _HEAD.size + _TAG]), bytes(self._buffer[_HEAD.size + _TAG : end])
        if not hmac.compare_digest(tag, _tag(self._theirs, self._heard, content)):
            raise ChannelError("a frame does not prove that it is of this run")
        self._heard += 1
        del self._buffer[:end]
        return content

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _tag(key: bytes, number: int, content: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8) + content, "sha256")[:_TAG]


def _nonce(greeting: bytes) -> bytes:
    if not greeting.startswith(_MAGIC):
        raise ChannelError("somebody who is not of this run has called")
    return greeting[len(_MAGIC) :]


def _exactly(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        part = connection.recv(count - len(content))
        if not part:
            raise ChannelError("it has hung up")
        content += part
    return content
