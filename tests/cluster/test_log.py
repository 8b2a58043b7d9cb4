"""A decision log makes every decision again."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.worlds import clusters, jobs

from weft.cluster.log import DecisionRecorder, replayed
from weft.cluster.records.effects import ended, witnessed
from weft.cluster.records.job import JobState
from weft.cluster.records.node import NodeEvidence
from weft.cluster.records.snapshot import Snapshot


@settings(max_examples=20, deadline=None)
@given(clusters(), st.data())
def test_a_log_replays_without_a_difference_and_a_forged_one_does_not(snapshot: Snapshot, data: st.DataObject):
    recorder = DecisionRecorder(snapshot)
    lines = [recorder.opening]
    for number in range(data.draw(st.integers(1, 8))):
        now_ms = number * 50
        recorder.put(data.draw(jobs(number, now_ms, snapshot)), now_ms)
        if recorder.cluster.nodes_of and data.draw(st.booleans()):
            name = min(recorder.cluster.nodes_of)
            recorder.put(ended(recorder.cluster.jobs[name], JobState.DONE), now_ms)
        if data.draw(st.booleans()):
            node = recorder.cluster.pool.nodes[0]
            recorder.put(witnessed(node, NodeEvidence("ecc", now_ms)), now_ms)
        lines.append(recorder.decide(now_ms)[1])
    assert list(replayed(lines)) == []
    forged = json.loads(lines[-1])
    forged["actions"].append({"do": "drain", "node": 0, "reason": "forged"})
    assert [found.entry for found in replayed([*lines[:-1], json.dumps(forged)])] == [len(lines) - 2]
