"""Flows as messages on queue pairs: nothing is lost, parts wait for what their flow waits for, and turns are taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.netsim.scenarios import flows, scenario, simulate, small_site

from weft.core.errors import UsageError
from weft.core.units import Bytes
from weft.netsim.model.flow import Flow
from weft.netsim.workload.posting import MOST_PARTS, first_parts, post
from weft.specs.rivals import PostingSpec, TransportsSpec

KB = 1024


def posting(**more) -> PostingSpec:
    return PostingSpec.model_construct(**more)


specs = st.builds(
    posting,
    piece=st.none() | st.integers(1, 50_000).map(Bytes),
    under_way=st.integers(1, 9),
    turns=st.booleans(),
)


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=6), st.integers(1, 16), specs)
def test_parts_add_up_stand_together_and_wait_only_for_what_came_before(sizes, queue_pairs, spec):
    whole = [Flow(str(n), 0, 1, size, 7, (n - 1,) if n else (), lane=3) for n, size in enumerate(sizes)]
    first = first_parts(whole, queue_pairs, spec)
    parts = post(whole, queue_pairs, spec)
    assert len(parts) == first[-1]
    for n, flow in enumerate(whole):
        mine = parts[first[n] : first[n + 1]]
        last = (flow.size - 1) % (spec.piece or flow.size or 1) + 1
        # A message with fewer bytes than queue pairs, which can only be the last unless all are, has one in each.
        if spec.turns or min(last, spec.piece or last) >= queue_pairs:
            assert sum(part.size for part in mine) == flow.size
        assert all((part.size == 0) == flow.is_wait for part in mine)
        assert {part.lane // queue_pairs for part in mine} == {3}
        for place, part in enumerate(mine):
            if part.after or n == 0:
                assert part.after == tuple(range(first[n - 1], first[n]) if n else ())
            else:
                assert all(first[n] <= before < first[n] + place for before in part.after_sent)


def test_a_flow_without_pieces_over_one_queue_pair_stays_as_it_is():
    whole = (Flow("a", 0, 1, 10**9, 5), Flow("b", 1, 0, 3, 0, (0,)))
    assert post(whole, 1, PostingSpec()) == whole


def test_parts_of_a_flow_wait_for_all_parts_of_what_it_waits_for():
    sent = Flow("b", 1, 0, 100, 0, (0,), after_sent=(0,))
    *_, first, second = post((Flow("a", 0, 1, 100, 0), sent), 2, PostingSpec())
    assert first.after == second.after == first.after_sent == second.after_sent == (0, 1)


def test_messages_go_to_queue_pairs_in_turn_and_the_next_flow_goes_on_from_there():
    whole = [Flow("a", 0, 1, 5 * KB, 0), Flow("b", 0, 1, 2 * KB, 0), Flow("c", 0, 2, KB, 0)]
    parts = post(whole, 4, posting(piece=Bytes(KB), turns=True))
    assert [part.lane for part in parts] == [0, 1, 2, 3, 0, 1, 2, 0]


def test_only_so_many_messages_are_under_way_and_a_flow_waits_for_its_time_once():
    parts = post([Flow("a", 0, 1, 5 * KB, 77, lane=1)], 1, posting(piece=Bytes(KB), under_way=2, turns=True))
    assert [part.after_sent for part in parts] == [(), (), (0,), (1,), (2,)]
    assert [part.at_ps for part in parts] == [77, 77, 0, 0, 0]
    split = post([Flow("a", 0, 1, 3 * KB, 0)], 2, posting(piece=Bytes(KB), under_way=1))
    assert [part.after_sent for part in split] == [(), (), (0, 1), (0, 1), (2, 3), (2, 3)]


def test_too_many_messages_are_refused_before_they_are_made():
    with pytest.raises(UsageError, match=r"transport\.posting\.piece"):
        post([Flow("a", 0, 1, MOST_PARTS + 1, 0)], 1, posting(piece=Bytes(1)))


@pytest.mark.parametrize("name", ["mrc", "roce:1", "roce:4"])
@pytest.mark.parametrize("turns", [False, True])
def test_a_flow_in_pieces_arrives_whole_and_is_over_with_its_last(name: str, turns: bool):
    table = TransportsSpec.model_construct(posting=posting(piece=Bytes(64 * KB), under_way=2, turns=turns))
    spec = scenario(flows((0, 5, 256 * KB), (5, 0, 128 * KB)), transport=table)
    report = simulate(spec, small_site(planes=1), name)
    assert [flow.size for flow in report.flows] == [256 * KB, 128 * KB]
    alone = simulate(scenario(flows((0, 5, 256 * KB))), small_site(planes=1), name).flows[0]
    # Two messages of 64 KiB at a time cover no round trip of 100 Gb/s, so waiting for them shows.
    assert report.flows[0].completion_ps is not None
    assert alone.completion_ps is not None
    assert report.flows[0].completion_ps > 1.2 * alone.completion_ps
