"""A folder of logs: each begins with a snapshot, and the oldest go."""

from pathlib import Path

from weft.cluster.log import RecordedState, replayed
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.node import Node
from weft.cluster.records.snapshot import Snapshot
from weft.engines.decision_log import DecisionLog


def test_a_pass_that_brings_a_snapshot_begins_a_file_and_every_file_replays(tmp_path: Path):
    log = DecisionLog(tmp_path / "decisions")
    cluster = RecordedState(Snapshot((Node(0, "n", 2),), teams=(Team("default", 2),)))
    for turn in range(30):
        cluster.put(Job(f"j{turn}", Gang(), turn, limit_ms=5), turn)
        if turn % 3 == 0:
            cluster.begin_log()
        assert not log.take(cluster.decided(turn)[1], turn)
    files = sorted((tmp_path / "decisions").iterdir())
    assert [int(file.stem) for file in files] == list(range(6, 30, 3))
    for file in files:
        lines = file.read_text().splitlines()
        assert len(lines) == 4
        assert list(replayed(lines)) == []
