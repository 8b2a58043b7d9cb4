import json
import math
import struct

from hypothesis import given
from hypothesis import strategies as st

from weft.training.metrics.step_line import StepLine, bits, finite, from_bits


@given(st.floats(allow_nan=True, allow_infinity=True, width=64))
def test_a_float_survives_as_its_bits(value: float):
    assert struct.pack(">d", from_bits(bits(value))) == struct.pack(">d", value)
    assert len(bits(value)) == 16


@given(st.floats(), st.floats())
def test_equal_bits_mean_the_same_float_zeros_of_both_signs_apart(left: float, right: float):
    same = struct.pack(">d", left) == struct.pack(">d", right)
    assert (bits(left) == bits(right)) == same


@given(st.floats())
def test_json_gets_a_number_or_nothing(value: float):
    shown = finite(value)
    assert shown is None if math.isnan(value) or math.isinf(value) else shown == value
    line = StepLine(1, value, value, 0.1, 10, {"compute": 1.0}).as_json()
    assert json.loads(json.dumps(line, allow_nan=False))["loss_bits"] == bits(value)


def test_digests_are_in_a_line_only_where_they_were_taken():
    bare = StepLine(3, 1.0, 2.0, 0.1, 10, {}).as_json()
    assert "weights_digest" not in bare
    assert "tensors" not in bare
    full = StepLine(3, 1.0, 2.0, 0.1, 10, {}, "abc", {"w": "1"}).as_json()
    assert (full["weights_digest"], full["tensors"]) == ("abc", {"w": "1"})
