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
metrics, evaluates and saves. `weft train` is this loop around the built-in model and nothing else.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.core.clock import SystemClock
from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.core.units import PICOSECONDS_PER_SECOND, FlopsPerSecond, Picoseconds
from weft.planning.cost_model.arithmetic import flops_per_token
from weft.specs import JobSpec, load_job
from weft.training import run_dir
from weft.training.checkpoint import state, tensor_digests
from weft.training.checkpoint.store import CheckpointStore, SaveHandle
from weft.training.data import BatchStream, open_corpus
from weft.training.launch.process_group import join, shared
from weft.training.metrics.energy import CPU_CORE_MW, EnergyMeter, EnergyReport, completed, estimate
from weft.training.metrics.evaluation import Evaluations
from weft.training.metrics.exposed import record_waits_in
from weft.training.metrics.ledger import Ledger, TimeClass, bubble_ps, mfu
from weft.training.metrics.peak import measure_peak
from weft.training.metrics.sinks import TensorBoard, tensorboard
from weft.training.metrics.stragglers import Watcher
from weft.training.model.optimizer import learning_rate
from weft.training.parallel import mesh
from weft.training.parallel.apply import ParallelDecoder
from weft.training.parallel.auto_plan import automatic
from weft.training.parallel.mesh import CHUNKS, Mesh
from weft.training.parallel.microbatches import MicroBatchSplit
from weft.training.parallel.reducer import Family, Reducer, local, measure_bucket
from weft.training.parallel.sharding import ShardReducer
from weft.training.recovery import supervisor_link
from weft.training.sdc import hooks
from weft.training.step import Step

_BALANCE_EVERY = 8
_PEAK_ROUND_NS = 20_000_000
_PEAK_SIZE = 512
_DENSE_FLOPS = 6
"""Of one parameter and one token, both passes: a multiplication and an addition, three times."""


class Model(Protocol):
    """What a run needs to know of a model: an `nn.Module`, or a `Spread`."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield names and parameters."""
        ...


def start(
    job: JobSpec | str, *, folder: Path | str = "runs", resume: bool = False,
    on_step: Callable[[Mapping[str, Any]], None] | None = None,
) -> "Session":  # fmt: skip
    """Join the ranks and begin a run of `job` (a spec, a built-in name or a file), or go on with its newest one.

    `on_step` is called on rank 0 with every line of the metrics. All ranks call this together.
    """
    spec = load_job(job) if isinstance(job, str) else job
    made = join(spec.backend)
    try:
        return Session(spec, Path(folder), resume=resume, on_step=on_step, owns_group=made)
    except BaseException:
        if made:
            dist.destroy_process_group()
        raise


class Session:
    """One rank's side of a training."""

    def __init__(
        self, job: JobSpec, folder: Path, *, resume: bool, on_step: Callable[[Mapping[str, Any]], None] | None,
        owns_group: bool,
    ) -> None:  # fmt: skip
        """Take part; call `start` instead."""
        self.job = job
        self.ledger = Ledger(SystemClock())
        self.life = supervisor_link.current()
        record_waits_in(self.ledger)
        self._cache = folder / ".corpora"
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        plan = self.life.plan or (automatic(job, self.ranks) if job.plan == "auto" else job.plan)
        mesh.check(job, plan, self.ranks)
        self.device = self._settle(exact=plan.exact)
        shared(self._build_corpus)
        corpus = open_corpus(job.data, self._cache)
        corpus.check_vocabulary(job.model.vocabulary)
        self.stream = BatchStream(corpus, job.batch, Seed(job.seed), held_out=job.data.held_out)
        self.mesh = Mesh.build(plan, self.rank, self.device.type)
        self.guard = hooks.guard_of(job, self.mesh)
        """What checks every step, where the job asks for it."""
        self.evaluations = Evaluations(job.evaluation.every)
        self.asked_to_stop = False
        self.parameters: list[nn.Parameter] = []
        self.elements = 0
        self.done = 0
        """Steps that the training has behind it."""
        self._model: Any = None
        self._optimizer: Optimizer | None = None
        self._reducer: Reducer | ShardReducer | None = None
        self._sharing = MicroBatchSplit.even(self.mesh.layout, job.batch.sequences // job.batch.micro)
        self._slow: list[list[float]] = []
        self.stragglers = Watcher()
        """Who holds the others up, replica by replica."""
        self._on_step, self._owns_group = on_step, owns_group
        self._folder: run_dir.RunDir | None = None
        self.folder: Path = shared(lambda: self._take_folder(folder, resume=resume))
        self._store = CheckpointStore(self.folder / run_dir.CHECKPOINTS, job.checkpoint.keep)
        self._store.before_write = self.life.writing
        self._saved_at = -1
        self._saving: SaveHandle | None = None
        self._told: SaveHandle | None = None
        self._sink: TensorBoard | None = None
        self.peak = self._measure_peak()
        self._energy = EnergyMeter() if self.rank == 0 else None
        self._results: list[dict[str, Any]] = []
        self._last: Step | None = None
        self._flops: float | None = None

    def _build_corpus(self) -> None:
        """Build the corpus once, on rank 0; the others open what is there."""
        open_corpus(self.job.data, self._cache)

    def _settle(self, *, exact: bool) -> torch.device:
        """Choose the device and, in exact mode, everything that could change bits."""
        if exact:
            # cuBLAS keeps its sums in order only with a workspace of fixed size; without a GPU it is not read.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(mode=True)
            torch.set_num_threads(1)
        if not torch.cuda.is_available():
            return torch.device("cpu")
        number = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        torch.cuda.set_device(number)
        return torch.device("cuda", number)

    def _take_folder(self, root: Path, *, resume: bool) -> Path:
        # Under a supervisor it is the supervisor who knows which run goes on.
        newest = run_dir.latest(root, self.job) if resume and not self.life.supervised else None
        there = None if newest is None else newest.folder
        if self.life.folder is not None:
            there = Path(self.life.folder)
        self._folder = run_dir.RunDir.start(root, self.job) if there is None else run_dir.RunDir.resume(there, self.job)
        self.life.opened(str(self._folder.folder))
        return self._folder.folder

    def _measure_peak(self) -> FlopsPerSecond:
        """Return what this rank's share of the machine could do at most."""
        kind = torch.bfloat16 if self.mesh.plan.precision == "bf16" else torch.float32
        if self.device.type == "cuda":
            return measure_peak(self.device, kind)
        peak = int(shared(lambda: measure_peak(self.device, kind, _PEAK_SIZE, _PEAK_ROUND_NS)))
        cores = os.cpu_count() or 1
        return FlopsPerSecond(peak * min(cores, self.ranks) // self.ranks)

    @property
    def reducer(self) -> Reducer | ShardReducer:
        """Return what sums the gradients; there is one as soon as a model is attached."""
        if self._reducer is None:
            raise UsageError("no model is attached to the run; call run.attach(model, optimizer) before its steps")
        return self._reducer

    def learning_rate(self, step: int) -> float:
        """Return what the job's schedule says for `step`, counted from 0."""
        return learning_rate(self.job.optimizer, step, self.job.steps)

    def attach(
        self, model: "nn.Module | ParallelDecoder", optimizer: Optimizer | None = None, *,
        flops_per_token: float | None = None, overlap: bool = True, loss: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Look after `model`: sum its gradients, save it with its optimizer, and load the newest checkpoint if any.

        A module of one's own is replicated over the data-parallel ranks; the plan's other axes need the built-in model.
        Its MFU counts `flops_per_token`, or six for each parameter where that is not given. `overlap = False` sends
        gradients only after backward, to see what that costs. `loss` gives the mean loss of a micro-batch's tokens, for
        guards that compute it again.
        """
        self._model, self._optimizer = model, optimizer
        self.parameters = [parameter for _, parameter in self.named() if parameter.requires_grad]
        families = self._families(model)
        if self.guard is not None:
            hooks.attach(self.guard, self, model, optimizer, loss)
        total = sum(local(one.data).numel() * local(one.data).element_size() for one in self.parameters)
        bucket = measure_bucket(families[0], self.device, total) if self.mesh.plan.shard == 1 else 0
        if isinstance(model, ParallelDecoder):
            self._reducer = model.reducer(bucket, overlap=overlap)
        else:
            self._reducer = Reducer(families, bucket_bytes=bucket, exact=self.mesh.plan.exact, overlap=overlap)
        if self.guard is not None:
            hooks.seal(self.guard, self._reducer)
        counted = sum(one.numel() for family in families if family.counted for one in family.parameters)
        shared = torch.tensor(counted if self._stands_for_replicas() else 0, dtype=torch.int64)
        dist.all_reduce(shared)
        self.elements = int(shared)
        self._flops = flops_per_token or (
            None if isinstance(model, ParallelDecoder) else float(_DENSE_FLOPS * self.elements)
        )
        self.life.watch(model, self.named())
        self._restore()

    def _stands_for_replicas(self) -> bool:
        return self.mesh.place.dp == 0 and self.mesh.place.cp == 0 and self.mesh.place.tp == 0

    def _families(self, model: "nn.Module | ParallelDecoder") -> list[Family]:
        if isinstance(model, ParallelDecoder):
            return model.families()
        plan = self.mesh.plan
        for axis in ("tp", "pp", "cp", "ep", "shard"):
            if getattr(plan, axis) > 1:
                raise UsageError(
                    f"the plan has {axis} = {getattr(plan, axis)}, which only the built-in model is spread by;"
                    f" write {axis} = 1, or spread your model yourself"
                )
        return [Family("dense", tuple(self.parameters), self.mesh.groups["replicas"])]

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Return this rank's parameters under their names in the whole model."""
        return [] if self._model is None else list(self._model.named_parameters())

    def _state(self) -> dict[str, Any]:
        buffers = {} if isinstance(self._model, ParallelDecoder) else dict(self._model.named_buffers())
        return state.state_of(self.named, buffers, self._optimizer)

    def _restore(self) -> None:
        """Load what the supervisor has found, or else the newest checkpoint of the run folder, where it has one."""
        if self.life.supervised:
            self._recall()
            self._begin_session()
            return
        if not shared(self._store.steps):
            if self._folder is not None:
                self._folder.cut_after(0)
            self._begin_session()
            return
        with self.ledger.spending(TimeClass.RESTORE):
            loaded = self._store.load(self._fillable())
        self.done = self._saved_at = loaded.step
        if self._folder is not None:
            self._folder.cut_after(loaded.step)
            for skipped in loaded.skipped:
                self._tell({"problem": f"skipped a checkpoint: {skipped}"})
        self._begin_session()

    def _recall(self) -> None:
        """Take back what the supervisor has found."""
        with self.ledger.spending(TimeClass.RESTORE):
            found = self.life.recall(self._fillable, self._store)
        self.done = found.step
        self._saved_at = found.step if found.tier == "checkpoint" else -1
        if self._folder is not None:
            self._folder.cut_after(found.step)
        with self.ledger.spending(TimeClass.VERIFY):
            self.life.restored(found, self._state)

    def _fillable(self) -> dict[str, Any]:
        """Return the state with the optimizer's tensors made, so that a load fills all of them."""
        if self._optimizer is not None:
            state.make_optimizer_state(self._optimizer)
        return self._state()

    def _begin_session(self) -> None:
        if self._folder is not None:
            self._sink = tensorboard(self.folder, self.done or None)
            self._folder.session({"begins_at": self.done, "ranks": self.ranks, "plan": self.mesh.plan.as_written()})

    def _tell(self, line: Mapping[str, Any]) -> None:
        if self._on_step is not None and self.rank == 0:
            self._on_step(line)

    def join_ends(self) -> None:
        """Add up the gradients of parameters that two pipeline stages share."""
        if isinstance(self._model, ParallelDecoder):
            self._model.join_ends()

    def steps(self) -> Iterator[Step]:
        """Yield the steps that are left; ends early, after a checkpoint, when a signal asks for it."""
        with self._listening():
            self.ledger.mark()
            while self.done < self.job.steps:
                self.life.begin(self.done)
                with self.ledger.spending(TimeClass.COMPUTE):
                    step = Step(self, self.done, self._sharing)
                    if self._optimizer is not None:
                        for group in self._optimizer.param_groups:
                            group["lr"] = step.learning_rate
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

    def book_waiting(self, waited_s: float, computed_s: float, micro_batches: int) -> None:
        """Book what a pipeline waited: the schedule's own share as bubble, the rest as exposed communication."""
        plan = self.mesh.plan
        span = Picoseconds(int(waited_s * PICOSECONDS_PER_SECOND))
        moved = self.ledger.move(TimeClass.COMPUTE, TimeClass.EXPOSED_COMMUNICATION, span)
        computed = Picoseconds(int(computed_s * PICOSECONDS_PER_SECOND))
        empty = bubble_ps(computed, plan.pp, micro_batches, CHUNKS[plan.schedule])
        self.ledger.move(TimeClass.EXPOSED_COMMUNICATION, TimeClass.BUBBLE, Picoseconds(min(moved, empty)))

    def finish(self, step: Step) -> None:
        """End a step after the optimizer's: metrics, the balance of work, evaluation and checkpoint where due."""
        if not step.reduced:
            raise UsageError(f"step {step.number} was not reduced; call step.reduce() before the optimizer's step")
        self.life.updated(self._state)
        self.done, self._last = step.number + 1, step
        if self.guard is not None:
            hooks.after(self.guard, self, step)
        self._balance(step)
        if self.evaluations.due(self.done):
            self._evaluate()
        last = self.done == self.job.steps or step.stop
        every = self.job.checkpoint.every
        keep = last or (every > 0 and self.done % every == 0)
        # The line comes first: whatever is restored after a failure, the lines of its steps are there.
        self._write(step, digest=last)
        if self._saving is not None and self._saving.done:
            self._report_save()
        if keep:
            self._save()
        with self.ledger.spending(TimeClass.CHECKPOINT):
            self.life.finished(self.done, self._state, must=keep)

    def _balance(self, step: Step) -> None:
        found = self.stragglers.step(step.replica_seconds, [len(rounds) for rounds in step.sharing.runs])
        if found.newly:
            self._tell({"problem": f"after step {self.done}, {found.told('replica')}"})
        self._slow.append(step.replica_seconds)
        if len(self._slow) == _BALANCE_EVERY:
            means = [sorted(column)[len(column) // 2] for column in zip(*self._slow, strict=True)]
            self._sharing = self._sharing.balanced(means)
            self._slow = []

    def _evaluate(self) -> None:
        self.life.phase("evaluation")
        with self.ledger.spending(TimeClass.EVALUATION):
            values = self.evaluations.run(self._model, self.done)
        self._results.append({"step": self.done, **values})
        if self._folder is not None:
            self._folder.evaluation(self.done, values)
            if self._sink is not None:
                self._sink.evaluation(self.done, values)
        self._tell({"evaluation": self._results[-1]})

    def _save(self) -> None:
        with self.ledger.spending(TimeClass.CHECKPOINT):
            if self._folder is not None:
                self._folder.sync()
            self._store.drain()
            self._report_save()
            self._saving = self._store.save(self.done, self._state(), {"job": self.job.name, "seed": self.job.seed})
        self._saved_at = self.done

    def _report_save(self) -> None:
        """Tell of a checkpoint that could not be written; the older ones are intact and training goes on."""
        saving = self._saving
        if saving is not None and saving.error is not None and saving is not self._told:
            self._told = saving
            self._tell({"problem": str(saving.error)})
            if self.rank == 0:
                self.life.trouble("checkpoint", saving.step, str(saving.error))

    def digest(self) -> str:
        """Return one digest of all weights, the same for every plan with equal bits; all ranks call it together."""
        return tensor_digests.joint_digest(state.weight_digests(self.named, self._first_copy))

    def _first_copy(self, parameter: nn.Parameter) -> bool:
        return (
            self._model.first_copy(parameter)
            if isinstance(self._model, ParallelDecoder)
            else self._stands_for_replicas()
        )

    def _write(self, step: Step, *, digest: bool) -> None:
        """Write the step's line: seconds of the average rank, whose sum is the step's wall time."""
        weights = self.digest() if digest else None
        seconds = self._mean_seconds(self.ledger.mark().seconds())
        if self.done <= self.life.redo_until:
            seconds = {TimeClass.REDO.value: sum(seconds.values())}
        tokens = self.job.batch.sequences * self.job.batch.length
        line = run_dir.StepLine(
            self.done, step.loss, step.gradient_norm, step.learning_rate, tokens, seconds, weights_digest=weights
        )
        if self._folder is not None:
            self._folder.step(line)
            if self._sink is not None:
                self._sink.step(line)
        speed = tokens / max(sum(seconds.values()), 1e-9)
        self._tell({**line.as_json(), "tokens_per_s": speed, "mfu": self._mfu(speed)})

    def _mean_seconds(self, seconds: Mapping[str, float]) -> dict[str, float]:
        vector = torch.tensor([seconds.get(kind.value, 0.0) for kind in TimeClass], dtype=torch.float64)
        with self.ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
            dist.all_reduce(vector)
        means = (vector / self.ranks).tolist()
        return {kind.value: mean for kind, mean in zip(TimeClass, means, strict=True) if mean > 0}

    def _mfu(self, tokens_per_s: float) -> float:
        flops = self._flops or flops_per_token(self.job.model, self.job.batch.length, causal=True).total
        return mfu(flops, tokens_per_s, self.peak, self.ranks)

    def close(self, *, save: bool = True) -> dict[str, Any]:
        """End the run: save what is not saved yet, write the result, leave the group; returns the result."""
        if self.guard is not None:
            self.guard.close()
        with self.ledger.spending(TimeClass.CHECKPOINT):
            if save and self._saved_at != self.done and self._last is not None:
                self._save()
            self._store.close()
            self.life.close()
        weights = self.digest()
        seconds = self._mean_seconds(self.ledger.total().seconds())
        result: dict[str, Any] = {}
        if self._folder is not None and self._energy is not None:
            energy = self._spent(self._energy, seconds)
            self._folder.session({"ends_at": self.done, "seconds": seconds, "energy_j": energy.joules})
            result = self._result(weights, energy)
            self._folder.finish(result)
            if self._sink is not None:
                self._sink.close()
            self._folder.close()
        if self._reducer is not None:
            self._reducer.close()
        record_waits_in(None)
        if self._owns_group:
            dist.destroy_process_group()
        if self._saving is not None and self._saving.error is not None:
            raise self._saving.error
        return result

    def _spent(self, meter: EnergyMeter, seconds: Mapping[str, float]) -> EnergyReport:
        """Return the energy of this session: what counters say, and a guess for the processor where none does."""
        busy = Picoseconds(int(sum(seconds.values()) * PICOSECONDS_PER_SECOND))
        cores = min(os.cpu_count() or 1, self.ranks)
        guess = estimate(f"{cores} cores", Picoseconds(busy * cores), CPU_CORE_MW, Picoseconds(0), CPU_CORE_MW)
        return completed(meter.report(), guess, "rapl")

    def _result(self, weights: str, energy: EnergyReport) -> dict[str, Any]:
        """Return what the run came to, over all its sessions."""
        record = run_dir.RunRecord(self.folder)
        lines = record.steps()
        spent = sum(sum(line["seconds"].values()) for line in lines)
        speed = sum(line["tokens"] for line in lines) / spent if spent else 0.0
        return {
            "run": self.folder.name,
            "state": "finished" if self.done >= self.job.steps else "interrupted",
            "steps": self.done,
            "final_loss": lines[-1]["loss"] if lines else None,
            "weights_digest": weights,
            "mfu": self._mfu(speed),
            "tokens_per_s": speed,
            "seconds": record.seconds(),
            "energy_j": sum(note.get("energy_j", 0.0) for note in record.sessions()),
            "energy": energy.as_json(),
            "eval": record.evaluations(),
        }
