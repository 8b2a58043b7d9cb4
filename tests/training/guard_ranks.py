"""What ranks do in tests of the guard: train, suffer one fault, and tell what was found."""

from typing import Any

import torch

from weft.core.seeds import Seed
from weft.specs import JobSpec
from weft.training.checked_collectives import watch_of
from weft.training.launch.rank_place import Reporter
from weft.training.model.optimizer import adamw
from weft.training.parallel.apply import ParallelDecoder, parallelize
from weft.training.sdc.bit_flips import flip_bit
from weft.training.sdc.guard import DivergedError
from weft.training.sdc.replay import own_part
from weft.training.session import Session, start
from weft.training.train import train


class _Confused:
    """A stream that gives another step's tokens, once."""

    def __init__(self, stream: Any, step: int) -> None:
        self._stream, self._step, self._done = stream, step, False

    def micro_batch(self, step: int, index: int) -> torch.Tensor:
        if step == self._step and not self._done:
            self._done = True
            return self._stream.micro_batch(step + 1, index)
        return self._stream.micro_batch(step, index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _disturb_gradient(model: ParallelDecoder, now: dict[str, bool]) -> None:
    parameter = next(iter(model.parameters()))

    def flip(given: torch.Tensor) -> None:
        if now.pop("gradient", False):
            assert given.grad is not None
            flip_bit(given.grad, Seed(1).stream("gradient"))

    parameter.register_post_accumulate_grad_hook(flip)


def _suffer(
    run: Session, model: ParallelDecoder, optimizer: torch.optim.Optimizer, place: str, now: dict[str, bool]
) -> None:
    parameter = next(iter(model.parameters()))
    draw = Seed(2).stream(place)
    if place == "weights":
        flip_bit(own_part(parameter.data), draw)
    elif place == "optimizer":
        flip_bit(optimizer.state[parameter]["exp_avg"], draw)
    elif place == "rate":
        for group in optimizer.param_groups:
            group["lr"] *= 1.001
    elif place == "batch":
        run.context.stream = _Confused(run.stream, run.done)  # type: ignore[assignment]
    else:
        now["gradient"] = True


def guarded(
    reporter: Reporter, *, job: JobSpec, folder: str, place: str, rank: int, step: int,
    recalled: dict[int, int] | None = None,
) -> Any:  # fmt: skip
    """Train, with a fault of `place` on `rank` in `step`; returns the step and the evidence, or the digest."""
    del reporter
    run = start(job, folder=folder)
    model = parallelize(run)
    now: dict[str, bool] = {}
    _disturb_gradient(model, now)
    optimizer = adamw(model.parameters(), job.optimizer)
    run.attach(model, optimizer)
    if recalled is not None and run.guard is not None:
        run.guard.recall(step, recalled)
    at = 0
    try:
        for one in run.steps():
            at = one.number
            hit = run.rank == rank and one.number == step
            if hit and place in ("weights", "optimizer", "rate", "batch", "gradient"):
                _suffer(run, model, optimizer, place, now)
            model.forward_backward(one)
            one.reduce()
            if hit and place == "reduced":
                parameter = next(iter(model.parameters()))
                assert parameter.grad is not None
                flip_bit(parameter.grad, Seed(3).stream("reduced"))
            optimizer.step()
            run.finish(one)
    except DivergedError as error:
        return at, error.as_json(), error.words if place == "reduced" else str(error)
    result = run.close()
    if recalled is not None and run.guard is not None:
        return [(one.rank, one.kind.value) for one in run.guard.evidence.evidence]
    return result


def trained(reporter: Reporter, job: JobSpec, folder: str) -> dict[str, Any]:
    """Train undisturbed; returns the result and what crossed the groups."""
    result = train(job, folder, reporter=reporter)
    watch = watch_of()
    return {**result, "account": watch.account.as_json() if watch is not None else []}
