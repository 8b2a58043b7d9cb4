"""Checkpoints of a session: saved in the background, and restored from the best state that there is, exactly or not."""

import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from weft.core.errors import FailedError
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.training.checkpoint.manifest import complete
from weft.training.checkpoint.state import RestoreTarget
from weft.training.checkpoint.store import CheckpointStore, SaveHandle
from weft.training.checkpoint.tensor_digests import joint_digest
from weft.training.launch.process_group import shared
from weft.training.metrics.ledger import TimeClass
from weft.training.rank_context import RankContext
from weft.training.recovery.orders import START_OVER
from weft.training.run_dir import stored_before
from weft.training.trained_model import TrainedModel

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0


class UnstoredError(FailedError):
    """The weights of a training that has done all its steps could not be stored: it is not finished."""


class SessionCheckpoints:
    """Saves and restores what one session trains."""

    def __init__(
        self, context: RankContext, folder: Path, report: Callable[[str], None], stored: Callable[[int], None]
    ) -> None:
        """Keep checkpoints in `folder`; all ranks make theirs together.

        `report` is called with what goes wrong, `stored` on rank 0 with the step of every checkpoint that is complete.
        """
        self._context, self._report = context, report
        self._store = CheckpointStore(folder, context.job.checkpoint.keep)
        self._store.before_write = context.life.writing
        self._store.after_write = stored
        self._saving: SaveHandle | None = None
        self._reported = ""
        self.saved_at = -1
        """Steps done in the newest checkpoint of this session."""

    def restore(self, trained: TrainedModel, cut_after: Callable[[int], object], *, start_over: bool) -> int:
        """Load what the supervisor has found, or else the newest checkpoint, where there is one; returns steps done.

        `cut_after` is called with them, so that lines of later steps go before anything new is written. Where something
        was stored once and nothing of it can be restored, this raises unless the training may `start_over`.
        """
        life, ledger = self._context.life, self._context.ledger
        if life.supervised:
            with ledger.spending(TimeClass.RESTORE):
                found = life.recall(trained.target, self._store)
            self.saved_at = found.step if found.tier == "checkpoint" else -1
            cut_after(found.step)
            for note in found.notes:
                self._report(f"not used: {note}")
            with ledger.spending(TimeClass.VERIFY):
                life.restored(found, trained.state)
            return found.step
        try:
            done = self._newest(trained)
        except FailedError as error:
            if not start_over:
                raise
            self._report(f"begins at step 0 again, as was asked for: {error}")
            done = 0
        cut_after(done)
        return done

    def _newest(self, trained: TrainedModel) -> int:
        """Load the newest checkpoint that is whole; returns 0 where nothing was ever stored."""
        if not shared(lambda: stored_before(self._store.folder.parent)):
            return 0
        made: list[RestoreTarget] = []

        def tensors(stored: object) -> dict[str, object]:
            made.append(trained.target(stored))  # type: ignore[arg-type]
            return dict(made[-1].tensors)

        try:
            with self._context.ledger.spending(TimeClass.RESTORE):
                loaded = self._store.load(tensors)
                made[-1].install()
        except FailedError as error:
            raise FailedError(f"{error}\n{START_OVER}") from None
        self.saved_at = loaded.step
        for skipped in loaded.skipped:
            self._report(f"skipped a checkpoint: {skipped}")
        return loaded.step

    def settle(self) -> None:
        """Return when no save is in flight; one that lost its peers has failed."""
        self._store.drain()

    def regroup(self) -> None:
        """Go on with the ranks that are there now; all of them call it together."""
        self._store.regroup()

    def steps(self) -> list[int]:
        """Return the steps of whole checkpoints."""
        return self._store.steps()

    def save(self, done: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy `state`, that after `done` steps, and write it in the background; waits for the save before this one."""
        job = self._context.job
        self._store.drain()
        self.report_failure()
        extra = {"job": job.name, "seed": job.seed}
        self._saving = self._store.save(done, state, extra)
        self.saved_at = done

    def report_failure(self) -> None:
        """Tell once of a checkpoint that could not be written; the older ones are intact and training goes on."""
        saving = self._saving
        if saving is None or not saving.done or saving.error is None or str(saving.error) == self._reported:
            return
        self._reported = str(saving.error)
        self._report(str(saving.error))
        if self._context.rank == 0:
            self._context.life.trouble("checkpoint", saving.step, str(saving.error))

    def store_final(self, done: int, trained: TrainedModel) -> None:
        """Return when the weights after the last step are stored and read back; all ranks call it together.

        A save that fails is tried again for as long as the job's checkpoint.patience says; then this raises.
        """
        digest = trained.digest()
        limit = time.monotonic() + self._context.job.checkpoint.patience / PICOSECONDS_PER_SECOND
        pause = _FIRST_PAUSE_S
        attempts = itertools.count(1)
        self._store.drain()
        while not shared(lambda: self._is_stored(done, digest)):
            # A phase for each: the supervisor's limit is for one of them, the job's patience for all.
            self._context.life.phase(f"final checkpoint, attempt {next(attempts)}")
            self.report_failure()
            failed = self._saving is not None and self._saving.step == done and self._saving.error is not None
            if failed and shared(lambda: time.monotonic() > limit):
                assert self._saving is not None
                raise UnstoredError(
                    f"all {done} steps are done, but the weights were not stored, so the run is not finished:"
                    f" {self._saving.error}; make room there and run it again with --resume"
                )
            if failed:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            self.save(done, trained.state())
            self._store.drain()

    def _is_stored(self, done: int, digest: str) -> bool:
        """Return whether the newest checkpoint is complete, of step `done`, and has the weights of `digest`."""
        for _, manifest in complete(self._store.folder):
            weights = {
                name.removeprefix("model."): entry.digest
                for name, entry in manifest.tensors.items()
                if name.startswith("model.")
            }
            return manifest.step == done and joint_digest(weights) == digest
        return False

    def close(self) -> FailedError | None:
        """Wait for the last save and return why it failed, where it did."""
        self._store.close()
        return None if self._saving is None else self._saving.error
