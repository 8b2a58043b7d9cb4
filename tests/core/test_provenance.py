"""Provenance: the same question has the same name, whatever order it was written in."""

from hypothesis import given
from hypothesis import strategies as st

from weft.core.provenance import digest, provenance
from weft.core.version import VERSION

plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@given(table=st.dictionaries(st.text(max_size=4), plain, max_size=5))
def test_key_order_does_not_matter(table: dict[str, object]):
    backwards = dict(reversed(table.items()))
    assert digest(table) == digest(backwards)


def test_a_report_names_spec_seed_and_version():
    assert provenance({"a": 1}, seed=3).as_json() == {"spec": digest({"a": 1}), "seed": 3, "version": VERSION}
    assert digest({"a": 1}) != digest({"a": 2})
