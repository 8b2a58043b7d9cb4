"""Comparisons: bus bandwidth by hand, places across T0s, rings that are cut, best first."""

import pytest
from tests.netsim.scenarios import small_site

from weft.core.errors import UsageError
from weft.fabric.graph.shape import shape_of
from weft.netsim.comparison import CompareOptions, across, compare


def test_neighbours_hang_on_different_switches():
    shape = shape_of(small_site(gpus=16).fabric)
    places = across(shape, 16)
    assert sorted(places) == list(range(16))
    homes = [shape.t0_of(nic) for nic in places]
    assert all(one != other for one, other in zip(homes, homes[1:] + homes[:1], strict=True))


def test_a_ring_over_two_is_two_sends_each_way():
    (row,) = compare("ring", [8 * 4096], 2, small_site(planes=1), ("mrc",))
    # Each rank sends half of the buffer, adds, and sends the sum back: two rounds.
    assert (row.rounds, row.of_rounds, row.size) == (2, 2, 8 * 4096)
    first, *_ = row.report.flows
    assert first.size == 4 * 4096
    assert row.time_ps == max(flow.arrived_ps for flow in row.report.flows)
    assert row.bus_bps == pytest.approx(2 * 4 * 4096 * 8 * 10**12 / row.time_ps)


def test_a_long_ring_is_cut_and_its_time_is_that_of_all_rounds():
    site = small_site(planes=1)
    (whole,) = compare("ring", [8 * 64 * 4096], 8, site, ("mrc",))
    (cut,) = compare("ring", [8 * 64 * 4096], 8, site, ("mrc",), CompareOptions(most_packets=8 * 64 * 7))
    assert (whole.rounds, cut.rounds, cut.of_rounds) == (14, 7, 14)
    assert cut.time_ps == pytest.approx(whole.time_ps, rel=0.02)
    assert cut.bus_bps == pytest.approx(whole.bus_bps, rel=0.02)
    assert whole.off_by == 0
    assert 0 < abs(cut.time_ps / whole.time_ps - 1) <= cut.off_by < 0.2


def test_the_best_comes_first_and_is_measured_against_mrc():
    rows = compare("all-to-all", [8 * 16 * 4096], 8, small_site(planes=1), ("roce:1", "mrc"), CompareOptions(seed=3))
    assert [row.bus_bps for row in rows] == sorted((row.bus_bps for row in rows), reverse=True)
    base = next(row.bus_bps for row in rows if row.transport == "mrc")
    for row in rows:
        found = row.as_json(base)
        assert found["ratio_to_mrc"] == pytest.approx(row.bus_bps / base, abs=1e-4)
        assert (found["rounds"], found["of_rounds"]) == (7, 7)


def test_more_ranks_than_nics_are_refused():
    with pytest.raises(UsageError, match="ask for 2 to 8"):
        compare("ring", [4096], 9, small_site(), ("mrc",))


def test_queue_pairs_in_turn_spread_no_short_send():
    # 64 KiB are one message, which eight queue pairs share or one of them carries.
    asked = ("all-to-all", [8 * 2**16], 8, small_site(planes=1), ("roce:8", "mrc"))
    shared, turned = (compare(*asked, CompareOptions(3, posting)) for posting in ("whole", "nccl"))
    used = [{row.transport: int((row.report.counters["sent"] > 0).sum()) for row in rows} for rows in (shared, turned)]
    assert used == [{"roce:8": 8 * 7 * 8, "mrc": 8 * 7}, {"roce:8": 8 * 7, "mrc": 8 * 7}]
