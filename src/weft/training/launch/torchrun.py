"""What a torchrun command line says, by torchrun's own parser: how many ranks, and what each of them runs."""

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import NamedTuple

from weft.core.errors import UsageError

_MODULES = ("torch.distributed.run", "torch.distributed.launch")


class LaunchLine(NamedTuple):
    """A command of several ranks."""

    ranks: int
    command: tuple[str, ...]
    restarts: int | None = None
    """Most restarts, where the line says so."""


def is_torchrun(words: Sequence[str]) -> bool:
    """Return whether `words` call torchrun."""
    name = words[0].rpartition("/")[2] if words else ""
    return name == "torchrun" or (name.startswith("python") and list(words[1:3]) in [["-m", one] for one in _MODULES])


def read_line(words: Sequence[str]) -> LaunchLine:
    """Return what a call of torchrun would start on this machine; raises where it means several."""
    from torch.distributed import run as torchrun

    rest = list(words[1:] if words[0].rpartition("/")[2] == "torchrun" else words[3:])
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            given = torchrun.get_args_parser().parse_args(rest)
    except SystemExit:
        problem = (said.getvalue().strip().splitlines() or ["torchrun shows its help"])[-1]
        raise UsageError(f"{problem}; write a torchrun command: torchrun --nproc-per-node 2 train.py") from None
    if str(given.nnodes) not in ("1", "1:1"):
        raise UsageError(
            f"--nnodes {given.nnodes}: weft run supervises the ranks of one machine; weft submit --nodes places a"
            " command on several"
        )
    try:
        ranks = int(torchrun.determine_local_world_size(given.nproc_per_node) or 1)
    except ValueError as error:
        raise UsageError(f"--nproc-per-node {given.nproc_per_node}: {error}") from None
    head = () if given.no_python else (sys.executable, "-u", *(("-m",) if given.module else ()))
    restarts = given.max_restarts or None
    return LaunchLine(ranks, (*head, given.training_script, *given.training_script_args), restarts)
