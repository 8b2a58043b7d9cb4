"""The prober on the machine's own loopback: what is sent to oneself comes home, what goes nowhere does not."""

import io
import json
import socket
import sys
from collections.abc import Callable, Iterator

import pytest

from weft_lab.agents import prober as prober_module
from weft_lab.agents.prober import Prober, main

NOWHERE = "100::1"
"""The discard prefix of IPv6 (RFC 6666): nothing comes back from there."""


@pytest.fixture
def prober() -> Iterator[Callable[..., Prober]]:
    """Make probers; their sockets are closed at the end."""
    made: list[Prober] = []

    def make(*carriers: str, size: int = 128) -> Prober:
        made.append(Prober(carriers, size, patience_s=0.2))
        return made[-1]

    yield make
    for one in made:
        one.arrival.close()
        one.socket.close()


@pytest.mark.parametrize("size", [0, 22, 128, 4096])
def test_every_probe_to_oneself_comes_home(prober, size):
    one = prober("::1", size=size)
    one.run(20)
    (tally,) = one.tallies
    assert (tally.sent, tally.came) == (20, 20)
    assert len(tally.round_trips_ns) == 20
    assert min(tally.round_trips_ns) > 0


def test_paths_are_counted_apart_and_a_dead_one_does_not_hold_up_the_others(prober):
    one = prober("::1", NOWHERE, "::1")
    one.run(10)
    assert [(tally.sent, tally.came) for tally in one.tallies] == [(10, 10), (10, 0), (10, 10)]


def test_probes_of_somebody_else_are_not_counted(prober):
    one, other = prober("::1"), prober("::1")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as stranger:
        # Both the probes of another run and noise arrive at our port.
        other._send(0, 3)
        stranger.sendto(other.word + bytes(14), ("::1", one.port))
        stranger.sendto(b"noise", ("::1", one.port))
        one.run(1)
    assert (one.tallies[0].sent, one.tallies[0].came) == (1, 1)


def test_a_probe_that_comes_twice_counts_once(prober):
    one = prober("::1")
    one._send(0, 0)
    packet = one.socket.recv(4096) if _readable(one) else b""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as again:
        for _ in range(2):
            again.sendto(packet, ("::1", one.port))
        for _ in range(20):
            one._take_in(0.01)
    assert one.tallies[0].came == 1


def _readable(one: Prober) -> bool:
    return bool(one.arrival.select(1))


def test_old_probes_are_given_up_in_the_order_of_their_sending(prober, monkeypatch):
    one = prober("::1")
    one.pending = {(0, number): number * 10**8 for number in range(5)}
    monkeypatch.setattr(prober_module.time, "monotonic_ns", lambda: 4 * 10**8)
    one._forget()
    assert sorted(number for _, number in one.pending) == [3, 4]


def test_a_prober_reads_one_document_and_prints_another(monkeypatch, capsys, prober):
    asked = {"carriers": ["::1", NOWHERE], "size": 64, "patience_s": 0.1, "probes": 5}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
    monkeypatch.setattr(prober_module, "Prober", lambda carriers, size, _: prober(*carriers, size=size))
    main()
    rows = json.loads(capsys.readouterr().out)
    assert [(row["sent"], row["came"]) for row in rows] == [(5, 5), (5, 0)]
    assert [len(row["round_trip_ns"]) for row in rows] == [1, 0]
