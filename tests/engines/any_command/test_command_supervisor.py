"""Commands that know nothing of weft: who ends how, and what follows."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.core.errors import FailedError, LimitReachedError, UsageError
from weft.engines.any_command.checkpoint_guard import CheckpointGuard
from weft.engines.any_command.command_ranks import CommandRanks, environment_of
from weft.engines.any_command.command_supervisor import CommandLimits, CommandSupervisor

TORCHRUN = {
    "RANK", "LOCAL_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
}  # fmt: skip
HEAD = "import os, sys, time, signal; rank, turn = int(os.environ['RANK']), os.environ['TORCHELASTIC_RESTART_COUNT']; "
Made = Callable[..., CommandSupervisor]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    def make(code: str, ranks: int = 2, **more: object) -> CommandSupervisor:
        limits = CommandLimits(**{"stall_s": 60.0, **more})  # type: ignore[arg-type]
        processes = CommandRanks([sys.executable, "-S", "-c", HEAD + code], ranks)
        guard = CheckpointGuard(tmp_path / "ckpt", tmp_path / "keep", processes.written_files)
        (tmp_path / "ckpt").mkdir(exist_ok=True)
        return CommandSupervisor(processes, tmp_path, guard, list, limits, print)

    return make


def test_ranks_get_what_torchrun_gives(made: Made, tmp_path: Path):
    made(f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(repr(sorted(os.environ)))").run()
    for rank in "01":
        assert set(eval((tmp_path / rank).read_text())) >= TORCHRUN
    assert environment_of(2, 0, {"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"


def test_a_rank_that_is_killed_is_blamed_and_all_start_again(made: Made, tmp_path: Path):
    supervisor = made(
        "turn == '0' and rank == 1 and os.kill(os.getpid(), signal.SIGKILL); turn == '0' and time.sleep(60);"
        f"open({str(tmp_path)!r} + f'/end-{{rank}}', 'w')"
    )
    supervisor.run()
    (incident,) = supervisor.records.incidents
    assert (incident["kind"], incident["rank"], incident["outcome"]) == ("killed", 1, "recovered")
    assert {path.name for path in tmp_path.glob("end-*")} == {"end-0", "end-1"}


def test_the_same_mistake_twice_ends_the_run_with_its_words(made: Made):
    supervisor = made("raise ValueError('a mistake of mine')")
    with pytest.raises(FailedError, match="status 1: ValueError: a mistake of mine"):
        supervisor.run()
    assert len(supervisor.records.incidents) == 2


def test_wrong_use_is_not_tried_again(made: Made):
    supervisor = made("sys.exit(2)")
    with pytest.raises(UsageError, match="status 2"):
        supervisor.run()
    assert len(supervisor.records.incidents) == 1


def test_deaths_without_progress_end_as_a_crash_loop_and_a_budget_is_kept(made: Made):
    with pytest.raises(LimitReachedError, match="crash loop: 3 restarts"):
        made("os.kill(os.getpid(), signal.SIGKILL)", ranks=1).run()
    with pytest.raises(LimitReachedError, match="budget of 1 restarts"):
        made("os.kill(os.getpid(), signal.SIGKILL)", ranks=1, restarts=1).run()


def test_silence_counts_as_a_hang(made: Made):
    supervisor = made("turn == '0' and time.sleep(60)", stall_s=1.0)
    supervisor.run()
    assert {one["kind"] for one in supervisor.records.incidents} == {"hung"}


def test_nothing_that_a_rank_has_started_outlives_it(made: Made, tmp_path: Path):
    child = f"import os, time; open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    made(
        f"import subprocess; subprocess.Popen([sys.executable, '-S', '-c', {child!r}]);"
        f"[time.sleep(0.02) for _ in range(500) if not os.path.exists({str(tmp_path / 'child')!r})]",
        ranks=1,
    ).run()
    number = int((tmp_path / "child").read_text() or 0)
    deadline = time.monotonic() + 10
    while number and Path(f"/proc/{number}").exists() and _letter(number) != "Z":
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.02)


def _letter(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_file_that_a_dead_rank_had_half_written_is_not_there_for_the_next(made: Made, tmp_path: Path):
    torn = tmp_path / "ckpt" / "torn.json"
    supervisor = made(
        f"half = open({str(torn)!r}, 'w') if turn == '0' else None; half and half.write('[1, '); half and half.flush();"
        f"half and os.kill(os.getpid(), signal.SIGKILL); sys.exit(os.path.exists({str(torn)!r}))",
        ranks=1,
    )
    supervisor.run()
    assert {one["kind"] for one in supervisor.records.incidents} == {"killed", "checkpoint"}


def test_a_machine_that_fails_its_checks_starts_nothing(tmp_path: Path):
    ranks = CommandRanks([sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"], 1)
    supervisor = CommandSupervisor(ranks, tmp_path, None, lambda: ["memory (bit 3)"], CommandLimits(), print)
    with pytest.raises(FailedError, match=r"memory \(bit 3\)"):
        supervisor.run()
    assert not (tmp_path / "ran").exists()


def test_a_program_that_is_not_there_is_said_so(tmp_path: Path):
    with pytest.raises(UsageError, match="no-such-program cannot be run"):
        CommandSupervisor(CommandRanks(["no-such-program"], 1), tmp_path, None, list, CommandLimits(), print).run()


@pytest.mark.slow
def test_a_stopped_rank_is_blamed_within_ten_seconds(made: Made):
    supervisor = made(
        "turn == '0' and rank == 1 and os.kill(os.getpid(), signal.SIGSTOP); turn == '0' and time.sleep(60)"
    )
    begun = time.monotonic()
    supervisor.run()
    assert [(one["kind"], one["rank"]) for one in supervisor.records.incidents] == [("stopped", 1)]
    assert time.monotonic() - begun < 30
