"""Scenes: small experiments beside big gangs, the power of a full site, a monitor that lies, nodes that fail."""

from dataclasses import replace

import numpy as np
import pytest

from weft.campaign.failures import Failures
from weft.campaign.measures import Measures
from weft.campaign.policies import ORDER, policy_of
from weft.campaign.replay import TraceReplay
from weft.campaign.scenes import full_site, small_beside_big
from weft.campaign.trace import TraceJob, generated
from weft.cluster.from_site import nodes_of, power_of
from weft.cluster.plan import plan
from weft.cluster.records.actions import Alarm, Move, Quarantine, Wait
from weft.cluster.records.effects import witnessed
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.node import NodeEvidence, NodeState
from weft.cluster.records.snapshot import Snapshot
from weft.core.seeds import Seed
from weft.specs import load_site

SITE = load_site("gb200-8x100g-131k")
NODES = nodes_of(SITE, 7500)
GPUS = SITE.node.gpus


def replayed(lines: list[TraceJob], policy: str = "weft", count: int = 7500) -> Measures:
    teams = sorted({line.team for line in lines})
    share = count * GPUS // len(teams)
    snapshot = Snapshot(
        NODES[:count], teams=tuple(Team(name, share) for name in teams), power=power_of(SITE),
        policy=policy_of(policy)[0],
    )  # fmt: skip
    return TraceReplay(snapshot, lines).run()


def start_of_the_second_gang(measured: Measures) -> int:
    start_ms = [record.start_ms for record in measured.records.values() if record.nodes > 1][1]
    assert start_ms is not None
    return start_ms


def test_small_experiments_start_at_once_beside_big_gangs_and_delay_none():
    with_small = replayed(small_beside_big(7500, GPUS))
    without = replayed(small_beside_big(7500, GPUS, small=0))
    assert with_small.waits_by("size")["1"]["jobs"] == 200
    assert with_small.waits_by("size")["1"]["p95"] <= 5
    assert start_of_the_second_gang(with_small) <= start_of_the_second_gang(without)
    assert with_small.unexplained_ms() == 0


def test_in_the_order_of_submission_the_same_experiments_wait_for_hours():
    assert replayed(small_beside_big(7500, GPUS), "fifo").waits_by("size")["1"]["p95"] > 3600


def test_the_start_and_end_of_a_full_site_gang_keep_the_ramp_and_without_the_policy_they_do_not():
    limit = power_of(SITE).ramp_w_per_s
    assert limit is not None
    assert replayed(full_site(7500, GPUS)).ramp_w_per_s() <= limit
    assert replayed(full_site(7500, GPUS), "no-power").ramp_w_per_s() > 3 * limit


def silent(share: float) -> Snapshot:
    sick = np.arange(7500) < share * 7500
    nodes = tuple(
        witnessed(node, NodeEvidence("silent", 1000, "fatal", "no heartbeat")) if sick[node.number] else node
        for node in NODES
    )
    return Snapshot(nodes, teams=(Team("default", 7500 * GPUS),))


def test_where_a_third_of_the_nodes_falls_silent_the_brake_holds_and_a_person_is_called():
    actions = plan(silent(0.3), 2000)
    assert not [action for action in actions if isinstance(action, Quarantine)]
    alarms = [action for action in actions if isinstance(action, Alarm)]
    assert [(alarm.kind, alarm.on) for alarm in alarms] == [("brake", True)]
    assert "2,250 nodes look sick at once" in alarms[0].text
    suspects = {action.node for action in actions if isinstance(action, Move) and action.state is NodeState.SUSPECT}
    assert len(suspects) == 2250


def test_a_few_silent_nodes_are_taken_out_without_an_alarm():
    actions = plan(silent(0.005), 2000)
    assert len([action for action in actions if isinstance(action, Quarantine)]) == 38
    assert not [action for action in actions if isinstance(action, Alarm)]


def test_a_job_that_would_break_the_sites_budget_waits_with_that_reason():
    power = power_of(SITE)
    tight = replace(power, site_w=100 * power.node_idle_w + 60 * GPUS * power.gpu_rise_w)
    jobs = tuple(Job(name, Gang(40, GPUS), at, limit_ms=1000) for at, name in enumerate(("first", "second")))
    snapshot = Snapshot(NODES[:100], jobs, (Team("default", 100 * GPUS),), tight)
    waits = {action.job: action.code for action in plan(snapshot, 10) if isinstance(action, Wait)}
    assert waits == {"second": "power"}


@pytest.mark.parametrize("name", ORDER)
def test_every_policy_finishes_a_mixed_trace_and_explains_every_wait(name: str):
    measured = replayed(generated(150, 64, GPUS, Seed(3), load=1.2), name, 64)
    found = measured.as_json()
    assert found["done"] + found["over_limit"] == 150
    assert found["unexplained_s"] == 0
    assert 0 < found["utilisation"] <= 1


def test_the_same_seed_gives_the_same_replay():
    lines = generated(100, 64, GPUS, Seed(4))
    assert lines == generated(100, 64, GPUS, Seed(4))
    assert replayed(lines, count=64).as_json() == replayed(lines, count=64).as_json()


def test_failing_nodes_are_tested_repaired_and_returned_while_jobs_go_on():
    lines = generated(120, 64, GPUS, Seed(5), load=0.7)
    failures = replace(Failures.of(SITE, Seed(5)), per_node_hour=0.01, repair_ms=3_600_000)
    snapshot = Snapshot(
        NODES[:64], teams=tuple(Team(f"team-{number}", 64) for number in range(4)), power=power_of(SITE),
        policy=policy_of("weft")[0],
    )  # fmt: skip
    world = TraceReplay(snapshot, lines, failures=failures)
    moves = [action for action in world.actions() if isinstance(action, Move)]
    measured = world.measures
    assert all(record.state for record in measured.records.values())
    assert measured.tickets
    assert {move.state for move in moves} >= {
        NodeState.TESTING,
        NodeState.REPAIRING,
        NodeState.VALIDATING,
        NodeState.READY,
    }
    assert any(move.reason == "does not reproduce" for move in moves)
