"""Records go to plain values and back unchanged."""

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.plan import plan
from weft.cluster.records.actions import Action, RunTest
from weft.cluster.records.encoding import action_as_plain, as_plain, from_plain
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.node import Location, Node, NodeEvidence
from weft.cluster.records.snapshot import Power, SchedulingPolicy, Snapshot

SNAPSHOT = Snapshot(
    nodes=tuple(
        Node(
            number,
            f"n{number}",
            8,
            Location(number, number // 4, number // 8),
            evidence=(NodeEvidence("ecc", 5, "note"),),
        )
        for number in range(16)
    ),
    jobs=(
        Job("a", Gang(12, 8), 0, limit_ms=1000),
        Job("b", Gang(10, 8), 1, limit_ms=1000),
        Job("c", Gang(1, 3), 2, limit_ms=500, after=("z",)),
        Job("d", Gang(1, 3), 2, limit_ms=500),
    ),
    teams=(Team("default", 128),),
)


def test_a_snapshot_survives_json():
    assert from_plain(Snapshot, json.loads(json.dumps(as_plain(SNAPSHOT)))) == SNAPSHOT


def test_actions_survive_json():
    actions = plan(SNAPSHOT, 10)
    assert {type(action).__name__ for action in actions} == {"Bind", "Reserve", "Wait"}
    for action in actions:
        plain = json.loads(json.dumps(action_as_plain(action)))
        assert plain.pop("do") == type(action).__name__.lower()
        assert from_plain(type(action), plain) == action


@pytest.mark.parametrize(
    ("record", "plain"),
    [
        (Job("j", Gang(), 0, last_wait_code="quota"), {"id": "j", "gang": {}, "submit_ms": 0, "told": "quota"}),
        (Node(0, "n", 1, idle_test_ms=7), {"number": 0, "name": "n", "gpus": 1, "balloon_ms": 7}),
        (RunTest(3, "idle", idle=True), {"node": 3, "program": "idle", "balloon": True}),
    ],
)
def test_fields_that_were_renamed_keep_their_keys_on_disk(record: Job | Node | RunTest, plain: dict[str, Any]):
    assert as_plain(record) == plain
    assert from_plain(type(record), plain) == record


@pytest.mark.parametrize("key", ["last_wait_code", "tolds", "placements"])
def test_a_key_that_no_record_has_is_refused(key: str):
    with pytest.raises(ValueError, match=f"a job has no {key}"):
        from_plain(Job, {"id": "j", "gang": {}, "submit_ms": 0, key: 1})


@pytest.mark.parametrize(
    "kind", [Job, Node, Team, Gang, Location, NodeEvidence, SchedulingPolicy, Power, *get_args(Action)]
)
def test_no_two_fields_of_a_record_share_a_key(kind: type):
    keys = [each.metadata.get("key", each.name) for each in fields(kind)]
    assert len(set(keys)) == len(keys)


@given(st.builds(SchedulingPolicy, lane_nodes=st.integers(0, 9), fair=st.booleans(), brake_share=st.floats(0, 1)))
def test_only_what_differs_from_the_default_is_written(policy: SchedulingPolicy):
    plain = as_plain(policy)
    assert all(getattr(SchedulingPolicy(), name) != value for name, value in plain.items())
    assert from_plain(SchedulingPolicy, plain) == policy
