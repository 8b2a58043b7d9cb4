"""The machine under a lab: runs commands as root, or in a user namespace of the caller's own where that is allowed.

Without root, a keeper process holds a user, mount and network namespace in which the caller may do everything; the lab
lives there and is gone when the keeper is. Nothing here knows what a fabric is.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import FailedError, UsageError, WeftError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps names."""
LONGEST_S = 30.0
"""The longest that one command may take."""

_ENVIRONMENT = {"PATH": SYSTEM_PATH, "LC_ALL": "C"}
_MARK = "WEFT_LAB_KEEPER"
_PACKAGES = {
    "ip": "iproute2", "tc": "iproute2", "sysctl": "procps", "unshare": "util-linux", "nsenter": "util-linux",
    "setsid": "util-linux", "nft": "nftables", "ip6tables": "iptables",
}  # fmt: skip
_NEEDED_CAPABILITIES = 1 << 12 | 1 << 21
"""CAP_NET_ADMIN and CAP_SYS_ADMIN."""
_KEEP = "mount -t tmpfs weft-lab /run && mkdir /run/netns && echo $$ && exec sleep infinity <&- >&- 2>&-"


@dataclass(frozen=True)
class NamespaceKeeper:
    """The process that holds a user's namespaces."""

    pid: int
    started: int
    """When it began, in the kernel's ticks: a process id alone may be somebody else's by now."""

    def alive(self) -> bool:
        """Return whether it is still there."""
        return _started(self.pid) == self.started


@dataclass(frozen=True)
class LabMachine:
    """Where commands of a lab run."""

    keeper: NamespaceKeeper | None = None
    """None for root in the machine's own namespaces."""

    def entry(self) -> tuple[str, ...]:
        """Return what goes before a command to run it in this world."""
        if self.keeper is None:
            return ()
        target = f"--target={self.keeper.pid}"
        return (program("nsenter"), target, "--user", "--mount", "--net", "--preserve-credentials", "--")

    def run(self, argv: Sequence[str], text: str = "", *, check: bool = True) -> str:
        """Run a command of the system and return what it printed; raise where it fails."""
        whole = (*self.entry(), *argv)
        try:
            ran = subprocess.run(
                whole, input=text, text=True, capture_output=True, timeout=LONGEST_S, env=_ENVIRONMENT, check=False
            )
        except subprocess.TimeoutExpired:
            raise FailedError(f"{' '.join(argv)} took longer than {LONGEST_S:g} s and was given up") from None
        if ran.returncode and check:
            raise _failure(argv, text, ran.stderr)
        return ran.stdout

    def namespaces(self, pattern: re.Pattern[str]) -> dict[str, int]:
        """Return the names of network namespaces that match, with the kernel's number of each; 0 for a broken one."""
        folder = NAMESPACES if self.keeper is None else Path(f"/proc/{self.keeper.pid}/root{NAMESPACES}")
        try:
            found = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
        except OSError:
            return {}
        return {path.name: _network_number(path) for path in sorted(found)}


def machine_for(name: str) -> LabMachine:
    """Return a world in which a lab can be made, or say what is missing; a keeper is started where one is needed."""
    require("ip", "tc", "sysctl")
    if _capable():
        return LabMachine()
    require("unshare", "nsenter", "setsid")
    inside = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--", "sh", "-c", _KEEP)
    with subprocess.Popen(
        (program("setsid"), "--fork", *inside),
        env={**_ENVIRONMENT, _MARK: name},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as start:  # fmt: skip
        assert start.stdout is not None
        assert start.stderr is not None
        ready = select.select([start.stdout], [], [], LONGEST_S)[0]
        line = start.stdout.readline().strip() if ready else ""
        problem = "" if line.isdecimal() else start.stderr.read().strip()
    if not line.isdecimal():
        raise UsageError(
            f"a lab needs root or user namespaces, and this system gives neither to this user ({problem}); run it as "
            "root, or allow them (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
        )
    return LabMachine(NamespaceKeeper(int(line), _started(int(line))))


def require(*programs: str) -> None:
    """Raise where one of these programs is not installed."""
    for name in programs:
        program(name)


def program(name: str) -> str:
    """Return the path of a program of the system, or raise where it is not installed."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if path is None:
        raise UsageError(f"{name} is missing; install the package {_PACKAGES[name]}")
    return path


def installed_filter() -> str | None:
    """Return the program that drop rules are written with, or None where there is none."""
    return next((name for name in ("nft", "ip6tables") if shutil.which(name, path=SYSTEM_PATH) is not None), None)


def filter_program() -> str:
    """Return the program that drop rules are written with."""
    name = installed_filter()
    if name is not None:
        return name
    raise UsageError("neither nft nor ip6tables is there; install the package nftables")


def keepers(name: str) -> list[NamespaceKeeper]:
    """Return the caller's keepers of a lab, found by what they carry, whether or not anybody wrote them down."""
    wanted = f"{_MARK}={name}".encode()
    found: list[NamespaceKeeper] = []
    for process in _processes():
        with suppress(OSError):
            if wanted in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                found.append(NamespaceKeeper(process, _started(process)))
    return [keeper for keeper in found if keeper.started]


def end_processes(networks: Iterable[int], users: Iterable[int] = ()) -> int:
    """End every process that lives in one of these network or user namespaces; return how many there were."""
    places = {"net": set(networks) - {0}, "user": set(users) - {0}}

    def inside(process: int) -> bool:
        return any(_namespace_number(process, kind) in wanted for kind, wanted in places.items() if wanted)

    if inside(os.getpid()):
        raise UsageError("this command runs inside the lab that it is to remove; run it from outside")
    met = [process for process in _processes() if inside(process)]
    for sign, patience_s in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        left = [process for process in met if inside(process)]
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, sign)
        deadline = time.monotonic() + patience_s
        while left and time.monotonic() < deadline:
            time.sleep(0.01)
            left = [process for process in left if inside(process)]
    return len(met)


def user_number(keeper: NamespaceKeeper) -> int:
    """Return the number of a keeper's user namespace."""
    return _namespace_number(keeper.pid, "user")


def _capable() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return effective & _NEEDED_CAPABILITIES == _NEEDED_CAPABILITIES


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _namespace_number(process: int, kind: str) -> int:
    """Return the number of a process's namespace; 0 where it has none any more or is not ours to ask."""
    try:
        return Path(f"/proc/{process}/ns/{kind}").stat().st_ino
    except OSError:
        return 0


def _network_number(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _started(process: int) -> int:
    """Return when a process began, in ticks since boot; 0 where it has ended."""
    try:
        # The name in brackets may hold anything, so fields are counted from its end.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _failure(argv: Sequence[str], text: str, complaint: str) -> WeftError:
    """Return why a command failed: its complaint, and the line of the batch where it says which."""
    place = re.search(r"Command failed -:(\d+)", complaint)
    batch = text.splitlines()
    line = f" at {batch[int(place[1]) - 1]!r}" if place and 0 < int(place[1]) <= len(batch) else ""
    reason = complaint.strip().splitlines()[0] if complaint.strip() else "no reason given"
    if "Operation not permitted" in complaint:
        return UsageError(
            f"this process may not make network namespaces ({reason}); run it as root with CAP_NET_ADMIN and "
            "CAP_SYS_ADMIN"
        )
    return FailedError(f"{' '.join(argv)} failed{line}: {reason}")
