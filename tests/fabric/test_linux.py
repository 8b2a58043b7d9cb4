import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.fabric import linux
from weft.fabric.addressing.forwarding import ForwardingAction, ForwardingPlane
from weft.fabric.addressing.srv6 import plan_of_shape, plan_of_topology
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import Topology, build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

specs = st.from_type(FabricSpec)


def exported(topology: Topology, prefix: str = "w") -> linux.Export:
    return linux.export(topology, plan_of_topology(topology), prefix)


def routes_of(export: linux.Export, namespace: str) -> list[tuple[str, ...]]:
    return [command.words for command in export.up if command.namespace == namespace and command.words[0] == "route"]


@given(spec=specs)
def test_every_table_entry_is_one_route_and_nothing_else_is(spec: FabricSpec):
    topology = build(spec)
    plan = plan_of_shape(shape_of(spec))
    export, tables = exported(topology), ForwardingPlane(topology, plan)
    for node, namespace in enumerate(export.namespaces):
        entries = {entry.match(plan.block): entry for entry in tables.of_node(node).entries()}
        routes = routes_of(export, namespace)
        assert len(routes) == len(entries)
        for words in routes:
            local = words[2] == "local"
            entry = entries.pop(words[3] if local else words[2])
            assert local == (entry.action is ForwardingAction.DELIVER)
            assert ("seg6local" in words) == (entry.action is ForwardingAction.SHIFT)
            if entry.action is ForwardingAction.FORWARD:
                assert words[-1] == linux.device_of(topology, node, entry.port)
        assert not entries


@given(spec=specs)
def test_both_ends_of_a_link_point_at_each_other(spec: FabricSpec):
    topology = build(spec)
    export = exported(topology)
    address = {
        (command.namespace, command.words[4]): command.words[2]
        for command in export.up
        if command.words[:2] == ("address", "add") and command.words[4] != "lo"
    }
    neighbour = {
        (command.namespace, command.words[6]): (f"{command.words[2]}/64", command.words[4])
        for command in export.up
        if command.words[:2] == ("neighbour", "replace")
    }
    hardware = {
        (words[start + 5], words[start + 1]): words[start + 3]
        for words in (command.words for command in export.up if command.words[:2] == ("link", "add"))
        for start in (2, 11)
        if "netns" in words
    }
    names = export.namespaces
    links = topology.links
    for link in range(len(links)):
        lower, upper = int(links.lower[link]), int(links.upper[link])
        below = (names[lower], linux.device_of(topology, lower, int(links.lower_port[link])))
        above = (names[upper], linux.device_of(topology, upper, int(links.upper_port[link])))
        assert (address[below], address[above]) == ("fe80::1/64", "fe80::2/64")
        for here, there in ((below, above), (above, below)):
            assert neighbour[here] == (address[there], hardware[there])
    assert len(address) == len(neighbour) == len(hardware) == 2 * len(links)


@given(spec=specs, first=st.from_regex("[a-z][a-z0-9]{0,3}", fullmatch=True), second=st.sampled_from(["w", "w1", "wh"]))
def test_names_are_short_and_two_prefixes_never_meet(spec: FabricSpec, first: str, second: str):
    topology = build(spec)
    names = {linux.namespace_of(topology, node, first) for node in range(topology.nodes)}
    assert len(names) == topology.nodes
    assert all(len(name) <= linux.LONGEST_NAME for name in names)
    if first != second:
        assert not names & {linux.namespace_of(topology, node, second) for node in range(topology.nodes)}


def test_the_longest_names_of_the_131k_site_fit():
    topology = build(load_site("gb200-8x100g-131k").fabric)
    names = [linux.namespace_of(topology, node, "labs") for node in (0, 131_071, 131_072, topology.nodes - 1)]
    assert names == ["labs-h0", "labs-h131071", "labs-t0p0i0", "labs-t1p7i255"]


@pytest.mark.parametrize("prefix", ["", "W", "1w", "w-", "w x", "$(reboot)", "wefts"])
def test_a_prefix_that_cannot_begin_names_is_refused(prefix: str):
    with pytest.raises(UsageError, match="cannot begin names"):
        exported(build(load_site("laptop").fabric), prefix)


def test_down_removes_exactly_what_up_makes():
    export = exported(build(load_site("laptop").fabric))
    made = [command.words[2] for command in export.up if command.words[:2] == ("netns", "add")]
    removed = [command.words[2] for command in export.down]
    assert made == removed == list(export.namespaces)
    assert len(made) == 20


def test_the_scripts_are_shell():
    export = exported(build(load_site("laptop").fabric))
    for script in (export.up_script(), export.down_script()):
        assert subprocess.run(["sh", "-n"], input=script, text=True, check=False, timeout=10).returncode == 0
    assert "ip netns del w-h0 2>/dev/null || true" in export.down_script().splitlines()


def test_the_script_says_what_the_commands_say():
    export = exported(build(load_site("laptop").fabric))
    in_batch: str | None = None
    said: list[tuple[str, ...]] = []
    for line in export.up_script().splitlines():
        words = tuple(shlex.split(line)) if not line.startswith(("#", "undo", "trap")) else ()
        if in_batch is not None:
            if line == "END":
                in_batch = None
            else:
                said.append(("ip", "-n", in_batch, *words))
        elif words[:2] == ("ip", "-n"):
            in_batch = words[2]
        elif words[:1] == ("ip",):
            said.append(words)
    assert said == [command.argv() for command in export.up]


def test_a_failed_link_comes_back_with_what_linux_dropped():
    topology = build(load_site("laptop").fabric)
    tables = ForwardingPlane(topology, plan_of_topology(topology))
    link = topology.names.find("link1-p0-i0-u1", ("link",))[1]
    down = [shlex.join(command.argv()) for command in linux.link_down(topology, link)]
    assert down == ["ip -n w-t0p0i0 link set dev e3 down", "ip -n w-t1p0i1 link set dev e0 down"]
    back = linux.link_up(tables, link)
    assert set(back) <= set(exported(topology).up)
    assert [command.words[0] for command in back] == ["link", "address", "neighbour", "route"] * 2
