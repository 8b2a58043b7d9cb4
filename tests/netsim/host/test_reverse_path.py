"""Answers take a way that is known to work: one that was proved, or that of the packet which they answer."""

import numpy as np
import pytest
from tests.netsim.scenarios import flows, scenario, small_site

from weft.mrc.columns import NACK, SACK
from weft.netsim.host.host_state import HEADER
from weft.netsim.host.reverse_path import reply_route
from weft.netsim.run import prepare
from weft.netsim.setup import set_up, transports_of
from weft.netsim.transports.sprayed import SprayedEndpoints

SIZE = 1_000_000


def opened(transport: str, *, run: bool = False):
    """Return the halves of one flow, at its beginning, or with `run` at its end."""
    setup = set_up(scenario(flows((0, 5, SIZE))), small_site(), 3)
    (chosen,) = transports_of(setup, (transport,))
    _, world = prepare(setup, chosen)
    if run:
        world.run()
        assert world.board.progress[0].acknowledged_ps > 0
    assert isinstance(world.endpoints, SprayedEndpoints)
    return world.endpoints.host_state


def answer(kind: int, value: int = -1):
    head = np.zeros(1, HEADER)[0]
    head["kind"], head["value"] = kind, value
    return head


@pytest.mark.parametrize(("transport", "probes"), [("mrc", True), ("uet", False)])
def test_only_mrc_probes_its_way_back(transport: str, probes: bool):
    assert bool(opened(transport, run=True).r.qp["reverse_probe_id"].any()) == probes


def test_what_uet_answers_goes_back_on_the_ev_of_the_packet():
    h = opened("uet")
    h.r.qp[0]["came_ev"] = 7
    assert reply_route(h, answer(SACK, value=3), 0, 0) == 7, "of the last packet that came"
    assert reply_route(h, answer(NACK, value=3), 0, 0) == 3, "of the one that is refused"


def test_where_its_plane_is_down_or_nothing_came_another_way_is_taken():
    h = opened("uet")
    per_plane = int(h.b.params[0]["evs"]) // int(h.b.params[0]["planes"])
    assert reply_route(h, answer(SACK), 0, 0) >= 0, "nothing has come yet"
    h.r.qp[0]["came_ev"] = 7
    h.b.qp[0]["local_up"] &= ~1
    assert reply_route(h, answer(SACK), 0, 0) // per_plane > 0
    h.b.qp[0]["local_up"] = 0
    assert reply_route(h, answer(SACK), 0, 0) == -1


def test_mrc_takes_the_ev_that_it_keeps_for_each_plane_in_turn():
    h = opened("mrc")
    h.r.qp[0]["came_ev"] = 7
    kept = {int(h.b.evs[0, e]["value"]) for e in h.b.planes[0]["reverse"]}
    assert {reply_route(h, answer(SACK), 0, 0) for _ in range(2 * len(kept))} >= kept
