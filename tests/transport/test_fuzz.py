"""Packets that nobody sane would send: none of them crashes an endpoint, writes where it may not, or stops it."""

import contextlib
import os
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from tests.transport.pairs import Two

from weft.mrc.wire.headers import Bth, Neth
from weft.mrc.wire.icrc import icrc
from weft.mrc.wire.packets import NACK, PSN_OOR_WINDOW, Packet, encode
from weft.transport.endpoint import Endpoint, EndpointSettings
from weft.transport.memory.layout import MALFORMED
from weft.transport.underlay import Loopback

_GUARD = 4096
_SIZE = 64 * 1024
_PREFIX, _CHECK = 4, 4
_BATCH = 128


def _sealed(packet: bytes) -> bytes:
    body = packet[:-_CHECK]
    return body + icrc(body[_PREFIX:], body[:_PREFIX]).to_bytes(4, "little")


def _nack(queue_pair: int) -> bytes:
    """Return a NACK as this wire carries it, EV 0 in front."""
    front = bytes(_PREFIX)
    packet = Packet(
        Bth(opcode=NACK, queue_pair=int(queue_pair), psn=0), (Neth(reason=PSN_OOR_WINDOW, entropy=0, nack_psn=0),)
    )
    return front + encode(packet, front)


def _mutated(chance: random.Random, packet: bytes, seal: bool) -> bytes:
    """Return `packet` with something wrong, its check made right again where `seal` says so."""
    data = bytearray(packet)
    kind = chance.randrange(6)
    if kind == 0:
        for _ in range(chance.randrange(1, 9)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del data[chance.randrange(len(data)) :]
    elif kind == 2:
        data += chance.randbytes(chance.randrange(1, 200))
    elif kind == 3:
        at = chance.randrange(len(data))
        data[at : at + 4] = chance.randbytes(4)
    elif kind == 4:
        data[_PREFIX] = chance.randrange(256)
    else:
        data = bytearray(chance.randbytes(chance.randrange(1, 120)))
    return _sealed(bytes(data)) if seal and len(data) > _PREFIX + 16 else bytes(data)


def _attack(count: int, *, authenticate: bool) -> None:
    """Send `count` mutated packets, under the name of a peer, at an endpoint that works for somebody else as well."""
    chance = random.Random(11)
    world, plain = Loopback(planes=4), EndpointSettings(authenticate=authenticate)
    with (
        Endpoint(world, replace(plain, seed=1, capture_rows=4000), peers=4) as here,
        Endpoint(world, replace(plain, seed=2, capture_rows=4000), peers=4) as there,
        Endpoint(world, replace(plain, seed=3), peers=4) as friend,
    ):
        whole = np.full(_SIZE + 2 * _GUARD, 0xA5, np.uint8)
        victim = Two(here, there, _SIZE)
        region = there.register(whole[_GUARD : _GUARD + _SIZE])
        for turn in range(200):
            size = chance.randrange(1, 64)
            victim.out.write(victim.source, turn, size, region.address + turn, region.key, immediate=turn)
            victim.out.wait(10)
            victim.back.wait(10)
        heard = [row for row in _captured(here) + _captured(there) if row]
        # Nothing was refused so far, so that nobody has said NACK: one that the victim would believe is made up.
        heard += [_nack(there.state.peers[victim.back.index]["number"])] * (len(heard) // 4)
        good = Two(friend, there, 256 * 1024)
        good.send()
        _send(chance, heard, here, there, count)
        assert there.state.hub[0]["packets_in"] >= count
        assert (whole[:_GUARD] == 0xA5).all(), "bytes before the region were written"
        assert (whole[_GUARD + _SIZE :] == 0xA5).all(), "bytes behind the region were written"
        counted = there.state.hub[0]
        reasons = (*MALFORMED, "wrong_key", "out_of_bounds", "replayed", "no_queue_pair")
        if authenticate:
            # Whatever else may be wrong with a packet, that nobody signed it is found first.
            reasons = ("too_short", "unknown_opcode", "wrong_version", "wrong_length", "wrong_tag", "stale")
        for name in reasons:
            assert counted[name] > 0, f"nothing was dropped as {name}"
        for turn in range(3):
            good.send(turn)
        if authenticate:
            victim.send()


def _captured(endpoint: Endpoint) -> list[bytes]:
    """Return the packets that an endpoint kept whole and that belong to its first queue pair."""
    wire = endpoint.state
    rows = wire.capture_rows[: int(wire.hub[0]["capture_at"])]
    found = [(row, data[: row[4]].tobytes()) for row, data in zip(rows, wire.capture, strict=False)]
    return [data for row, data in found if row[4] == row[5] and row[1] == 1]


def _send(chance: random.Random, heard: list[bytes], here: Endpoint, there: Endpoint, count: int) -> None:
    hub = there.state.hub[0]
    while hub["packets_in"] < count:
        before = int(hub["packets_in"])
        for _ in range(_BATCH):
            packet = chance.choice(heard)
            if chance.random() < 0.9:
                packet = _mutated(chance, packet, chance.random() < 0.5)
            # From the peer's own socket: what comes from any other is dropped by the kernel.
            with contextlib.suppress(BlockingIOError):
                here._socket.sendto(packet, ("127.0.0.1", there.port))
        limit = time.monotonic() + 5
        # A batch fits any receive buffer; what is read is counted.
        while hub["packets_in"] < before + _BATCH // 2 and time.monotonic() < limit:
            time.sleep(0)
        assert hub["packets_in"] > before, "the endpoint takes no packets any more"


@pytest.mark.parametrize("authenticate", [True, False])
def test_a_few_thousand_mutated_packets_do_no_harm(authenticate: bool) -> None:
    _attack(5_000, authenticate=authenticate)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_mutated_packets_do_no_harm() -> None:
    _attack(int(os.environ.get("WEFT_FUZZ_PACKETS", "100000")), authenticate=True)
