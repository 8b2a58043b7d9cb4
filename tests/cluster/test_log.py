"""A decision log makes every decision again."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.worlds import clusters, jobs

from weft.cluster.log import RecordedState, replayed
from weft.cluster.records.effects import ended, witnessed
from weft.cluster.records.job import JobState
from weft.cluster.records.node import NodeEvidence
from weft.cluster.records.snapshot import Snapshot


@settings(max_examples=20, deadline=None)
@given(clusters(), st.data())
def test_a_log_replays_without_a_difference_and_a_forged_one_does_not(snapshot: Snapshot, data: st.DataObject):
    recorder = RecordedState(snapshot)
    lines: list[str] = []
    for number in range(data.draw(st.integers(1, 8))):
        now_ms = number * 50
        recorder.put(data.draw(jobs(number, now_ms, snapshot)), now_ms)
        if recorder.nodes_of and data.draw(st.booleans()):
            name = min(recorder.nodes_of)
            recorder.put(ended(recorder.jobs[name], JobState.DONE), now_ms)
        if data.draw(st.booleans()):
            node = recorder.pool.nodes[0]
            recorder.put(witnessed(node, NodeEvidence("ecc", now_ms)), now_ms)
        lines += recorder.decided(now_ms)[1].splitlines()
    assert list(replayed(lines)) == []
    forged = json.loads(lines[-1])
    forged["actions"].append({"do": "drain", "node": 0, "reason": "forged"})
    assert [found.entry for found in replayed([*lines[:-1], json.dumps(forged)])] == [len(lines) - 2]


OLD = Path(__file__).with_name("decisions-0.jsonl").read_text(encoding="utf-8").splitlines()
"""A log that weft wrote before any field of its records was renamed."""


def forged(entry: int, change: dict[str, Any]) -> list[str]:
    """Return the old log with something changed in the first action of an entry that has one."""
    line = json.loads(OLD[entry + 1])
    line["actions"][0] |= change
    return [*OLD[: entry + 1], json.dumps(line), *OLD[entry + 2 :]]


def test_a_log_of_an_earlier_version_makes_the_same_decisions():
    assert any('"told"' in line for line in OLD)
    assert any('"balloon"' in line for line in OLD)
    assert list(replayed(OLD)) == []


WITH_ACTIONS = [number for number, line in enumerate(OLD[1:]) if json.loads(line)["actions"]]


@pytest.mark.parametrize("entry", WITH_ACTIONS)
def test_a_log_outlives_better_words_but_no_other_decision(entry: int):
    assert list(replayed(forged(entry, {"text": "in other words"}))) == []
    assert [found.entry for found in replayed(forged(entry, {"job": "nobody", "node": 99}))] == [entry]


def test_a_difference_shows_what_was_written_and_what_was_found():
    (found,) = replayed(forged(0, {"job": "nobody"}))
    assert found.written[0]["job"] == "nobody"
    assert [action["do"] for action in found.found] == [action["do"] for action in found.written]
    assert found.found[0]["job"] == json.loads(OLD[1])["actions"][0]["job"]
    assert found.at_ms == json.loads(OLD[1])["at_ms"]
