"""Whole runs with faults in them: whatever happens, the weights are those of an undisturbed run."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.cluster.recovery.limits import LimitRule
from weft.core.errors import FailedError, LimitReachedError
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.supervisor import Supervisor
from weft.training.run_dir import RunRecord

Undisturbed = Callable[[int], str]
SLOW = pytest.mark.slow


@SLOW
@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", range(5))
def test_fifty_seeded_kills_of_any_rank_at_any_point_change_no_bit(field: Any, undisturbed: Undisturbed, chunk: int):
    faults = [{"kind": "kill", "step": 3 * n + 2, "after": f"{7 * n * (chunk + 1) % 60} ms"} for n in range(10)]
    result = field.run(field.job(steps=32, recovery={"in_step": False}), *faults, seed=chunk)
    kills = [line for line in result["incidents"] if line["kind"] == "killed"]
    assert len(kills) == 10, kills
    # A kill before the first snapshot was agreed, which a busy machine puts off, begins anew, from the seed.
    restored = [line["restored_from"] for line in kills]
    agreed = restored.index("memory")
    assert restored == ["start"] * agreed + ["memory"] * (10 - agreed), kills
    assert agreed <= 2, kills
    assert result["weights_digest"] == undisturbed(32)
    assert not list(field.folder.rglob("*.pieces"))


@SLOW
def test_a_job_shrinks_twice_and_grows_back_and_no_bit_changes(field: Any, undisturbed: Undisturbed):
    result = field.run(
        field.job(steps=12, recovery={"policy": "shrink", "spares": 0, "domains": 4}),
        {"kind": "lose-rank", "rank": 3, "step": 3},
        {"kind": "lose-rank", "rank": 0, "step": 6},
        {"kind": "return", "step": 9},
    )
    actions = [line["action"] for line in result["incidents"]]
    assert actions == ["shrank from 4 to 3 ranks", "shrank from 3 to 2 ranks", "grew from 2 to 4 ranks"]
    assert [line["restored_from"] for line in result["incidents"]] == ["memory"] * 3
    assert result["weights_digest"] == undisturbed(12)


def test_a_node_with_two_ranks_and_its_memory_is_lost_and_the_other_domain_serves(field: Any, undisturbed: Undisturbed):
    job = field.job(recovery={"policy": "shrink", "spares": 0})
    result = field.run(job, {"kind": "lose-node", "node": 0, "step": 5})
    (incident,) = result["incidents"]
    assert (incident["kind"], incident["node"], incident["restored_from"]) == ("lost", 0, "memory")
    assert incident["action"] == "shrank from 4 to 2 ranks"
    assert result["weights_digest"] == undisturbed(8)


def test_a_stopped_rank_is_found_by_the_learned_limit(field: Any, undisturbed: Undisturbed):
    # The rule of the product, with a lower floor so that the test is short: five times the 99th percentile counts.
    rule = LimitRule(least_ps=Picoseconds(PICOSECONDS_PER_SECOND), first_ps=Picoseconds(60 * PICOSECONDS_PER_SECOND))
    result = field.run(field.job(), {"kind": "stop", "rank": 1, "step": 6}, rule=rule)
    (incident,) = result["incidents"]
    assert (incident["kind"], incident["rank"]) == ("stopped", 1)
    assert incident["detect_seconds"] >= 1.0
    assert result["weights_digest"] == undisturbed(8)


def test_a_damaged_snapshot_is_replaced_by_the_copy_in_the_other_domain(field: Any, undisturbed: Undisturbed):
    result = field.run(
        field.job(recovery={"snapshots": 4, "in_step": False}),
        {"kind": "flip", "place": "snapshot", "node": 0, "step": 6},
        {"kind": "kill", "rank": 2, "step": 7},
    )
    (incident,) = result["incidents"]
    assert incident["restored_from"] == "memory"
    (note,) = incident["passed_over"]
    assert note.startswith("node 0's copy of ")
    assert "is damaged" in note
    assert result["weights_digest"] == undisturbed(8)


@SLOW
def test_when_both_copies_are_damaged_the_older_snapshot_serves(field: Any, undisturbed: Undisturbed):
    result = field.run(
        field.job(steps=12, recovery={"snapshots": 4, "in_step": False}),
        {"kind": "flip", "place": "snapshot", "step": 10, "tensor": "model.norm"},
        {"kind": "kill", "rank": 2, "step": 11},
    )
    (incident,) = result["incidents"]
    assert (incident["restored_from"], incident["restored_step"]) == ("memory", 4)
    assert any("the memory of step 8 was passed over: no good copy" in note for note in incident["passed_over"])
    assert incident["steps_repeated"] == 6
    assert result["weights_digest"] == undisturbed(12)


@SLOW
@pytest.mark.timeout(900)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(field: Any, undisturbed: Undisturbed):
    result = field.run(
        field.job(steps=12, recovery={"snapshots": 0, "in_step": False}, checkpoint={"every": 4}),
        # A pause, in which the checkpoint of step 8 is certainly completed.
        {"kind": "slow", "rank": 1, "step": 10, "lasts": 1, "factor": 200},
        {"kind": "flip", "place": "checkpoint", "step": 11},
        {"kind": "slow", "rank": 1, "step": 11, "lasts": 1, "factor": 50},
        {"kind": "kill", "rank": 0, "step": 12},
        # The pause is long on a busy machine, and no hang.
        rule=LimitRule(least_ps=Picoseconds(600 * PICOSECONDS_PER_SECOND)),
    )
    (incident,) = result["incidents"]
    assert (incident["restored_from"], incident["restored_step"]) == ("checkpoint", 4)
    assert any("the checkpoint of step 8 was passed over" in note for note in incident["passed_over"])
    assert result["weights_digest"] == undisturbed(12)


@SLOW
def test_when_all_memory_is_lost_the_local_disk_is_gone_too_and_the_checkpoint_serves(
    field: Any, undisturbed: Undisturbed
):
    job = field.job(steps=12, checkpoint={"every": 4}, recovery={"policy": "wait", "spares": 0, "disk": 1})
    # The save of step 8 has waited for that of step 4, so there is one by now.
    lost = [{"kind": "lose-node", "node": node, "step": 11} for node in (0, 1)]
    result = field.run(
        job, *lost, {"kind": "return", "step": 11, "after": "1500 ms"},
        # A pause, so that the run is not over before a busy supervisor has heard of the step.
        {"kind": "slow", "rank": 1, "step": 11, "lasts": 1, "factor": 200},
        rule=LimitRule(least_ps=Picoseconds(600 * PICOSECONDS_PER_SECOND)),
    )  # fmt: skip
    assert result["incidents"][-1]["restored_from"] == "checkpoint"
    assert result["weights_digest"] == undisturbed(12)


def test_a_flipped_weight_is_caught_at_the_snapshot_and_its_rank_and_tensor_are_named(
    field: Any, undisturbed: Undisturbed
):
    result = field.run(field.job(), {"kind": "flip", "place": "weights", "rank": 2, "step": 5, "tensor": "norm"})
    (incident,) = result["incidents"]
    assert (incident["kind"], incident["rank"], incident["step"]) == ("diverged", 2, 5)
    assert "rank 2 holds another model." in incident["seen"]
    assert result["weights_digest"] == undisturbed(8)


@SLOW
def test_a_nan_that_does_not_come_again_costs_a_step_and_no_bit(field: Any, undisturbed: Undisturbed):
    result = field.run(field.job(), {"kind": "nan", "place": "gradients", "rank": 1, "step": 5})
    (incident,) = result["incidents"]
    assert incident["kind"] == "error"
    assert "not finite" in incident["seen"]
    assert result["weights_digest"] == undisturbed(8)


@SLOW
def test_a_nan_that_comes_again_ends_the_run_with_its_own_words(field: Any):
    with pytest.raises(FailedError, match="the gradient of step 5 is not finite"):
        field.run(field.job(), {"kind": "nan", "place": "gradients", "rank": 1, "step": 5, "sticky": True})


@SLOW
def test_a_lost_store_and_a_full_disk_do_not_end_a_run(field: Any, undisturbed: Undisturbed):
    result = field.run(
        field.job(steps=12, checkpoint={"every": 4}),
        {"kind": "full-disk", "rank": 0, "step": 8},
        {"kind": "lose-store", "step": 10},
        {"kind": "kill", "rank": 3, "step": 10},
    )
    assert any(line["kind"] == "checkpoint" and "the disk is full" in line["seen"] for line in result["incidents"])
    assert result["recoveries"][-1]["restored_from"] == "peers"
    assert result["weights_digest"] == undisturbed(12)


@SLOW
@pytest.mark.parametrize("plan", [{"dp": 4, "shard": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}])
def test_sharded_and_spread_state_survives_a_lost_node(field: Any, plan: dict[str, Any]):
    model = {"layers": 2, "width": 16, "heads": 2, "ffn": 32}
    recovery = {"policy": "spare", "spares": 2}
    alone = field.run(field.job(plan=plan, model=model, recovery=recovery))
    result = field.run(
        field.job(plan=plan, model=model, recovery=recovery), {"kind": "lose-node", "node": 1, "step": 5}
    )
    assert result["incidents"][0]["kind"] == "lost"
    assert result["incidents"][0]["restored_from"] == "memory"
    assert result["weights_digest"] == alone["weights_digest"]


@SLOW
def test_a_healthy_run_on_a_busy_machine_is_never_restarted(field: Any, undisturbed: Undisturbed):
    done = threading.Event()

    def burn() -> None:
        while not done.is_set():
            sum(number * number for number in range(10_000))

    burners = [threading.Thread(target=burn, daemon=True) for _ in range(8)]
    for burner in burners:
        burner.start()
    try:
        result = field.run(field.job(steps=60))
    finally:
        done.set()
    assert result["incidents"] == []
    assert result["weights_digest"] == undisturbed(60)


@SLOW
def test_a_run_that_is_taken_up_again_goes_on_from_its_checkpoint_and_keeps_its_lines(field: Any):
    steady = {"schedule": "constant"}
    whole = field.run(field.job(dp=1, steps=8, optimizer=steady, recovery={"spares": 0}))
    field.run(field.job(steps=4, optimizer=steady))
    result = field.run(field.job(steps=8, optimizer=steady), {"kind": "kill", "rank": 1, "step": 7}, resume=True)
    assert result["weights_digest"] == whole["weights_digest"]
    record = RunRecord(Path(field.folder / "runs" / result["run"]))
    assert [line["step"] for line in record.steps()] == list(range(1, 9))
    assert [line["kind"] for line in record.incidents()] == ["killed"]


@SLOW
def test_local_disks_serve_a_supervisor_that_knows_nothing_but_the_run_folder(field: Any, undisturbed: Undisturbed):
    job = field.job(recovery={"disk": 1, "spares": 0, "restarts": 0})
    with pytest.raises(LimitReachedError, match="the budget of 0 restarts is used up"):
        field.run(job, {"kind": "kill", "rank": 1, "step": 6})
    assert not list(field.folder.rglob("step-*"))
    lines: list[Any] = []
    supervisor = Supervisor(job, field.folder / "runs", resume=True, on_line=lines.append)
    result = supervisor.run()
    assert next(line["step"] for line in lines if "loss" in line) > 3
    assert result["weights_digest"] == undisturbed(8)
    assert not list(field.folder.rglob("*.pieces"))
