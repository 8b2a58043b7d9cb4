"""The local engine decides by its policy file, takes up a change, and keeps it when the file has gone or is wrong."""

import os

from tests.engines.local.conftest import drive, submission

from weft.cluster.log import replayed
from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home


def test_a_running_engine_takes_up_a_policy_and_goes_on_with_it_after_a_restart(home: Home):
    now = 1_000_000
    engine = LocalEngine(home, clock=lambda: now)
    engine.tick()
    home.policy.write_text('spares = { nodes = 1 }\nlane = { share = 0.25, limit = "2 h" }')
    now += 5_000
    engine.tick()
    assert (engine.cluster.policy.spare_nodes, engine.cluster.policy.lane_share) == (1, 0.25)
    assert engine.cluster.policy.lane_limit_ms == 7_200_000
    home.policy.write_text("spares = { nodes = -1 }")
    os.utime(home.policy, ns=(1, 1))
    now += 5_000
    engine.tick()
    assert engine.cluster.policy.spare_nodes == 1
    assert any("the policy stays as it was" in each["text"] for each in engine.memory.store.happenings(20))
    home.policy.unlink()
    engine.close()
    again = LocalEngine(home, clock=lambda: now)
    assert again.cluster.policy.spare_nodes == 1
    again.close()


def test_what_was_decided_across_a_change_of_policy_is_decided_again(home: Home, engine: LocalEngine):
    engine.submit(submission("true"))
    drive(engine, lambda: not list(engine.entries))
    home.policy.write_text("lane = { share = 0.0 }")
    engine.submit(submission("true"))
    drive(engine, lambda: not list(engine.entries))
    lines = [line for file in sorted(home.decisions.iterdir()) for line in file.read_text().splitlines()]
    assert sum(line.count('"bind"') for line in lines) == 2
    assert list(replayed(lines)) == []
