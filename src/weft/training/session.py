"""A training as a library: weft's parts in somebody's own loop, in a few lines.

    run = weft.start("job.toml", resume=True)
    run.attach(model, optimizer)
    for step in run.steps():
        for tokens in step.micro_batches():
            loss = ...; loss.backward(); step.add(loss)
        step.reduce()
        optimizer.step()
        run.finish(step)
    print(run.close())

`start` joins the group of ranks (from a launcher, from torchrun's environment, or alone), makes the mesh and takes a
run folder; `attach` gives the model's gradients to the reducer and loads the newest checkpoint; `finish` writes
metrics, evaluates and saves. `weft train` is this loop and nothing else.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from weft.core.errors import UsageError
from weft.specs import JobSpec, load_job
from weft.training import run_dir
from weft.training.checkpoint.state import HasState
from weft.training.checkpoint.tensor_digests import joint_digest
from weft.training.in_step import InStep
from weft.training.launch.process_group import join
from weft.training.metrics.evaluation import Evaluations
from weft.training.metrics.exposed import record_waits_in
from weft.training.metrics.ledger import TimeClass
from weft.training.metrics.stragglers import Watcher
from weft.training.model.optimizer import learning_rate
from weft.training.parallel.microbatches import MicroBatchSplit
from weft.training.parallel.parallel_model import ParallelModel
from weft.training.parallel.reducer import Reducer
from weft.training.parallel.sharding import ShardReducer
from weft.training.rank_context import RankContext
from weft.training.recovery import supervisor_link
from weft.training.recovery.standing import FinishedStep, Owed
from weft.training.restore import SessionCheckpoints
from weft.training.run_metrics import OnLine, RunMetrics
from weft.training.sdc.guard import Guard
from weft.training.step import Step, seed_all
from weft.training.trained_model import TrainedModel

_BALANCE_EVERY = 8
_DENSE_FLOPS = 6
"""Of one parameter and one token, both passes: a multiplication and an addition, three times."""


def start(
    job: JobSpec | str, *, folder: Path | str = "runs", resume: bool = False, start_over: bool = False,
    on_step: OnLine | None = None, model: str | None = None,
) -> "Session":  # fmt: skip
    """Join the ranks and begin a run of `job` (a spec, a built-in name or a file), or go on with its newest one.

    Where that one has stored something and nothing of it can be restored exactly, this is refused unless it may
    `start_over`. `on_step` is called on rank 0 with every line of the metrics. `model` is written down as the name of
    what is trained. Random numbers are seeded, so that every rank draws the same weights. All ranks call this together.
    """
    spec = load_job(job) if isinstance(job, str) else job
    place = supervisor_link.current().place
    # A spare joins when it knows its place; until then it does what needs no other rank.
    made = join(spec.backend) if place is None or place.joined else False
    try:
        context = RankContext.join(spec, Path(folder))
        seed_all(spec.seed)
        metrics = RunMetrics(context, Path(folder), on_step or context.life.line, resume=resume, model=model)
        return Session(context, metrics, owns_group=made, start_over=start_over)
    except BaseException:
        if made:
            dist.destroy_process_group()
        raise


class Session:
    """One rank's side of a training."""

    def __init__(
        self, context: RankContext, metrics: RunMetrics, *, owns_group: bool, start_over: bool = False
    ) -> None:
        """Take part; call `start` instead."""
        self.context, self.metrics = context, metrics
        self.job, self.ranks = context.job, context.ranks
        self.mesh, self.device, self.stream = context.mesh, context.device, context.stream
        self.ledger, self.life = context.ledger, context.life
        self.folder, self.peak = metrics.folder, metrics.peak
        self.evaluations = Evaluations(self.job.evaluation.every)
        self.asked_to_stop = False
        self.done = 0
        """Steps that the training has behind it."""
        self.stragglers = Watcher()
        """Who holds the others up, replica by replica."""
        self.checkpoints = SessionCheckpoints(
            context, self.folder / run_dir.CHECKPOINTS, metrics.problem, metrics.stored
        )
        self._trained: TrainedModel | None = None
        self._split = MicroBatchSplit.even(self.mesh.layout, self.job.batch.sequences // self.job.batch.micro)
        self._replica_seconds: list[list[float]] = []
        self._stepped = False
        self._owns_group, self._start_over = owns_group, start_over
        self._in_step = InStep(self)
        self.attached = False
        """Whether the state of the training is there."""

    @property
    def rank(self) -> int:
        """Return this rank's number; a spare waits until it knows."""
        place = self.context.life.place
        return self.context.rank if place is None else place.find().rank

    @property
    def guard(self) -> Guard | None:
        """Return what checks every step, where the job asks for it."""
        return self.context.guard

    @property
    def trained(self) -> TrainedModel:
        """Return the model with its optimizer and reducer; there is one as soon as a model is attached."""
        if self._trained is None:
            raise UsageError("no model is attached to the run; call run.attach(model, optimizer) before its steps")
        return self._trained

    @property
    def reducer(self) -> Reducer | ShardReducer:
        """Return what sums the gradients."""
        return self.trained.reducer

    def learning_rate(self, step: int) -> float:
        """Return what the job's schedule says for `step`, counted from 0."""
        return learning_rate(self.job.optimizer, step, self.job.steps)

    def attach(
        self, model: nn.Module | ParallelModel, *stateful: HasState | None, flops_per_token: float | None = None,
        overlap: bool = True, loss: Callable[[Tensor], Tensor] | None = None, buffers: str = "broadcast",
    ) -> None:  # fmt: skip
        """Look after `model`: sum its gradients, save it with all its state, and load the newest checkpoint if any.

        `stateful` are its optimizers, and whatever else goes on changing and has a `state_dict`, such as schedulers.
        `buffers` says whose count on several replicas: "broadcast", "synchronised" or "local" (`parallel.buffers`).
        A module of one's own is replicated over the data-parallel ranks; for the plan's other axes give a
        `ParallelModel`. Its MFU counts `flops_per_token`, or six for each parameter where that is not known.
        `overlap = False` sends gradients only after backward, to see what that costs. `loss` gives the mean loss of a
        micro-batch's tokens, for guards that compute it again.
        """
        given = [one for one in stateful if one is not None]
        trained = self._trained = TrainedModel(self.context, model, given, loss, overlap=overlap, buffers=buffers)
        self.metrics.flops_per_token = (
            flops_per_token or trained.model.flops_per_token() or float(_DENSE_FLOPS * trained.elements)
        )
        if self._in_step.late:
            self.done = self._in_step.take_over()
            self.life.watch(trained.model.stages, trained.named())
        else:
            trained.check_equal()
            self.life.watch(trained.model.stages, trained.named())
            self.life.survives(trained.obstacle)
            self.done = self.checkpoints.restore(trained, self.metrics.cut_after, start_over=self._start_over)
            if self.done > self.job.steps:
                raise UsageError(
                    f"{self.folder} has {self.done:,} steps behind it, and the job asks for {self.job.steps:,}; write"
                    f" steps = {self.done} or more, or start a new run without --resume"
                )
            self._in_step.keep()
        self.attached = True
        self.metrics.begin_session(self.done)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Return this rank's parameters under their names in the whole model."""
        return [] if self._trained is None else self._trained.named()

    def digest(self) -> str:
        """Return one digest of all weights, the same for every plan with equal bits; all ranks call it together."""
        return self.trained.digest()

    def step(self, number: int) -> Step:
        """Begin step `number`, counted from 0."""
        # Asked when the step is reduced: a signal during the step counts for this one.
        step = Step(
            self.context, self.trained, number, self._split, self.learning_rate(number), lambda: self.asked_to_stop,
        )  # fmt: skip
        step.survive = self._in_step.through
        return step

    def steps(self) -> Iterator[Step]:
        """Yield the steps that are left; ends early, after a checkpoint, when a signal asks for it."""
        with self._listening():
            self.ledger.mark()
            # A rank that has taken another's place may come in at the end of a step.
            self._in_step.through()
            while self.done < self.job.steps and not self._in_step.stopped:
                self.life.begin(self.done)
                with self.ledger.spending(TimeClass.COMPUTE):
                    step = self.step(self.done)
                    self.trained.set_learning_rate(step.learning_rate)
                    yield step
                if self.done == step.number:
                    raise UsageError(f"step {step.number} was not finished; call run.finish(step) at its end")
                if step.stop:
                    self.asked_to_stop = True
                    return

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Take SIGTERM, and Ctrl-C where no launcher does, as the wish to stop after the present step."""

        def ask(number: int, frame: object) -> None:
            del number, frame
            self.asked_to_stop = True

        before: dict[int, Any] = {}
        with contextlib.suppress(ValueError):
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def finish(self, step: Step) -> None:
        """End a step after the optimizer's: metrics, the balance of work, evaluation and checkpoint where due."""
        if not step.reduced:
            raise UsageError(f"step {step.number} was not reduced; call step.reduce() before the optimizer's step")
        trained = self.trained
        self._in_step.end_buffers(step)
        self.life.updated(trained.state)
        self.done, self._stepped = step.number + 1, True
        whole = self.whole_end(step.finished())
        if self.guard is not None:
            with self.ledger.spending(TimeClass.VERIFY):
                self.guard.after_update(step.number, [end for run in step.split.runs for end in (run.start, run.stop)])
                if whole.save or whole.evaluation:
                    # What is kept or judged must be known to be good first.
                    self.guard.settle()
        self._balance(step)
        self._in_step.committed(step.finished())
        self._in_step.through()

    def whole_end(self, step: FinishedStep) -> Owed:
        """Return all that belongs to the end of `step`."""
        every = self.job.checkpoint.every
        keep = self._is_last(step) or (every > 0 and step.done % every == 0)
        return Owed(evaluation=self.evaluations.due(step.done), save=keep)

    def _is_last(self, step: FinishedStep) -> bool:
        return step.done == self.job.steps or step.stop

    def end(self, step: FinishedStep, owed: Owed) -> None:
        """Do what is `owed` of the end of `step`; all ranks call it together."""
        if owed.evaluation:
            # What it draws is a function of the step, whoever evaluates and after what.
            seed_all(self.stream.torch_seed(step.number, self._split.count + 2))
            self._evaluate()
        # The line comes first: whatever is restored after a failure, the lines of its steps are there.
        if owed.line:
            batches = len(self._split.indices(self.context.mesh.place))
            self.metrics.step(step, self.trained.digest() if self._is_last(step) else None, batches)
        self.checkpoints.report_failure()
        if owed.save:
            self._save()
        if owed.snapshot:
            with self.ledger.spending(TimeClass.CHECKPOINT):
                self.life.finished(self.done, self._in_step.state, must=self.whole_end(step).save)

    def carried(self) -> Any:
        """Return what a rank that joins late must know of this one to divide micro-batches as it does."""
        return self._split, [list(seconds) for seconds in self._replica_seconds]

    def carry(self, given: Any) -> None:
        """Go by what another rank has `carried`."""
        self._split, self._replica_seconds = given

    def _balance(self, step: Step) -> None:
        """Move micro-batches away from slow replicas, by the medians of the last few steps."""
        found = self.stragglers.step(step.replica_seconds, [len(rounds) for rounds in step.split.runs])
        if found.newly:
            self.metrics.problem(f"after step {self.done}, {found.sentence('replica')}")
        if self.trained.buffers.width_counts:
            # Which replica's buffers count must not depend on how fast replicas are.
            return
        self._replica_seconds.append(step.replica_seconds)
        if len(self._replica_seconds) == _BALANCE_EVERY:
            medians = [sorted(column)[len(column) // 2] for column in zip(*self._replica_seconds, strict=True)]
            self._split = self._split.balanced(medians)
            self._replica_seconds = []

    def _evaluate(self) -> None:
        self.life.phase("evaluation")
        with self.ledger.spending(TimeClass.EVALUATION):
            values = self.evaluations.run(self.trained.given, self.done)
            self.trained.reshard()
        self.metrics.evaluation(self.done, values)

    def _save(self) -> None:
        with self.ledger.spending(TimeClass.CHECKPOINT):
            self.metrics.sync()
            self.checkpoints.save(self.done, self._in_step.state())

    def close(self, *, save: bool = True) -> dict[str, Any]:
        """End the run: save what is not saved yet, write the result, leave the group; returns the result.

        A run that has done all its steps is finished when its weights are stored and were read back.
        """
        self.life.survives("the ranks were ending")
        if self.guard is not None:
            self.guard.close()
        try:
            return self._end(save=save)
        finally:
            record_waits_in(None)
            if self._owns_group:
                dist.destroy_process_group()

    def _end(self, *, save: bool) -> dict[str, Any]:
        whole = save and self.done >= self.job.steps and self._trained is not None
        with self.ledger.spending(TimeClass.CHECKPOINT):
            if whole:
                self.checkpoints.store_final(self.done, self.trained)
            elif save and self.checkpoints.saved_at != self.done and self._stepped:
                self._save()
            failed = self.checkpoints.close()
            self.life.close()
        digest = joint_digest({}) if self._trained is None else self._trained.digest()
        result = self.metrics.close(self.done, digest, finished=whole)
        if self._trained is not None:
            self._trained.reducer.close()
        if failed is not None and not whole:
            raise failed
        return result
