"""Logs of real engines with faults, made again by the campaign: the same decisions."""

from pathlib import Path

import pytest
from tests.engines.kubernetes.fake_cluster import FakeCluster, play, until
from tests.engines.local.conftest import drive, finish, new_home, submission

from weft.campaign.diary import LogReplay, replayed_log
from weft.cluster.health.quarantine import report
from weft.cluster.records.node import NodeEvidence, NodeState
from weft.engines.local.engine import LocalEngine


def replayed_together(folder: Path) -> LogReplay:
    """Return the replay of all files of a folder of logs."""
    lines = [line for file in sorted(folder.rglob("*.jsonl")) for line in file.read_text().splitlines()]
    log = folder.parent / "all.jsonl"
    log.write_text("\n".join(lines))
    return replayed_log(log)


def test_a_run_of_the_local_engine_with_a_fault_is_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = new_home(tmp_path / "cluster", nodes=3)
    engine = LocalEngine(home)
    monkeypatch.setattr(engine.trials, "start", lambda action, now: None)
    try:
        finish(engine, engine.submit(submission("true", nodes=2))[0].job.id)
        engine.report("slot-0", NodeEvidence("matmul", engine.now(), "fatal", "a product is wrong"))
        drive(engine, lambda: engine.node("slot-0").state is NodeState.TESTING)
        engine.report("slot-0", report("diagnose", engine.now(), passed=True))
        finish(engine, *(engine.submit(submission("true"))[0].job.id for _ in range(2)))
    finally:
        engine.close()
    again = replayed_together(home.decisions)
    assert again.differences == 0
    assert again.faults > 0
    assert again.decisions > 5


def test_a_run_of_the_controller_with_a_lost_node_is_decided_again(tmp_path: Path) -> None:
    async def life() -> None:
        cluster = FakeCluster(4)
        async with cluster.nodes() as kubelets, cluster.engine(decisions=tmp_path / "decisions"):
            await cluster.submit("gang", 3)
            await until(lambda: cluster.state("gang") == "running")
            lost = cluster.on("gang")[1]
            kubelets.silence([lost])
            await until(lambda: lost not in cluster.on("gang") and cluster.state("gang") == "running")
            await kubelets.revive([lost])
            await until(lambda: cluster.node(lost)["metadata"]["labels"].get("weft.dev/state", "ready") == "ready")

    play(life)
    again = replayed_together(tmp_path / "decisions")
    assert again.differences == 0
    assert again.faults > 0
    assert again.decisions > 5
