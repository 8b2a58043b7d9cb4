import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import SpecError, UsageError
from weft.fabric import linux
from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import ForwardingPlane, usids_along
from weft.fabric.addressing.srv6 import plan_of_topology
from weft.fabric.addressing.walk import FailedParts, Walker, failures_named
from weft.fabric.graph.edges import HostRule, import_edges
from weft.fabric.graph.invariants import violations
from weft.fabric.graph.topology import NO_OPTIC, build
from weft.specs.fabric import FabricSpec

DIAMOND = """a,b,rate,length
# two racks, two spines, the second joined twice
gpu1, rack A, 400 Gb/s, 2 m
gpu2, rack B, 400 Gb/s, 2 m
rack A, spine1, 800 Gb/s, 30 m
rack B, spine1, 800 Gb/s, 30 m
rack A, spine2,,
rack A, spine2,,
spine2, rack B,,
"""
GPUS = HostRule(name="gpu*")


def mistakes_in(text: str, rule: HostRule = GPUS) -> list[tuple[int | None, str, str]]:
    with pytest.raises(SpecError) as caught:
        import_edges(text, rule, file="net.csv")
    return [(mistake.line, mistake.key, mistake.problem) for mistake in caught.value.mistakes]


def test_an_edge_list_becomes_columns():
    topology = import_edges(DIAMOND, GPUS)
    assert violations(topology) == []
    assert topology.nics == 2
    assert [topology.name_of_node(node) for node in range(topology.nodes)] == [
        "gpu1", "gpu2", "rack A", "rack B", "spine1", "spine2",
    ]  # fmt: skip
    assert topology.switches.tier.tolist() == [0, 0, 1, 1]
    assert topology.links.stage.tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert topology.links.rate_bps.tolist() == [400 * 10**9] * 2 + [800 * 10**9] * 2 + [100 * 10**9] * 3
    assert topology.links.length_mm.tolist() == [2_000] * 2 + [30_000] * 2 + [10_000] * 3
    assert set(topology.links.upper_optic.tolist()) == {NO_OPTIC}
    assert topology.name_of_link(5) == "rack A--spine2#1"
    assert topology.name_of_link(6) == "rack B--spine2"


def test_hosts_can_be_told_by_degree():
    assert import_edges(DIAMOND, HostRule.parse("degree:1")).nics == 2
    assert import_edges(DIAMOND.splitlines(), HostRule.parse("name:gpu?")).nics == 2


def test_an_imported_network_forwards_and_fails_like_a_built_one():
    topology = import_edges(DIAMOND, GPUS)
    plan = plan_of_topology(topology)
    tables = ForwardingPlane(topology, plan)
    for first, second in ((2, 3), (4, 6), (5, 6)):
        carrier = srv6.pack(usids_along(topology, plan, 0, [0, first, second, 1]))
        walk = Walker(tables).walk(0, carrier)
        assert (walk.arrived, walk.links) == (1, (0, first, second, 1))
        cut = Walker(tables, failures_named(topology, [topology.name_of_link(second)])).walk(0, carrier)
        assert cut.arrived is None
        assert cut.links == (0, first)
    # A dead member of the bundle hits only the carriers that name it.
    carrier = srv6.pack(usids_along(topology, plan, 0, [0, 4, 6, 1]))
    assert Walker(tables, FailedParts(links=frozenset({5}))).walk(0, carrier).arrived == 1


def test_an_imported_network_is_exported_as_linux_commands():
    topology = import_edges(DIAMOND, GPUS)
    export = linux.export(topology, plan_of_topology(topology))
    assert export.namespaces == ("w-h0", "w-h1", "w-s0", "w-s1", "w-s2", "w-s3")


@given(spec=st.from_type(FabricSpec))
def test_a_built_fabric_written_as_edges_comes_back_with_the_same_wiring(spec: FabricSpec):
    built = build(spec)
    rows = ["a,b,plane"]
    for link in range(len(built.links)):
        ends = (int(built.links.lower[link]), int(built.links.upper[link]))
        rows.append(",".join([*map(built.name_of_node, ends), str(built.links.plane[link])]))
    imported = import_edges(rows, HostRule(name="nic-*"))
    assert violations(imported) == []
    assert imported.switches.tier.tolist() == [
        built.switches.tier[built.names.find(imported.names.of("switch", switch), ("switch",))[1]]
        for switch in range(len(imported.switches.tier))
    ]
    assert imported.links.stage.tolist() == built.links.stage.tolist()
    for link in range(len(built.links)):
        for column in ("lower", "upper"):
            node = int(getattr(imported.links, column)[link])
            assert imported.name_of_node(node) == built.name_of_node(int(getattr(built.links, column)[link]))


def test_every_mistake_is_named_with_its_line():
    text = """a,b,rate,length,plane
gpu1,sw1,400 Gbps?,2 m,0
gpu2,,400 Gb/s,2 m,0
sw1,sw1,,,
gpu3,sw1,400 Gb/s,2,x
gpu4,sw1,400 Gb/s
gpu5,gpu6,,,
sw1,sw2,,,1
lone1,lone2,,,
gpu7,sw1,0 Gb/s,,
gpu7,sw1,,9999999 km,
gpu8,sw2,,,1
"""
    found = mistakes_in(text)
    assert [(line, key) for line, key, _ in found if line is not None] == [
        (2, "rate"), (3, "b"), (4, "b"), (5, "length"), (5, "plane"), (6, ""), (10, "rate"), (11, "length"),
        (7, ""), (9, ""), (9, ""),
    ]  # fmt: skip
    assert (7, "", "'gpu5' and 'gpu6' are both hosts") in found
    assert (9, "", "no host reaches 'lone1'") in found
    assert (4, "b", "'sw1' is joined to itself") in found
    assert (6, "", "3 cells, but the header has 5 columns") in found


def test_a_switch_in_two_planes_is_named():
    text = "a,b,plane\ngpu1,sw1,0\ngpu2,sw1,1\n"
    assert mistakes_in(text) == [(3, "plane", "'sw1' stands in plane 0 already")]


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ("", None, "", "there is no header"),
        ("a,b\n", None, "", "there is no link"),
        ("a,c\ngpu1,sw\n", 1, "b", "this column is missing"),
        ("a,b,b\ngpu1,sw,sw\n", 1, "b", "this column is named twice"),
        ("a,b,colour\ngpu1,sw,red\n", 1, "colour", "unknown column"),
        ('a,b\ngpu1,"sw\n', 2, "", "this is not CSV: unexpected end of data"),
        ("a,b\nnode1,sw\n", None, "", "no node is a host by the rule name:gpu*"),
        ("a,b\ngpu1,s\x07w\n", 2, "b", "'s\\x07w' is not a name"),
    ],
)
def test_a_file_that_is_no_edge_list_is_refused(text: str, line: int | None, key: str, problem: str):
    assert (line, key, problem) in mistakes_in(text)


@pytest.mark.parametrize("text", ["", "gpu*", "name:", "degree:0", "degree:x", "degree:²", "kind:leaf"])
def test_a_rule_that_says_nothing_is_refused(text: str):
    with pytest.raises(UsageError, match="write 'name:gpu\\*' or 'degree:1'"):
        HostRule.parse(text)


def test_a_rule_has_one_half():
    with pytest.raises(UsageError, match="exactly one of name and degree"):
        HostRule(name="a", degree=1)


def test_an_unknown_name_gets_a_near_one():
    with pytest.raises(UsageError, match="there is no link, switch, optic or NIC called 'spin1'; names look like"):
        failures_named(import_edges(DIAMOND, GPUS), ["spin1"])
