"""The coordinator of one epoch: the supervisor of one machine, with agents of several in the place of processes.

What it knows goes to all agents and to disk whenever it changes, so that another can go on when this process dies.
"""

import contextlib
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from weft.cluster.recovery import succession
from weft.cluster.recovery.events import RecoveryAction
from weft.core.clock import SystemClock
from weft.core.errors import LimitReachedError, UsageError, WeftError
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.supervisor.fork_server_host import RankProgram
from weft.engines.supervisor.hosts.gang_folder import CoordinatorAddress, GangFolder
from weft.engines.supervisor.hosts.host_group import HostGroup
from weft.engines.supervisor.hosts.host_words import WIRE, Ending
from weft.engines.supervisor.incidents import IncidentLog
from weft.engines.supervisor.rank_host import DomainBack, DomainLost, RankHost
from weft.engines.supervisor.rank_supervisor import Supervisor
from weft.specs import JobSpec

_RETURN_S = 6.0
"""How long a new coordinator waits for the agents that the last one had."""


@dataclass(frozen=True)
class GangTask:
    """What a coordinator is to do, and where it is."""

    job: JobSpec
    folder: Path
    """The shared folder of the job's runs."""
    hosts: int
    """Hosts of the run."""
    place: int
    """The one that this process is on."""
    address: str
    """Where others reach it."""
    attempt: int
    """Which attempt at the job."""


class AloneError(LimitReachedError):
    """The other hosts did not come."""


class GangSupervisor(Supervisor):
    """A supervisor whose ranks are on several hosts."""

    def __init__(self, task: GangTask, group: HostGroup, gang: GangFolder) -> None:
        """Coordinate `task` on the hosts of `group`, keeping what is known in `gang`."""
        self.hosts, self._task, self._group, self._gang = task.hosts, task, group, gang
        self._sequence = 0
        self._known: object = None
        self._state: Mapping[str, Any] | None = None
        super().__init__(task.job, task.folder, resume=True)

    @override
    def _made_host(self, program: RankProgram) -> RankHost:
        del program  # agents know it
        return self._group

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Go on where the coordinator before this one stopped."""
        self._state = state
        passed = max(0, int((time.time() - state["at"]) * PICOSECONDS_PER_SECOND))
        self._clock = SystemClock(Picoseconds(state["records"]["now"] + passed))
        self.records = IncidentLog(self._clock)
        self.records.go_on(state["records"])
        self._chaos.go_on(state["chaos"])
        self._memory.go_on(state["memory"])
        self._lost_nodes = set(state["lost"])
        if state["folder"] is not None:
            self._use(Path(state["folder"]))

    def assemble(self) -> None:
        """Wait for the agents; raise where a run cannot begin without those that have not come."""
        patience = self._job.recovery.patience / PICOSECONDS_PER_SECOND if self._state is None else _RETURN_S
        missing = self._group.gather(patience)
        if self._group.asked:
            raise KeyboardInterrupt
        hellos = self._group.hellos()
        if missing and self._state is None:
            places = ", ".join(map(str, missing))
            raise AloneError(f"of {self.hosts} hosts, {places} did not come within {patience:,.0f} s")
        if self._job.backend == "mrc" and len({hello.machine for hello in hellos}) > 1:
            raise UsageError(
                'backend = "mrc" has its planes on one machine, but the hosts of this run are several; write "auto"'
            )
        self._compare({hello.place: hello.incarnation for hello in hellos})

    def _compare(self, there: Mapping[int, str]) -> None:
        """Hold the agents that are there against those that the last coordinator had."""
        before: Mapping[int, str] = {} if self._state is None else self._state["incarnations"]
        for node in range(self.nodes):
            place = node // (self.nodes // self.hosts)
            if place not in there:
                self._take(DomainLost(node, f"host {place} is lost: its agent did not come back"))
            elif there[place] != before.get(place):
                # Another process, another memory.
                self._memory.lose_node(node)
                self._take(DomainBack(node))

    @override
    def _first(self) -> tuple[RecoveryAction, ...]:
        if self._state is None:
            return super()._first()
        text = f"the coordinator on host {self._state['place']} has died; host {self._task.place} took over"
        return succession.taken_over(self.survival, self._state["recovery"], text, self._clock.now())

    @override
    def _wait(self) -> None:
        """Keep what has changed, then wait."""
        if self._group.asked and not self._asked:
            self._ask()
        known = (self.survival.generation, self.survival.state, self.survival.restarts, len(self.records.incidents),
                 self._memory.commits[-1:], self._folder, sorted(self._lost_nodes), self._chaos.kept())  # fmt: skip
        if known != self._known:
            self._known = known
            self._keep()
        super()._wait()

    def _keep(self) -> None:
        """Give what is known to the agents and to disk."""
        self._sequence += 1
        hellos = self._group.hellos()
        state = {
            "order": (self._group.epoch, self._sequence), "at": time.time(), "place": self._task.place,
            "attempt": self._task.attempt, "recovery": succession.kept(self.survival), "records": self.records.kept(),
            "chaos": self._chaos.kept(), "memory": self._memory.kept(), "lost": sorted(self._lost_nodes),
            "folder": None if self._folder is None else str(self._folder),
            "incarnations": {hello.place: hello.incarnation for hello in hellos},
        }  # fmt: skip
        text = WIRE.encode(state).decode()
        self._group.keep(text)
        self._gang.save(self._group.epoch, text.encode())


def coordinate(task: GangTask, epoch: int, state: str, owner: Any) -> None:
    """Be the coordinator of `epoch`, after one whose `state` this host's agent had; end when `owner` hangs up."""
    gang = GangFolder(task.folder)
    each = -(-task.job.recovery.domains // task.hosts)
    layout = [tuple(range(place * each, (place + 1) * each)) for place in range(task.hosts)]
    group = HostGroup(gang, epoch, layout, owner)
    group.address = task.address
    gang.announce(epoch, CoordinatorAddress(task.address, group.port, task.place, os.getpid()))
    ending = _ended(task, group, gang, _newest(gang.saved(), state.encode()))
    gang.save(epoch, WIRE.encode({"order": (epoch, 1 << 60), "attempt": task.attempt, "ending": ending}))
    group.gather(_RETURN_S)
    group.conclude(ending)


def _ended(task: GangTask, group: HostGroup, gang: GangFolder, state: Mapping[str, Any] | None) -> Ending:
    """Run the job to its end and return which that is."""
    try:
        if state is not None and state["attempt"] == task.attempt and "ending" in state:
            return state["ending"]
        supervisor = GangSupervisor(task, group, gang)
        if state is not None and state["attempt"] == task.attempt:
            supervisor.go_on(state)
        supervisor.assemble()
        result = supervisor.run()
        return Ending("finished" if result["state"] == "finished" else "stopped")
    except KeyboardInterrupt:
        return Ending("stopped")
    except WeftError as error:
        kinds = (AloneError, UsageError, LimitReachedError)
        name = next((kind.__name__ for kind in kinds if isinstance(error, kind)), "FailedError")
        return Ending(name, str(error))
    except Exception:  # noqa: BLE001 - whatever it was, the agents must hear of it
        return Ending("FailedError", traceback.format_exc())


def _newest(*texts: bytes | None) -> Mapping[str, Any] | None:
    """Return the newest of what was kept."""
    found: list[Mapping[str, Any]] = []
    for text in texts:
        # What is cut off or of another version says nothing.
        with contextlib.suppress(ValueError, TypeError):
            found += [WIRE.decode(text)] if text else []
    return max(found, key=lambda state: state["order"], default=None)
