import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from weft.core.seeds import Seed
from weft.specs.job import ExpertsSpec, ModelSpec
from weft.training.model import Decoder, ExpertBalance, Load, balance_loss, carry_loss, dispatch_locally, initialise
from weft.training.model.experts import ExpertFeed, Run


def feed_of(count: int, top_k: int, seed: int = 0, width: int = 6, ffn: int = 5) -> ExpertFeed:
    experts = ExpertsSpec(count=count, top_k=top_k, ffn=ffn)
    feed = ExpertFeed(ModelSpec(layers=1, width=width, heads=1, ffn=8, experts=experts))
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in feed.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance))
    return feed


def dense(feed: ExpertFeed, hidden: Tensor) -> Tensor:
    """Every expert on every token, most of them weighted by zero."""
    probabilities = (hidden @ feed.router.weight.T).softmax(-1)
    values, best = probabilities.topk(feed.top_k, dim=-1)
    weights = torch.zeros_like(probabilities).scatter(-1, best, values / values.sum(-1, keepdim=True))
    out = torch.zeros_like(hidden)
    for expert in range(feed.count):
        gate, up, down = feed.experts.gate[expert], feed.experts.up[expert], feed.experts.down[expert]
        said = (functional.silu(hidden @ gate.T) * (hidden @ up.T)) @ down.T
        out = out + weights[..., expert : expert + 1] * said
    return out


@given(st.data(), st.integers(2, 6), st.integers(1, 3), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_it_is_the_dense_loop_forward_and_backward(
    data: st.DataObject, count: int, batch: int, length: int, seed: int
) -> None:
    feed = feed_of(count, data.draw(st.integers(1, count)), seed)
    hidden = torch.randn(batch, length, 6, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    answer, load = feed(hidden)
    leaves = [hidden, *feed.parameters()]
    ours = torch.autograd.grad(answer.square().sum(), leaves)
    theirs = torch.autograd.grad(dense(feed, hidden).square().sum(), leaves)
    torch.testing.assert_close(answer, dense(feed, hidden), rtol=1e-4, atol=1e-4)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)
    assert load.counts.sum() == batch * length * feed.top_k


def test_the_same_input_gives_the_same_bits() -> None:
    feed = feed_of(5, 3)
    hidden = torch.randn(2, 40, 6, requires_grad=True)
    runs = []
    for _ in range(2):
        answer, load = feed(hidden)
        loss = answer.square().sum() + balance_loss(load)
        runs.append([answer, *torch.autograd.grad(loss, [hidden, *feed.parameters()])])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_of_equal_experts_the_first_are_taken() -> None:
    feed = feed_of(4, 2)
    with torch.no_grad():
        feed.router.weight.zero_()
        _, load = feed(torch.randn(1, 7, 6))
    assert load.counts.tolist() == [7, 7, 0, 0]


def test_the_experts_see_tokens_sorted_by_expert_through_one_callable() -> None:
    feed = feed_of(4, 2)
    seen = []

    def spy(tokens: Tensor, counts: Tensor, run: Run) -> Tensor:
        seen.append((tokens.shape, counts.tolist()))
        return dispatch_locally(tokens, counts, run)

    hidden = torch.randn(2, 5, 6)
    with torch.no_grad():
        plain, load = feed(hidden)
        feed.dispatch = spy
        again, _ = feed(hidden)
    assert torch.equal(plain, again)
    assert seen == [((20, 6), load.counts.tolist())]


def test_experts_can_be_run_in_parts() -> None:
    # What expert parallelism does: the first half of the experts here, the second half there.
    feed = feed_of(4, 2)
    hidden = torch.randn(3, 5, 6)

    def halves(tokens: Tensor, counts: Tensor, run: Run) -> Tensor:
        parts = tokens.split([int(counts[:2].sum()), int(counts[2:].sum())])
        zeros = torch.zeros(2, dtype=torch.int64)
        first = run(parts[0], torch.cat((counts[:2], zeros)))
        return torch.cat((first, run(parts[1], torch.cat((zeros, counts[2:])))))

    with torch.no_grad():
        plain, _ = feed(hidden)
        feed.dispatch = halves
        torch.testing.assert_close(feed(hidden)[0], plain)


@pytest.mark.parametrize(("counts", "probability", "loss"), [
    ([8.0, 8.0, 8.0, 8.0], [4.0, 4.0, 4.0, 4.0], 1.0),
    ([32.0, 0.0, 0.0, 0.0], [16.0, 0.0, 0.0, 0.0], 4.0),
    ([16.0, 16.0, 0.0, 0.0], [8.0, 8.0, 0.0, 0.0], 2.0),
])  # fmt: skip
def test_the_balance_loss_is_one_when_even_and_the_number_of_experts_at_worst(
    counts: list[float], probability: list[float], loss: float
) -> None:
    assert balance_loss(Load(torch.tensor(counts), torch.tensor(probability))) == loss


def test_the_balance_loss_pushes_towards_the_idle_experts() -> None:
    feed = feed_of(4, 1)
    hidden = torch.randn(1, 64, 6, generator=torch.Generator().manual_seed(5)).abs()
    optimizer = torch.optim.SGD([feed.router.weight], lr=1.0)
    before = balance_loss(feed(hidden)[1])
    for _ in range(30):
        optimizer.zero_grad()
        balance_loss(feed(hidden)[1]).backward()
        optimizer.step()
    assert balance_loss(feed(hidden)[1]) < before


def test_losses_of_layers_are_summed_with_their_weight() -> None:
    spec = ModelSpec(layers=3, width=8, heads=2, ffn=8, vocabulary=16, experts=ExpertsSpec(count=4, top_k=2, ffn=6))
    model = Decoder(spec)
    initialise(model, Seed(1))
    balance = ExpertBalance(0.5)
    model(torch.zeros(1, 4, dtype=torch.int64), balance=balance)
    assert len(balance.loads) == 3
    expected = 0.5 * torch.stack([balance_loss(load) for load in balance.loads]).sum()
    assert torch.equal(balance.loss(), expected)
    assert ExpertBalance(0.5).loss() == 0


def test_a_carried_loss_adds_its_gradient_and_changes_no_value() -> None:
    router = torch.randn(3, requires_grad=True)
    hidden = torch.randn(4, 3, requires_grad=True)
    value = hidden * router
    carried = carry_loss(value, router.square().sum())
    assert torch.equal(carried, value)
    got = torch.autograd.grad(carried.sum(), [router, hidden])
    wanted = torch.autograd.grad((hidden * router).sum() + router.square().sum(), [router, hidden])
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))
