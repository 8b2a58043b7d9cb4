"""The processes of a command, one for each rank, in the environment that torchrun gives; what they print goes on.

Every rank leads a process group of its own and dies with this process. Nothing here decides.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from weft.cluster.recovery.limits import STOPPED_PS
from weft.core.errors import UsageError
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.engines.supervisor.rank_host import RankEnded, RankStopped

_LIBC = ctypes.CDLL(None)
_DEATH_SIGNAL = 1
_TAIL = 4096
_READ = 1 << 16
_HOST = "127.0.0.1"
_WRITING = (os.O_WRONLY, os.O_RDWR)


@dataclass
class _CommandRank:
    process: "subprocess.Popen[bytes]"
    tail: bytes = b""
    """The end of what it has printed as errors."""
    stopped_s: float = 0.0
    """When it was first seen stopped, 0 where it runs."""
    ended: bool = False

    def streams(self) -> tuple[IO[bytes], ...]:
        """Return what it prints to."""
        return tuple(one for one in (self.process.stdout, self.process.stderr) if one is not None)


@dataclass
class CommandRanks:
    """The ranks of one generation."""

    command: Sequence[str]
    """What each of them runs."""
    count: int
    """How many."""
    quiet: bool = False
    """Whether all they print goes to standard error."""
    heard_s: float = 0.0
    """When any of them last printed something."""
    _ranks: dict[int, _CommandRank] = field(default_factory=dict)

    def start(self, generation: int) -> None:
        """Start every rank."""
        environment = environment_of(self.count, generation, os.environ)
        self.heard_s = time.monotonic()
        for rank in range(self.count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)}
            try:
                process = subprocess.Popen(  # noqa: S603 - running it is the purpose
                    list(self.command), env=environment | own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, process_group=0, preexec_fn=_die_with_parent,  # noqa: PLW1509
                )  # fmt: skip
            except OSError as error:
                self.end()
                raise UsageError(f"{self.command[0]} cannot be run: {error.strerror}") from None
            self._ranks[rank] = _CommandRank(process)

    def hear(self, patience_s: float) -> Iterator[RankEnded | RankStopped]:
        """Pass on what ranks print for a while, then return who has ended, or has been stopped for too long."""
        pipes = {
            stream.fileno(): (stream, one)
            for one in self._ranks.values()
            for stream in one.streams()
            if not stream.closed
        }
        if not pipes:
            time.sleep(patience_s)
        for number in wait(list(pipes), patience_s) if pipes else ():
            assert isinstance(number, int), "only numbers were given"
            self._pass_on(*pipes[number])
        for rank, one in self._ranks.items():
            if one.ended:
                continue
            if one.process.poll() is not None:
                one.ended = True
                for stream in one.streams():
                    while not stream.closed and wait([stream.fileno()], 0):
                        self._pass_on(stream, one)
                yield RankEnded(rank, one.process.returncode)
            elif self._is_stopped(one):
                yield RankStopped(rank)

    def _pass_on(self, stream: IO[bytes], one: _CommandRank) -> None:
        found = os.read(stream.fileno(), _READ)
        if not found:
            stream.close()
            return
        self.heard_s = time.monotonic()
        errors = stream is one.process.stderr
        if errors:
            one.tail = (one.tail + found)[-_TAIL:]
        # Whoever reads our output may have gone: no reason to end a training.
        with contextlib.suppress(OSError, ValueError):
            target = sys.stderr if errors or self.quiet else sys.stdout
            target.buffer.write(found)
            target.buffer.flush()

    @staticmethod
    def _is_stopped(one: _CommandRank) -> bool:
        if _letter(one.process.pid) not in ("T", "t"):
            one.stopped_s = 0.0
            return False
        now = time.monotonic()
        one.stopped_s = one.stopped_s or now
        return now - one.stopped_s > STOPPED_PS / PICOSECONDS_PER_SECOND

    def last_words(self, rank: int) -> str:
        """Return the last line that a rank has printed as an error."""
        lines = [line for line in self._ranks[rank].tail.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    @property
    def running(self) -> bool:
        """Return whether any rank is there."""
        return any(not one.ended for one in self._ranks.values())

    def signal(self, number: int) -> None:
        """Send a signal to every rank, not to what it has started."""
        for one in self._ranks.values():
            if not one.ended:
                with contextlib.suppress(ProcessLookupError):
                    one.process.send_signal(number)

    def end(self) -> None:
        """Leave no rank behind, nor anything that it has started in its group."""
        for one in self._ranks.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(one.process.pid, signal.SIGKILL)
        for one in self._ranks.values():
            one.process.wait()
            for stream in one.streams():
                stream.close()
        self._ranks.clear()

    def written_files(self) -> set[str]:
        """Return the files that some process of some rank has open for writing."""
        groups = {one.process.pid for one in list(self._ranks.values())}
        found: set[str] = set()
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if folder.name.isdigit() and os.getpgid(int(folder.name)) in groups:
                    found.update(_written_by(folder))
        return found


def _written_by(process: Path) -> Iterator[str]:
    for handle in (process / "fd").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            flags = (process / "fdinfo" / handle.name).read_text().split("flags:")[1].split()[0]
            if int(flags, 8) & os.O_ACCMODE in _WRITING:
                yield str(handle.readlink())


def environment_of(ranks: int, generation: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would give all of `ranks` on one machine, apart from who each is."""
    with socket.socket() as free:
        free.bind((_HOST, 0))
        port = free.getsockname()[1]
    size = {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")}
    one = {"OMP_NUM_THREADS": "1"} if ranks > 1 and "OMP_NUM_THREADS" not in given else {}
    return {
        **given, **one, **size, "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default",
        "MASTER_ADDR": _HOST, "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "weft",
        "TORCHELASTIC_RESTART_COUNT": str(generation),
    }  # fmt: skip


def _die_with_parent() -> None:
    _LIBC.prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _letter(pid: int) -> Any:
    """Return the state of a process as the kernel writes it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
