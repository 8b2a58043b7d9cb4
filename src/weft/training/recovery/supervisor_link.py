"""A rank's line to its supervisor: heartbeats and progress, snapshots and their recall, faults on purpose.

A process has one, `current()`. Without a supervisor it leads nowhere and every method does nothing, so that a training
loop needs not ask. What follows from what a rank says here is decided in `cluster.recovery.machine`.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.training.checkpoint.store import CheckpointStore
from weft.training.launch.rank_place import RankPlace
from weft.training.recovery.orders import PEERS, Orders
from weft.training.recovery.plane_watch import PlaneWatch
from weft.training.recovery.snapshots import Snapshots
from weft.training.recovery.state_pieces import digest, pieces_of
from weft.training.recovery.tiers import Fillable, RestoredState, restore_best
from weft.training.sdc.digest import fold_digest
from weft.training.sdc.injection import Injector

_BEAT_S = 0.25
_BEGUN, _REDUCING, _FINISHED = range(3)

State = Callable[[], dict[str, Any]]
Say = Callable[[str, Any], bool]
"""Says something of a kind; returns whether anybody can still hear it."""


class SupervisorLink:
    """The line to a supervisor, or into the void."""

    def __init__(self, orders: Orders, generation: int, say: Say | None, place: RankPlace | None = None) -> None:
        """Speak through `say`, and begin to beat; without it there is no supervisor."""
        self.folder, self.redo_until, self.plan = orders.folder, orders.redo_until, orders.plan
        self._orders, self._say = orders, say or _nothing
        self.place = place if orders.in_step else None
        """This rank's place among the others, where it may change while the process lives."""
        self.supervised = say is not None
        self._injector = Injector(orders.faults, lambda number: self._say("fault", number))
        self._snapshots = Snapshots(orders, generation, self._say)
        self._place = (0, _BEGUN)
        self._watched = False
        self._ended = threading.Event()
        self._planes = PlaneWatch(lambda text, seconds: self.trouble("plane", self._place[0], text, seconds))
        if say is not None:
            threading.Thread(target=self._beat, name="heart", daemon=True).start()

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            if not self._say("beat", self._place):
                # The supervisor is gone: nobody would ever end this process.
                os._exit(1)

    @property
    def planes_out(self) -> frozenset[int]:
        """Return the planes that carried nothing from this rank when it last looked."""
        return self._planes.out

    def renew(self) -> None:
        """Go by the orders of the place that this rank has taken now."""
        assert self.place is not None, "only a rank with a place changes it"
        setting = self.place.setting
        orders = setting.orders
        if self._orders.faults != orders.faults and not self._watched:
            self._injector = Injector(orders.faults, lambda number: self._say("fault", number))
        self.folder, self.redo_until, self.plan = orders.folder, orders.redo_until, orders.plan
        self._orders = orders
        self._snapshots = Snapshots(orders, setting.generation, self._say)

    def settle(self) -> None:
        """Return when no snapshot is in flight."""
        self._snapshots.wait()

    def survives(self, obstacle: str | None) -> None:
        """Say that this rank outlives others from now on, or why it does not."""
        if self.place is not None:
            self._say("survives", obstacle)

    def opened(self, folder: str) -> None:
        """Say which run folder was taken."""
        self._say("folder", folder)

    def recall(self, fillable: Fillable, store: CheckpointStore) -> RestoredState:
        """Restore the best state that proves good."""
        return restore_best(self._orders, fillable, store)

    def restored(self, found: RestoredState, state: State) -> None:
        """Say what was restored, with the digests of what is now in memory."""
        pieces = pieces_of(state())
        # What peers gave lies as it lay there: a digest at the speed of memory compares it.
        same_cut = found.tier == PEERS
        digests = {
            key: fold_digest([tensor]) if same_cut else digest(piece, tensor) for key, (piece, tensor) in pieces.items()
        }
        names = [piece for piece, _ in pieces.values()]
        self._say("restored", {"tier": found.tier, "step": found.step, "notes": found.notes, "digests": digests,
                               "pieces": names})  # fmt: skip

    def watch(self, stages: Sequence[torch.nn.Module], named: list[tuple[str, torch.nn.Parameter]]) -> None:
        """Let faults hook into the model."""
        self._watched = True
        self._injector.watch(stages, named)

    def begin(self, done: int) -> None:
        """Say that a step begins; a fault may end it right here."""
        self._place = (done, _BEGUN)
        self._injector.begin(done)

    def feeds(self) -> None:
        """Wait for the batch where a fault says so."""
        self._injector.starve()

    def computed(self) -> None:
        """Be slow where a fault says so."""
        self._injector.slow_down()
        self._place = (self._place[0], _REDUCING)

    def reduced(self, gradients: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """Damage a summed gradient where a fault says so."""
        self._injector.at("reduced", gradients)

    def updated(self, state: State) -> None:
        """Damage weights or optimizer where a fault says so."""
        self._place = (self._place[0], _FINISHED)
        self._injector.at("weights", lambda: state().get("model", {}))
        self._injector.at("optimizer", lambda: state().get("optimizer", {}))

    def finished(self, done: int, state: State, *, must: bool) -> None:
        """Say that a step is done, and take a snapshot where it is due or a must."""
        self._say("stepped", done)
        if self.supervised:
            self._planes.stepped()
        if self._snapshots.due(done) or (must and self._snapshots.possible):
            self._snapshots.take(done, state())

    def line(self, line: Mapping[str, Any]) -> None:
        """Pass on a line of the metrics: the supervisor books its seconds."""
        self._say("step", line)

    def phase(self, name: str) -> None:
        """Say that something with a duration of its own begins."""
        self._say("phase", name)

    def trouble(self, kind: str, step: int, text: str, seconds: float = 0.0) -> None:
        """Say that something went wrong which did not stop the run, and what it cost."""
        self._say("trouble", (kind, step, text, seconds))

    def writing(self) -> None:
        """Fail where a fault says that the disk is full."""
        self._injector.write()

    def close(self) -> None:
        """End it, when the last snapshot is done."""
        self._snapshots.wait()
        self._ended.set()


def _nothing(kind: str, content: object) -> bool:
    """Say it to nobody."""
    del kind, content
    return True


_current = SupervisorLink(Orders((0,), {}, 0, ()), 0, None)


def current() -> SupervisorLink:
    """Return this process's line."""
    return _current


def begin(orders: Orders, generation: int, say: Say, place: RankPlace | None = None) -> None:
    """Make this process's line."""
    global _current  # noqa: PLW0603 - a process has one supervisor, as it has one parent
    _current = SupervisorLink(orders, generation, say, place)
