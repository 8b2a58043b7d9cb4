"""What travels between machines comes out as it went in, and what else arrives makes nothing."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.specs.job import PlanSpec
from weft.training.launch.wire_values import WireValues


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


WIRE = WireValues((Pair, PlanSpec))
KEYS = st.one_of(st.text(max_size=5), st.integers(), st.tuples(st.integers(), st.text(max_size=3)))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(),
                   st.builds(PlanSpec, dp=st.integers(1, 9), exact=st.booleans()))  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(KEYS, inner, max_size=4),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_a_value_comes_out_as_it_went_in(value: object):
    found = WIRE.decode(WIRE.encode(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), [b"deep"], PlanSpec])
def test_what_is_not_known_does_not_travel(value: object):
    with pytest.raises(TypeError, match="does not travel"):
        WIRE.encode(value)


PLAIN = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=6)), lambda inner: st.lists(inner, max_size=4), max_leaves=12
)


@given(st.one_of(st.binary(max_size=60), PLAIN.map(lambda plain: json.dumps(plain).encode())))
def test_whatever_arrives_is_a_value_or_a_value_error(content: bytes):
    try:
        WIRE.decode(content)
    except ValueError:
        return


@pytest.mark.parametrize(
    "content", [b'["os.system", "true"]', b'["Pair", 1]', b'["d", 1]', b"[]", b"[[1], 2]", b'{"d": 1}', b"[" * 100_000]
)
def test_words_of_nobody_make_nothing(content: bytes):
    with pytest.raises(ValueError, match=r"."):
        WIRE.decode(content)
