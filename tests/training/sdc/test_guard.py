from pathlib import Path
from typing import Any

import pytest

from weft.core.errors import UsageError
from weft.specs.job import BatchSpec, DataSpec, GuardSpec, JobSpec, ModelSpec, PlanSpec
from weft.training.checked_collectives import Checks
from weft.training.launch.ranks import Ranks
from weft.training.parallel.mesh import Layout
from weft.training.sdc.guard import Copies, compare, compare_fed


def job(folder: Path, plan: PlanSpec, guard: GuardSpec, steps: int = 3, micro_batches: int = 6) -> JobSpec:
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"line {number} says {number * number % 97}\n" for number in range(4000)))
    return JobSpec(
        name="guarded",
        steps=steps,
        model=ModelSpec(layers=2, width=32, heads=2, ffn=64),
        data=DataSpec(corpus=str(corpus)),
        batch=BatchSpec(sequences=micro_batches, micro=1, length=16),
        plan=plan,
        guard=guard,
    )


def told(tmp_path: Path, spec: JobSpec, place: str, **more: object) -> list[Any]:
    arguments = {"job": spec, "folder": str(tmp_path / "runs"), "place": place, "rank": 1, "step": 1, **more}
    assert spec.plan != "auto"
    return Ranks("tests.training.guard_ranks:guarded", spec.plan.ranks, arguments).run()


DP3 = PlanSpec(dp=3)
EVERY = GuardSpec(digest_every=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "kind", "what"),
    [
        ("weights", "changed", "embed"),
        ("optimizer", "changed", "exp_avg"),
        ("reduced", "outvoted", "embed"),
        ("rate", "outvoted", "learning rate"),
        ("batch", "outvoted", "micro-batches of replica 1"),
    ],
)
def test_a_fault_on_one_rank_is_found_in_its_step_with_rank_and_tensor(
    tmp_path: Path, place: str, kind: str, what: str
) -> None:
    for _, evidence, text in told(tmp_path, job(tmp_path, DP3, EVERY), place):
        assert {one["step"] for one in evidence} == {1}
        assert any(one["rank"] == 1 and one["kind"] == kind and what in one["what"] for one in evidence), evidence
        assert {one["rank"] for one in evidence} == {1}
        assert place == "reduced" or "rank 1" in text


@pytest.mark.slow
def test_a_shard_without_a_copy_is_found_to_have_changed(tmp_path: Path) -> None:
    for _, evidence, _ in told(tmp_path, job(tmp_path, PlanSpec(dp=2, shard=2), EVERY), "weights"):
        assert [(one["rank"], one["step"], one["kind"]) for one in evidence] == [(1, 1, "changed")]


@pytest.mark.slow
def test_a_gradient_that_is_wrong_before_the_sum_is_found_by_replay_alone(tmp_path: Path) -> None:
    replayed = GuardSpec(digest_every=1, replay_every=1, replay_batches=0)
    for at, evidence, _ in told(tmp_path, job(tmp_path, DP3, replayed), "gradient"):
        assert at == 1
        assert [(one["rank"], one["kind"]) for one in evidence] == [(1, "outvoted")]
        assert "gradient of micro-batch" in evidence[0]["what"]
    unseen = told(tmp_path, job(tmp_path, DP3, EVERY), "gradient")
    assert unseen[0]["state"] == "finished"


@pytest.mark.slow
def test_with_two_replicas_a_fault_that_does_not_come_back_is_decided_by_repeating(tmp_path: Path) -> None:
    replayed = GuardSpec(digest_every=1, replay_every=1, replay_batches=0)
    for _, evidence, _ in told(tmp_path, job(tmp_path, PlanSpec(dp=2), replayed), "gradient"):
        assert [(one["rank"], one["kind"]) for one in evidence] == [(1, "outvoted")]
    for _, evidence, _ in told(tmp_path, job(tmp_path, PlanSpec(dp=2), EVERY), "reduced"):
        assert {(one["rank"], one["kind"]) for one in evidence} == {(0, "tie"), (1, "tie")}


@pytest.mark.slow
def test_a_tie_between_two_replicas_is_decided_when_the_step_is_done_again(tmp_path: Path) -> None:
    spec = job(tmp_path, PlanSpec(dp=2), EVERY)
    _, _, words = told(tmp_path, spec, "reduced")[0]
    assert words[0] != words[1]
    assert told(tmp_path, spec, "none", recalled=words) == [[(1, "outvoted")]] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        PlanSpec(dp=2, tp=2),
        PlanSpec(dp=2, pp=2),
        PlanSpec(dp=2, shard=2),
        PlanSpec(dp=2, cp=2),
        PlanSpec(dp=2, shard=2, tp=2, exact=False, precision="bf16"),
    ],
    ids=lambda plan: f"dp{plan.dp}tp{plan.tp}pp{plan.pp}cp{plan.cp}shard{plan.shard}",
)
def test_guarded_and_checked_runs_end_with_the_same_bits(tmp_path: Path, plan: PlanSpec) -> None:
    alone = plan.pp == 1 and plan.shard == 1
    guard = GuardSpec(
        digest_every=1, replay_every=int(alone), replay_batches=0, micro_test_every=1, checked=True, abft=True
    )
    digests = []
    for checks, wanted in ((None, GuardSpec()), (Checks(payloads=True), guard)):
        arguments = {"job": job(tmp_path, plan, wanted, steps=2, micro_batches=4), "folder": str(tmp_path / "runs")}
        result = Ranks("tests.training.guard_ranks:trained", plan.ranks, arguments, checks=checks).run()[0]
        digests.append(result["weights_digest"])
        assert bool(result["account"]) == (checks is not None)
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_replay_is_refused_where_no_replica_can_compute_alone(tmp_path: Path) -> None:
    spec = job(tmp_path, PlanSpec(dp=2, shard=2), GuardSpec(replay_every=1))
    with pytest.raises(UsageError, match="write shard = 1, or replay_every = 0"):
        told(tmp_path, spec, "none")


def test_every_rank_is_compared_with_those_that_hold_the_same() -> None:
    copies = Copies(Layout(PlanSpec(dp=2, tp=2, pp=2)))
    assert copies.of("weights", 0) == (0, 2)
    # Stages of a pipeline may have groups with rates of their own.
    assert copies.of("learning rate", 0) == (0, 2)
    assert copies.of("random seed", 0) == tuple(range(8))
    assert copies.columns() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    sharded = Copies(Layout(PlanSpec(dp=4, shard=2)))
    assert sharded.of("weights", 1) == (1, 3)
    assert Copies(Layout(PlanSpec(dp=2, shard=2))).of("optimizer", 1) == (1,)


def test_words_that_differ_are_blamed_on_the_odd_one() -> None:
    copies = Copies(Layout(PlanSpec(dp=3)))
    words = {rank: [5, 6, 0, 0, 7, 8, 9] for rank in range(3)}
    assert compare(copies, words, 4) == ()
    words[2][4] = 1
    (found,) = compare(copies, words, 4)
    assert (found.rank, found.what, found.step) == (2, "learning rate", 4)


def test_a_wrong_feed_is_seen_by_the_next_replica() -> None:
    copies = Copies(Layout(PlanSpec(dp=3)))
    fed, seen = {0: 10, 1: 11, 2: 12}, {1: 10, 2: 11, 0: 12}
    assert compare_fed(copies, fed, seen, 3) == []
    assert compare_fed(copies, {**fed, 1: 99}, seen, 3) == [1]
