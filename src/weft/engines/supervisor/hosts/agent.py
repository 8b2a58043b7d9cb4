"""The agent of one host: it lets the coordinator of the highest epoch use this machine's fork server, and nobody else.

It decides nothing about the run. It has three duties of its own: to end its ranks when it has not heard its coordinator
for a while, to keep what that one knew, and to make the next coordinator when its turn has come. Turns go by place: the
lowest one that lives claims the next epoch first, and an epoch can be claimed once.
"""

import contextlib
import secrets
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from weft.core.clock import SystemClock
from weft.core.errors import FailedError, LimitReachedError, UsageError, WeftError
from weft.engines.supervisor.fork_server_host import ForkServerHost, RankProgram
from weft.engines.supervisor.hosts.coordinator import GangTask, coordinate
from weft.engines.supervisor.hosts.gang_folder import GangFolder
from weft.engines.supervisor.hosts.host_words import (
    ASKED,
    BEAT,
    BEAT_S,
    LEASE_S,
    WIRE,
    Ending,
    Hello,
    HostAnswer,
    HostCall,
    Welcome,
)
from weft.engines.supervisor.rank_host import RankStart
from weft.engines.supervisor.rank_layout import TRAIN, checks_of
from weft.training.launch.authenticated_channel import AuthenticatedChannel
from weft.training.launch.ranks import fork_server

_NAP_S = 0.2
_TURN_S = 1.5
"""How long each place waits for those before it to claim an epoch."""
_SILENT_EPOCH_S = 10.0
"""How long whoever has claimed an epoch may take to say where it is reached."""
_FAREWELL_S = 5.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ERRORS = {"UsageError": UsageError, "FailedError": FailedError, "LimitReachedError": LimitReachedError}
_CALLS = frozenset({"signal", "evidence", "processes", "end", "finish"})
_MEMORY_CALLS = frozenset({"start", "forget", "lose", "fence", "keep", "spill", "damage"})


class Agent:
    """Serves one machine to the run's coordinators, one after the other."""

    def __init__(self, task: GangTask) -> None:
        """Serve as one host of `task`."""
        self._task, self._folder = task, GangFolder(task.folder)
        job = task.job
        arguments = {"job": job, "folder": str(task.folder), "resume": True}
        self._program = RankProgram(TRAIN.target, arguments, job.backend, checks_of(job))
        self._incarnation = secrets.token_hex(8)
        self._key = self._folder.key()
        self._host: ForkServerHost | None = None
        self._state = ""
        self._asked = threading.Event()
        self._coordinator: Any = None
        self._owned: Any = None

    def ask(self) -> None:
        """Pass on somebody's wish to stop: the run saves a checkpoint and ends after this step."""
        self._asked.set()

    def run(self) -> Ending:
        """Serve until the run is over; returns how it ended."""
        # An epoch is claimed only by who can make its coordinator at once: a fork server takes seconds to start.
        first = fork_server().Process(target=int, daemon=True)
        first.start()
        first.join()
        try:
            while True:
                channel = self._met()
                if isinstance(channel, Ending):
                    return channel
                ending = self._serve(channel)
                channel.close()
                if self._host is not None:
                    # No coordinator, no ranks: whoever comes next starts them again from what the keepers have.
                    self._host.end()
                if ending is not None:
                    return ending
        finally:
            if self._host is not None:
                self._host.end()
                self._host.close()
            if self._coordinator is not None:
                self._coordinator.join(_FAREWELL_S)
                self._end_coordinator()

    def _met(self) -> "AuthenticatedChannel | Ending":
        """Find the coordinator of the highest epoch, or make the next one when it is this place's turn."""
        since, before = time.monotonic(), -1
        while True:
            epoch = self._folder.highest()
            if epoch != before:
                since, before = time.monotonic(), epoch
            address = self._folder.address(epoch)
            if address is not None:
                with contextlib.suppress(OSError, ValueError):
                    return self._dialled((address.host, address.port), epoch)
            patience = _TURN_S * self._task.place
            if epoch and address is None:
                patience += _SILENT_EPOCH_S
            if time.monotonic() - since >= patience and self._folder.claim(epoch + 1):
                if self._asked.is_set():
                    return Ending("stopped")
                self._coordinate(epoch + 1)
            time.sleep(_NAP_S)

    def _coordinate(self, epoch: int) -> None:
        """Start the coordinator of an epoch, which ends when this process does."""
        self._end_coordinator()
        context = fork_server()
        self._owned, theirs = context.Pipe()
        arguments = (self._task, epoch, self._state, theirs)
        self._coordinator = context.Process(target=coordinate, args=arguments, daemon=True)
        self._coordinator.start()
        theirs.close()

    def _end_coordinator(self) -> None:
        """End the coordinator that this host has made, also one that is stopped and would stay for ever."""
        if self._coordinator is not None:
            self._coordinator.kill()
            self._coordinator.join()

    def _dialled(self, address: tuple[str, int], epoch: int) -> AuthenticatedChannel:
        """Present this host to a coordinator and take its orders."""
        channel = AuthenticatedChannel.dial(address, self._key, WIRE)
        try:
            machine = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else self._task.address
            task = self._task
            channel.trust()
            channel.send(Hello(task.place, self._incarnation, machine))
            while (welcome := channel.recv()) == BEAT:
                """It is there and busy."""
            self._accept(welcome, epoch)
        except BaseException:
            channel.close()
            raise
        return channel

    def _accept(self, welcome: object, epoch: int) -> None:
        """Take a coordinator's welcome for orders, and get this host ready for the first of them."""
        if not isinstance(welcome, Welcome) or welcome.epoch != epoch:
            raise OSError("it is the coordinator of another epoch")
        if self._host is None:
            self._host = ForkServerHost(self._program, welcome.nodes, SystemClock(), self._key)
            self._host.get_ready()

    def _serve(self, channel: AuthenticatedChannel) -> Ending | None:
        """Obey one coordinator; returns how the run ended, or nothing where the coordinator is gone."""
        over = threading.Event()
        threading.Thread(target=self._beat, args=(channel, over), daemon=True).start()
        epoch, heard = self._folder.highest(), time.monotonic()
        try:
            while self._folder.highest() == epoch:
                assert self._host is not None
                watched: list[Any] = [channel, *self._host.watched()]
                ready = set(wait(watched, BEAT_S / 2))
                for word in channel.arrived():
                    heard = time.monotonic()
                    if isinstance(word, Ending):
                        return word
                    if isinstance(word, HostCall):
                        self._obey(channel, word)
                words = list(self._host.hear(ready))
                if words:
                    channel.send(words)
                if time.monotonic() - heard > LEASE_S:
                    return None
        except (OSError, ValueError):
            return None
        finally:
            over.set()
        return None

    def _beat(self, channel: AuthenticatedChannel, over: threading.Event) -> None:
        """Let the coordinator hear that this host is there, and that somebody wants the run to stop."""
        said = False
        while not over.wait(BEAT_S / 2):
            channel.send_if_free(BEAT)
            if self._asked.is_set() and not said:
                said = True
                channel.send_if_free(ASKED)

    def _obey(self, channel: AuthenticatedChannel, call: HostCall) -> None:
        """Do what the coordinator calls for."""
        host = self._host
        assert host is not None, "a host is there before its coordinator can call"
        own: dict[str, Callable[..., Any]] = {
            "start": self._start,
            "keep_state": self._keep_state,
            "memory.use": self._use,
            "memory.addresses": lambda: host.memory.far_addresses(self._task.address),
        }
        owner, _, name = call.name.rpartition(".")
        if call.name in own:
            work = own[call.name]
        elif (owner == "memory" and name in _MEMORY_CALLS) or call.name in _CALLS:
            work = getattr(host.memory if owner else host, name)
        else:
            raise ValueError(f"a coordinator has no use of {call.name!r}")
        answer = work(*call.arguments)
        if call.answered:
            channel.send(HostAnswer(answer))

    def _start(self, starts: list[RankStart]) -> None:
        assert self._host is not None
        # Keepers of this machine are nearer through the file system than over TCP.
        near = self._host.memory.addresses()
        self._host.start(
            [
                replace(one, orders=replace(one.orders, keepers={**one.orders.keepers, **near}))
                for one in starts
            ]
        )  # fmt: skip

    def _use(self, disks: str) -> None:
        assert self._host is not None
        self._host.memory.use(Path(disks))

    def _keep_state(self, state: str) -> None:
        self._state = state


def served(task: GangTask) -> Ending:
    """Serve one host of `task` until the run is over; returns how that ended, or raises the error that ended it."""
    agent = Agent(task)
    before = {number: signal.signal(number, lambda *_: agent.ask()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ending = agent.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    error: type[WeftError] | None = _ERRORS.get(ending.kind)
    if error is not None:
        raise error(ending.text)
    return ending
