"""Records go to plain values and back unchanged."""

import json

from weft.cluster.plan import plan
from weft.cluster.records.encoding import action_as_plain, action_from_plain, as_plain, from_plain
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.node import Location, Node, NodeEvidence
from weft.cluster.records.snapshot import Snapshot

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
        assert action_from_plain(json.loads(json.dumps(action_as_plain(action)))) == action
