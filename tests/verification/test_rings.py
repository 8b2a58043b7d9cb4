"""The settings of the experiments with collectives."""

import pytest
from verification.rings import cluster_c, otherwise
from verification.rivals import as_published

from weft.netsim.workload.posting import NCCL_RINGS


@pytest.mark.parametrize("what", [what for what in otherwise() if what != "as above"])
def test_what_could_be_otherwise_differs_from_the_usual_and_can_be_read(what: str):
    transport, traffic = otherwise()[what]
    table = {"pattern": "nccl-all-to-all", "size": "1 MiB"}
    assert as_published(table | traffic, transport=transport) != as_published(table, transport=cluster_c())


def test_a_ring_is_posted_in_longer_messages_than_a_send_on_the_same_nics():
    ring, send = (as_published({}, transport=table).transport for table in (cluster_c(NCCL_RINGS), cluster_c()))
    assert ring.roce == send.roce
    assert (ring.posting.piece, send.posting.piece) == (2**20, 2**17)
    assert ring.posting.turns
    assert send.posting.turns
