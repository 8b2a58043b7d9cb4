from hypothesis import given
from hypothesis import strategies as st

from weft.training.checked_collectives import CallStatus, CollectiveCall, hang
from weft.training.checked_collectives.calls import mismatch

words = st.text("abcdefgh_[]0123456789x ", max_size=12)
calls = st.builds(
    CollectiveCall,
    group=st.sampled_from(["0", "1", "dp"]),
    number=st.integers(0, 100),
    kind=st.sampled_from(["all_reduce", "broadcast", "send"]),
    form=words,
    detail=words,
    generation=st.integers(0, 5),
    step=st.integers(-1, 10),
    rank=st.integers(0, 7),
)


@given(calls)
def test_a_call_survives_writing_and_reading(call: CollectiveCall) -> None:
    assert CollectiveCall.read(call.written()) == call
    standing = CallStatus(call, inside=True, since_s=1.5)
    assert CallStatus.read(standing.written()) == standing


@given(calls, calls)
def test_calls_match_when_only_their_ranks_differ(one: CollectiveCall, other: CollectiveCall) -> None:
    same = (one.group, one.number, one.kind, one.form, one.detail, one.generation, one.step) == (
        other.group, other.number, other.kind, other.form, other.detail, other.generation, other.step,
    )  # fmt: skip
    if "send" not in (one.kind, other.kind):
        assert one.matches(other) == same
    assert one.matches(other) == other.matches(one)


def test_a_send_matches_a_receive_and_not_another_send() -> None:
    send = CollectiveCall("0", 1, "send", "float32[3]", rank=0, place="0->1 tag 0")
    receive = CollectiveCall("0", 1, "recv", "float32[3]", rank=1, place="0->1 tag 0")
    assert send.matches(receive)
    assert not send.matches(send)


def test_a_mismatch_names_ranks_in_order_whoever_finds_it() -> None:
    one, other = (
        CollectiveCall("0", 4, "barrier", rank=3),
        CollectiveCall("0", 4, "all_reduce", "float32[2]", "sum", rank=1),
    )
    assert mismatch(one, other) == mismatch(other, one)
    assert mismatch(one, other).startswith("ranks 1 and 3 do not agree: rank 1 calls all_reduce float32[2] sum")


def inside(group: str, number: int, rank: int, since: float = 0.0, place: str = "") -> CallStatus:
    return CallStatus(CollectiveCall(group, number, "all_reduce", rank=rank, place=place), inside=True, since_s=since)


def left(group: str, number: int, rank: int) -> CallStatus:
    return CallStatus(CollectiveCall(group, number, "all_reduce", rank=rank), inside=False, since_s=0.0)


@given(st.integers(2, 9), st.data())
def test_the_one_rank_that_did_not_come_is_the_root(ranks: int, data: st.DataObject) -> None:
    absent = data.draw(st.integers(0, ranks - 1))
    standings = [inside("0", 5, rank) if rank != absent else left("0", 4, rank) for rank in range(ranks)]
    found = hang(standings, {"0": range(ranks)})
    assert found.roots == (absent,)
    assert all(missing == (absent,) for _, missing in found.waits.values())
    assert f"everybody waits for rank {absent}" in found.sentence(standings, 1.0)


def test_waits_are_followed_through_groups_to_the_root() -> None:
    members = {"a": [0, 1], "b": [1, 2], "c": [2, 3]}
    standings = [inside("a", 1, 0), left("a", 0, 1), inside("b", 2, 1), left("b", 1, 2), inside("c", 7, 2)]
    found = hang(standings, members)
    assert found.roots == (3,)
    assert "rank 3 was never seen" in found.sentence(standings, 1.0)


def test_ranks_that_wait_for_each_other_form_a_ring() -> None:
    members = {"a": [0, 1], "b": [0, 1]}
    standings = [inside("a", 3, 0), left("b", 0, 0), inside("b", 1, 1), left("a", 2, 1)]
    found = hang(standings, members)
    assert found.roots == ()
    assert found.cycle == (0, 1)
    assert "wait for each other in a ring" in found.sentence(standings, 1.0)


def test_a_receive_waits_for_its_sender_alone() -> None:
    standing = inside("0", 0, 2, place="1->2 tag 0")
    assert hang([standing, left("0", 9, 0)], {"0": range(4)}).waits[2][1] == (1,)
