"""The traffic of the experiments with collectives: who waits for whom."""

import pytest
from verification.rings import exchanges


@pytest.mark.parametrize("inside", [False, True])
def test_a_rank_goes_on_when_all_that_it_sends_and_receives_is_over(inside: bool):
    ranks, times = 24, 3
    flows = exchanges(ranks, 4096, times, inside)
    peers = ranks - 1 if inside else ranks - 8
    each = len(flows) // times
    assert each == ranks * peers + ranks
    for number, flow in enumerate(flows):
        turn = number // each
        if flow.is_wait:
            assert (
                {flows[k].destination for k in flow.after}
                == {flows[k].source for k in flow.after_sent}
                == {flow.source}
            )
            assert len(flow.after) == len(flow.after_sent) == peers
            assert {k // each for k in flow.after + flow.after_sent} == {turn}
        else:
            assert inside or flow.source // 8 != flow.destination // 8
            before = [(flows[k].is_wait, flows[k].source, k // each) for k in flow.after]
            assert before == ([(True, flow.source, turn - 1)] if turn else [])
