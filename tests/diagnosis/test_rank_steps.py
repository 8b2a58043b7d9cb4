"""Culprits from seconds by rank and step: drawn jobs with a slow rank, a stalled input, a lost plane, or nothing."""

import numpy as np
import pytest

from weft.diagnosis.rank_steps import RankSteps, examine_ranks

WORLDS = 120


def drawn(seed: int, cause: str) -> tuple[RankSteps, int]:
    """Return a job's steps and its culprit: noise to 10 %, whole steps that are slow, micro-batches that are moved."""
    chance = np.random.default_rng(seed)
    stages, replicas, steps = int(chance.choice([1, 1, 2, 4])), int(chance.integers(2, 9)), int(chance.integers(12, 60))
    ranks = stages * replicas
    culprit = int(chance.integers(ranks))
    compute = np.exp(chance.normal(0, chance.choice([0.01, 0.05, 0.1]), (steps, ranks)))
    compute *= np.exp(chance.normal(0, 0.2, (steps, 1)))  # whatever slows everybody
    first = int(chance.integers(0, steps // 2))
    if cause == "slow":
        compute[first:, culprit] *= chance.uniform(1.4, 2.5)
    batches = np.full((steps, ranks), 4.0)
    if cause == "slow" and chance.random() < 0.5:
        batches[steps // 2 :, culprit] -= 1  # the trainer has moved one away
    fed = np.abs(chance.normal(0, 0.002, (steps, ranks)))
    fed[0] += 0.5  # the first batch is read from a cold disk
    if cause == "input":
        fed[first:, culprit] += chance.uniform(0.4, 2.0)
    out = [(step, culprit, 1) for step in range(first, steps)] if cause == "plane" else []
    step_s = (compute * batches + fed).max(axis=1) * 1.05
    stage = np.arange(ranks) // replicas
    return RankSteps(np.arange(1, steps + 1), step_s, compute, batches, fed, stage, out), culprit


@pytest.mark.parametrize(
    ("cause", "name"), [("slow", "slow-rank"), ("input", "input-stall"), ("plane", "slow-link"), ("none", "")]
)
def test_planted_causes_are_named(cause: str, name: str) -> None:
    wrong = []
    for seed in range(WORLDS):
        job, culprit = drawn(seed, cause)
        found = [(one.cause, one.ranks) for one in examine_ranks(job).findings]
        if found[:1] != ([(name, (culprit,))] if name else []):
            wrong.append((seed, found, culprit))
    assert len(wrong) <= (0 if cause == "none" else 0.03 * WORLDS), wrong


def test_two_ranks_that_share_a_core_are_not_one_slow_rank() -> None:
    compute = np.where(np.arange(4) % 2, 0.19, 0.27) * np.exp(np.random.default_rng(0).normal(0, 0.03, (30, 4)))
    job = RankSteps(np.arange(30), compute.max(axis=1), compute, np.ones((30, 4)), np.zeros((30, 4)), np.zeros(4, int))
    assert examine_ranks(job).healthy


def test_a_rank_that_was_slow_for_a_while_is_named_with_its_first_step() -> None:
    compute = np.exp(np.random.default_rng(1).normal(0, 0.02, (60, 4)))
    compute[20:35, 2] *= 1.5
    job = RankSteps(np.arange(100, 160), compute.max(axis=1), compute, np.ones((60, 4)), np.zeros((60, 4)),
                    np.zeros(4, int))  # fmt: skip
    (finding,) = examine_ranks(job).findings
    assert (finding.ranks, finding.persistence, finding.since_step) == ((2,), "intermittent", 120)
