"""Fabrics go to other tools and come back: InfraGraph by its own package, NetBox's cables in each of its forms."""

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infragraph.infragraph_service import InfraGraphService

from weft.core.errors import UsageError
from weft.fabric import formats
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.graph.edges import HostRule, import_edges
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import build
from weft.fabric.infragraph import edges_of_infragraph, infragraph
from weft.fabric.netbox import edges_of_netbox_csv, edges_of_netbox_json, is_netbox_csv
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

SITES = ("laptop", "bed-64x400g", "leaf-spine-400g")


@pytest.mark.parametrize("name", SITES)
def test_infragraphs_own_package_builds_every_link_of_ours(name: str) -> None:
    topology = build(load_site(name).fabric)
    service = InfraGraphService()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ports that nothing is plugged into
        service.set_graph(infragraph(topology, name))
    graph = service.get_networkx_graph()
    between = {frozenset((one, other)) for one, other in graph.edges() if one.split(".")[:2] != other.split(".")[:2]}
    links, own = topology.links, set()
    switches = topology.switches
    for link in range(len(links)):
        ends = []
        for node, port in ((links.lower[link], links.lower_port[link]), (links.upper[link], links.upper_port[link])):
            at = int(node) - topology.nics
            place = f"nic.{node}" if at < 0 else f"t{switches.tier[at]}-p{switches.plane[at]}.{switches.index[at]}"
            ends.append(f"{place}.port.{port}")
        own.add(frozenset(ends))
    assert between == own


@st.composite
def drawn_fabrics(draw: st.DrawFn) -> FabricSpec:
    base = load_site(draw(st.sampled_from(SITES))).fabric
    return base.model_copy(update={"planes": draw(st.integers(1, 4))})


@given(drawn_fabrics())
@settings(max_examples=15, deadline=None)
def test_what_is_exported_as_infragraph_is_imported_alike(fabric: FabricSpec) -> None:
    topology = build(fabric)
    made = edges_of_infragraph(json.loads(infragraph(topology, "drawn")), "drawn.json")
    back = import_edges(made.text, HostRule(names=made.hosts))
    assert (back.nics, len(back.links)) == (topology.nics, len(topology.links))
    for column in ("rate_bps", "length_mm"):
        assert sorted(getattr(back.links, column)) == sorted(getattr(topology.links, column))
    assert len(set(back.links.plane.tolist())) == len(set(topology.links.plane.tolist()))
    assert sorted(back.switches.tier.tolist()) == sorted(topology.switches.tier.tolist())


def test_netbox_cables_are_read_from_its_answers_and_its_tables() -> None:
    cable = {
        "a_terminations": [{"object": {"device": {"name": "srv1"}, "name": "eth0"}}],
        "b_terminations": [{"object": {"device": {"name": "leaf1"}, "name": "e1"}}],
        "length": 10, "length_unit": {"value": "ft"},
    }  # fmt: skip
    assert edges_of_netbox_json({"results": [cable]}, "x") == "a,b,length\nsrv1,leaf1,3.048 m\n"
    table = "side_a_device,side_a_name,side_b_device,side_b_name,length,length_unit\nsrv1,eth0,leaf1,e1,300,cm\n"
    assert is_netbox_csv(table.splitlines()[0])
    assert edges_of_netbox_csv(table, "x") == "a,b,length\nsrv1,leaf1,3 m\n"
    with pytest.raises(UsageError, match="line 2"):
        edges_of_netbox_csv(table.replace("leaf1", ""), "x")


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["devices", "instances", "edges", "links", "name", "count", "ep1", "results", "a_terminations"]), inner),
    max_leaves=12,
))  # fmt: skip
def test_what_is_no_export_is_refused_in_a_sentence(document: object) -> None:
    for read in (edges_of_infragraph, edges_of_netbox_json):
        with contextlib.suppress(UsageError):  # and never anything else
            read(document, "x.json")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("vtysh") is None, reason="FRR is not installed here")
def test_frr_takes_every_line_that_its_version_knows() -> None:
    topology = build(load_site("laptop").fabric)
    plan = Addressing(shape_of(load_site("laptop").fabric)).plan
    for node in range(topology.nics, topology.nodes):
        written = formats.frr(topology, plan, node)
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(written)
            file.flush()
            ran = subprocess.run(["vtysh", "-C", "-f", file.name], capture_output=True, text=True, check=False)
        refused = re.findall(r"Unknown command\[\d+\]:\s*(\S+)", ran.stdout + ran.stderr)
        # Debian 12 has FRR 8.4; uSIDs in locators came with 9.0, static SIDs with 10.2.
        assert set(refused) <= {"prefix", "behavior", "static-sids", "sid"}
