"""A pair under attack lives on: whatever somebody else sends, no byte is wrong and nothing but counters has changed."""

import random
import socket
import threading
from typing import Any

import pytest
from tests.transport.pairs import Two, two

from weft.core.errors import UsageError
from weft.mrc.columns import ERROR_NONE
from weft.testing.forger import Forger, Overheard, bursts, send_burst, spoofed
from weft.transport.endpoint import Endpoint, EndpointSettings
from weft.transport.queue_pair import Completion
from weft.transport.underlay import Loopback

_MIB = 1 << 20


def overheard(pair: Two) -> Overheard:
    """Return what an attacker on `there` may know at most."""
    state = pair.there.state
    rows, hub = state.capture_rows, state.hub[0]
    heard = [
        data[: row[4]].tobytes()
        for row, data in zip(rows[: int(hub["capture_at"])], state.capture, strict=False)
        if row[1] == 1 and row[4] == row[5]
    ]
    number = int(state.peers[pair.back.index]["number"])
    return Overheard(number, int(pair.out.card["first"]), pair.target.address, pair.target.key, tuple(heard))


def talk(pair: Two, turns: int) -> None:
    """Write small pieces, so that whole packets are overheard."""
    for turn in range(turns):
        pair.out.write(pair.source, turn, 1 + turn % 50, pair.target.address + turn, pair.target.key, immediate=turn)
        assert pair.back.wait(10) == Completion("immediate", turn)
        assert pair.out.wait(10) is not None


def whole(pair: Two) -> None:
    """Hold the pair to living on with all its planes and paths."""
    for endpoint, each in ((pair.here, pair.out), (pair.there, pair.back)):
        sender = endpoint.state.sender.qp[each.index]
        assert sender["error"] == ERROR_NONE
        assert endpoint.state.receiver.qp[each.index]["error"] == ERROR_NONE
        assert sender["peer_up"] == sender["local_up"] == 0b1111
        assert each.failure == 0


@pytest.mark.parametrize("seed", [random.randrange(2**32) for _ in range(2)])
def test_packets_from_another_socket_never_reach_the_thread(seed: int) -> None:
    with two(2 * _MIB, capture_rows=400) as pair, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        talk(pair, 100)
        packets = Forger(seed, overheard(pair)).packets(6_000)
        sender = threading.Thread(target=lambda: [out.sendto(each, ("127.0.0.1", pair.there.port)) for each in packets])
        before = int(pair.there.state.hub[0]["no_queue_pair"])
        sender.start()
        for turn in range(6):
            pair.send(turn)
        sender.join()
        whole(pair)
        hub = pair.there.state.hub[0]
        for name in ("wrong_source", "wrong_tag", "stale", "too_short", "unknown_opcode"):
            assert hub[name] == 0, f"{name}: the kernel drops what no peer has sent"
        assert hub["no_queue_pair"] == before


@pytest.mark.parametrize("seed", [random.randrange(2**32) for _ in range(2)])
def test_packets_under_the_name_of_the_peer_change_nothing_but_counters(seed: int) -> None:
    with two(2 * _MIB, capture_rows=400) as pair:
        talk(pair, 100)
        packets = Forger(seed, overheard(pair)).packets(4_000)
        # The peer's own socket: no attacker could be nearer.
        out = pair.here._socket
        sender = threading.Thread(target=lambda: [_patient(out, each, pair.there.port) for each in packets])
        sender.start()
        for turn in range(6):
            pair.send(turn)
        sender.join()
        pair.send(9)
        whole(pair)
        hub = pair.there.state.hub[0]
        assert hub["wrong_tag"] > 500
        assert hub["stale"] > 100, "genuine packets that came again"
        assert not hub["wrong_key"]
        assert not hub["out_of_bounds"]


def _patient(out: socket.socket, packet: bytes, port: int) -> None:
    while True:
        try:
            out.sendto(packet, ("127.0.0.1", port))
        except BlockingIOError:
            continue
        return


@pytest.mark.root
def test_spoofed_sources_do_no_more() -> None:
    with (
        two(2 * _MIB, capture_rows=400) as pair,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as out,
    ):
        talk(pair, 100)
        for packet in Forger(5, overheard(pair)).packets(4_000):
            out.sendto(spoofed(packet, pair.here.port, pair.there.port), ("127.0.0.1", 0))
        pair.send(9)
        whole(pair)
        assert pair.there.state.hub[0]["wrong_tag"] > 500


def test_bursts_hold_every_packet() -> None:
    packets = Forger(1, Overheard(7, 1, 2, 3)).packets(500)
    found = [burst[at : at + size] for burst, size in bursts(packets) for at in range(0, len(burst), size)]
    assert sorted(found) == sorted(packets)
    udp = socket.AF_INET, socket.SOCK_DGRAM
    with socket.socket(*udp) as here, socket.socket(*udp) as out:
        here.bind(("127.0.0.1", 0))
        burst = b"a" * 10 + b"b" * 10 + b"c" * 4
        assert send_burst(out, burst, 10, here.getsockname()[1]) == 3
        assert [here.recv(99) for _ in range(3)] == [b"a" * 10, b"b" * 10, b"c" * 4]


def _cards(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    world = Loopback(planes=4)
    with Endpoint(world, EndpointSettings(**options)) as one:
        return one.offer("a").card, one.offer("b").card


def test_every_opening_has_a_secret_of_its_own_and_none_where_there_are_no_tags() -> None:
    first, second = _cards(seed=1)
    again, _ = _cards(seed=1)
    assert len({card["secret"] for card in (first, second, again)}) == 3, "a seed must not bring a secret back"
    assert "secret" not in _cards(authenticate=False)[0]


@pytest.mark.parametrize("change", [{"authenticate": 0}, {"authenticate": None}])
def test_both_ends_sign_or_none_does(change: dict[str, Any]) -> None:
    with Endpoint(Loopback(planes=4)) as here, Endpoint(Loopback(planes=4)) as there:
        pair, other = here.offer("there"), there.offer("here")
        card = {name: value for name, value in {**other.card, **change}.items() if value is not None}
        with pytest.raises(UsageError, match="there has authenticate = "):
            pair.connect(card)
