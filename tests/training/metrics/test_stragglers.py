import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.training.metrics.stragglers import Watcher, report
from weft.training.parallel.load_balance import assign


def world(seed: int, ranks: int, steps: int, *, spread: float, slow: dict[int, float] | None = None) -> np.ndarray:
    """Return seconds by (step, rank): a common wander, noise of each rank, and rare long pauses of single ranks."""
    draw = Seed(seed).stream("stragglers")
    common = np.exp(draw.normal(0, 0.2, (steps, 1)))
    own = np.exp(draw.normal(0, spread, (steps, ranks)))
    pauses = np.where(draw.random((steps, ranks)) < 0.02, draw.uniform(2, 10, (steps, ranks)), 1.0)
    seconds = 0.1 * common * own * pauses
    for rank, factor in (slow or {}).items():
        seconds[:, rank] *= factor
    return seconds


@given(st.integers(0, 2**40), st.integers(2, 16), st.data())
def test_a_rank_five_times_as_slow_is_named_within_twenty_steps(seed: int, ranks: int, data: st.DataObject) -> None:
    slow = data.draw(st.integers(0, ranks - 1))
    watcher = Watcher()
    found = [watcher.step(row.tolist()) for row in world(seed, ranks, 20, spread=0.1, slow={slow: 5.0})][-1]
    assert [one.rank for one in found.stragglers] == [slow]
    assert found.ranking[0][0] == slow
    assert found.stragglers[0].slowdown > 3
    assert found.stragglers[0].cost_s > 0
    assert f"rank {slow} takes" in found.sentence()


def test_slowness_that_begins_in_the_middle_is_named_within_twenty_steps() -> None:
    watcher = Watcher()
    for row in world(3, 8, 100, spread=0.1):
        assert not watcher.step(row.tolist()).stragglers
    found = [watcher.step(row.tolist()) for row in world(4, 8, 20, spread=0.1, slow={6: 5.0})][-1]
    assert [one.rank for one in found.stragglers] == [6]


def test_noise_names_nobody() -> None:
    alarms = sum(bool(report(world(seed, 8, 16, spread=0.2).tolist()).stragglers) for seed in range(2000))
    assert alarms == 0


def test_a_slow_pipeline_stage_is_compared_with_its_own_replicas_only() -> None:
    seconds = world(5, 4, 16, spread=0.05, slow={2: 3.0, 3: 3.0}).tolist()
    assert not report(seconds, peers=[[0, 1], [2, 3]]).stragglers
    assert report(seconds).ranking[0][0] in (2, 3)


def test_fewer_micro_batches_do_not_hide_a_slow_rank() -> None:
    watcher = Watcher()
    found = [watcher.step([1.0, 1.0, 1.0], [5, 5, 1]) for _ in range(10)][-1]
    assert [one.rank for one in found.stragglers] == [2]
    speeds = watcher.speeds()
    assert [len(run) for run in assign([speeds[rank] for rank in range(3)], 11)] == [5, 5, 1]


def test_a_straggler_is_news_once() -> None:
    watcher = Watcher()
    news = [watcher.step([0.1, 0.1, 0.5]).newly for _ in range(30)]
    assert news.count((2,)) == 1
    assert news.count(()) == 29


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_too_few_steps_say_nothing(steps: int) -> None:
    assert not report([[0.1, 9.0]] * steps).stragglers
    assert Watcher().speeds() == {}
