"""A TCP stream between two hosts of a lab, one end of it: a plain socket on the ordinary address of one plane.

It runs inside a host's namespace (`python -m weft_lab.agents.tcp`) and is there to be compared with: one connection,
one path, the kernel's own loss recovery and congestion control.
"""

import selectors
import socket
from contextlib import suppress

from weft_lab.agents.channel import SAMPLE_S, AgentChannel

CONNECT_S = 10.0
_PIECE = bytes(256 * 1024)


def main() -> None:
    """Be the end that the first line asks for."""
    line = AgentChannel()
    control = line.asked["control"].encode()
    if line.asked["receives"]:
        _receive(line, control)
    else:
        _send(line, control)


def _receive(line: AgentChannel, control: bytes) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
        server.bind((line.asked["address"], 0))
        server.listen(1)
        line.meet({"address": line.asked["address"], "port": server.getsockname()[1]})
        server.settimeout(CONNECT_S)
        stream, _ = server.accept()
    with stream:
        stream.settimeout(0)
        carried, buffer = 0, bytearray(len(_PIECE))
        with selectors.DefaultSelector() as ready:
            ready.register(stream, selectors.EVENT_READ)
            ready.register(0, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(SAMPLE_S):
                    if key.fileobj == 0:
                        line.wait()
                        line.say(at_ns=0, bytes=carried, end=True)
                        return
                    with suppress(BlockingIOError):
                        carried += stream.recv_into(buffer)
                line.sample(carried)


def _send(line: AgentChannel, control: bytes) -> None:
    peer = line.meet({})
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
        stream.settimeout(CONNECT_S)
        stream.connect((peer["address"], peer["port"]))
        stream.settimeout(0)
        with selectors.DefaultSelector() as ready:
            ready.register(stream, selectors.EVENT_WRITE)
            ready.register(0, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj == 0:
                        line.wait()
                        line.say(end=True)
                        return
                    with suppress(BlockingIOError):
                        stream.send(_PIECE)


if __name__ == "__main__":
    main()
