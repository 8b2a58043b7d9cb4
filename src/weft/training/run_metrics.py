"""What a session writes down: step lines, evaluations, sessions and the result, in the run folder and in sinks.

Rank 0 writes; the others take part in the sums over ranks.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from weft.core.errors import FailedError
from weft.core.units import PICOSECONDS_PER_SECOND, FlopsPerSecond, Picoseconds
from weft.specs import JobSpec
from weft.training import run_dir
from weft.training.launch.process_group import shared
from weft.training.metrics.energy import CPU_CORE_MW, EnergyMeter, EnergyReport, completed, estimate
from weft.training.metrics.ledger import TimeClass, mfu
from weft.training.metrics.peak import measure_peak
from weft.training.metrics.sinks import Sinks
from weft.training.metrics.step_line import StepLine
from weft.training.rank_context import RankContext
from weft.training.recovery.standing import FinishedStep

_PEAK_ROUND_NS = 20_000_000
_PEAK_SIZE = 512
_MOST_RANKS_LISTED = 1024
"""With more ranks a step's line holds means alone: a list of each would be most of the file."""
_MOST_PLANES = 52
"""Bits that a sum of doubles keeps."""

OnLine = Callable[[Mapping[str, Any]], None]


class RunMetrics:
    """The record of one session on one rank."""

    def __init__(
        self, context: RankContext, root: Path, on_line: OnLine | None, *, resume: bool, model: str | None = None
    ) -> None:
        """Take a run folder below `root`: a new one, or the newest of this job; all ranks call it together."""
        self._context, self._on_line, self._model = context, on_line, model
        self._dir: run_dir.RunDir | None = None
        self.folder: Path
        # What a run keeps of the job that it was begun with holds on every rank.
        self.folder, context.job = shared(lambda: self._take(root, resume=resume))
        self._sinks: Sinks | None = None
        self.peak = self._measure_peak()
        """Arithmetic that this rank could do at most."""
        self._energy = EnergyMeter() if self._dir is not None else None
        self._lap = EnergyMeter() if self._dir is not None else None
        self.flops_per_token = 0.0
        """Operations for one token, for MFU; known as soon as a model is attached."""

    def _take(self, root: Path, *, resume: bool) -> tuple[Path, JobSpec]:
        life = self._context.life
        job = self._context.job
        if job.plan == "auto":
            # Written down, so that no other number of ranks silently gives another split of the model.
            job = job.model_copy(update={"plan": self._context.mesh.plan})
        # Under a supervisor it is the supervisor who knows which run goes on.
        newest = run_dir.latest(root, job) if resume and not life.supervised else None
        there = None if newest is None else newest.folder
        if life.folder is not None:
            there = Path(life.folder)
        if there is not None and life.place is not None and not life.place.joined:
            # Whose folder it is to write into is known when this rank takes its place.
            return there, run_dir.RunRecord(there).job()
        if there is None:
            self._dir = run_dir.RunDir.start(root, job, self._corpus, self._model)
        else:
            self._dir = run_dir.RunDir.resume(there, job, self._corpus)
        life.opened(str(self._dir.folder))
        return self._dir.folder, self._dir.job

    @property
    def _corpus(self) -> str:
        return self._context.stream.corpus.manifest.digest

    def _measure_peak(self) -> FlopsPerSecond:
        device, ranks = self._context.device, self._context.ranks
        kind = torch.bfloat16 if self._context.mesh.plan.precision == "bf16" else torch.float32
        if device.type == "cuda":
            return measure_peak(device, kind)
        peak = int(shared(lambda: measure_peak(device, kind, _PEAK_SIZE, _PEAK_ROUND_NS)))
        # Ranks share the cores of a machine.
        cores = os.cpu_count() or 1
        return FlopsPerSecond(peak * min(cores, ranks) // ranks)

    def tell(self, line: Mapping[str, Any]) -> None:
        """Give a line to whoever follows the run."""
        if self._on_line is not None and self._context.rank == 0:
            self._on_line(line)

    def problem(self, text: str) -> None:
        """Say what went wrong without stopping the run."""
        self.tell({"problem": text})

    def cut_after(self, step: int) -> None:
        """Remove the lines of later steps, which will be done again."""
        if self._dir is not None:
            self._dir.cut_after(step)

    def begin_session(self, done: int) -> None:
        """Write down that work goes on after `done` steps."""
        for note in () if self._dir is None else self._dir.notes:
            self.problem(f"after step {done:,}: {note}")
        self._context.ledger.leave()
        spent = self._joules(self._context.ledger.mark().seconds())
        if self._dir is not None:
            self._sinks = Sinks.open(self.folder, done or None, self.problem, self._context.job.sinks)
            plan = self._context.mesh.plan.as_written()
            self._dir.session({"begins_at": done, "ranks": self._context.ranks, "plan": plan, "energy_j": spent})

    def _joules(self, seconds: Mapping[str, float]) -> float | None:
        """Return the energy since the last call, in which the average rank spent `seconds`; nothing but on rank 0."""
        return None if self._lap is None else self._spent(self._lap.lap(), seconds).joules

    def take_over(self) -> None:
        """Write from now on, where this rank has become the one that does."""
        if self._context.rank == 0 and self._dir is None:
            self._dir = run_dir.RunDir.resume(self.folder, self._context.job, self._corpus)
            self._energy, self._lap = EnergyMeter(), EnergyMeter()

    def written(self) -> tuple[int, int]:
        """Return the newest steps that have a line and an evaluation."""
        return run_dir.last_step(self.folder / run_dir.METRICS), run_dir.last_step(self.folder / run_dir.EVALUATIONS)

    def step(self, step: FinishedStep, weights_digest: str | None, batches: int = 0) -> None:
        """Write the step's line: seconds of the average rank, whose sum is the step's wall time."""
        context, done = self._context, step.done
        own = context.ledger.mark().seconds()
        seconds, by_rank = self._over_ranks(own, batches)
        if done <= context.life.redo_until:
            seconds = {TimeClass.REDO.value: sum(seconds.values())}
        tokens = context.job.batch.sequences * context.job.batch.length
        line = StepLine(
            done, step.loss, step.gradient_norm, step.learning_rate, tokens, seconds, weights_digest=weights_digest,
            energy_j=self._joules(seconds), **by_rank,
        )  # fmt: skip
        if self._dir is not None:
            self._dir.step(line)
        if self._sinks is not None:
            self._sinks.step(line)
        speed = tokens / max(sum(seconds.values()), 1e-9)
        self.tell({**line.as_json(), "tokens_per_s": speed, "mfu": self._mfu(speed)})

    def evaluation(self, done: int, values: Mapping[str, float]) -> None:
        """Write down an evaluation."""
        if self._dir is not None:
            self._dir.evaluation(done, values)
        if self._sinks is not None:
            self._sinks.evaluation(done, values)
        self.tell({"evaluation": {"step": done, **values}})

    def sync(self) -> None:
        """Put all lines on the disk, before a checkpoint that counts on them."""
        if self._dir is not None:
            self._dir.sync()

    def stored(self, step: int) -> None:
        """Note outside the checkpoints' folder that there was one: should it be lost, nobody starts over unasked."""
        if self._dir is not None:
            # The checkpoint is there, whether or not a note about it can be written.
            with contextlib.suppress(FailedError):
                self._dir.session({"stored": step})

    def close(self, done: int, weights_digest: str, *, finished: bool) -> dict[str, Any]:
        """Write the result and let go of the folder; returns it on rank 0, nothing elsewhere."""
        seconds = self._mean_seconds(self._context.ledger.total().seconds())
        if self._dir is None or self._energy is None:
            return {}
        energy = self._spent(self._energy.lap(), seconds)
        self._dir.session({"ends_at": done, "seconds": seconds, "energy_j": energy.joules})
        result = self._result(done, weights_digest, energy, finished=finished)
        self._dir.finish(result)
        if self._sinks is not None:
            self._sinks.close()
        self._dir.close()
        return result

    def _mean_seconds(self, seconds: Mapping[str, float]) -> dict[str, float]:
        return self._over_ranks(seconds, listed=0)[0]

    def _over_ranks(
        self, seconds: Mapping[str, float], batches: int = 0, listed: int = _MOST_RANKS_LISTED
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Return seconds by class of the average rank, and what a step's line says of every rank."""
        ranks, rank, classes = self._context.ranks, self._context.rank, len(TimeClass)
        life = self._context.life
        waits = sum(seconds.get(kind.value, 0.0) for kind in (TimeClass.EXPOSED_COMMUNICATION, TimeClass.BUBBLE))
        planes_out = sum(1 << plane for plane in life.planes_out if plane < _MOST_PLANES)
        own = (
            seconds.get(TimeClass.COMPUTE.value, 0.0), waits, seconds.get(TimeClass.INPUT.value, 0.0), batches,
            planes_out,
        )  # fmt: skip
        # One vector for all of it: every rank adds to the sums and fills its own places.
        vector = torch.zeros(classes + (len(own) * ranks if ranks <= listed else 0), dtype=torch.float64)
        vector[:classes] = torch.tensor([seconds.get(kind.value, 0.0) for kind in TimeClass], dtype=torch.float64)
        if ranks <= listed:
            vector[classes:].view(len(own), ranks)[:, rank] = torch.tensor(own, dtype=torch.float64)
        with self._context.ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
            dist.all_reduce(vector)
        means = (vector[:classes] / ranks).tolist()
        found = {kind.value: mean for kind, mean in zip(TimeClass, means, strict=True) if mean > 0}
        if ranks > listed:
            return found, {}
        computed, waited, fed, counts, out = vector[classes:].view(len(own), ranks).tolist()
        return found, {
            "rank_seconds": computed, "rank_waits": waited, "rank_input": fed,
            "rank_batches": [int(count) for count in counts], "planes_out": [int(mask) for mask in out],
        }  # fmt: skip

    def _mfu(self, tokens_per_s: float) -> float:
        return mfu(self.flops_per_token, tokens_per_s, self.peak, self._context.ranks)

    def _spent(self, read: EnergyReport, seconds: Mapping[str, float]) -> EnergyReport:
        """Return the energy of a span of time: what counters say, and a guess for the processor where none does."""
        busy = Picoseconds(int(sum(seconds.values()) * PICOSECONDS_PER_SECOND))
        cores = min(os.cpu_count() or 1, self._context.ranks)
        guess = estimate(f"{cores} cores", Picoseconds(busy * cores), CPU_CORE_MW, Picoseconds(0), CPU_CORE_MW)
        return completed(read, guess, "rapl")

    def _result(self, done: int, weights_digest: str, energy: EnergyReport, *, finished: bool) -> dict[str, Any]:
        """Return what the run came to, over all its sessions."""
        record = run_dir.RunRecord(self.folder)
        lines = record.steps()
        spent = sum(sum(line["seconds"].values()) for line in lines)
        speed = sum(line["tokens"] for line in lines) / spent if spent else 0.0
        return {
            "run": self.folder.name,
            "state": "finished" if finished else "interrupted",
            "steps": done,
            "final_loss": lines[-1]["loss"] if lines else None,
            "weights_digest": weights_digest,
            "mfu": self._mfu(speed),
            "tokens_per_s": speed,
            "seconds": record.seconds(),
            "energy_j": record.energy_j(),
            "energy": energy.as_json(),
            "eval": record.evaluations(),
        }
