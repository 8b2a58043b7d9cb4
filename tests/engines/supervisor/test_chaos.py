from typing import Any

import pytest

from weft.core.errors import UsageError
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.supervisor.chaos import Chaos
from weft.specs.faults import FaultsSpec, resolved

SECOND = Picoseconds(PICOSECONDS_PER_SECOND)


def chaos(*faults: dict[str, Any]) -> Chaos:
    return Chaos(resolved(FaultsSpec.model_validate({"faults": list(faults)}), ranks=4, nodes=2, steps=10))


def test_a_fault_of_a_step_is_due_when_that_step_begins_and_only_once():
    world = chaos({"kind": "lose-node", "node": 1, "step": 4})
    assert world.due(2, SECOND) == []
    assert [fault.node for fault in world.due(3, SECOND)] == [1]
    assert world.due(4, SECOND) == []


def test_a_pause_after_the_step_is_waited_for_and_announced():
    world = chaos({"kind": "return", "step": 4, "after": "2 s"})
    assert world.due(3, SECOND) == []
    assert world.next_ps() == 3 * SECOND
    assert len(world.due(3, Picoseconds(3 * SECOND))) == 1
    assert world.next_ps() is None


def test_ranks_get_their_own_faults_until_those_have_come_true():
    world = chaos({"kind": "kill", "rank": 2, "step": 4}, {"kind": "slow", "rank": 2, "step": 1})
    assert [fault.kind for fault in world.of_rank(2)] == ["kill", "slow"]
    assert world.of_rank(1) == ()
    world.fired(0)
    world.fired(1)
    assert [fault.kind for fault in world.of_rank(2)] == ["slow"]


def test_a_time_for_something_that_happens_inside_a_step_is_refused():
    with pytest.raises(UsageError, match="happens inside a step"):
        chaos({"kind": "slow", "rank": 2, "at": "1 s"})
