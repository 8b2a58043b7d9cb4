"""Early stopping: the best goes on, few steps are spent, and neither order nor a restart of the engine matters."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.early_stopping import HalvingRules, at_rungs, outpaced

VALUES = st.floats(-5, 5) | st.just(math.nan)
SWEEPS = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.lists(VALUES, max_size=5).map(tuple), max_size=30)
RULES = st.builds(HalvingRules, st.integers(1, 50), st.integers(2, 5), st.booleans())


@given(SWEEPS, RULES, st.randoms())
def test_who_is_stopped_depends_on_values_alone(sweep: dict[str, tuple[float, ...]], rules: HalvingRules, chance):
    names = list(sweep)
    chance.shuffle(names)
    found = outpaced(sweep, rules)
    assert found == outpaced({name: sweep[name] for name in names}, rules)
    for each in found:
        rung = len(sweep[each.member]) - 1
        there = [values[rung] for values in sweep.values() if len(values) > rung]
        worse = [value for value in there if not math.isnan(value)]
        mine = sweep[each.member][rung]
        ahead = [value for value in worse if math.isnan(mine) or (value >= mine if rules.most else value <= mine)]
        assert (each.step, each.of, each.keep) == (rules.step(rung), len(there), len(there) // rules.factor)
        assert len(ahead) >= each.keep or math.isnan(mine), "as many as go on are no worse"
        assert each.keep < each.place <= each.of


@given(SWEEPS, RULES)
def test_where_all_are_at_one_rung_exactly_the_best_share_goes_on(
    sweep: dict[str, tuple[float, ...]], rules: HalvingRules
):
    level = {name: (*values, 0.0)[:1] for name, values in sweep.items()}
    keep = len(level) // rules.factor
    assert len(outpaced(level, rules)) == (len(level) - keep if keep else 0)


@given(st.lists(st.tuples(st.integers(1, 400), st.floats(-9, 9)), max_size=60), RULES)
def test_a_value_at_a_rung_is_the_last_word_of_the_first_step_from_there(
    curve: list[tuple[int, float]], rules: HalvingRules
):
    found = at_rungs(curve, rules)
    last = dict(curve)
    for rung in range(len(found) + 1):
        after = [step for step in last if step >= rules.step(rung)]
        assert bool(after) == (rung < len(found))
        assert not after or found[rung] == last[min(after)]


def swept(seed: int, at_once: int, rules: HalvingRules, steps: int) -> tuple[list[float], list[int]]:
    """Run a sweep of drawn learning curves, so many at once; return how good each would end, and its steps."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(9, 40))
    floors, speeds = draw.uniform(1, 3, count), draw.uniform(0.2, 0.6, count)
    noise = draw.normal(0, 0.01, (count, steps + 1))

    def value(member: int, step: int) -> float:
        good = floors[member] + 4 * step ** -speeds[member]
        return float(-good if rules.most else good) + noise[member, step]

    curves: dict[str, list[tuple[int, float]]] = {f"m{number}": [] for number in range(count)}
    waiting, running = list(curves), []
    while waiting or running:
        running += [waiting.pop(0) for _ in range(min(len(waiting), at_once - len(running)))]
        for name in list(running):
            # Not all are equally fast.
            for _ in range(int(draw.integers(1, 4))):
                if len(curves[name]) < steps:
                    curves[name].append((len(curves[name]) + 1, value(int(name[1:]), len(curves[name]) + 1)))
        reached = {name: at_rungs(curve, rules) for name, curve in curves.items()}
        gone = {each.member for each in outpaced(reached, rules)}
        running = [name for name in running if name not in gone and len(curves[name]) < steps]
    sign = -1 if rules.most else 1
    return [sign * value(number, steps) for number in range(count)], [len(curve) for curve in curves.values()]


@pytest.mark.parametrize("most", [False, True])
@pytest.mark.parametrize("at_once", [4, 40])
def test_sweeps_spend_less_than_half_and_end_near_the_best(at_once: int, most: bool):
    rules, steps = HalvingRules(4, 3, most), 108
    shares, places = [], []
    for seed in range(12):
        ends, spent = swept(seed, at_once, rules, steps)
        finished = [end for end, done in zip(ends, spent, strict=True) if done == steps]
        assert finished, "somebody comes to the end"
        shares.append(sum(spent) / (steps * len(ends)))
        places.append(_place(min(finished), ends))
    assert max(shares) < 0.7
    assert np.mean(shares) < 0.45
    assert np.median(places) <= 1
    assert max(places) <= 5


def _place(end: float, ends: Sequence[float]) -> int:
    return sum(other < end for other in ends)
