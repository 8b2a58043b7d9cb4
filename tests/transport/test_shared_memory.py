"""Two processes of one host share memory: found by name, refused by word, lost without harm, left when it dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.transport.pairs import two

from weft.transport.endpoint import Endpoint, EndpointSettings
from weft.transport.queue_pair import PeerGoneError
from weft.transport.replay import replay
from weft.transport.shared_memory import SharedRings, card_of
from weft.transport.underlay import Loopback

WORLD = Loopback(planes=3, shared=True)
SHARED = 2


def rings() -> SharedRings:
    return SharedRings(4096, os.pipe2(os.O_NONBLOCK)[1])


def test_a_ring_is_opened_by_its_name_and_both_see_the_same():
    one, other = rings(), rings()
    address, known = one.offer()
    opened = other.accept(known)
    assert opened is not None
    assert opened[0] != address
    theirs, mine = other._held[0][0], one._held[0][0]
    theirs[5000:5003] = b"abc"
    assert mine[5000:5003] == b"abc"
    assert card_of(known) == known
    one.close()
    other.close()


@pytest.mark.parametrize("wrong", ["word", "process", "ring", "size", "file"])
def test_whoever_finds_something_else_talks_over_sockets(wrong, tmp_path: Path):
    one, other = rings(), rings()
    _, known = one.offer()
    match wrong:
        case "word":
            known["word"] += 1
        case "process":
            known["process"] = 2**22 + 1
        case "ring":
            known["ring"] = known["bell"]
        case "size":
            other.payload = 8192
        case _:
            known["ring"] = os.open(tmp_path, os.O_RDONLY)
    assert other.accept(known) is None
    one.close()
    other.close()


@pytest.mark.parametrize("said", [None, 3, {}, {"process": "x", "ring": 1, "bell": 1, "word": 1}])
def test_a_card_that_says_something_else_has_no_ring(said):
    assert card_of(said) is None


def test_everything_goes_through_memory_until_it_is_killed_and_again_when_it_is_back():
    with two(8 << 20, WORLD, journal_rows=100_000) as pair:
        hub = pair.here.state.hub[0]
        for turn in range(4):
            pair.send(turn)
        # What was sent again, because a busy machine was slow to answer, may go anywhere.
        first = int(pair.here.state.sender.qp[0]["sent"] - pair.here.state.sender.qp[0]["resent"])
        assert int(pair.here.state.paths[0][SHARED]["sent"]) >= first > 0
        through = int(hub["shared_out"])
        assert through >= first
        pair.here.cut(SHARED)
        for turn in range(4, 8):
            pair.send(turn)
        assert int(pair.here.state.paths[0][:SHARED]["sent"].sum()) > 0
        assert pair.here.state.sender.qp[0]["retired"] >= 1
        pair.here.cut(SHARED, cut=False)
        limit, turn = time.monotonic() + 20, 8
        while int(hub["shared_out"]) == through and time.monotonic() < limit:
            pair.send(turn)
            turn += 1
        assert int(hub["shared_out"]) > through
        for end in (pair.here, pair.there):
            assert replay(end.record()).difference is None


def test_a_peer_without_a_ring_is_reached_over_sockets():
    with Endpoint(WORLD) as here, Endpoint(WORLD) as there:
        out, back = here.offer("there"), there.offer("here")
        del back.card["shared"]
        given, taken = np.arange(9000, dtype=np.uint8), np.zeros(9000, np.uint8)
        source, target = here.register(given), there.register(taken)
        out.connect(back.card)
        back.connect(out.card)
        out.write(source, 0, 9000, target.address, target.key, immediate=1)
        assert back.wait(20) is not None
        assert np.array_equal(given, taken)
        assert here.state.hub[0]["shared_out"] == 0


CHILD = """
import json, sys, time
import numpy as np
from weft.transport.endpoint import Endpoint
from weft.transport.underlay import Loopback
end = Endpoint(Loopback(planes=3, shared=True))
region, pair = end.register(np.zeros(1 << 20, np.uint8)), end.offer("parent")
print(json.dumps([pair.card, region.address, region.key]), flush=True)
pair.connect(json.loads(sys.stdin.readline()))
time.sleep(600)
"""


@pytest.mark.timeout(240)
def test_a_process_that_is_killed_is_noticed_and_leaves_no_file():
    import json

    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    with (
        Endpoint(WORLD, EndpointSettings(liveness_s=1.0)) as end,
        subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            card, address, key = json.loads(child.stdout.readline())
            pair, source = end.offer("child"), end.register(np.ones(1 << 20, np.uint8))
            child.stdin.write(json.dumps(pair.card) + "\n")
            child.stdin.flush()
            pair.connect(card)
            pair.write(source, 0, 1 << 20, address, key)
            assert pair.wait(60) is not None
            assert end.state.hub[0]["shared_out"] > 0
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            pair.write(source, 0, 1 << 20, address, key)
            with pytest.raises(PeerGoneError, match="child is gone"):
                pair.wait(60)
        finally:
            child.kill()
    assert (set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()) <= before
