"""Going on inside a step after a rank was lost: the survivors meet its replacement, and nothing is done twice.

Survivors keep their process, model, optimizer and the gradients of the present step. Wherever an exchange of the
session breaks, they give their process groups up, take the same places in new ones, and tell each other where they
stand (`recovery.standing` says what follows). One of them gives its state to the newcomer; those that lack the last
update make it; what was owed of the last step's end is done by all; then the exchange that broke is made again. That a
rank is lost, and who replaces it, the supervisor knows.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from weft.core.errors import FailedError
from weft.training.launch.process_group import from_everybody
from weft.training.parallel.reducer import Reducer, local
from weft.training.recovery.orders import PEERS
from weft.training.recovery.standing import (
    Continuation,
    Due,
    FinishedStep,
    OnRecord,
    Owed,
    Standing,
    continuation,
    owed,
)
from weft.training.recovery.tiers import RestoredState
from weft.training.step import Step

if TYPE_CHECKING:
    from weft.training.session import Session


class InStep:
    """What one rank needs to outlive others."""

    def __init__(self, session: "Session") -> None:
        """Serve `session`."""
        self._session = session
        self._context = session.context
        self._owed: Owed | None = None
        self._then: Owed | None = None
        self._adopted = False
        self._finished: FinishedStep | None = None
        self._kept: dict[str, dict[str, torch.Tensor]] = {}
        self._reduced: dict[str, torch.Tensor] = {}
        self._adopted_step = -1
        self._came_last = False

    @property
    def late(self) -> bool:
        """Return whether this process takes the place of a lost rank and has not joined the others yet."""
        place = self._context.life.place
        return place is not None and not place.joined

    @property
    def stopped(self) -> bool:
        """Return whether this rank has come in at the end of the step after which all stop."""
        return self._came_last

    def committed(self, finished: FinishedStep) -> None:
        """Note that this rank has made the update of a step, and that the end of that step is owed."""
        self._finished = finished
        self._owed, self._then = self._then or self._session.whole_end(finished), None
        self.keep()

    def keep(self) -> None:
        """Copy what changes before the update: a state that is given away must be that of a whole number of steps."""
        if self._context.life.place is not None:
            self._kept = {kind: _copies(held) for kind, held in self._session.trained.besides().items()}

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the state after the last step, also inside the next one before its update."""
        trained = self._session.trained
        state = trained.state()
        if self._context.life.place is None:
            return state
        for kind, held in trained.besides().items():
            state[kind] = {name: one for name, one in state[kind].items() if name not in held}
        for kind, held in self._kept.items():
            state[kind] = {**state.get(kind, {}), **held}
        return {kind: held for kind, held in state.items() if held}

    def end_buffers(self, step: Step) -> None:
        """Make the buffers equal at the end of `step`, where that was not done before the update."""
        life, buffers = self._context.life, self._session.trained.buffers
        if life.place is None or buffers.obstacle is not None:
            buffers.end(step.split)
            return
        if all(torch.equal(one, self._reduced[name]) for name, one in buffers.named().items()):
            return
        # A loop changes them after its update: then they count as they are here, and no rank is replaced any more.
        if step.number == self._adopted_step:
            raise FailedError("the ranks cannot go on inside the step: the loop changes buffers after its update")
        life.survives("the loop changes the model's buffers between run.reduce and run.finish")
        buffers.end(step.split)

    @contextlib.contextmanager
    def _buffers_as_kept(self, step: Step | None) -> Iterator[None]:
        """Have buffers be those of the last step's end, where the next one's forward passes have changed them."""
        live = self._session.trained.buffers.named() if step is not None else {}
        present = _copies(live)
        try:
            for name, one in live.items():
                one.detach().copy_(self._kept["buffers"][name])
            yield
        finally:
            for name, one in live.items():
                one.detach().copy_(present[name])

    def through(self, exchange: Callable[[], None] | None = None, step: Step | None = None) -> None:
        """Do what is owed of the last step and then make `exchange`, again whenever another rank is lost meanwhile."""
        place = self._context.life.place
        while True:
            try:
                if place is not None:
                    place.check()
                if self._owed is not None and self._finished is not None:
                    with self._buffers_as_kept(step):
                        self._session.end(self._finished, self._owed)
                    self._owed = None
                if self._adopted:
                    self._adopted = False
                elif exchange is not None:
                    exchange()
            except Exception as error:
                if place is None or not place.lost(error):
                    raise
                self._go_on(error, step)
            else:
                if place is not None and step is not None:
                    self._reduced = _copies(self._session.trained.buffers.named())
                return

    def _go_on(self, error: Exception, step: Step | None) -> None:
        """Meet the others again, with another rank in place of the lost one."""
        context, trained = self._context, self._session.trained
        place, reducer = context.life.place, trained.reducer
        assert place is not None, "only a rank with a place can change it"
        assert isinstance(reducer, Reducer), "plans that shard are not recovered inside a step"

        def settle() -> None:
            reducer.settle()
            self._session.checkpoints.settle()
            context.life.settle()

        place.give_up(error, settle)
        self._join()
        course, everybody = self._meet()
        if step is not None and context.rank in course.late:
            reducer.regroup(context.mesh.groups["replicas"])
            assert course.finished is not None, "whoever has made an update knows its step"
            step.adopt(course.finished)
            self._adopted, self._adopted_step = True, step.number
            self._then = self._left(course, everybody)
        else:
            reducer.again(context.mesh.groups["replicas"])
            self._owed = self._left(course, everybody)
        self._report(course)

    def _join(self) -> None:
        context = self._context
        assert context.life.place is not None, "only a rank with a place can take one"
        setting = context.life.place.take()
        context.life.renew()
        context.move(setting.rank)
        self._session.checkpoints.regroup()

    def take_over(self) -> int:
        """Take the place of a lost rank, with the state of another one; returns steps done."""
        context, session, trained = self._context, self._session, self._session.trained
        assert context.life.place is not None, "only a rank with a place can take one"
        context.life.place.ready()
        self._join()
        session.metrics.take_over()
        course, everybody = self._meet()
        given = everybody[course.source].carried or {}
        self._fill(everybody[course.source], course.source)
        trained.join_with(given["bucket_bytes"])
        session.carry(given["session"])
        self._came_last = course.finished is not None and course.finished.stop
        self._finished, self._owed = course.finished, self._left(course, everybody)
        self.keep()
        self._report(course)
        return course.step

    def _meet(self) -> tuple[Continuation, list[Standing]]:
        """Tell the others where this rank stands, hear where they do, and hand the state on."""
        everybody: list[Standing] = from_everybody(self._standing())
        try:
            course = continuation(everybody)
        except ValueError as error:
            raise FailedError(f"the ranks cannot go on inside the step: {error}") from None
        if self._context.rank == course.source:
            (newcomer,) = (rank for rank, one in enumerate(everybody) if one.new)
            state = self._state()
            for name in everybody[course.source].tensors:
                if state[name].numel():
                    dist.send(_as_bytes(state[name].contiguous()), newcomer)
        return course, everybody

    def _standing(self) -> Standing:
        session = self._session
        written = None
        if self._context.rank == 0:
            written = OnRecord(*session.metrics.written(), tuple(session.checkpoints.steps()))
        if not session.attached:
            return Standing(-1, new=True, written=written)
        state = self._state()
        carried = {
            "stored": {name: (tuple(one.shape), str(one.dtype).removeprefix("torch.")) for name, one in state.items()},
            "bucket_bytes": session.trained.bucket_bytes,
            "session": session.carried(),
        }
        names = tuple(sorted(state))
        return Standing(
            session.done, finished=self._finished, open=self._owed is not None, tensors=names, carried=carried,
            written=written,
        )  # fmt: skip

    def _state(self) -> dict[str, torch.Tensor]:
        return {f"{part}.{name}": local(one) for part, held in self.state().items() for name, one in held.items()}

    def _fill(self, giver: Standing, source: int) -> None:
        """Receive the state of rank `source` into this one's."""
        stored = {name: _Described(*one) for name, one in (giver.carried or {})["stored"].items()}
        target = self._session.trained.fillable(stored)
        mine = {f"{part}.{name}": one for part, tensors in target.tensors.items() for name, one in tensors.items()}
        with torch.no_grad():
            for name in giver.tensors:
                memory = local(mine[name])
                if not memory.numel():
                    continue
                # What lies in strides cannot be received in place.
                got = memory if memory.is_contiguous() else memory.contiguous()
                dist.recv(_as_bytes(got), source)
                if got is not memory:
                    memory.copy_(got)
        target.install()

    def _left(self, course: Continuation, everybody: list[Standing]) -> Owed | None:
        finished, written = course.finished, everybody[0].written
        assert written is not None, "rank 0 says what is written down"
        if finished is None:
            return None
        whole = self._session.whole_end(finished)
        return owed(course, Due(whole.evaluation, whole.save), written)

    def _report(self, course: Continuation) -> None:
        """Have the supervisor compare what the ranks hold now; who is late holds the state of the step before."""
        late = self._context.rank in course.late
        state = self._session.trained.state()
        if "buffers" in state:
            # Everything else must be equal as it is now: who has changed it inside a step is not gone on with.
            state["buffers"] = self._kept["buffers"]
        self._context.life.restored(RestoredState(PEERS, course.step, ()), lambda: {} if late else state)


@dataclass(frozen=True, slots=True)
class _Described:
    """A tensor of another rank's state."""

    shape: tuple[int, ...]
    dtype: str


def _copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in tensors.items()}


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor: not every type of element can be sent."""
    return tensor.detach().reshape(-1).view(torch.uint8)
