"""Flips bits in a training, place by place, and counts which flips the guard finds in time.

    python benchmarks/injection.py [--flips 200] [--seed 0]

Three replicas train a small decoder in exact mode. Each trial restores the starting state, flips one bit (element, bit,
rank, step and micro-batch drawn from the seed) and trains three steps; the guard records what it finds and lets the
training go on. The undisturbed run's weights are the reference. A flip is *caught* when it is flagged before or at the
step where any rank's weights first differ from the reference (by the guard, or because the step's gradient is not
finite), *harmless* when they never differ, and *missed* otherwise. Rows with a sampled replay are set beside the rate
that the schedule promises. *Named* are caught flips of which exactly the right rank was blamed, *flagged* the harmless
ones that were found nevertheless.
"""

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from weft.core.errors import FailedError
from weft.core.seeds import Seed
from weft.specs.job import BatchSpec, DataSpec, GuardSpec, JobSpec, ModelSpec, PlanSpec
from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks
from weft.training.model.optimizer import adamw
from weft.training.parallel.apply import ParallelDecoder, parallelize
from weft.training.sdc.bit_flips import flip_bit
from weft.training.sdc.replay import catch_rate
from weft.training.sdc.verdicts import SdcEvidence
from weft.training.session import Session, start

RANKS, MICRO_BATCHES, STEPS = 3, 6, 3
PLACES = ("weights", "optimizer", "activations", "gradient before", "gradient in bucket", "gradient after")
SETTINGS: dict[str, GuardSpec] = {
    "digests": GuardSpec(digest_every=1),
    "digests, replay of all": GuardSpec(digest_every=1, replay_every=1, replay_batches=0),
    "digests, replay of 2 in 6": GuardSpec(digest_every=1, replay_every=1, replay_batches=2),
    "checksums (ABFT) alone": GuardSpec(abft=True),
}
FOR = {
    "digests": PLACES,
    "digests, replay of all": PLACES,
    "digests, replay of 2 in 6": ("activations", "gradient before"),
    "checksums (ABFT) alone": ("activations",),
}


@dataclass(frozen=True)
class Trial:
    """One flip."""

    number: int
    place: str
    rank: int
    step: int
    order: int
    """Which of the rank's micro-batches of the step."""


def trials(seed: Seed, places: tuple[str, ...], flips: int) -> list[Trial]:
    """Return `flips` flips, the places in turn."""
    found = []
    for number in range(flips):
        draw = seed.stream("trial", number)
        rank, step, order = (
            int(draw.integers(RANKS)),
            int(draw.integers(STEPS)),
            int(draw.integers(MICRO_BATCHES // RANKS)),
        )
        found.append(Trial(number, places[number % len(places)], rank, step, order))
    return found


@dataclass
class Bench:
    """A training that can be put back to its start."""

    run: Session
    model: ParallelDecoder
    optimizer: torch.optim.Optimizer
    seed: Seed
    trial: Trial | None = None
    order: int = -1
    found: list[SdcEvidence] = field(default_factory=list)
    stopped: int = STEPS
    _start: list[torch.Tensor] = field(default_factory=list)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield everything that training changes."""
        for parameter in self.model.parameters():
            yield parameter.data
            yield from (value for value in self.optimizer.state[parameter].values() if isinstance(value, torch.Tensor))

    def prepare(self) -> None:
        """Put hooks at the places of injection, then let the run take the model."""
        parameters = list(self.model.parameters())
        for place, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._flip_gradient(place, len(parameters)))
        linears = [module for module in self.model.modules() if isinstance(module, torch.nn.Linear)]
        for place, module in enumerate(linears):
            module.register_forward_hook(self._flip_output(place, len(linears)))
        self.run.attach(self.model, self.optimizer, overlap=False)
        self._make_optimizer_state()
        self._start = [tensor.clone() for tensor in self.tensors()]
        assert self.run.guard is not None
        self.run.guard.on_finding = self.found.extend

    def _make_optimizer_state(self) -> None:
        """Make the optimizer's tensors exist before the first trial: one step that changes no weight."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _mine(self, place: str, *, in_leaf: bool = False) -> bool:
        trial = self.trial
        return (
            trial is not None and trial.place == place and trial.rank == self.run.rank and trial.step == self.run.done
            and (not in_leaf or trial.order == self.order)
        )  # fmt: skip

    def _flip_gradient(self, place: int, places: int) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if self._mine("gradient before", in_leaf=True) and self._drawn(places) == place:
                assert parameter.grad is not None
                flip_bit(parameter.grad, self._draw())

        return hook

    def _flip_output(self, place: int, places: int) -> Callable[[Any, Any, torch.Tensor], None]:
        def hook(_: Any, __: Any, output: torch.Tensor) -> None:
            if self._mine("activations", in_leaf=True) and self._drawn(places) == place:
                flip_bit(output, self._draw())

        return hook

    def _draw(self) -> Any:
        assert self.trial is not None
        return self.seed.stream("bit", self.trial.number)

    def _drawn(self, places: int) -> int:
        assert self.trial is not None
        return int(self.seed.stream("tensor", self.trial.number).integers(places))

    def _flip_state(self) -> None:
        parameters = list(self.model.parameters())
        if self._mine("weights"):
            flip_bit(parameters[self._drawn(len(parameters))].data, self._draw())
        if self._mine("optimizer"):
            state = self.optimizer.state[parameters[self._drawn(len(parameters))]]
            flip_bit(state[("exp_avg", "exp_avg_sq")[self._drawn(2 * len(parameters)) % 2]], self._draw())

    def _flip_bucket(self) -> None:
        """Flip a bit of what this rank has summed and not yet sent."""
        reducer: Any = self.run.reducer
        bucket = reducer.buckets[self._drawn(len(reducer.buckets))]
        held = next(iter(bucket._held.values()))  # noqa: SLF001 - a fault does not ask
        flip_bit(held, self._draw())

    def train(self) -> list[bytes]:
        """Train all steps from the start; returns the weights after each of them."""
        run, guard = self.run, self.run.guard
        assert guard is not None
        guard._rest = None  # noqa: SLF001 - the state is put back behind the guard's back
        for tensor, first in zip(self.tensors(), self._start, strict=True):
            tensor.copy_(first)
        self.found.clear()
        self.stopped = STEPS
        after: list[bytes] = []
        for number in range(STEPS):
            run.done = number
            try:
                self._one(number)
            except FailedError:
                # The gradient is not finite, which all ranks see alike.
                self.stopped = number
                break
            after.append(b"".join(parameter.data.numpy().tobytes() for parameter in self.model.parameters()))
        guard.settle()
        return after + [b""] * (STEPS - len(after))

    def _one(self, number: int) -> None:
        run, guard = self.run, self.run.guard
        assert guard is not None
        step = run.step(number)
        for group in self.optimizer.param_groups:
            group["lr"] = step.learning_rate
        self._flip_state()
        for order, tokens in enumerate(step.micro_batches()):
            self.order = order
            loss = self.model.loss(tokens)
            loss.backward()
            step.add(loss)
        self.order = -1
        if self._mine("gradient in bucket"):
            self._flip_bucket()
        step.reduce()
        if self._mine("gradient after"):
            parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
            gradient = parameters[self._drawn(len(parameters))].grad
            assert gradient is not None
            flip_bit(gradient, self._draw())
        self.optimizer.step()
        guard.after_update(number, [number])
        guard.settle()


def rank(reporter: Reporter, job: JobSpec, folder: str, seed: int, wanted: list[Trial]) -> list[tuple[str, str]]:
    """Be one rank: run every trial and return its place and outcome."""
    del reporter
    run = start(job, folder=folder)
    model = parallelize(run)
    bench = Bench(run, model, adamw(model.parameters(), job.optimizer), Seed(seed))
    bench.prepare()
    clean = bench.train()
    assert not bench.found, f"an undisturbed run is flagged: {bench.found}"
    outcomes = []
    for trial in wanted:
        bench.trial = trial
        weights = bench.train()
        differs = torch.tensor([int(mine != first) for mine, first in zip(weights, clean, strict=True)])
        dist.all_reduce(differs, op=dist.ReduceOp.MAX)
        first = next((step for step, odd in enumerate(differs.tolist()) if odd), STEPS)
        found = min((one.step for one in bench.found), default=STEPS + 1)
        flagged = min(found, bench.stopped) if bench.stopped < STEPS else found
        named = {one.rank for one in bench.found if one.step == flagged} == {trial.rank}
        outcomes.append((trial.place, _outcome(first, flagged, named=named)))
    return outcomes


def _outcome(first: int, flagged: int, *, named: bool) -> str:
    if flagged <= first < STEPS:
        return "caught, rank named" if named else "caught"
    if flagged <= STEPS:
        return "flagged, harmless" if first == STEPS else "missed (late)"
    return "harmless" if first == STEPS else "missed"


def measure(setting: str, flips: int, seed: int, folder: Path) -> dict[str, Counter[str]]:
    """Return outcomes by place for one setting of the guard."""
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"line {number} says {number * number % 97}\n" for number in range(4000)))
    job = JobSpec(
        name="injection", steps=STEPS, model=ModelSpec(layers=2, width=32, heads=2, ffn=64),
        data=DataSpec(corpus=str(corpus)), batch=BatchSpec(sequences=MICRO_BATCHES, micro=1, length=16),
        plan=PlanSpec(dp=RANKS), guard=SETTINGS[setting],
    )  # fmt: skip
    arguments = {
        "job": job,
        "folder": str(folder / "runs"),
        "seed": seed,
        "wanted": trials(Seed(seed), FOR[setting], flips),
    }
    table: dict[str, Counter[str]] = {place: Counter() for place in FOR[setting]}
    for place, outcome in Ranks("injection:rank", RANKS, arguments).run()[0]:
        table[place][outcome] += 1
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--flips", type=int, default=200, help="flips for each setting of the guard")
    parser.add_argument("--seed", type=int, default=0, help="root of everything random")
    chosen = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    heads = ("flips", "caught", "named", "missed", "harmless", "flagged")
    print(f"{'setting':26} {'place':20} " + " ".join(f"{head:>8}" for head in heads))
    with tempfile.TemporaryDirectory() as folder:
        for setting in SETTINGS:
            for place, outcomes in measure(setting, chosen.flips, chosen.seed, Path(folder)).items():
                _print(setting, place, outcomes)


def _print(setting: str, place: str, outcomes: Counter[str]) -> None:
    total = sum(outcomes.values())
    caught = sum(count for outcome, count in outcomes.items() if outcome.startswith("caught"))
    missed = sum(count for outcome, count in outcomes.items() if outcome.startswith("missed"))
    harmless = total - caught - missed
    columns = (total, caught, outcomes["caught, rank named"], missed, harmless, outcomes["flagged, harmless"])
    line = f"{setting:26} {place:20} " + " ".join(f"{column:8}" for column in columns)
    spec = SETTINGS[setting]
    if spec.replay_batches and spec.replay_every and caught + missed:
        rate = catch_rate(MICRO_BATCHES, spec.replay_every, spec.replay_batches)
        spread_ = 2 * math.sqrt(rate * (1 - rate) / (caught + missed))
        line += f"   caught {caught / (caught + missed):.2f}, promised {rate:.2f} +- {spread_:.2f}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
