import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.training.checked_collectives.call_statistics import CallStatistics
from weft.training.checked_collectives.calls import CollectiveCall
from weft.training.checked_collectives.payload_faults import WireFault, WireFaults


def call(step: int, number: int = 0, kind: str = "all_reduce") -> CollectiveCall:
    return CollectiveCall("world", number, kind, step=step)


def hits(fault: WireFault, calls: list[CollectiveCall], rank: int = 0) -> list[int]:
    """Return which of `calls` the fault hits."""
    faults = WireFaults([fault], rank, Seed(0))
    return [number for number, one in enumerate(calls) if faults.at(one)]


@given(st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_a_fault_hits_the_named_call_of_its_step_and_again_only_where_it_is_sticky(step: int, which: int, sticky: bool):
    fault = WireFault("drop", 0, step, call=which, sticky=sticky)
    calls = [call(at, number) for at in range(6) for number in range(4)]
    wanted = [4 * at + which for at in range(6) if at == step or (sticky and at > step)]
    assert hits(fault, calls) == wanted
    assert hits(fault, calls, rank=1) == []


def test_calls_of_another_kind_do_not_count():
    fault = WireFault("drop", 0, 1, kind="all_gather", call=1)
    kinds = ["all_reduce", "all_gather", "all_reduce", "all_gather", "all_gather"]
    assert hits(fault, [call(1, number, kind) for number, kind in enumerate(kinds)]) == [3]


@pytest.mark.parametrize("action", ["corrupt_input", "corrupt_output"])
def test_exactly_one_bit_of_one_tensor_is_changed_and_the_same_one_again(action: str):
    changed = []
    for _ in range(2):
        tensors = [torch.zeros(0), torch.zeros(5), torch.zeros(3)]
        faults = WireFaults([WireFault(action, 0, 2)], 0, Seed(4))  # pyrefly: ignore
        found = faults.at(call(2))
        assert faults.before(found, call(2), tensors)
        faults.after(found, call(2), tensors)
        bits = torch.cat(tensors).view(torch.int32)
        assert sum(int(word) & 0xFFFFFFFF != 0 for word in bits) == 1
        changed.append(bits.tolist())
        assert [fault.action for fault, _ in faults.done] == [action]
    assert changed[0] == changed[1]


def test_a_dropped_call_is_not_made_and_a_late_one_is():
    faults = WireFaults([WireFault("drop", 0, 1), WireFault("delay", 0, 2, delay_s=0.0)], 0, Seed(0))
    assert not faults.before(faults.at(call(1)), call(1), [])
    assert faults.before(faults.at(call(2)), call(2), [])


def test_nothing_is_changed_where_there_is_nothing():
    faults = WireFaults([WireFault("corrupt_input", 0, 1)], 0, Seed(0))
    empty = torch.zeros(0)
    assert faults.before(faults.at(call(1)), call(1), [empty])


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 9), st.floats(0, 9)), max_size=20)
)
def test_calls_bytes_and_waits_add_up_by_group_and_kind(events: list[tuple[str, str, int, float]]):
    statistics = CallStatistics()
    for group, kind, size, waited in events:
        statistics.entered(group, kind, size)
        statistics.waited(group, kind, waited)
    rows = statistics.as_json()
    assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)
    for row in rows:
        mine = [one for one in events if one[:2] == (row["group"], row["kind"])]
        assert row["calls"] == len(mine)
        assert row["bytes"] == sum(one[2] for one in mine)
        assert row["waited_s"] == pytest.approx(sum(one[3] for one in mine))
    assert len(rows) == len({one[:2] for one in events})
