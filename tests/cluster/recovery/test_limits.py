from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.recovery.limits import LearnedLimit, LimitRule, percentile
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds

spans = st.lists(st.integers(1, 10**15).map(Picoseconds), min_size=1, max_size=60)


def learned(durations: list[Picoseconds], rule: LimitRule | None = None) -> LearnedLimit:
    known = LearnedLimit(rule or LimitRule())
    for duration in durations:
        known = known.with_duration(duration)
    return known


@given(spans)
def test_a_limit_is_at_least_three_seconds_and_five_times_the_percentile(durations: list[Picoseconds]):
    known = learned(durations)
    assert known.limit_ps >= 3 * PICOSECONDS_PER_SECOND
    if len(durations) >= known.rule.needed:
        assert known.limit_ps >= 5 * percentile(tuple(durations), 99)


@given(spans)
def test_steps_that_vary_less_than_fivefold_never_reach_the_limit(durations: list[Picoseconds]):
    fastest = min(durations)
    steady = [min(duration, Picoseconds(5 * fastest)) for duration in durations]
    known = LearnedLimit()
    for duration in steady:
        assert duration <= known.limit_ps or len(known.durations_ps) < known.rule.needed
        known = known.with_duration(duration)


@given(spans, st.integers(2, 50))
def test_a_slower_run_has_a_limit_that_is_no_lower(durations: list[Picoseconds], times: int):
    slower = [Picoseconds(duration * times) for duration in durations]
    assert learned(slower).limit_ps >= learned(durations).limit_ps


def test_nothing_is_judged_before_something_is_learned():
    rule = LimitRule()
    assert learned([Picoseconds(1)] * (rule.needed - 1)).limit_ps == rule.first_ps
    assert learned([Picoseconds(1)] * rule.needed).limit_ps == rule.least_ps


def test_a_job_that_has_become_slower_is_not_judged_by_its_youth():
    rule = LimitRule(window=4)
    slow = Picoseconds(10 * PICOSECONDS_PER_SECOND)
    assert learned([Picoseconds(1)] * 9 + [slow] * 4, rule).limit_ps == 5 * slow
    assert len(learned([slow] * 9, rule).durations_ps) == 4


@given(spans, st.integers(1, 10**16))
def test_what_was_waited_for_in_vain_is_waited_for_longer_until_one_ends(durations: list[Picoseconds], waited: int):
    known = learned(durations)
    again = known.with_wait(Picoseconds(waited))
    assert again.limit_ps >= max(known.limit_ps, min(3 * waited, known.rule.most_ps))
    assert again.limit_ps <= max(known.limit_ps, known.rule.most_ps)
    # A step that is only done again says nothing about the one that was waited for.
    assert again.with_duration(Picoseconds(1)).limit_ps >= min(3 * waited, known.rule.most_ps)


@given(spans, st.integers(1, 100))
def test_a_percentile_is_one_of_the_values_and_covers_its_share(durations: list[Picoseconds], percent: int):
    value = percentile(tuple(durations), percent)
    assert value in durations
    assert 100 * sum(duration <= value for duration in durations) >= percent * len(durations)
