"""What becomes of a job whose processes have ended: a table over every state, end and rule."""

import signal
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import lifecycle
from weft.cluster.lifecycle import COMMAND, TRAINING, ProcessEnd, RestartRules, Tries, outcome_of, record_after
from weft.cluster.records.exit_status import BY_SIGNAL, STOPPED, TRY_AGAIN
from weft.cluster.records.job import ENDED, HOLDING, Gang, Job, JobState, Placement

TERMINATED, KILLED = BY_SIGNAL + signal.SIGTERM, BY_SIGNAL + signal.SIGKILL
RUNNING = Job("j", Gang(2), 5, state=JobState.RUNNING, placement=Placement((0, 1), 1), start_ms=10)
ASKED = replace(RUNNING, state=JobState.ASKED, asked_for="big", leave_by_ms=99)
STOPPING = replace(RUNNING, state=JobState.STOPPING, ending="cancelled")
NEVER = Tries()

statuses = st.one_of(st.none(), st.integers(0, 255))
ends = st.builds(ProcessEnd, statuses, st.text(max_size=5), lost=st.booleans())
rules = st.builds(
    RestartRules, st.sampled_from([frozenset({TRY_AGAIN}), COMMAND.leaving]), st.booleans(),
    st.sampled_from([None, 0, 1, 5]), st.integers(0, 3),
)  # fmt: skip
tries = st.builds(Tries, st.integers(0, 8), st.integers(0, 4), st.booleans())
held = st.sampled_from([RUNNING, ASKED, STOPPING, replace(RUNNING, state=JobState.STARTING)])


@pytest.mark.parametrize(
    ("job", "status", "lost", "kind", "verdict"),
    [
        # A job that ends by itself.
        (RUNNING, 0, False, COMMAND, "done"),
        (RUNNING, 0, False, TRAINING, "done"),
        (ASKED, 0, False, COMMAND, "done"),
        (RUNNING, 1, False, COMMAND, "failed"),
        (RUNNING, 1, False, TRAINING, "failed"),
        (ASKED, 1, False, TRAINING, "failed"),
        # A job that was stopped: what it was stopped for happens, whatever its status.
        (STOPPING, 0, False, COMMAND, "stopped"),
        (STOPPING, 1, False, TRAINING, "stopped"),
        (STOPPING, KILLED, True, TRAINING, "stopped"),
        # A job that was asked to leave waits again if it says that it can go on.
        (ASKED, TRY_AGAIN, False, COMMAND, "stopped"),
        (ASKED, TERMINATED, False, COMMAND, "stopped"),
        (ASKED, KILLED, False, TRAINING, "stopped"),
        (ASKED, STOPPED, False, TRAINING, "stopped"),
        (ASKED, 3, True, COMMAND, "stopped"),
        # A machine that is lost: a training goes on, of a command nobody knows whether it may.
        (RUNNING, KILLED, True, TRAINING, "requeue"),
        (RUNNING, TRY_AGAIN, False, TRAINING, "requeue"),
        (RUNNING, KILLED, False, TRAINING, "requeue"),
        (RUNNING, KILLED, True, COMMAND, "failed"),
        (RUNNING, TERMINATED, False, COMMAND, "failed"),
        (RUNNING, TRY_AGAIN, False, COMMAND, "failed"),
    ],
)
def test_the_table_of_ends_on_one_machine(job: Job, status: int, lost: bool, kind: RestartRules, verdict: str):
    assert outcome_of(job, ProcessEnd(status, "how", lost=lost), kind, NEVER).verdict == verdict


@pytest.mark.parametrize(("losses", "verdict"), [(0, "requeue"), (1, "requeue"), (5, "requeue"), (6, "failed")])
def test_a_training_is_given_up_when_its_machine_was_lost_too_often(losses: int, verdict: str):
    end = ProcessEnd(KILLED, "its runner vanished", lost=True)
    assert outcome_of(RUNNING, end, TRAINING, Tries(losses)).verdict == verdict


@pytest.mark.parametrize(("allowed", "used"), list(product(range(4), range(5))))
def test_a_gang_of_pods_restarts_as_often_as_it_may(allowed: int, used: int):
    outcome = outcome_of(RUNNING, ProcessEnd(1, "rank 3 failed"), lifecycle.pod_rules(allowed), Tries(restarts=used))
    assert outcome.verdict == ("requeue" if used < allowed else "failed")
    assert outcome.counts == (used < allowed)


@pytest.mark.parametrize(
    "end", [ProcessEnd(TRY_AGAIN, ""), ProcessEnd(None, "", lost=True), ProcessEnd(1, "", lost=True)]
)
@pytest.mark.parametrize("used", [0, 3, 100])
def test_a_lost_node_never_counts_against_a_gang_of_pods(end: ProcessEnd, used: int):
    outcome = outcome_of(RUNNING, end, lifecycle.pod_rules(0), Tries(losses=1000, restarts=used))
    assert (outcome.verdict, outcome.counts) == ("requeue", False)


@pytest.mark.parametrize("status", [TERMINATED, KILLED, STOPPED])
def test_a_pod_that_a_signal_ended_has_failed_itself(status: int):
    assert outcome_of(RUNNING, ProcessEnd(status, ""), lifecycle.pod_rules(0), NEVER).verdict == "failed"


@pytest.mark.parametrize("status", [TRY_AGAIN, TERMINATED, KILLED, STOPPED])
@pytest.mark.parametrize("job", [RUNNING, ASKED])
def test_a_job_that_was_moved_starts_on_its_new_nodes(job: Job, status: int):
    outcome = outcome_of(job, ProcessEnd(status, ""), COMMAND, Tries(moved=True))
    assert outcome.verdict == "moved"
    after = record_after(job, outcome.verdict, 77)
    assert (after.state, after.start_ms, after.placement) == (JobState.STARTING, 77, job.placement)


def test_a_job_that_fails_while_it_is_moved_has_failed():
    assert outcome_of(RUNNING, ProcessEnd(2, ""), TRAINING, Tries(moved=True)).verdict == "failed"


@given(held, ends, rules, tries)
def test_an_end_is_judged_for_every_fact(job: Job, end: ProcessEnd, kind: RestartRules, behind: Tries):
    outcome = outcome_of(job, end, kind, behind)
    if job.state is JobState.STOPPING:
        assert outcome.verdict == "stopped"
    elif end.status == 0:
        assert outcome.verdict == "done"
    if outcome.verdict == "moved":
        assert behind.moved
    if outcome.counts:
        assert outcome.verdict == "requeue"
        assert not end.lost


@given(held, ends, rules, tries)
def test_a_record_after_an_end_holds_nodes_only_where_it_starts_again(
    job: Job, end: ProcessEnd, kind: RestartRules, behind: Tries
):
    verdict = outcome_of(job, end, kind, behind).verdict
    after = record_after(job, verdict, 100)
    assert (after.state in HOLDING) == (verdict == "moved")
    assert (after.state in ENDED) == (verdict in ("done", "failed") or (verdict == "stopped" and bool(job.ending)))
    assert (after.id, after.gang, after.submit_ms) == (job.id, job.gang, job.submit_ms)
    if after.state is JobState.WAITING:
        assert after.preemptions == job.preemptions + 1
        assert after.queued_ms == 100


@given(held, ends, rules, tries)
def test_more_patience_never_makes_an_outcome_worse(job: Job, end: ProcessEnd, kind: RestartRules, behind: Tries):
    patient = replace(kind, losses=None, restarts=10**6, resumes=True)
    if outcome_of(job, end, kind, behind).verdict != "failed":
        assert outcome_of(job, end, patient, behind).verdict == outcome_of(job, end, kind, behind).verdict
    else:
        assert outcome_of(job, end, patient, behind).verdict == "requeue"


@pytest.mark.parametrize(("ending", "state"), [("cancelled", JobState.CANCELLED), ("failed", JobState.FAILED)])
def test_what_a_job_was_stopped_for_happens(ending: str, state: JobState):
    job = Job("j", Gang(1), 0, state=JobState.STOPPING, placement=Placement((0,), 1), start_ms=0)
    job = replace(job, ending="cancelled" if ending == "cancelled" else "failed")
    assert record_after(job, "stopped", 9).state is state


def test_a_cancelled_job_says_so_and_another_says_how_it_ended():
    assert outcome_of(STOPPING, ProcessEnd(KILLED, "ended by SIGKILL"), COMMAND, NEVER).text == "cancelled"
    failed = replace(STOPPING, ending="failed")
    assert outcome_of(failed, ProcessEnd(KILLED, "ended by SIGKILL"), COMMAND, NEVER).text == "ended by SIGKILL"


@given(
    st.lists(st.tuples(st.integers(0, 50), st.one_of(st.none(), st.sampled_from([1, 2, 137, TRY_AGAIN]))), min_size=1)
)
def test_a_rank_that_only_lost_the_others_is_blamed_last(failed: list[tuple[int, int | None]]):
    own = [rank for rank, status in failed if status != TRY_AGAIN]
    assert lifecycle.first_cause(failed) == min(own or [rank for rank, _ in failed])
