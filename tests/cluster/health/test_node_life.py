"""The life of a node is a table: every state and every event."""

import pytest

from weft.cluster.health.node_life import TABLE, NodeEvent, NodeLifeError, after, allowed
from weft.cluster.records.node import NodeState


@pytest.mark.parametrize("event", NodeEvent)
@pytest.mark.parametrize("state", NodeState)
def test_only_what_is_in_the_table_happens(state: NodeState, event: NodeEvent):
    if (state, event) in TABLE:
        assert allowed(state, event)
        assert after(state, event) is TABLE[state, event]
    else:
        with pytest.raises(NodeLifeError, match=f"{state} cannot be {event}"):
            after(state, event)


def test_nothing_comes_back_from_retirement():
    assert not [event for event in NodeEvent if allowed(NodeState.RETIRED, event)]


def test_every_state_can_be_reached_from_joining():
    reached = {NodeState.JOINING}
    for _ in NodeState:
        reached |= {to for (state, _), to in TABLE.items() if state in reached}
    assert reached == set(NodeState)


def test_a_node_becomes_ready_only_by_a_test_by_being_cleared_or_by_an_operator():
    ways = {(state, event) for (state, event), to in TABLE.items() if to is NodeState.READY}
    assert {event for _, event in ways} == {NodeEvent.PASSED, NodeEvent.CLEARED, NodeEvent.UNDRAIN}
