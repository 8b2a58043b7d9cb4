"""Checkpoints of a session: saved in the background, and restored from the best state that there is."""

from collections.abc import Callable
from pathlib import Path

from weft.core.errors import FailedError
from weft.training.checkpoint.store import CheckpointStore, SaveHandle
from weft.training.launch.process_group import shared
from weft.training.metrics.ledger import TimeClass
from weft.training.rank_context import RankContext
from weft.training.trained_model import TrainedModel


class SessionCheckpoints:
    """Saves and restores what one session trains."""

    def __init__(self, context: RankContext, folder: Path, report: Callable[[str], None]) -> None:
        """Keep checkpoints in `folder`; `report` is called with what goes wrong. All ranks make theirs together."""
        self._context, self._report = context, report
        self._store = CheckpointStore(folder, context.job.checkpoint.keep)
        self._store.before_write = context.life.writing
        self._saving: SaveHandle | None = None
        self._reported: SaveHandle | None = None
        self.saved_at = -1
        """Steps done in the newest checkpoint of this session."""

    def restore(self, trained: TrainedModel, cut_after: Callable[[int], object]) -> int:
        """Load what the supervisor has found, or else the newest checkpoint, where there is one; returns steps done.

        `cut_after` is called with them, so that lines of later steps go before anything new is written.
        """
        life, ledger = self._context.life, self._context.ledger
        if life.supervised:
            with ledger.spending(TimeClass.RESTORE):
                found = life.recall(trained.fillable, self._store)
            self.saved_at = found.step if found.tier == "checkpoint" else -1
            cut_after(found.step)
            with ledger.spending(TimeClass.VERIFY):
                life.restored(found, trained.state)
            return found.step
        if not shared(self._store.steps):
            cut_after(0)
            return 0
        with ledger.spending(TimeClass.RESTORE):
            loaded = self._store.load(trained.fillable())
        self.saved_at = loaded.step
        cut_after(loaded.step)
        for skipped in loaded.skipped:
            self._report(f"skipped a checkpoint: {skipped}")
        return loaded.step

    def save(self, done: int, trained: TrainedModel) -> None:
        """Copy the state after `done` steps and write it in the background; waits for the save before this one."""
        job = self._context.job
        self._store.drain()
        self.report_failure()
        self._saving = self._store.save(done, trained.state(), {"job": job.name, "seed": job.seed})
        self.saved_at = done

    def report_failure(self) -> None:
        """Tell once of a checkpoint that could not be written; the older ones are intact and training goes on."""
        saving = self._saving
        if saving is None or not saving.done or saving.error is None or saving is self._reported:
            return
        self._reported = saving
        self._report(str(saving.error))
        if self._context.rank == 0:
            self._context.life.trouble("checkpoint", saving.step, str(saving.error))

    def close(self) -> FailedError | None:
        """Wait for the last save and return why it failed, where it did."""
        self._store.close()
        return None if self._saving is None else self._saving.error
