"""Only what the run's key proves is heard: not what was made up, changed, said before, or sent back."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.training.launch.authenticated_channel import AuthenticatedChannel, ChannelError
from weft.training.launch.wire_values import WireValues

WIRE = WireValues(())
KEY = bytes(range(32))
Ends = tuple[AuthenticatedChannel, AuthenticatedChannel]


@contextmanager
def channels(key: bytes = KEY, other: bytes = KEY) -> Iterator[Ends]:
    """Give both ends of a connection, dialled with `key` and welcomed with `other`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: list[AuthenticatedChannel] = []

        def accept() -> None:
            found.append(AuthenticatedChannel.welcome(server.accept()[0], other, WIRE))

        thread = threading.Thread(target=accept)
        thread.start()
        dialled = AuthenticatedChannel.dial(server.getsockname(), key, WIRE)
        thread.join()
    try:
        yield dialled, found[0]
    finally:
        dialled.close()
        found[0].close()


def raw(channel: AuthenticatedChannel) -> socket.socket:
    return socket.socket(fileno=os.dup(channel.fileno()))


def recorded(channel: AuthenticatedChannel, value: object, to: AuthenticatedChannel) -> bytes:
    """Send a value and take its frame off the wire before it is read."""
    channel.send(value)
    with raw(to) as line:
        return line.recv(1 << 16)


@settings(max_examples=20)
@given(st.lists(st.one_of(st.integers(), st.text(), st.binary(max_size=9000)), max_size=6))
def test_values_and_bytes_arrive_in_order(sent: list[Any]):
    with channels() as (here, there):
        for one in sent:
            (here.send_bytes if isinstance(one, bytes) else here.send)(one)
        for one in sent:
            assert (there.recv_bytes() if isinstance(one, bytes) else there.recv()) == one
        here.close()
        with pytest.raises(ChannelError, match="hung up"):
            list(there.arrived())


def test_another_key_is_not_heard():
    with channels(KEY, bytes(32)) as (here, there):
        here.send("let me in")
        with pytest.raises(ChannelError, match="does not prove"):
            there.recv()


@given(st.data())
@settings(max_examples=25)
def test_a_frame_that_was_changed_anywhere_ends_the_connection(data: st.DataObject):
    with channels() as (here, there):
        frame = bytearray(recorded(here, "kill rank 3", there))
        place = data.draw(st.integers(4, len(frame) - 1))
        frame[place] ^= 1 << data.draw(st.integers(0, 7))
        with raw(here) as line:
            line.sendall(frame)
        with pytest.raises(ChannelError, match="does not prove"):
            there.recv()


def test_a_frame_that_was_heard_before_or_comes_back_is_not_heard():
    with channels() as (here, there):
        frame = recorded(here, "once", there)
        with raw(here) as line:
            line.sendall(frame + frame)
        assert there.recv() == "once"
        with pytest.raises(ChannelError, match="does not prove"):
            there.recv()
        with raw(there) as line:
            line.sendall(frame)
        with pytest.raises(ChannelError, match="does not prove"):
            here.recv()


def test_a_frame_of_another_connection_is_not_heard():
    with channels() as (here, there), channels() as (other, beyond):
        frame = recorded(here, "elsewhere", there)
        with raw(other) as line:
            line.sendall(frame)
        with pytest.raises(ChannelError, match="does not prove"):
            beyond.recv()


@pytest.mark.parametrize("length", [(64 << 10) + 1, 2**32 - 1])
def test_a_stranger_cannot_announce_more_than_a_little(length: int):
    with channels() as (here, there):
        with raw(here) as line:
            line.sendall(struct.pack(">I", length))
        with pytest.raises(ChannelError, match="longer than 65,536"):
            list(there.arrived())


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + b" " * 32, b"\0" * 64])
def test_who_does_not_greet_is_turned_away(noise: bytes):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as theirs:
        ours, _ = server.accept()
        theirs.sendall(noise)
        with pytest.raises(OSError, match="not of this run"):
            AuthenticatedChannel.welcome(ours, KEY, WIRE)
        assert ours.fileno() == -1


def test_more_bytes_than_are_wanted_are_refused_before_they_come():
    with channels() as (here, there):
        here.send_bytes(bytes(100))
        with pytest.raises(ChannelError, match="impossible length"):
            there.recv_bytes(99)
