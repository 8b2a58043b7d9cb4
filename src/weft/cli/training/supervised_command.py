"""`weft run -- COMMAND`: supervise any command on several ranks, without a change of its code."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.cluster.health import run_checks
from weft.cli.output import JsonFlag, draw_own_screen, print_json, print_table, warn
from weft.core import quantity
from weft.core.errors import UsageError
from weft.core.extras import need
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.engines.any_command.checkpoint_guard import CheckpointGuard
from weft.engines.any_command.command_ranks import CommandRanks
from weft.engines.any_command.command_supervisor import CommandLimits, CommandSupervisor
from weft.engines.health.registry import named
from weft.training.launch.torchrun import LaunchLine, is_torchrun, read_line

_FOLDER = Path("weft-run")
_NONE = "none"


def run(
    *command: Annotated[str, Parameter(help="After --: a torchrun command, or any other.", allow_leading_hyphen=True)],
    ranks: Annotated[int, Parameter(help="Ranks of a command that is not torchrun's.")] = 1,
    checkpoints: Annotated[Path | None, Parameter(help="Folder in which the command keeps its checkpoints.")] = None,
    restarts: Annotated[int | None, Parameter(help="Most restarts; default: torchrun's own, or 100.")] = None,
    stall: Annotated[str, Parameter(help="Silence after which the ranks count as hung.")] = "30 min",
    health: Annotated[str, Parameter(help="Health checks before every start (weft nodes programs), or none.")]
    = "preflight",
    start_over: Annotated[bool, Parameter(negative="", help="Run though no stored checkpoint is whole.")] = False,
    folder: Annotated[Path, Parameter(name="--folder", help="Folder of incidents and copies.")] = _FOLDER,
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Supervise a command on every rank: restarts, health checks and whole checkpoints, without a change of its code.

    The ranks get torchrun's environment. When one dies, is stopped or fails, all start again; the program resumes from
    its own checkpoints, of which only whole ones are left: torn and damaged files are replaced by their last whole
    version, or moved away. The same error twice, three restarts without a new checkpoint, and status 2 before the
    first one end the run.
    """
    need("torch")
    if not command:
        raise UsageError("write a command after --: weft run -- torchrun --nproc-per-node 2 train.py")
    if ranks < 1 or (restarts is not None and restarts < 0):
        raise UsageError(f"--ranks {ranks} --restarts {restarts}: write at least one rank and no negative number")
    line = read_line(command) if is_torchrun(list(command)) else LaunchLine(ranks, command)
    checks = () if health == _NONE else (health,)
    named(checks)
    most = restarts if restarts is not None else line.restarts
    try:
        stall_s = quantity.TIME.parse(stall) / PICOSECONDS_PER_SECOND
    except quantity.QuantityError as error:
        raise UsageError(f"--stall {stall}: {error}") from None
    if stall_s <= 0:
        raise UsageError(f"--stall {stall}: write a time above zero")
    limits = CommandLimits(stall_s=stall_s, start_over=start_over)
    limits = limits if most is None else replace(limits, restarts=most)
    folder.mkdir(parents=True, exist_ok=True)
    processes = CommandRanks(line.command, line.ranks, quiet=json)
    guard = None
    if checkpoints is not None:
        guard = CheckpointGuard(checkpoints.resolve(), (folder / "guard").resolve(), processes.written_files)
    draw_own_screen()
    supervisor = CommandSupervisor(processes, folder, guard, lambda: run_checks(checks) if checks else [], limits, warn)
    try:
        supervisor.run()
    finally:
        incidents = supervisor.records.incidents
        if json:
            print_json({"ranks": line.ranks, "incidents": incidents, "checkpoints": guard.stored if guard else None})
        elif incidents:
            rows = [
                (str(one["incident"]), one["at"][11:19], one["kind"], "-" if one["rank"] is None else str(one["rank"]),
                 one["seen"].splitlines()[0], one["action"], f"{one['seconds_lost']:,.1f}")
                for one in incidents
            ]  # fmt: skip
            head = ("", "UTC", "kind", "rank", "seen", "done", "s lost")
            print_table(f"incidents, also in {folder / 'incidents.jsonl'}", head, rows, words=range(2, 6))
