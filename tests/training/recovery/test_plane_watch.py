import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc.columns import ASSUMED_BAD, EV, GOOD
from weft.training.recovery.plane_watch import EndpointPlanes, PlaneWatch

PLANES, PEERS = 4, 3


def test_a_plane_that_goes_and_comes_back_is_told_once_each() -> None:
    told: list[str] = []
    seen = [frozenset[int](), frozenset({2}), frozenset({2}), frozenset({2, 3}), frozenset[int](), frozenset[int]()]
    watch = PlaneWatch(lambda text, seconds: told.append(f"{text} {seconds >= 0}"), lambda: (seen[0], 4))
    while seen:
        watch.stepped()
        seen.pop(0)
    assert told == [
        "plane 2 carries nothing; goes on over 3 of 4 planes True",
        "plane 3 carries nothing; goes on over 2 of 4 planes True",
        "plane 2 carries again; goes on over 4 of 4 planes True",
        "plane 3 carries again; goes on over 4 of 4 planes True",
    ]


def test_without_planes_there_is_nothing_to_tell() -> None:
    out, count = EndpointPlanes()()
    assert not out
    assert count == 0


@given(
    st.sets(st.integers(0, PLANES - 1)),
    st.lists(st.sets(st.integers(0, PEERS - 1), min_size=1), min_size=1, max_size=6),
)
def test_a_plane_is_out_whoever_is_spoken_to_and_alive_where_anybody_is_heard(
    dead: set[int], spoken_to: list[set[int]]
) -> None:
    """Peers to whom nothing is sent in a step keep their good opinion of a dead plane; that must not hide it."""
    evs = np.zeros((PEERS, PLANES), EV)
    evs["value"], evs["plane"], evs["state"] = np.arange(PLANES), np.arange(PLANES), GOOD
    heard = np.zeros((PEERS, PLANES), np.int64)
    links = SimpleNamespace(
        pairs={rank: SimpleNamespace(index=rank) for rank in range(PEERS)},
        endpoint=SimpleNamespace(
            state=SimpleNamespace(sender=SimpleNamespace(evs=evs), heard_on=heard),
            underlay=SimpleNamespace(planes=PLANES),
        ),
    )
    look = EndpointPlanes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "weft.transport.torch_backend", SimpleNamespace(links_of=lambda: links))
        heard += 1
        assert look() == (frozenset(), PLANES)
        for now, peers in enumerate(spoken_to, start=2):
            for peer in peers:
                for plane in range(PLANES):
                    if plane in dead:
                        evs[peer, plane]["state"] = ASSUMED_BAD
                    else:
                        heard[peer, plane] = now
            assert look() == (frozenset(dead), PLANES)
        heard += 100
        assert look() == (frozenset(), PLANES)
