"""The vocabulary cut over ranks: a loss that nobody has all logits of."""

import pytest

from weft.training.launch.ranks import Ranks


def test_the_loss_over_a_cut_vocabulary_is_that_over_the_whole_one():
    # The last one's exponentials would be no numbers, were the largest logit not taken off.
    cases = [(8, 1.0), (4, 3.0), (12, 300.0)]
    for found in Ranks("tests.training.ranks:cut_losses", 4, {"cases": cases}).run():
        for (loss, gradient), (_, scale) in zip(found, cases, strict=True):
            assert loss == pytest.approx(0, abs=1e-4 * scale)
            assert gradient == pytest.approx(0, abs=1e-4)
