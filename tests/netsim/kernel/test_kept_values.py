"""What is kept of a run comes back as it was, and nothing else can be made of it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.netsim.kernel.compiled_simulator import SmallState
from weft.netsim.kernel.kept_values import as_json, from_json
from weft.netsim.kernel.link_faults import LinkFaultState
from weft.netsim.model.faults import LinkFaultChange
from weft.netsim.model.flow_board import BoardState, FlowProgress, _Queue
from weft.netsim.model.records import Counts, FaultRecord, Miss, RunRecords

numbers = st.integers(-(2**63), 2**63)
listed = st.lists(numbers, max_size=3)
changes = st.builds(
    LinkFaultChange, numbers, numbers, listed.map(tuple), st.sampled_from(["down", "loss"]), begins=st.booleans(),
    amount=numbers,
)  # fmt: skip
pairs = st.dictionaries(numbers, numbers, max_size=3)
records = st.builds(
    RunRecords, st.integers(1, 5), trace=numbers,
    faults=st.lists(
        st.builds(
            FaultRecord, numbers, first_ps=pairs, recovered_ps=pairs,
            open=st.dictionaries(st.tuples(numbers, numbers), numbers, max_size=3),
        ),
        max_size=2,
    ),
    queue_peaks=st.lists(listed, max_size=2), counts=st.lists(st.builds(Counts, *[numbers] * 5), max_size=2),
)  # fmt: skip
boards = st.builds(
    BoardState, st.lists(st.builds(FlowProgress, numbers, failure=st.text(max_size=3)), max_size=2),
    st.lists(st.builds(_Queue, listed, listed, numbers), max_size=2), st.sets(numbers, max_size=3),
    st.lists(st.tuples(numbers, numbers), max_size=3), numbers,
)  # fmt: skip
link_faults = st.builds(
    LinkFaultState, listed, listed,
    st.dictionaries(numbers, st.dictionaries(numbers, changes, max_size=2), max_size=2), pairs, listed,
)  # fmt: skip
states = st.builds(
    SmallState, st.text(max_size=5), numbers, numbers, numbers,
    st.lists(st.builds(Miss, numbers, numbers, numbers, numbers), max_size=2), boards, records, link_faults,
    st.tuples(numbers, numbers, listed),
)  # fmt: skip


def leaves(value: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    if not isinstance(value, list):
        return [path]
    return [found for number, each in enumerate(value) for found in leaves(each, (*path, number))]


@settings(max_examples=25, deadline=None)
@given(state=states)
def test_a_state_comes_back_as_it_was(state: SmallState):
    again = from_json(SmallState, json.loads(json.dumps(as_json(state))))
    assert again == state
    assert type(again.board.full) is set
    assert type(next(iter(again.misses), Miss(0, 0, 0, 0))) is Miss


@settings(max_examples=25, deadline=None)
@given(state=states, data=st.data())
def test_a_value_of_another_kind_is_refused(state: SmallState, data: st.DataObject):
    plain = as_json(state)
    path = data.draw(st.sampled_from(leaves(plain)))
    inner = plain
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = data.draw(st.sampled_from([1.5, None, {"a": 1}, [[["x"]]]]))
    with pytest.raises((ValueError, TypeError)):
        from_json(SmallState, plain)
