from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.training.sdc.replay import GradientDigest, Replayer, catch_rate, schedule


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(2, 9), st.integers(1, 20), st.integers(0, 5))
def test_others_replay_and_never_the_owner(seed: int, step: int, replicas: int, count: int, batches: int) -> None:
    owners = [index % replicas for index in range(count)]
    found = schedule(Seed(seed), step, owners, replicas, batches)
    assert found == schedule(Seed(seed), step, owners, replicas, batches)
    assert len(found) == min(batches or count, count)
    assert len({one.index for one in found}) == len(found)
    for one in found:
        assert one.owner == owners[one.index]
        assert one.owner not in one.others
        assert len(set(one.others)) == min(2, replicas - 1)


def test_every_micro_batch_and_every_replayer_has_its_turn_equally_often() -> None:
    owners, steps = [0, 0, 1, 1, 2, 2, 3, 3], 4000
    found = [one for step in range(steps) for one in schedule(Seed(9), step, owners, 4, 1)]
    indices = Counter(one.index for one in found)
    replayers = Counter(other for one in found for other in one.others)
    assert all(abs(indices[index] / steps - 1 / 8) < 0.02 for index in range(8))
    assert all(abs(replayers[other] / (2 * steps) - 1 / 4) < 0.02 for other in range(4))


def test_one_replica_alone_replays_nothing() -> None:
    assert schedule(Seed(0), 0, [0, 0], 1, 0) == ()


def test_the_rate_at_which_faults_are_caught_is_known_beforehand() -> None:
    assert catch_rate(8, 1, 0) == 1.0
    assert catch_rate(8, 4, 2) == 1 / 16
    assert catch_rate(8, 0, 1) == 0.0


def test_a_replayed_gradient_has_the_digest_of_the_first_one_and_leaves_the_training_alone() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    model[2].weight.requires_grad_(False)
    parameters = list(model.parameters())

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens).square().mean()

    replayer = Replayer(
        parameters, loss, lambda step, index: torch.full((4, 6), float(step + index)), lambda s, i: s + i
    )
    digest = GradientDigest(parameters)
    digest.begin(frozenset({2}))
    for index in (1, 2):
        digest.at(index)
        torch.manual_seed(5 + index)
        for parameter in parameters:
            parameter.grad = None
        loss(torch.full((4, 6), float(5 + index))).backward()
    before, state = [parameter.grad for parameter in parameters], torch.random.get_rng_state()
    assert digest.digest(2) == digest.of(replayer.gradients(5, 2)) != 0
    assert digest.digest(1) == 0
    assert digest.of(replayer.gradients(5, 1)) != digest.digest(2)
    assert all(one is parameter.grad for one, parameter in zip(before, parameters, strict=True))
    assert torch.equal(state, torch.random.get_rng_state())
    digest.close()
