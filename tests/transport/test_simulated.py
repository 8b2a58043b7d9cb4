"""Simulation = wire: what the ends of simulated runs decided, an endpoint decides again from packets as bytes."""

from collections import Counter

import pytest
from tests.transport.drawn import copied, drawn_run, replayed

from weft.mrc import journal
from weft.mrc.rules.replay import make_replay_rows, redo_all
from weft.transport.simulated import replay_simulated, stand_in


@pytest.mark.parametrize("seed", [3, 9, 10])
def test_a_simulated_run_decides_the_same_on_sockets_and_by_the_rules(seed):
    run = drawn_run(seed, most_flows=8)
    assert replayed(run) == (len(run.rows), len(run.rows))
    assert len(run.rows) > 200


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_drawn_runs_with_marks_trims_losses_and_dead_ports_decide_the_same(part):
    total: Counter[str] = Counter()
    for seed in range(100 + 2 * part, 102 + 2 * part):
        run = drawn_run(seed)
        assert replayed(run) == (len(run.rows), len(run.rows)), seed
        total += run.counted
    assert total["trimmed"] > 0
    assert {"on_nack", "refuse", "operation", "on_timer"} <= total.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 8])
def test_pairs_that_carry_data_both_ways_decide_the_same_by_the_rules(seed):
    run = drawn_run(seed, most_flows=30, two_ways=True)
    assert redo_all(*copied(run), journal.make_journal(1), run.rows, make_replay_rows()) == len(run.rows)


@pytest.mark.parametrize(("call", "place"), [(journal.NEXT_DATA, 1), (journal.TAKE_SACK, 0), (journal.REPLY_EV, 0)])
def test_a_decision_that_was_changed_is_found_in_both_worlds(call, place):
    run = drawn_run(10, most_flows=8)
    wrong = run.rows.copy()
    at = int((wrong[:, journal.CALL] == call).nonzero()[0][3])
    wrong[at, journal.FIRST + place] ^= 1
    assert redo_all(*copied(run), journal.make_journal(1), wrong, make_replay_rows()) == at
    state = stand_in(run.params, copied(run), paths=run.paths, rows=len(wrong) + 1000)
    assert replay_simulated(state, wrong) == at


@pytest.mark.parametrize("call", [journal.ON_SACK, journal.RECEIVE])
def test_a_packet_that_is_lost_on_the_way_is_missed(call):
    run = drawn_run(10, most_flows=8)
    found = (run.rows[:, journal.CALL] == call).nonzero()[0]
    # Of an end to which more comes: what is missing shows in what is made of that.
    ends = Counter(run.rows[found, journal.END].tolist())
    at = next(int(row) for row in found if ends[int(run.rows[row, journal.END])] > 3)
    missing = run.rows[[row for row in range(len(run.rows)) if row != at]]
    state = stand_in(run.params, copied(run), paths=run.paths, rows=len(missing) + 1000)
    assert replay_simulated(state, missing) < len(missing)
