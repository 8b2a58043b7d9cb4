"""A fleet over months: every GPU-hour is accounted for, the same seed gives the same, and faults do what they do."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.campaign.small_fleets import QUIET, faults, question, run, scenarios

from weft.campaign.arrivals import Arrivals, renewals
from weft.campaign.fleet import HOUR_MS, Fleet
from weft.campaign.gpu_time import BUCKETS
from weft.campaign.outcome import bands, outcome_of
from weft.campaign.seeds_in_parallel import answered, outcomes
from weft.cluster.invariants import broken
from weft.core.errors import UsageError
from weft.core.seeds import Seed

GANG = {"nodes": 40, "spares": 4, "duration": "10 d", "gangs": [{"name": "one", "gpus": 256}]}


@given(scenarios())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_gpu_hour_is_in_one_bucket_whatever_breaks(table):
    done = run(table)
    assert set(done.ledger.total) == set(BUCKETS)
    assert sum(done.ledger.total.values()) == done.fleet.gpus * done.end_ms
    assert min(done.ledger.total.values()) >= 0
    assert broken(done.cluster.state.snapshot()) == []


@given(scenarios())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_racks_of_which_some_trays_stand_by_are_accounted_for(table):
    ladder = {"ladder": {"unit": "rack", "needed": 16}, "nodes": 360, "gangs": [{"name": "one", "gpus": 640}],
              "serving": {"replicas": 0}}  # fmt: skip
    done = run(table, ladder, site="gb200-4x200g-32k")
    assert sum(done.ledger.total.values()) == done.fleet.gpus * done.end_ms
    assert min(done.ledger.total.values()) >= 0


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    asked = question(GANG, {"experiments": {"per_day": 20, "room": 3}})
    first, second, other = (json.dumps(answered(asked, seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_two_processes_give_the_same_bytes_as_one():
    asked = question(GANG, {"duration": "3 d"})
    one, two = (json.dumps(outcomes(asked, [0, 1, 2], processes)) for processes in (1, 2))
    assert one == two


def test_where_nothing_fails_all_is_training_and_checkpoints():
    checkpoint = {"interval": "3000 s", "write": "600 s"}
    table = {"nodes": 32, "spares": 0, "gangs": [{"name": "one", "restart": "0 s", "checkpoint": checkpoint}]}
    done = run(QUIET, table, {"duration": "1 d"})
    whole = done.fleet.gpus * done.end_ms
    assert done.ledger.total["training"] == whole * 5 // 6
    assert done.ledger.total["checkpoints"] == whole // 6


def test_a_fault_costs_detection_restart_and_the_steps_since_the_last_checkpoint():
    gang = {"name": "one", "gpus": 256, "restart": "300 s", "checkpoint": {"interval": "1 h", "write": "0 s"}}
    done = run(QUIET, GANG, {"gangs": [gang], "duration": "1 d"}, script=faults((10.5, "gpu", 3)))
    spent = {name: gpu_ms / 256 / 1000 for name, gpu_ms in done.ledger.total.items()}
    assert spent["detection"] == 30
    assert spent["restart"] == 600
    # Half an hour after the tenth checkpoint, less the five minutes of the first start.
    assert spent["rolled back"] == 1500
    assert done.nodes.events["out: gpu"] == 1


def test_a_lost_node_is_replaced_inside_the_step_where_that_was_asked_for_and_a_spare_is_there():
    gang = {"name": "one", "gpus": 256, "recovery": "in-step", "in_step": "45 s"}
    for spares, bucket in ((4, "in-step recovery"), (0, "rolled back")):
        nodes = {"nodes": 32 + spares, "spares": spares, "gangs": [{**gang, "fewest": 0.5}], "duration": "1 d"}
        done = run(QUIET, nodes, script=faults((10, "gpu", 3)))
        assert done.ledger.total[bucket] > 0, bucket
        assert (done.ledger.total["rolled back"] == 0) == bool(spares)


def test_an_elastic_gang_goes_on_narrower_and_grows_back():
    gang = {"name": "one", "fewest": 0.9}
    done = run(QUIET, {"nodes": 32, "spares": 0, "gangs": [gang], "duration": "6 d"}, script=faults((10, "gpu", 3)))
    assert done.actions["resize"] == 2
    assert done.ledger.total["no room"] == 0


def test_a_rigid_gang_without_spares_waits_for_the_repair():
    done = run(QUIET, {"nodes": 32, "spares": 0, "duration": "6 d"}, script=faults((10, "gpu", 3)))
    assert done.actions["preempt"] == 1
    assert done.actions["bind"] == 2
    idle_h = done.ledger.total["idle"] / HOUR_MS / 31 / 8
    assert idle_h > 0.3


@pytest.mark.parametrize(("mode", "elusive", "found"), [
    ("none", 0.0, False), ("scheduled", 0.0, True), ("scheduled", 1.0, False), ("replay", 1.0, True),
])  # fmt: skip
def test_screening_finds_what_its_kind_of_test_can_find(mode: str, elusive: float, found: bool):
    table = {"silent": {"elusive": elusive, "production": "0 s"}, "screening": {"mode": mode, "every": "12 h"}}
    done = run(QUIET, GANG, table, {"duration": "3 d"}, script=faults((10, "silent", 3)))
    assert (done.ledger.total["poisoned"] > 0) == found
    assert (outcome_of(done)["silent"]["poisoned_steps_not_found"] > 0) != found


def test_with_several_planes_a_lost_optic_takes_bandwidth_and_with_one_the_job():
    script = faults((10, "optic", 3))
    for planes in (1, 8):
        done = run(QUIET, GANG, {"network": {"planes": planes}, "duration": "2 d"}, script=script)
        assert (done.ledger.total["network"] > 0) == (planes == 8)
        assert (sum(done.gangs.runs["one"].stops.values()) > 0) == (planes == 1)


def test_sixteen_of_eighteen_trays_keep_a_rack_in_service():
    gang = {"name": "one", "gpus": 128}
    script = faults((10, "host", 0), (20, "host", 0), (30, "host", 0), (40, "host", 0), (50, "host", 0))
    for needed, kept in ((16, True), (18, False)):
        gpus = {"gangs": [{**gang, "gpus": 2 * needed * 4}], "ladder": {"unit": "rack", "needed": needed}}
        one = run(QUIET, {"nodes": 54, "spares": 18, "duration": "2 d"}, gpus, site="gb200-4x200g-32k",
                  script=script[:1])  # fmt: skip
        assert (one.nodes.events["out: host"] == 0) == kept


def test_a_brake_holds_where_too_many_look_sick_and_the_gang_stands_until_it_lets_go():
    script = faults(*((10, "gpu", unit) for unit in range(8)))
    done = run(QUIET, GANG, {"duration": "2 d", "spares": 8}, script=script)
    assert done.alarms > 0
    assert done.nodes.events["out: gpu"] >= 3


def test_a_part_with_a_weibull_life_fails_as_often_as_its_rate_says():
    table = {"duration": "1000 d", "components": {"gpu": {"rate": "100000 FIT", "shape": 0.7, "age": "2000 d"}}}
    done = question(QUIET, GANG, table)
    fleet = Fleet(done.site, done.spec)
    drawn = Arrivals(fleet, 1, 1000 * 24 * HOUR_MS, Seed(0)).faults
    expected = 320 * 1000 * 24 * 1e-4
    assert len(drawn) == pytest.approx(expected, rel=0.25)


class NoLuck:
    """Draws with which every part fails at once, and its successors never."""

    def exponential(self, size: int) -> np.ndarray:
        return np.zeros(size)

    def weibull(self, shape: float, size: int) -> np.ndarray:
        return np.full(size, np.inf)


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.7, 1.3, 3.0, 10.0])
def test_old_parts_that_fail_at_once_fail_at_the_beginning_and_not_before(shape: float):
    # The difference of two great ages is rounded: it may be below zero.
    for days in range(1000, 40_000, 7000):
        part = {"rate": "3000000 FIT", "shape": shape, "age": f"{days} d"}
        done = question(QUIET, GANG, {"components": {"gpu": part}})
        times, _ = renewals(Fleet(done.site, done.spec).classes["gpu"], HOUR_MS, NoLuck())  # type: ignore[arg-type]
        assert min(times) >= 0


def test_a_fleet_of_one_node_has_a_gang_and_no_spare():
    done = run(QUIET, {"nodes": 1, "duration": "1 d"})
    assert done.ledger.total["training"] > 0.9 * done.fleet.gpus * done.end_ms


def test_a_gpu_that_is_reported_bad_again_is_counted_once():
    ladder = {
        "ladder": {"unit": "gpu", "defer": "9 d"},
        "nodes": 4,
        "spares": 1,
        "gangs": [{"name": "one", "gpus": 16}],
    }
    done = run(QUIET, ladder, {"duration": "1 d"}, script=faults((2, "gpu", 3), (5, "hbm", 3)))
    assert done.ledger.count["deferred"] == 1
    assert sum(done.ledger.total.values()) == done.fleet.gpus * done.end_ms


def test_where_every_node_is_sick_those_that_say_so_again_are_looked_at_together():
    sick = {"nic": {"rate": "500000000 FIT"}, "host": {"rate": "100000000 FIT"}}
    done = run(GANG, {"nodes": 400, "duration": "3 h", "components": sick})
    assert done.alarms > 0
    # Each of hundreds reports every minute: without that each report had a pass of its own.
    assert done.passes < 2 * sum(done.struck.values())


def test_bands_hold_every_number_that_all_seeds_have():
    asked = question(GANG, {"duration": "2 d"})
    found = bands(outcomes(asked, [0, 1], 1))
    assert found["goodput"]["p5"] <= found["goodput"]["mean"] <= found["goodput"]["p95"]
    assert found["gangs"]["one"]["ettr"]["mean"] > 0.5


@pytest.mark.parametrize(("table", "text"), [
    ({"nodes": 10**6}, "the scenario has 1,000,000 nodes; site h100-400g-16k has 2,048"),
    ({"nodes": 10, "spares": 11}, "the fleet has 10"),
    ({"gangs": [{"name": "one", "gpus": 12}]}, "write 8 or 16"),
    ({"nodes": 4, "gangs": [{"name": "one", "gpus": 64}]}, "the fleet has 4"),
    ({"nodes": 4, "spares": 4}, "no units are left for gang 'pretraining'"),
    ({"policy": "none-such"}, "none-such"),
    ({"trace": "absent.csv"}, "absent.csv"),
    ({"components": {"gpu": {"rate": "9e12 FIT"}}}, "most of them by components.gpu"),
    ({"bursts": [{"name": "x", "per_year": 1e9}]}, "most of them by bursts x"),
    ({"maintenance": {"every": "1 s"}, "duration": "365 d"}, "most of them by maintenance.every"),
    ({"screening": {"mode": "replay", "every": "1 s"}, "duration": "365 d"}, "most of them by screening.every"),
    ({"bursts": [{"name": "software", "per_year": 1.0}]}, "'software' is a class of faults"),
    ({"bursts": [{"name": "x", "per_year": 1.0}] * 2}, "'x' stands there twice"),
])  # fmt: skip
def test_what_a_fleet_cannot_do_is_refused(table: dict[str, Any], text: str):
    with pytest.raises(UsageError, match=text.replace("(", r"\(")):
        run(table)
