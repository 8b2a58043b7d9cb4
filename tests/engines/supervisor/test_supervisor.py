import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import LimitReachedError, UsageError
from weft.engines.supervisor.rank_layout import narrowed, slots_of
from weft.specs.job import PlanSpec

Undisturbed = Callable[[int], str]


@pytest.mark.parametrize(("rank", "after"), [(2, "0 ms"), (0, "7 ms")])
def test_a_killed_rank_changes_no_bit_and_no_disk_is_read(field: Any, undisturbed: Undisturbed, rank: int, after: str):
    result = field.run(field.job(), {"kind": "kill", "rank": rank, "step": 5, "after": after})
    (recovery,) = result["recoveries"]
    assert (recovery["cause"], recovery["rank"], recovery["restored_from"]) == ("killed", rank, "peers")
    assert result["weights_digest"] == undisturbed(8)
    # The final checkpoint is the first file of state that was ever written: nothing could have been read.
    assert [path.name for path in Path(field.folder / "runs" / result["run"] / "checkpoints").glob("step-*")] == [
        "step-00000008"
    ]
    assert not list(field.folder.rglob("*.pieces"))


def test_the_time_of_a_run_sums_to_its_wall_time_with_recovery_in_it(field: Any):
    result = field.run(field.job(steps=4), {"kind": "kill", "rank": 1, "step": 3})
    seconds = result["goodput"]["seconds"]
    assert sum(seconds.values()) == pytest.approx(result["goodput"]["wall_s"], rel=1e-9)
    assert {"detect", "reform", "restore", "verify"} <= set(seconds)
    (incident,) = result["incidents"]
    assert incident["gpu_seconds_lost"] == pytest.approx(4 * incident["seconds_lost"])


def test_a_run_that_always_dies_in_the_same_place_ends_with_a_named_error(field: Any):
    faults = [{"kind": "kill", "rank": 1, "step": 2, "sticky": True}]
    with pytest.raises(LimitReachedError, match="crash loop: 3 restarts in a row got no further than step 1"):
        field.run(field.job(dp=2, steps=3, recovery={"spares": 0}), *faults)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "kill", "rank": 4, "step": 1}, r"fault 1 \(kill\) names rank 4, but the job has ranks 0 to 3"),
        ({"kind": "stop", "rank": 0, "step": 9}, r"fault 1 \(stop\) names step 9, but the job has steps 1 to 8"),
        ({"kind": "lose-node", "node": 2, "step": 1}, r"names node 2, but the job has nodes 0 to 1"),
        ({"kind": "flip", "place": "weights", "rank": 0, "at": "1 s"}, "happens inside a step"),
    ],
)
def test_a_fault_that_the_job_does_not_have_is_refused_before_anything_starts(
    field: Any, fault: dict[str, Any], message: str
):
    with pytest.raises(UsageError, match=message):
        field.run(field.job(), fault)
    assert not (field.folder / "runs").exists()


def test_no_process_is_left_behind(field: Any):
    field.run(field.job(dp=2, steps=2), {"kind": "kill", "rank": 0, "step": 2})
    assert multiprocessing.active_children() == []


def test_neighbours_share_a_domain_and_spares_are_dealt_out():
    assert [slot.node for slot in slots_of(4, 3, 2)] == [0, 0, 1, 1, 0, 1, 0]
    assert [slot.node for slot in slots_of(1, 0, 2)] == [0]


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 5), st.integers(1, 20))
def test_a_domain_never_spans_two_hosts_and_one_host_is_as_before(hosts: int, each: int, spares: int, domains: int):
    slots = slots_of(hosts * each, spares, domains, hosts)
    here = -(-domains // hosts)
    assert [slot.node // here for slot in slots[: hosts * each]] == [rank // each for rank in range(hosts * each)]
    assert [slot.number for slot in slots] == list(range(hosts * each + spares))
    assert all(slot.node < here * hosts for slot in slots)
    if hosts == 1:
        in_domain = -(-each // domains)
        assert [slot.node for slot in slots[:each]] == [rank // in_domain for rank in range(each)]


def test_a_narrower_plan_stays_fully_sharded():
    assert narrowed(PlanSpec(dp=4, shard=4), 2) == PlanSpec(dp=2, shard=2)
    assert narrowed(PlanSpec(dp=4, tp=2), 3) == PlanSpec(dp=3, tp=2)
