"""Who holds a job up is named, whether it stops before a collective, leaves one out, or gives one another shape."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from verification.hung_jobs import HungJob, groups_of, hung_calls

from weft.diagnosis.collective_calls import find_hangs
from weft.diagnosis.finding import DiagnosisFinding


def found_in(job: HungJob) -> Sequence[DiagnosisFinding]:
    return find_hangs(hung_calls(job), groups_of(job), range(job.replicas * job.stages)).sorted()


@st.composite
def jobs(draw: st.DrawFn, causes: tuple[str, ...]) -> HungJob:
    replicas, stages = draw(st.integers(3, 8)), draw(st.integers(1, 4))
    # The first steps teach what follows what; one left out before that cannot be told from the end of a program.
    place = draw(st.integers(5, 15))
    culprit = draw(st.integers(0, replicas * stages - 1))
    return HungJob(draw(st.integers(0, 9)), replicas, stages, 4, draw(st.sampled_from(causes)), culprit, place)  # type: ignore[arg-type]


@given(jobs(("stops", "skips")))
@settings(max_examples=60)
def test_the_rank_that_stops_or_leaves_one_out_is_named(job: HungJob) -> None:
    worst = found_in(job)[0]
    assert worst.verdict in {"stuck", "wrong"}, job  # one that goes on calls the next in the place of the one left out
    assert worst.ranks == (job.culprit,), job


@given(jobs(("other-shape",)))
@settings(max_examples=40)
def test_the_rank_with_another_shape_is_named_and_who_waits_for_it_is_not(job: HungJob) -> None:
    found = found_in(job)
    assert [(one.cause, one.ranks) for one in found] == [("collective-mismatch", (job.culprit,))], job
