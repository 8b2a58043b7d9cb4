"""What the guard costs: one training, its guard switched on and off in turns, and the ratio of the two.

    python benchmarks/guard.py [--steps 60] [--tokens 4096]

Times are processor seconds of the training process, so that a busy machine disturbs them little. Two measures: blocks
of steps with and without the guard alternate, and the middle steps of each kind are compared (the whole cost, with the
noise of the machine); and the processor seconds inside the guard's own calls are set against those of the whole step
(without what the exchange costs in gloo's threads). Digests are compared after every step, with and without the second
digest that finds state which changed between updates. The share falls as the tokens that a rank sees in a step grow.
"""

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from weft.specs.job import BatchSpec, DataSpec, GuardSpec, JobSpec, ModelSpec, PlanSpec
from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks
from weft.training.model.optimizer import adamw
from weft.training.parallel.apply import parallelize
from weft.training.parallel.reducer import Reducer
from weft.training.sdc.guard import Guard
from weft.training.session import Session, start

RANKS, BLOCK, LENGTH = 2, 5, 256
GOAL = 0.02


def _switch(run: Session, guard: Guard, *, on: bool, at_rest: bool) -> None:
    """Switch the guard of `run` on or off, and what it finds between updates."""
    guard.settle()
    guard.spec = guard.spec.model_copy(update={"at_rest": at_rest})
    guard._rest = None  # noqa: SLF001 - the steps before this one were not guarded
    guard.checksums.forget()
    run.context.guard = guard if on else None
    assert isinstance(run.reducer, Reducer)
    for bucket in run.reducer.buckets:
        bucket.watch = guard.checksums if on and at_rest else None


@dataclass
class _Inside:
    """Processor seconds inside the guard's own calls, on whatever thread."""

    seconds: float = 0.0

    def around(self, owner: Any, *names: str) -> None:
        """Time every call of the methods `names` of `owner`."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.thread_time()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - begun

        return timed


def rank(reporter: Reporter, job: JobSpec, folder: str) -> dict[str, Any]:
    """Be one rank: train and return processor seconds by kind of step."""
    del reporter
    torch.set_num_threads(1)
    run = start(job, folder=folder)
    guard = run.guard
    assert guard is not None
    model = parallelize(run)
    optimizer = adamw(model.parameters(), job.optimizer)
    run.attach(model, optimizer)
    kinds = ("off", "digests", "digests and at rest")
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    own: dict[str, list[float]] = {kind: [] for kind in kinds}
    inside = _Inside()
    inside.around(guard, "begin", "fed", "leaf", "before_update", "after_update")
    inside.around(guard.checksums, "put", "check")
    kind = ""
    for step in run.steps():
        block, place = divmod(step.number, BLOCK)
        if place == 0:
            kind = kinds[block % len(kinds)]
            _switch(run, guard, on=kind != "off", at_rest=kind == kinds[2])
        begun, before = time.process_time(), inside.seconds
        model.forward_backward(step)
        step.reduce()
        optimizer.step()
        run.finish(step)
        # The first step of a block still has caches to fill and no digest to compare with.
        if block and place:
            spent[kind].append(time.process_time() - begun)
            own[kind].append(inside.seconds - before)
    run.context.guard = guard
    parameters = sum(parameter.numel() for parameter in model.parameters())
    run.close()
    return {
        "seconds": {kind: median(values) for kind, values in spent.items()},
        "inside": {kind: median(values) for kind, values in own.items()},
        "parameters": parameters,
    }


def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=60, help="steps in all")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens that a rank sees in a step")
    chosen = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as folder:
        job = JobSpec(
            name="guard-cost", steps=chosen.steps,
            model=ModelSpec(layers=4, width=256, heads=4, ffn=688), data=DataSpec(),
            batch=BatchSpec(sequences=RANKS * chosen.tokens // LENGTH, micro=4, length=LENGTH),
            plan=PlanSpec(dp=RANKS), guard=GuardSpec(digest_every=1),
        )  # fmt: skip
        found = Ranks("guard:rank", RANKS, {"job": job, "folder": folder}).run()[0]
    seconds = found["seconds"]
    print(f"{found['parameters']:,} parameters, {RANKS} ranks, {chosen.tokens} tokens for each rank in a step")
    for kind, value in seconds.items():
        cost = value / seconds["off"] - 1
        share = found["inside"][kind] / (value - found["inside"][kind])
        note = (
            f", {100 * cost:5.2f} % more than off; in the guard's calls {100 * share:5.2f} %, goal {100 * GOAL:.0f} %"
        )
        print(f"{kind:20} {1000 * value:8.2f} ms of processor time a step{'' if kind == 'off' else note}")
    each = 1e9 * found["inside"]["digests and at rest"] / found["parameters"]
    print(f"all of it costs {each:.1f} ns for each parameter in a step, however many tokens the step has")


if __name__ == "__main__":
    main()
