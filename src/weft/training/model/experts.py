"""A feed-forward block of many experts, of which each token sees a few.

Routing is softmax over the experts, the best k, their weights made to sum to one (Mixtral, arXiv 2401.04088, section
2.1), or DeepSeek-V3's: each expert's sigmoid, a correction where they are chosen, and experts that see every token. No
token is dropped. Tokens are sorted by expert and put back by index, never added by atomics, so the same input gives the
same bits. The sorted tokens reach the experts through one callable, `ExpertFeed.dispatch`; expert parallelism
puts an all-to-all there. To keep the bits of one rank it must call `run` once for each micro-batch, since a matrix
product of more rows may round differently.

What the balance of the load needs is returned as a `Load`, layer by layer and for one micro-batch only: a loss over
several would make a micro-batch's gradient depend on which others its rank holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor
from torch.nn import functional
from typing_extensions import override

from weft.specs.job import ModelSpec
from weft.training.model.feed import ACTIVATIONS, Activation, Feed

_TINY = 1e-20
"""Added to the sum of scores that are made to sum to one, as DeepSeek's code does."""

Run = Callable[[Tensor, Tensor], Tensor]
"""`run(tokens, counts)`: the local experts on tokens sorted by expert, `counts[i]` of them for local expert i."""

Dispatch = Callable[[Tensor, Tensor, Run], Tensor]
"""`dispatch(tokens, counts, run)`: tokens `[n, width]` sorted by expert, `counts` over all experts; same order out."""


def dispatch_locally(tokens: Tensor, counts: Tensor, run: Run) -> Tensor:
    """Run all experts on this device."""
    return run(tokens, counts)


class Load(NamedTuple):
    """How one micro-batch spread over the experts of one layer; sums, so that parts of a micro-batch can be added."""

    counts: Tensor
    """Tokens sent to each expert, `[experts]`, as fp32 without gradient."""
    probability: Tensor
    """Sum over tokens of the router's probability of each expert, `[experts]`, with gradient."""


def balance_loss(load: Load) -> Tensor:
    """Return the load-balancing loss of one layer: 1 when perfectly even, up to the number of experts when not.

    Switch Transformers (arXiv 2101.03961, section 2.2, equations 4 to 6): experts times the sum over experts of the
    share of assignments and the mean probability. With k experts a token, the share is of all k assignments.
    """
    share = load.counts / load.counts.sum()
    mean = load.probability / load.probability.sum()
    return load.counts.numel() * (share * mean).sum()


@dataclass
class ExpertBalance:
    """Collects the loads of one micro-batch's forward pass; make a new one for each."""

    weight: float
    """Weight of the loss (`ExpertsSpec.balance`)."""
    loads: list[Load] = field(default_factory=list)
    """One for each expert layer, in order."""

    def loss(self) -> Tensor:
        """Return the weighted sum over layers, to be added to the micro-batch's loss; 0 where no layer had experts."""
        if not self.loads:
            return torch.zeros(())
        return self.weight * torch.stack([balance_loss(load) for load in self.loads]).sum()


class _Carry(Function):
    """Hands a value on unchanged and gives a loss beside it the gradient one."""

    @staticmethod
    @override
    def forward(*args: Any, **_: object) -> Tensor:
        ctx, value, loss = args
        ctx.save_for_backward(loss)
        return value.view_as(value)

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (loss,) = ctx.saved_tensors
        return grad_outputs[0], torch.ones_like(loss)


def carry_loss(value: Tensor, loss: Tensor) -> Tensor:
    """Return `value` such that its backward pass adds the gradient of `loss` too.

    For pipeline stages that pass on hidden states and never see the final loss: scale `loss` as the final one is.
    """
    return _Carry.apply(value, loss)


class _Permute(Function):
    """Reorders rows by a permutation; the gradient is put back by the inverse one, so nothing is ever added."""

    @staticmethod
    @override
    def forward(*args: Any, **_: object) -> Tensor:
        ctx, rows, order, inverse = args
        ctx.save_for_backward(inverse)
        return rows.index_select(0, order)

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (inverse,) = ctx.saved_tensors
        return grad_outputs[0].index_select(0, inverse), None, None


def _held(stack: Tensor) -> Tensor:
    """Return the matrices that this rank holds of a stack that may be spread."""
    return stack.to_local() if isinstance(stack, DTensor) else stack


class Experts(nn.Module):
    """The matrices of all experts of a layer, stacked: expert parallelism shards dim 0."""

    def __init__(self, count: int, width: int, ffn: int, activation: Activation = functional.silu) -> None:
        super().__init__()
        self.activation = activation
        self.gate = nn.Parameter(torch.empty(count, ffn, width))
        self.up = nn.Parameter(torch.empty(count, ffn, width))
        self.down = nn.Parameter(torch.empty(count, width, ffn))

    @override
    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return each token, sorted by expert, as its expert sees it; `counts` are those of the experts held here."""
        # Unbinding once makes the gradient one stack; indexing would make one whole tensor of zeros for each expert.
        matrices = zip(*(_held(stack).unbind() for stack in (self.gate, self.up, self.down)), strict=True)
        groups = tokens.split(counts.tolist())
        return torch.cat(
            [
                functional.linear(
                    self.activation(functional.linear(group, gate)) * functional.linear(group, up),
                    down,
                )
                for group, (gate, up, down) in zip(groups, matrices, strict=True)
            ]
        )


class ExpertFeed(nn.Module):
    """Router, dispatch, experts, and the weighted sum of what they say."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.experts is not None, "a dense model has no experts"
        self.spec = spec.experts
        self.count = spec.experts.count
        self.top_k = spec.experts.top_k
        self.router = nn.Linear(spec.width, self.count, bias=False)
        # It moves the choice alone, so no gradient reaches it; it stays as it was loaded.
        self.correction = nn.Parameter(torch.zeros(self.count), requires_grad=False) if self.spec.correction else None
        self.experts = Experts(self.count, spec.width, spec.experts.ffn, ACTIVATIONS[spec.activation])
        self.shared = Feed(spec, spec.experts.shared) if spec.experts.shared else None
        self.dispatch: Dispatch = dispatch_locally

    @override
    def forward(self, hidden: Tensor) -> tuple[Tensor, Load]:
        """Return what the experts add to `hidden`, `[batch, length, width]`, and how they were loaded."""
        flat = hidden.flatten(0, -2)
        products = functional.linear(flat.float(), self.router.weight.float())
        scores = products.softmax(-1) if self.spec.scoring == "softmax" else products.sigmoid()
        # A stable sort, not topk: of equal experts the first is taken, on every device.
        best = self._choosable(scores).sort(dim=-1, descending=True, stable=True).indices[:, : self.top_k]
        weights = scores.gather(-1, best)
        if self.spec.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + (0.0 if self.spec.scoring == "softmax" else _TINY))
        weights = weights * self.spec.scale if self.spec.scale != 1 else weights
        chosen = best.flatten()
        order = chosen.argsort(stable=True)
        inverse = order.argsort()
        counts = (chosen.unsqueeze(-1) == torch.arange(self.count, device=chosen.device)).sum(0)
        copies = flat.unsqueeze(1).expand(-1, self.top_k, -1).flatten(0, 1)
        answers = self.dispatch(_Permute.apply(copies, order, inverse), counts, self.experts)
        answers = _Permute.apply(answers, inverse, order).unflatten(0, (-1, self.top_k))
        mixed = (answers * weights.unsqueeze(-1).to(answers.dtype)).sum(1).view_as(hidden)
        if self.shared is not None:
            mixed = mixed + self.shared(hidden)
        shares = scores if self.spec.scoring == "softmax" else scores / scores.sum(-1, keepdim=True)
        return mixed, Load(counts.float(), shares.sum(0))

    def _choosable(self, scores: Tensor) -> Tensor:
        """Return what experts are chosen by: scores, corrected, and none outside a token's groups.

        A group counts by its two best experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
        """
        ranked = scores.detach() if self.correction is None else scores.detach() + self.correction
        if not self.spec.groups:
            return ranked
        grouped = ranked.unflatten(-1, (self.spec.groups, -1))
        worth = grouped.topk(2, dim=-1).values.sum(-1)
        best = worth.sort(dim=-1, descending=True, stable=True).indices[:, : self.spec.nodes]
        allowed = torch.zeros_like(worth, dtype=torch.bool).scatter(1, best, value=True)
        return grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(1)
