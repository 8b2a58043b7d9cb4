"""A campaign decides as the engines do: their logs are made again, and a folded fleet decides as the whole one."""

import json
from pathlib import Path

import pytest
from tests.campaign.small_fleets import QUIET, faults, question

from weft.campaign.arrivals import FleetFault
from weft.campaign.demand import demand_of
from weft.campaign.diary import replayed_log
from weft.campaign.fleet import Fleet
from weft.campaign.operation import FleetOperation
from weft.campaign.seeds_in_parallel import policy_in
from weft.cli.main import main
from weft.cluster.records.actions import Action
from weft.core.errors import UsageError
from weft.core.seeds import Seed

SITE = "h100-400g-16k"


def operation(whole_units: int, script: tuple[FleetFault, ...]) -> FleetOperation:
    gang = {"name": "one", "gpus": 800 * 8, "fewest": 0.98}
    table = {"nodes": 830, "spares": 30, "duration": "20 d", "gangs": [gang], "repair": {"spread": 0}}
    asked = question(QUIET, table, script=script)
    fleet = Fleet(asked.site, asked.spec)
    return FleetOperation(
        fleet, demand_of(fleet), policy_in(asked.spec), Seed(0), whole_units=whole_units, script=script
    )


def test_a_folded_fleet_decides_as_the_whole_one():
    # Never two units of a moment: which of two equal spares takes a place may differ, how many do may not.
    script = faults(*((7.0 * number + 1, "gpu", 13 * number % 800) for number in range(40)))
    found = []
    for whole_units in (10**6, 100):
        done = operation(whole_units, script)
        done.run()
        found.append((dict(done.actions), done.ledger.total, dict(done.nodes.events)))
    assert found[0] == found[1]
    assert len(done.cluster.unit_of) < 400, "nothing was folded"


def test_a_campaigns_own_log_is_decided_again_without_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    done = operation(10**6, faults((2, "gpu", 3), (30, "host", 9), (31, "gpu", 9)))
    lines: list[str] = []
    done.cluster.state.begin_log()
    decide = done.cluster.state.decided

    def recorded(now_ms: int) -> tuple[tuple[Action, ...], str]:
        actions, entry = decide(now_ms)
        lines.append(entry)
        return actions, entry

    done.cluster.state.decided = recorded  # type: ignore[method-assign]
    done.run()
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines))
    again = replayed_log(log)
    assert again.differences == 0
    assert again.decisions > 10
    assert main(["campaign", "replay-diary", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passes"] == again.passes


def test_a_file_that_is_no_log_is_refused(tmp_path: Path):
    for text in ("{}\n", "nonsense", '{"at_ms": 1, "changes": [], "actions": []}'):
        log = tmp_path / "log.jsonl"
        log.write_text(text)
        with pytest.raises(UsageError, match="no decision log"):
            replayed_log(log)
