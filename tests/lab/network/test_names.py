"""What words mean in a lab: hosts, switches, links and patterns of them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.builders import paper_lab, read_only_lab

from weft.core.errors import UsageError
from weft_lab.network.lab import Lab


@pytest.fixture
def lab(tmp_path) -> Lab:
    return paper_lab(tmp_path)


@pytest.mark.parametrize(("text", "node"), [("0", 0), ("3", 3), ("h2", 2), ("nic-i1", 1), ("t0-p0-i0", 4)])
def test_a_node_is_the_number_or_name_of_a_nic_or_the_name_of_a_switch(lab, text, node):
    assert lab.node(text) == node


def test_every_node_is_found_by_its_own_name(lab):
    topology = lab.plan.topology
    for node in range(len(lab.plan.namespaces)):
        assert lab.node(topology.name_of_node(node)) == node
    assert len(set(lab.plan.namespaces)) == len(lab.plan.namespaces)


@pytest.mark.parametrize(
    ("text", "says"),
    [("4", "there is no host 4; they run from 0 to 3"), ("h99", "there is no host h99"), ("t7-p0-i0", "t7-p0-i0")],
)
def test_what_does_not_exist_is_named_with_what_does(lab, text, says):
    with pytest.raises(UsageError, match=says):
        lab.node(text)


@pytest.mark.parametrize("text", ["t0-p0-i0", "t1-p1-i1"])
def test_a_switch_is_no_host(lab, text):
    with pytest.raises(UsageError, match=f"{text} is a switch; name a host, from 0 to 3"):
        lab.host(text)


@pytest.mark.parametrize(
    ("pattern", "kinds", "count"),
    [
        ("link0-*", ("link",), 8),
        ("link1-*", ("link",), 8),
        ("link0-p1-*", ("link",), 4),
        ("*", ("link",), 16),
        ("t1-*", ("switch",), 4),
        ("*", ("link", "switch"), 24),
        ("link0-p0-i[01]", ("link",), 2),
        ("link0-p0-i?", ("link",), 4),
        ("link0-p0-i0", ("link",), 1),
    ],
)
def test_a_pattern_stands_for_every_name_that_fits(lab, pattern, kinds, count):
    found = lab.names(pattern, kinds)
    assert len(found) == len(set(found)) == count


@pytest.mark.parametrize(("pattern", "kinds"), [("t1-*", ("link",)), ("link9-*", ("link",)), ("link*", ("switch",))])
def test_a_pattern_that_fits_nothing_says_how_names_look(lab, pattern, kinds):
    with pytest.raises(UsageError, match=r"no name fits .*; names look like"):
        lab.names(pattern, kinds)


@given(st.text(alphabet="linkt0123456789-pu", max_size=12))
def test_no_word_is_more_than_a_usage_error(text):
    with suppress(UsageError):
        assert read_only_lab().names(text, ("link", "switch"))


def test_a_command_at_a_node_is_run_in_its_namespace(lab):
    assert lab.inside(2)[-3:] == ("netns", "exec", "w-h2")
    assert lab.inside(lab.node("t1-p0-i1"))[-1] == "w-t1p0i1"
