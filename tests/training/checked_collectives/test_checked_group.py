from typing import Any

import pytest

from weft.training.checked_collectives import Checks, WireFault
from weft.training.launch.ranks import Ranks


def results(target: str, ranks: int, checks: Checks, **arguments: object) -> list[Any]:
    return Ranks(f"tests.training.checked_collectives.checked_ranks:{target}", ranks, arguments, checks=checks).run()


@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("shape", ("all_reduce float32[4] sum", "all_reduce float32[5] sum")),
        ("kind", ("all_reduce float32[3] sum", "barrier (")),
        ("root", ("broadcast float32[3] from rank 0", "broadcast float32[3] from rank 1")),
        ("step", ("step 7", "step 8")),
        ("transfer", ("send float32[3]", "recv float32[4]")),
        ("dtype", ("all_gather int32[4]", "all_gather float32[4]")),
    ],
)
def test_a_mismatch_names_both_ranks_and_both_calls(case: str, calls: tuple[str, str]) -> None:
    found = results("mistaken", 2, Checks(deadline_s=30), case=case)
    assert any(found)
    for text in filter(None, found):
        assert text.startswith("MismatchError: ranks 0 and 1 do not agree")
        assert all(call in text for call in calls)
    if case != "transfer":
        assert all(found), "the rank that already waits is told too"


def test_a_hang_says_who_waits_where_for_whom() -> None:
    found = results("absent", 3, Checks())
    assert all(text.startswith("HungError: rank ") for text in (found[0], found[2]))
    assert "rank 0 waits" in found[2]
    assert "everybody waits for rank 1" in found[2]
    assert "rank 2 waits" in found[2]


def test_a_receive_that_nothing_is_sent_for_names_the_sender() -> None:
    found = results("unsent", 2, Checks())
    assert found[1].startswith("HungError: rank 1 has waited")
    assert "everybody waits for rank 0" in found[1]


def test_a_result_changed_on_one_rank_is_seen_where_payloads_are_compared() -> None:
    fault = WireFault("corrupt_output", rank=1, step=3, kind="all_reduce")
    found = results("disturbed", 2, Checks(payloads=True, faults=(fault,)))
    assert any(("PayloadError" in text and "ranks 0 and 1" in text) or "ranks 1 and 0" in text for text, _ in found)
    assert found[0][1] == [2.0] * 4
    assert found[1][1] != [2.0] * 4


def test_a_payload_changed_before_the_sum_reaches_everybody_unseen() -> None:
    fault = WireFault("corrupt_input", rank=1, step=3)
    found = results("disturbed", 2, Checks(payloads=True, faults=(fault,)))
    assert [text for text, _ in found] == ["", ""]
    assert found[0][1] == found[1][1] != [2.0] * 4


def test_a_dropped_call_hangs_all_ranks_and_names_the_one_that_dropped_it() -> None:
    fault = WireFault("drop", rank=1, step=3)
    found = results("disturbed", 2, Checks(deadline_s=1.0, faults=(fault,)))
    assert "everybody waits for rank 1" in found[0][0]


def test_every_kind_of_call_is_carried_and_counted() -> None:
    for lines in results("everything", 2, Checks(payloads=True)):
        kinds = {line["kind"] for line in lines}
        assert kinds >= {
            "all_gather", "all_reduce", "all_to_all", "gather", "recv", "reduce", "reduce_scatter", "scatter", "send",
        } - {"scatter"}  # fmt: skip
        assert all(line["calls"] > 0 for line in lines)
        assert next(line["bytes"] for line in lines if line["kind"] == "send") == 12
