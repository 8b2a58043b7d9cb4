import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weft.core.errors import UsageError
from weft.specs.faults import FaultsSpec, refuse_planes, resolved


def spec(*faults: dict[str, object], seed: int = 0) -> FaultsSpec:
    return FaultsSpec.model_validate({"seed": seed, "faults": list(faults)})


@given(st.integers(0, 2**32), st.integers(1, 64), st.integers(1, 1000))
def test_what_is_left_open_is_drawn_inside_the_job_and_always_alike(seed: int, ranks: int, steps: int):
    faults = spec({"kind": "kill", "count": 5}, seed=seed)
    drawn = resolved(faults, ranks=ranks, nodes=2, steps=steps)
    assert drawn == resolved(faults, ranks=ranks, nodes=2, steps=steps)
    assert len({fault.number for fault in drawn}) == 5
    for fault in drawn:
        assert fault.rank is not None
        assert fault.step is not None
        assert 0 <= fault.rank < ranks
        assert 1 <= fault.step <= steps


def test_adding_a_fault_does_not_move_the_others():
    one = resolved(spec({"kind": "kill"}), ranks=8, nodes=2, steps=100)
    two = resolved(spec({"kind": "kill"}, {"kind": "stop"}), ranks=8, nodes=2, steps=100)
    assert two[0] == one[0]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "kill", "rank": 4, "step": 1}, "names rank 4, but the job has ranks 0 to 3"),
        ({"kind": "kill", "rank": 0, "step": 11}, "names step 11, but the job has steps 1 to 10"),
        ({"kind": "lose-node", "node": 2, "step": 1}, "names node 2, but the job has nodes 0 to 1"),
    ],
)
def test_what_the_job_does_not_have_is_refused(fault: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        resolved(spec(fault), ranks=4, nodes=2, steps=10)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "flip", "rank": 0, "step": 1}, "a flip needs a place"),
        ({"kind": "kill", "step": 1, "at": "1 s"}, "at a step or at a time"),
        ({"kind": "kill", "place": "weights"}, "has no place"),
        ({"kind": "nan", "place": "snapshot"}, "in a running rank"),
        ({"kind": "lose-node"}, "needs its number"),
        ({"kind": "kill", "node": 1}, "is on a rank, not on a node"),
        ({"kind": "explode"}, "Input should be"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_what_would(fault: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        spec(fault)


def test_faults_of_planes_need_a_backend_with_planes():
    broken = spec({"kind": "plane-down", "plane": 2, "rank": 1, "step": 3}, {"kind": "drop-link", "share": 0.1})
    refuse_planes(broken, "mrc")
    with pytest.raises(UsageError, match=r'fault 1 \(plane-down\) needs planes; set backend = "mrc"'):
        refuse_planes(broken, "auto")
    one, two = resolved(broken, ranks=4, nodes=2, steps=10)
    assert (one.rank, one.plane, one.step) == (1, 2, 3)
    assert two.rank is not None
    assert two.share == 0.1


def test_only_faults_of_planes_have_one():
    with pytest.raises(ValidationError, match="a fault of kind 'kill' has no plane"):
        spec({"kind": "kill", "plane": 1})
