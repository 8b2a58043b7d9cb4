"""A rank's place among the others: how it takes one, gives it up when another rank is lost, and takes the next.

Orders to a rank come through the pipe to its parent: to let go of its process groups, and where it stands next. A
spare has no place at first. Who starts ranks and what they run is `ranks`'s and `rank_process`'s business.
"""

import contextlib
import os
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.training.checked_collectives import Checks

HOST = "127.0.0.1"
PATIENCE = timedelta(minutes=10)
"""How long a rank waits for the others in the store and in collectives: a supervisor knows better when it is over."""
LET_GO, TAKE = "let go", "take"
"""Orders to a rank: to give its process groups up, and a `RankSetting` to take."""
_OF_ANOTHER = (
    "Connection closed by peer", "Connection reset", "Connection refused", "Broken pipe", "Timed out waiting",
    "DistBackendError", "DistNetworkError", "DistStoreError", "recvValue failed", "Application timeout",
    "is gone: its connection", "the group was destroyed before",
)  # fmt: skip


def speaks_of_another(text: str) -> bool:
    """Return whether an error's last line is what a rank says when another one has gone."""
    return any(word in text.strip().splitlines()[-1] for word in _OF_ANOTHER)


@dataclass(frozen=True)
class RankSetting:
    """Where a rank stands, as the launcher tells it."""

    rank: int
    """Its number."""
    ranks: int
    """How many there are."""
    port: int
    """Port of the store."""
    generation: int = 0
    """Counts the times that the ranks were started; each has addresses of its own."""
    checks: "Checks | None" = None
    """How collectives are checked, where they are."""
    orders: Any = None
    """What a supervisor tells the rank (`recovery.orders.Orders`), where there is one."""
    backend: str = "auto"
    """What carries bytes between ranks, as the job says it."""
    host: str = HOST
    """Address of the machine whose parent has the store."""
    spare: bool = False
    """Whether it only gets ready, and takes its place when that is known."""


class Reporter:
    """How a rank speaks to its parent."""

    def __init__(self, pipe: Connection) -> None:
        """Speak into `pipe`."""
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, kind: str, content: object) -> None:
        """Say something; a parent that has gone is no reason to fail."""
        self.heard(kind, content)

    def heard(self, kind: str, content: object) -> bool:
        """Say something and return whether there is a parent to hear it."""
        with self._lock, contextlib.suppress(OSError):
            self._pipe.send((kind, content))
            return True
        return False


class Inbox:
    """Orders to a rank while it runs."""

    def __init__(self, pipe: Connection) -> None:
        """Listen to `pipe` from now on."""
        self.let_go = threading.Event()
        """Whether the present groups are to be given up."""
        self._settings: queue.SimpleQueue[RankSetting | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(pipe,), name="inbox", daemon=True).start()

    def _read(self, pipe: Connection) -> None:
        from weft.training.launch.process_group import cut_off

        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, content = pipe.recv()
                if kind == LET_GO:
                    # Whoever waits in a collective must wake up to see it.
                    cut_off()
                    self.let_go.set()
                else:
                    self._settings.put(content)
        self._settings.put(None)

    def setting(self) -> RankSetting:
        """Return the place to take, when it is known."""
        found = self._settings.get()
        if found is None:
            # The supervisor is gone: nobody would ever end this process.
            os._exit(1)
        self.let_go.clear()
        return found


class RankPlace:
    """A rank's place among the others, and how it changes."""

    def __init__(self, setting: RankSetting, reporter: Reporter, inbox: Inbox) -> None:
        """Stand where `setting` says, or nowhere yet."""
        self.setting = setting
        self.waiting = setting.spare
        """Whether its place is still open."""
        self.joined = False
        """Whether it stands there."""
        self._reporter, self._inbox = reporter, inbox

    def lost(self, error: BaseException) -> bool:
        """Return whether `error` may be the end of another rank, which this one survives."""
        return self.given_up or speaks_of_another(f"{type(error).__name__}: {error}")

    @property
    def given_up(self) -> bool:
        """Return whether the present groups are to be given up."""
        return self._inbox.let_go.is_set()

    def check(self) -> None:
        """Raise where the present groups are to be given up, before anything else is begun in them."""
        if self.given_up:
            raise ConnectionError("another rank was lost")

    def give_up(self, why: BaseException, settle: Callable[[], object]) -> None:
        """Give the place up because of `why`, once the supervisor says so; `settle` ends what still uses its groups."""
        from weft.training.launch.process_group import part

        if not self.given_up:
            self._reporter.send("stranded", "".join(traceback.format_exception(why)))
        self._inbox.let_go.wait()
        settle()
        part()
        self.waiting, self.joined = True, False
        self._reporter.send("released", self.setting.rank)

    def ready(self) -> None:
        """Say that a spare has done what it can before it knows its place."""
        self._reporter.send("ready", None)

    def find(self) -> RankSetting:
        """Return where this rank stands, when that is known."""
        if self.waiting:
            self.setting, self.waiting = self._inbox.setting(), False
        return self.setting

    def take(self) -> RankSetting:
        """Join the others where this rank stands next."""
        setting = self.find()
        keep_to_one(setting)
        join(setting)
        self.joined = True
        self._reporter.send("joined", setting.rank)
        return setting


def keep_to_one(setting: RankSetting) -> None:
    """Keep this rank to one processor where those of this machine share all of its processors evenly.

    Left to the scheduler, ranks that wait for each other meet on the same processor now and then: steps of small models
    then take a tenth longer, and their times vary by a quarter. One with a GPU computes elsewhere and needs room for
    its threads.
    """
    import torch

    if setting.host != HOST or not hasattr(os, "sched_setaffinity") or torch.cuda.is_available():
        return
    processors = sorted(os.sched_getaffinity(0))
    if setting.ranks % len(processors) == 0:
        os.sched_setaffinity(0, {processors[setting.rank % len(processors)]})


def join(setting: RankSetting) -> None:
    """Join the group of ranks that `setting` describes."""
    import torch.distributed as dist

    from weft.training.launch.process_group import backend_of, connecting

    os.environ.update(RANK=str(setting.rank), WORLD_SIZE=str(setting.ranks), LOCAL_RANK=str(setting.rank))
    store = dist.TCPStore(setting.host, setting.port, is_master=False, timeout=PATIENCE)
    store = dist.PrefixStore(f"generation{setting.generation}/", store)
    backend = backend_of(setting.backend)
    if setting.checks is not None:
        from weft.training.checked_collectives import register

        backend = register(setting.checks, store, setting.rank, setting.generation)
    with connecting():
        dist.init_process_group(
            backend,
            store=store,
            rank=setting.rank,
            world_size=setting.ranks,
            timeout=PATIENCE,
        )
