"""The roll of nodes: who is on it, and who is not."""

from hypothesis import given
from hypothesis import strategies as st

from weft.engines.kubernetes.controller.node_index import NodeIndex

names = st.sets(st.sampled_from([f"node-{number}" for number in range(8)]))


@given(names, st.lists(st.tuples(names, names), max_size=6))
def test_a_node_of_another_pool_never_gets_a_number(first: set[str], rounds: list[tuple[set[str], set[str]]]):
    roll = NodeIndex()
    ever: set[str] = set()
    for changed, nodes in [(first, first), *rounds]:
        ever |= changed & nodes
        found = roll.enrol(changed, nodes)
        assert found == sorted(changed & ever)
        assert set(roll.names) == ever
        assert [roll.numbers[name] for name in roll.names] == list(range(len(ever)))


def test_a_node_that_is_gone_is_still_known():
    roll = NodeIndex()
    assert roll.enrol({"a", "b"}, {"a"}) == ["a"]
    assert roll.enrol({"a", "b"}, {}) == ["a"]
