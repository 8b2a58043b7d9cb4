"""Names of a fabric's parts: each id has one name, each name one id, and a wrong one is answered with a near one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.core.ids import IdError
from weft.fabric.graph.naming import Kind, NameList, Names
from weft.fabric.graph.topology import build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

KINDS: tuple[Kind, ...] = ("nic", "switch", "link", "optic")


def sizes(spec: FabricSpec) -> dict[Kind, int]:
    topology = build(spec)
    return {
        "nic": topology.nics, "switch": len(topology.switches.tier), "link": len(topology.links),
        "optic": topology.optics,
    }  # fmt: skip


@given(...)
@settings(max_examples=30)
def test_every_part_has_a_name_of_its_own_that_finds_it(spec: FabricSpec):
    names = build(spec).names
    for kind, size in sizes(spec).items():
        called = [names.of(kind, dense) for dense in range(size)]
        assert len(set(called)) == size
        assert [names.find(name, KINDS) for name in called[:50]] == [(kind, dense) for dense in range(min(50, size))]


@given(...)
@settings(max_examples=20)
def test_an_id_beyond_the_last_has_no_name(spec: FabricSpec):
    names = build(spec).names
    for kind, size in sizes(spec).items():
        with pytest.raises(IdError, match=f"there is no {kind} with id {size}"):
            names.of(kind, size)
        with pytest.raises(IdError):
            names.of(kind, -1)


SITE = build(load_site("bed-64x400g").fabric).names


@pytest.mark.parametrize(
    ("name", "kinds", "said"),
    [
        ("nic-i64", KINDS, "i64 does not exist: i runs from 0 to 63"),
        ("nic-x1", KINDS, "is not the name of a nic; names look like 'nic-i0'"),
        ("gpu-7", KINDS, "there is no NIC, switch, link or optic called 'gpu-7'; names look like"),
        ("gpu-7", ("nic",), "there is no NIC called 'gpu-7'"),
        ("gpu-7", ("nic", "switch"), "there is no NIC or switch called 'gpu-7'"),
    ],
)
def test_a_wrong_name_is_answered_with_what_there_is(name: str, kinds: tuple[Kind, ...], said: str):
    with pytest.raises(UsageError) as caught:
        SITE.find(name, kinds)
    assert said in str(caught.value)


def test_a_name_of_another_kind_is_not_found():
    with pytest.raises(UsageError):
        SITE.find("nic-i0", ("switch", "link"))


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12, unique=True))
def test_free_names_find_their_ids(words: list[str]):
    family = NameList("node", tuple(words))
    assert family.size == len(words)
    for dense, word in enumerate(words):
        assert family.owns(dense)
        assert family.parse(word) == dense
        assert family.name(dense) == word
    assert not family.owns(len(words))
    assert not family.owns(-1)


def test_a_free_name_that_is_nearly_right_is_answered_with_the_right_one():
    names = Names({"nic": (NameList("nic", ("gpu-east", "gpu-west")),)})
    with pytest.raises(IdError, match="did you mean 'gpu-east'"):
        names.families["nic"][0].parse("gpu-eats")
    with pytest.raises(IdError, match=r"there is no nic called 'zebra'$"):
        names.families["nic"][0].parse("zebra")
