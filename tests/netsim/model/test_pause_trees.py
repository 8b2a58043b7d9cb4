"""Trees of paused ports and deadlocks, against plain searches of the same graphs."""

from hypothesis import given
from hypothesis import strategies as st

from weft.netsim.model.pause_trees import PauseRecord, deadlocked, tree_below

PORTS = st.integers(0, 7)
WAITS = st.dictionaries(PORTS, st.dictionaries(PORTS, st.integers(1, 100), min_size=1, max_size=3), max_size=8)


def below_of(waits):
    found: dict[int, list[int]] = {}
    for paused in sorted(waits):
        for blocking in waits[paused]:
            found.setdefault(blocking, []).append(paused)
    return found


@given(WAITS, PORTS)
def test_a_tree_holds_every_port_that_waits_for_its_root_and_no_other(waits, root):
    ports, depth = tree_below(root, below_of(waits))
    reached, layer, levels = {root}, {root}, 0
    while layer := {p for p in waits for q in waits[p] if q in layer} - reached:
        reached |= layer
        levels += 1
    assert set(ports) == reached - {root}
    assert len(set(ports)) == len(ports)
    assert depth == levels


@given(WAITS, st.integers(0, 120))
def test_ports_in_deadlock_wait_for_each_other_and_the_set_is_the_largest(waits, xon):
    paused = set(waits)
    stuck = deadlocked(waits, paused, xon)

    def holds(members: set[int]) -> bool:
        return all(sum(size for q, size in waits[p].items() if q in members) > xon for p in members)

    assert holds(stuck)
    # The union of two such sets is one too, so that every single one lies inside the largest.
    for mask in range(1 << len(paused)):
        chosen = {p for place, p in enumerate(sorted(paused)) if mask >> place & 1}
        assert not holds(chosen) or chosen <= stuck


def test_a_circle_of_three_is_a_deadlock_and_a_chain_is_a_tree():
    record = PauseRecord()
    record.see({1: {2: 50}, 2: {3: 50}}, {1, 2}, 10, 7, lambda _root, ports: len(ports))
    assert record.largest is not None
    assert (record.largest.root, record.largest.ports, record.largest.depth) == (3, (2, 1), 2)
    assert (record.largest.innocent, record.largest.at_ps, record.trees) == (2, 7, 1)
    assert record.deadlock == ()
    record.see({1: {2: 50}, 2: {3: 50}, 3: {1: 50}}, {1, 2, 3}, 10, 9, lambda _root, _ports: 0)
    assert (record.deadlock, record.deadlock_ps) == ((1, 2, 3), 9)
    assert record.trees == 1, "a circle has no root"


@given(WAITS)
def test_only_larger_trees_replace_the_largest(waits):
    record = PauseRecord()
    record.see({1: {0: 5}, 2: {0: 5}}, set(), 1, 1, lambda _root, _ports: 0)
    first = record.largest
    assert first is not None
    record.see(waits, set(), 1, 2, lambda _root, _ports: 0)
    assert record.largest is not None
    assert len(record.largest.ports) >= len(first.ports)
    assert record.largest is first or len(record.largest.ports) > len(first.ports)
