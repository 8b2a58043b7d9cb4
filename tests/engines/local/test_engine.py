"""The engine: jobs run once, ends are told apart, and whatever kills it, the next one goes on."""

import ctypes
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.local.conftest import drive, finish, new_home, submission

from weft.cluster.health.quarantine import report
from weft.cluster.log import replayed
from weft.cluster.records.job import ENDED, JobState, Team
from weft.cluster.records.node import NodeEvidence, NodeState
from weft.cluster.records.snapshot import SchedulingPolicy
from weft.core.errors import UsageError
from weft.engines.local import runner
from weft.engines.local.atomic_files import read_document
from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home
from weft.engines.local.processes import Identity


class CrashError(BaseException):
    """Ends an engine as abruptly as a signal, in this process."""


def runner_of(home: Home, name: str, attempt: int = 1) -> Identity:
    found = read_document(home.attempt(name, attempt) / runner.CLAIM)
    assert found is not None
    return Identity.from_plain(found)


def _said(engine: LocalEngine, name: str) -> str:
    return engine.attempts.log(name, 1, 0, 0, 100)[0]


def test_a_command_runs_and_its_end_and_output_and_result_are_known(engine: LocalEngine):
    (entry,) = engine.submit(submission("sh", "-c", "echo working; echo '{\"loss\": 0.5}'", name="e"))
    (ended,) = finish(engine, entry.job.id)
    assert (ended.job.state, ended.status, ended.result) == (JobState.DONE, 0, {"loss": 0.5})
    assert engine.attempts.log("e-1", 1, 0, 0, 100)[0] == 'working\n{"loss": 0.5}\n'


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (("sh", "-c", "exit 3"), 3, "ended with status 3"),
        (("sh", "-c", "kill -9 $$"), 137, "ended by SIGKILL"),
        (("no-such-program",), 127, "its command was not found"),
    ],
)
def test_failures_are_told_apart(engine: LocalEngine, command: tuple[str, ...], status: int, words: str):
    (entry,) = engine.submit(submission(*command))
    (ended,) = finish(engine, entry.job.id)
    assert (ended.job.state, ended.status, ended.text) == (JobState.FAILED, status, words)


def test_a_gang_ends_as_a_whole_when_one_of_its_ranks_fails(engine: LocalEngine):
    (entry,) = engine.submit(submission("sh", "-c", 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 60', nodes=2))
    (ended,) = finish(engine, entry.job.id)
    assert (ended.status, ended.text) == (7, "ended with status 7 on rank 1")


def test_jobs_wait_for_room_and_for_those_before_them(engine: LocalEngine):
    (first,) = engine.submit(submission("sleep", "0.3", nodes=2))
    (second,) = engine.submit(submission("true", nodes=2))
    (third,) = engine.submit(submission("true", after=(second.job.id,)))
    drive(engine, lambda: bool(third.wait))
    assert (second.wait["code"], third.wait["code"]) == ("nodes", "dependency")
    ends = finish(engine, first.job.id, second.job.id, third.job.id)
    assert [entry.job.state for entry in ends] == [JobState.DONE] * 3
    begun = [entry.began_ms or 0 for entry in ends]
    assert begun == sorted(begun)


def test_a_sweep_is_an_array_of_jobs_with_its_values_in_the_command(engine: LocalEngine):
    found = engine.submit(
        submission("sh", "-c", "echo '{\"loss\": '{lr}'}'", sweep={"lr": ("2", "1")}, name="s", at_once=1)
    )
    assert [entry.job.id for entry in found] == ["s-1.0", "s-1.1"]
    ends = finish(engine, "s-1.0", "s-1.1")
    assert [entry.result for entry in ends] == [{"loss": 2}, {"loss": 1}]


def test_members_of_a_sweep_that_others_outpace_are_stopped_early(engine: LocalEngine):
    # Each writes a step now and then, the worse the slower; the best alone may come to its end.
    code = ("i=0; while [ $i -lt 5 ]; do i=$((i+1)); echo \"{\\\"step\\\": $i, \\\"loss\\\": {x}}\" >> $WEFT_METRICS;"
            " sleep 0.{x}; done; [ {x} = 1 ] || sleep 60")  # fmt: skip
    values = {"x": ("3", "1", "2")}
    engine.submit(submission("sh", "-c", code, sweep=values, name="s", early_stop=2))
    ends = finish(engine, "s-1.0", "s-1.1", "s-1.2")
    assert [entry.job.state for entry in ends] == [JobState.CANCELLED, JobState.DONE, JobState.CANCELLED]
    assert [entry.text for entry in ends][::2] == [
        f"stopped early, at step 2 in place {place} of 3: 1 go on" for place in (3, 2)
    ]


def test_cancelling_ends_what_runs_and_what_waits(engine: LocalEngine, home: Home):
    (running,) = engine.submit(submission("sleep", "60", nodes=2))
    (waiting,) = engine.submit(submission("true"))
    drive(engine, lambda: running.job.state is JobState.RUNNING)
    process = runner_of(home, running.job.id)
    assert engine.cancel(waiting.job.id)[0].job.state is JobState.CANCELLED
    engine.cancel(running.job.id)
    (ended,) = finish(engine, running.job.id)
    assert ended.job.state is JobState.CANCELLED
    drive(engine, lambda: not process.alive())
    assert not (home.attempt(waiting.job.id, 1)).exists()


def test_a_cancelled_job_that_does_not_listen_is_made_to_end(engine: LocalEngine, home: Home):
    (entry,) = engine.submit(submission("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"))
    # A job may run before its shell has come to the first command; until then it would listen.
    drive(engine, lambda: entry.job.state is JobState.RUNNING and _said(engine, entry.job.id) == "deaf\n")
    order = read_document(home.attempt(entry.job.id, 1) / runner.ORDER)
    assert order is not None
    assert order["grace_s"] == 5
    engine.cancel(entry.job.id)
    engine.attempts.end(entry)
    (ended,) = finish(engine, entry.job.id)
    assert (ended.job.state, ended.status) == (JobState.CANCELLED, 137)


def test_a_signal_that_another_thread_of_the_runner_gets_ends_the_job(engine: LocalEngine, home: Home):
    (entry,) = engine.submit(submission("sh", "-c", "echo begun; sleep 60"))
    drive(engine, lambda: entry.job.state is JobState.RUNNING and _said(engine, entry.job.id) == "begun\n")
    pid = runner_of(home, entry.job.id).pid
    threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    assert ctypes.CDLL(None).tgkill(pid, max(threads), signal.SIGTERM) == 0
    assert max(threads) != pid
    (ended,) = finish(engine, entry.job.id)
    assert ended.status == 128 + signal.SIGTERM


def test_a_drained_node_gets_nothing_until_it_is_given_back(engine: LocalEngine):
    engine.drain("slot-0", back=False, by="ann", reason="odd noise")
    found = [engine.submit(submission("true"))[0] for _ in range(3)]
    finish(engine, *(entry.job.id for entry in found))
    history = [line["text"] for entry in found for line in engine.memory.store.history(entry.job.id)]
    assert [text for text in history if text.startswith("started")] == ["started on slot-1"] * 3
    assert engine.node("slot-0").override_by == "ann: odd noise"
    assert engine.drain("slot-0", back=True).state is NodeState.READY


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"nodes": 3}, "it needs 3 nodes"),
        ({"gpus_per_node": 2}, "with 2 GPUs each"),
        ({"team": "nobody"}, "there is no team 'nobody'"),
        ({"after": ("e-99",)}, "comes after 'e-99'"),
        ({"snapshot": "0" * 64}, "there is no working folder"),
    ],
)
def test_what_can_never_run_is_refused_and_nothing_is_made(
    engine: LocalEngine, home: Home, more: dict[str, Any], words: str
):
    with pytest.raises(UsageError, match=words):
        engine.submit(submission("true", **more))
    assert engine.memory.store.newest(5) == []
    assert list((home.folder / "jobs").iterdir()) == []


def test_the_same_key_is_the_same_job(engine: LocalEngine):
    first = engine.submit(submission("true", key="same-key-1"))
    again = engine.submit(submission("true", key="same-key-1"))
    assert [entry.job.id for entry in first] == [entry.job.id for entry in again]
    assert len(engine.memory.store.newest(5)) == 1


def test_a_team_with_a_quota_gets_it(tmp_path: Path):
    engine = LocalEngine(new_home(tmp_path / "c", nodes=2, teams=(Team("research", 1),)))
    (entry,) = engine.submit(submission("true", team="research"))
    assert finish(engine, entry.job.id)[0].job.state is JobState.DONE
    assert {team.name: team.quota_gpus for team in engine.cluster.shares.records()} == {"research": 1, "default": 1}
    engine.close()


def test_a_job_whose_runner_is_killed_is_remembered_as_failed_and_leaves_nothing_running(
    engine: LocalEngine, home: Home
):
    (entry,) = engine.submit(submission("sleep", "60"))
    drive(engine, (home.attempt(entry.job.id, 1) / runner.CHILDREN).exists)
    known = read_document(home.attempt(entry.job.id, 1) / runner.CHILDREN)
    assert known is not None
    child = Identity.from_plain(known["children"][0])
    runner_of(home, entry.job.id).signal(signal.SIGKILL)
    (ended,) = finish(engine, entry.job.id)
    assert (ended.job.state, ended.lost) == (JobState.FAILED, 1)
    drive(engine, lambda: not child.alive())


def test_a_number_that_was_given_to_another_process_is_not_taken_for_the_old_one():
    myself = Identity.of(os.getpid())
    assert myself is not None
    assert myself.alive()
    assert not Identity(myself.pid, myself.start - 1, myself.boot).alive()
    assert not Identity(myself.pid, myself.start, "another boot").alive()
    assert not Identity(myself.pid, myself.start - 1, myself.boot).signal(signal.SIGKILL)


@pytest.mark.parametrize("steps", range(12))
def test_an_engine_that_dies_between_any_two_steps_starts_nothing_twice(tmp_path: Path, steps: int):
    """The life of two jobs has fewer than 2 x 12 steps that can be torn apart; the engine dies at every other one."""
    home = new_home(tmp_path / "cluster", nodes=1)
    told: list[str] = []

    def pulse(name: str) -> None:
        told.append(name)
        if len(told) == steps + 1:
            raise CrashError

    keys = ("first-job", "second-job")
    for life in range(3):
        engine = LocalEngine(home, pulse=(lambda _: None) if life == 2 else pulse)
        try:
            names = [
                entry.job.id
                for key in keys
                for entry in engine.submit(submission("sh", "-c", f"echo x >> {tmp_path}/$WEFT_JOB", key=key))
            ]
            drive(engine, lambda: all(engine.find(name).job.state in ENDED for name in names))  # noqa: B023
        except CrashError:
            told = told[:0]
        else:
            break
        finally:
            engine.close()
    engine = LocalEngine(home)
    ends = engine.memory.store.newest(10)
    engine.close()
    assert [entry.job.state for entry in ends] == [JobState.DONE] * 2
    assert [(tmp_path / entry.job.id).read_text() for entry in ends] == ["x\n"] * 2


def test_decisions_are_logged_and_come_out_the_same_again(engine: LocalEngine, home: Home):
    finish(engine, *(engine.submit(submission("true", nodes=2))[0].job.id for _ in range(3)))
    (log,) = home.decisions.iterdir()
    lines = log.read_text().splitlines()
    assert sum('"do": "bind"' in line for line in lines) == 3
    assert list(replayed(lines)) == []


def test_a_time_limit_is_kept(engine: LocalEngine):
    (entry,) = engine.submit(submission("sleep", "60", time_limit="300 ms"))
    (ended,) = finish(engine, entry.job.id)
    assert ended.job.state is JobState.FAILED


def test_a_higher_priority_makes_a_lower_one_leave_and_wait_again(tmp_path: Path):
    engine = LocalEngine(new_home(tmp_path / "cluster", policy=SchedulingPolicy(patience_ms=0)))
    script = "[ $WEFT_ATTEMPT = 2 ] && exit 0; trap 'exit 75' TERM; while :; do sleep 0.05; done"
    (low,) = engine.submit(submission("sh", "-c", script, priority=10, nodes=2))
    drive(engine, lambda: low.job.state is JobState.RUNNING)
    (high,) = engine.submit(submission("true", nodes=2, priority=900))
    ends = finish(engine, low.job.id, high.job.id)
    engine.close()
    assert [entry.job.state for entry in ends] == [JobState.DONE, JobState.DONE]
    assert (low.job.preemptions, low.attempt, high.attempt) == (1, 2, 1)


def test_a_node_that_fails_its_test_goes_to_repair_and_gets_no_work(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
):
    bad = report("preflight", engine.now(), passed=False, text="core 0: product 1 of whole numbers was wrong")
    monkeypatch.setattr(engine.trials, "start", lambda action, now: None)
    engine.report("slot-0", replace(bad, check="matmul"))
    drive(engine, lambda: engine.node("slot-0").state is NodeState.TESTING)
    (entry,) = engine.submit(submission("true"))
    finish(engine, entry.job.id)
    assert any("slot-1" in line["text"] for line in engine.memory.store.history(entry.job.id))


@pytest.mark.slow
def test_a_suspect_node_is_tested_by_the_health_programs_and_comes_back(engine: LocalEngine):
    engine.report("slot-0", NodeEvidence("matmul", engine.now(), "fatal", "a stray report"))
    drive(engine, lambda: engine.node("slot-0").state is NodeState.TESTING)
    drive(engine, lambda: engine.node("slot-0").state is NodeState.READY, patience_s=200)
    told = [line["text"] for line in engine.memory.store.happenings(50)]
    assert {"diagnose test: passed", "validate test: passed"} <= set(told)


def test_a_clock_that_is_set_back_does_not_set_the_engine_back(home: Home):
    times = [5_000_000]
    engine = LocalEngine(home, clock=lambda: times[0])
    assert engine.now() == 5_000_000
    times[0] = 1_000
    assert engine.now() == 5_000_000
    engine.submit(submission("true"))
    engine.tick()
    assert engine.cluster.planned_ms == 5_000_000
    engine.reopen()
    # What was planned is remembered across a restart, too.
    again = LocalEngine(home, clock=lambda: times[0])
    assert again.now() >= 5_000_000
    times[0] = 6_000_000
    assert engine.now() == 6_000_000
    for entry in list(again.entries):
        again.cancel(entry.job.id)
    drive(again, lambda: not list(again.entries))
    again.close()
    engine.close()
