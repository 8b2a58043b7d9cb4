"""Work that is done again elsewhere: which micro-batches, by whom, and what their gradients' digests are.

A gradient that is wrong before the reduction makes every replica equally wrong, so no comparison of weights can see it.
Recomputing a micro-batch on other replicas can: in exact mode equal work gives equal bits. Who replays whom is a pure
function of (seed, step, who computed what); `Replayer` recomputes with autograd apart from the training's own backward,
so that nothing that is being summed is touched.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from weft.core.seeds import Seed, mix
from weft.training.sdc.digest import fold, joined

VOTERS = 2


@dataclass(frozen=True)
class GradientReplay:
    """One micro-batch that is recomputed."""

    index: int
    """Which one of the step."""
    owner: int
    """Replica that computed it for the training."""
    others: tuple[int, ...]
    """Replicas that compute it again."""

    @property
    def voters(self) -> tuple[int, ...]:
        """Return everybody with a digest of it."""
        return (self.owner, *self.others)


def schedule(seed: Seed, step: int, owners: Sequence[int], replicas: int, batches: int) -> tuple[GradientReplay, ...]:
    """Return what is replayed in `step`: `batches` of its micro-batches, or all where that is 0.

    `owners` says which replica computes each micro-batch. Every micro-batch is as likely as any other, and so is every
    other replica as its replayer.
    """
    count = len(owners)
    if replicas < VOTERS:
        return ()
    word = seed.branch("replay", step).word()
    order = sorted(range(count), key=lambda index: (mix(word, index), index))
    chosen = sorted(order[: batches or count])
    voters = min(VOTERS, replicas - 1)
    found = []
    for index in chosen:
        owner = owners[index]
        others = [replica for replica in range(replicas) if replica != owner]
        turn = mix(word, count + index) % len(others)
        found.append(GradientReplay(index, owner, tuple(sorted((others + others)[turn : turn + voters]))))
    return tuple(found)


def catch_rate(micro_batches: int, every: int, batches: int) -> float:
    """Return which share of single wrong micro-batches replay finds."""
    if every == 0:
        return 0.0
    return min(1.0, (batches or micro_batches) / micro_batches) / every


class GradientDigest:
    """Digests gradients as autograd makes them, for the micro-batches that are asked for."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Listen to `parameters`; make it before anything that takes gradients away."""
        self._places = {parameter: place for place, parameter in enumerate(parameters)}
        self._wanted: frozenset[int] = frozenset()
        self._now: int | None = None
        self._found: dict[int, torch.Tensor] = {}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._take)
            for parameter in parameters
            if parameter.requires_grad
        ]

    def begin(self, wanted: frozenset[int]) -> None:
        """Start a step in which the gradients of the micro-batches `wanted` are digested."""
        self._wanted, self._now = wanted, None
        self._found.clear()

    def at(self, index: int | None) -> None:
        """Say which micro-batch the next gradients belong to."""
        self._now = index if index in self._wanted else None

    def _take(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if self._now is None or gradient is None:
            return
        assert isinstance(parameter, torch.nn.Parameter)
        row = self._found.get(self._now)
        if row is None:
            row = self._found[self._now] = torch.zeros(len(self._places), dtype=torch.int64, device=gradient.device)
        row[self._places[parameter]] = fold(own_part(gradient))

    def digest(self, index: int) -> int:
        """Return the digest of the gradient of micro-batch `index`."""
        row = self._found.get(index)
        return 0 if row is None else int(joined(row))

    def of(self, gradients: Sequence[torch.Tensor | None]) -> int:
        """Return the digest of gradients that were computed apart, one for each parameter."""
        rows = [torch.zeros((), dtype=torch.int64) if one is None else fold(own_part(one)) for one in gradients]
        device = next((row.device for row in rows if row.is_cuda), torch.device("cpu"))
        return int(joined(torch.stack([row.to(device) for row in rows])))

    def close(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank itself holds of `tensor`, without any exchange."""
    found = getattr(tensor, "_local_tensor", None)
    return tensor if found is None else found


@dataclass
class Replayer:
    """Computes micro-batches again."""

    parameters: Sequence[torch.nn.Parameter]
    """What gradients are taken for."""
    loss: Callable[[torch.Tensor], torch.Tensor]
    """Mean loss of a micro-batch's tokens, in the same arithmetic as the training's."""
    tokens: Callable[[int, int], torch.Tensor]
    """Tokens of (step, micro-batch), read again."""
    randomness: Callable[[int, int], int]
    """Seed of torch's random numbers for (step, micro-batch)."""
    buffers: Callable[[], Mapping[str, torch.Tensor]] = dict
    """What a forward pass may change besides; it is put back."""

    def gradients(self, step: int, index: int) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of one micro-batch; the training's own are left alone."""
        asked = [parameter for parameter in self.parameters if parameter.requires_grad]
        kept = [(one, one.detach().clone()) for one in self.buffers().values()]
        with torch.random.fork_rng(enabled=True):
            torch.manual_seed(self.randomness(step, index))
            found = torch.autograd.grad(self.loss(self.tokens(step, index)), asked, allow_unused=True)
        for one, before in kept:
            one.copy_(before)
        by = dict(zip(asked, found, strict=True))
        return tuple(by.get(parameter) for parameter in self.parameters)
