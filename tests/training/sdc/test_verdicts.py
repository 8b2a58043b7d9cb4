from hypothesis import given
from hypothesis import strategies as st

from weft.training.sdc.verdicts import (
    WEIGHTS,
    EvidenceLog,
    Kind,
    RankVerdict,
    SdcEvidence,
    describe,
    from_vote,
    judge,
    score,
    settle,
)

HALF_LIFE = 100.0
evidences = st.lists(
    st.builds(SdcEvidence, rank=st.integers(0, 3), step=st.integers(0, 500), kind=st.sampled_from(Kind)), max_size=6
)


def test_a_rank_without_evidence_is_good() -> None:
    assert judge([], 0, 10).verdict is RankVerdict.GOOD


def test_one_wrong_result_makes_a_suspect_and_fades() -> None:
    once = [SdcEvidence(2, 10, Kind.OUTVOTED)]
    assert judge(once, 2, 10, HALF_LIFE).verdict is RankVerdict.SUSPECT
    assert judge(once, 2, 500, HALF_LIFE).verdict is RankVerdict.GOOD


def test_a_repeat_offender_is_guilty_only_while_the_first_offence_counts() -> None:
    soon = [SdcEvidence(2, 10, Kind.OUTVOTED), SdcEvidence(2, 60, Kind.OUTVOTED)]
    late = [SdcEvidence(2, 10, Kind.OUTVOTED), SdcEvidence(2, 900, Kind.OUTVOTED)]
    assert judge(soon, 2, 60, HALF_LIFE).verdict is RankVerdict.GUILTY
    assert judge(late, 2, 900, HALF_LIFE).verdict is RankVerdict.SUSPECT


def test_a_fault_that_comes_back_or_a_failed_test_is_enough() -> None:
    for kind in (Kind.REPEATED, Kind.MICRO_TEST):
        assert judge([SdcEvidence(0, 3, kind)], 0, 3).verdict is RankVerdict.GUILTY


@given(evidences, st.integers(0, 3), st.integers(500, 5000))
def test_guilt_stays_and_suspicion_never_grows_by_waiting(found: list[SdcEvidence], rank: int, later: int) -> None:
    now, then = judge(found, rank, 500, HALF_LIFE), judge(found, rank, later, HALF_LIFE)
    assert (now.verdict is RankVerdict.GUILTY) == (then.verdict is RankVerdict.GUILTY)
    assert then.score <= now.score
    assert all(one.rank == rank for one in now.evidence)


@given(evidences)
def test_evidence_against_others_does_not_count(found: list[SdcEvidence]) -> None:
    mine = [one for one in found if one.rank == 1]
    assert judge(found, 1, 500) == judge(mine, 1, 500)
    assert score(mine, 0, HALF_LIFE) <= sum(WEIGHTS[one.kind] for one in mine)


@given(st.integers(3, 9), st.data())
def test_an_outvoted_rank_is_named(voters: int, data: st.DataObject) -> None:
    liar = data.draw(st.integers(0, voters - 1))
    (found,) = from_vote({rank: int(rank == liar) for rank in range(voters)}, 7, "x")
    assert (found.rank, found.kind) == (liar, Kind.OUTVOTED)


def test_a_tie_is_settled_by_doing_it_again() -> None:
    assert from_vote({0: 1, 1: 2}, 3, "x") == (SdcEvidence(0, 3, Kind.TIE, "x"), SdcEvidence(1, 3, Kind.TIE, "x"))
    assert settle({0: 1, 1: 2}, {0: 1, 1: 1}, 3, "x") == (SdcEvidence(1, 3, Kind.OUTVOTED, "x"),)
    assert {one.kind for one in settle({0: 1, 1: 2}, {0: 1, 1: 2}, 3, "x")} == {Kind.TIE}
    assert settle({0: 1, 1: 2}, {0: 1, 1: 2, 2: 1}, 3, "x") == (SdcEvidence(1, 3, Kind.REPEATED, "x"),)


def test_the_court_names_guilty_and_suspects_with_their_evidence() -> None:
    evidence = EvidenceLog(3)
    evidence.add([SdcEvidence(1, 5, Kind.OUTVOTED, "gradient"), SdcEvidence(2, 5, Kind.REPEATED, "gradient")])
    assert evidence.guilty(5) == (2,)
    assert evidence.suspects(5) == (1,)
    assert str(evidence.verdicts(5)[1].evidence[0]) == "step 5: outvoted in gradient"
    assert describe(evidence.evidence) == (
        "at step 5 rank 1 differs from what most others hold (gradient);"
        " rank 2 was wrong again when it repeated its work (gradient)"
    )
