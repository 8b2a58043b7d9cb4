"""htsim's files: what they mean here, and what is said about mistakes in them."""

from pathlib import Path

import pytest

import weft
from weft.core.errors import UsageError
from weft.netsim.workload.htsim import read_failures, read_matrix, read_topology
from weft.specs import load_site

TOPOLOGY = """
# two tiers, 2:1 oversubscribed, faster above
Nodes 16
Tiers 2
Podsize 16
Tier 0
Downlink_speed_Gbps 200
Radix_Down 4
Radix_Up 2
Downlink_Latency_ns 500
Switch_Latency_ns 100
Tier 1
Downlink_speed_Gbps 400
Radix_Down 4
Downlink_Latency_ns 1000
"""
MATRIX = """
Nodes 16
Connections 4
Triggers 2
0->5 id 1 start 0 size 65536 recv_done_trigger 1
5->9 id 2 trigger 1 size 65536 send_done_trigger 2
9->0 id 3 trigger 2 size 4096
1->2 id 4 start 1000000 size 100
trigger id 1 oneshot
trigger id 2 barrier count 1
"""


def topology(text: str = TOPOLOGY):
    return read_topology(text, "f.topo", load_site("leaf-spine-400g").fabric)


def test_a_topology_gives_shape_rates_and_delays():
    fabric, timing = topology()
    assert (fabric.gpus, fabric.tiers, fabric.oversubscription, fabric.planes) == (16, 2, (4, 2), 1)
    assert timing.rate_bps == (200 * 10**9, 400 * 10**9)
    assert timing.link_ps == (500_000, 1_000_000)
    assert timing.switch_ps == (100_000, 0)


def test_triggers_become_what_flows_wait_for():
    nodes, flows = read_matrix(MATRIX, "f.cm")
    assert nodes == 16
    assert [flow.name for flow in flows] == ["1", "2", "3", "4"]
    assert flows[1].after == (0,)
    assert (flows[2].after, flows[2].after_sent) == ((), (1,))
    assert flows[3].at_ps == 1_000_000


def test_a_multishot_starts_one_flow_each_time():
    text = """Nodes 4
    0->1 id 1 start 0 size 10 recv_done_trigger 7
    1->2 id 2 start 0 size 10 recv_done_trigger 7
    2->3 id 3 trigger 7 size 10
    3->0 id 4 trigger 7 size 10
    trigger id 7 multishot"""
    flows = read_matrix(text, "f.cm")[1]
    assert [flow.after for flow in flows] == [(), (), (0,), (1,)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0->1 id 1 size 5", "either a start or a trigger"),
        ("0->1 id 1 start 0", "size is missing"),
        ("0->0 id 1 start 0 size 5", "to itself"),
        ("0->99 id 1 start 0 size 5", "beyond its 16 Nodes"),
        ("0->1 id 1 start 0 size 5 colour 3", "'colour' is not known"),
        ("hello", "neither a flow"),
        ("0->1 id 1 trigger 9 size 5", "no flow fires trigger 9"),
    ],
)
def test_a_mistake_is_named(line: str, says: str):
    with pytest.raises(UsageError, match=says):
        read_matrix(f"Nodes 16\n{line}\n", "f.cm")


def test_a_topology_without_a_rate_is_refused():
    with pytest.raises(UsageError, match="tier 1 has no downlink_speed_gbps"):
        topology(TOPOLOGY.replace("Downlink_speed_Gbps 400\n", ""))


def test_files_run(tmp_path: Path):
    (tmp_path / "f.cm").write_text(MATRIX)
    (tmp_path / "f.topo").write_text(TOPOLOGY)
    files = (tmp_path / "f.cm", tmp_path / "f.topo")
    (report,) = weft.simulate("htsim-permutation", ("uet",), files=files, engine="reference", fast=False)
    began = [flow.began_ps for flow in report.flows]
    assert all(flow.completion_ps is not None for flow in report.flows)
    assert began[1] >= report.flows[0].arrived_ps
    assert began[2] >= report.flows[1].acknowledged_ps


THREE_TIERS = """
Nodes 16
Tiers 3
Podsize 4
Tier 0
Downlink_speed_Gbps 100
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 500
Tier 1
Downlink_speed_Gbps 100
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 500
Tier 2
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 500
"""


@pytest.mark.parametrize(("switch", "link"), [(0, 0), (1, 1), (5, 0)])
def test_failed_links_are_dead_from_the_start(tmp_path: Path, switch: int, link: int):
    failure = f"failure switch_type AGG switch_id {switch} link_id {link}"
    flows = "\n".join(f"{n}->{(n + 6) % 16} id {n + 1} start 0 size 262144" for n in range(16))
    (tmp_path / "f.cm").write_text(f"Nodes 16\nConnections 16\nFailures 1\n{flows}\n{failure}\n")
    (tmp_path / "f.topo").write_text(THREE_TIERS)
    files = (tmp_path / "f.cm", tmp_path / "f.topo")
    (report,) = weft.simulate("htsim-permutation", ("mrc",), files=files, engine="reference", fast=False)
    assert [(fault.kind, fault.target) for fault in report.faults] == [("link-down", f"link2-p0-i{switch}-u{link}")]
    assert report.faults[0].lost > 0
    assert all(flow.completion_ps is not None for flow in report.flows)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("failure switch_type TOR switch_id 0 link_id 0", "only links of AGG switches"),
        ("failure switch_type AGG switch_id 0", "whole number is missing after 'link_id'"),
        ("failure switch_type AGG switch_id 0 link_id 0 colour 1", "'colour' is not known"),
    ],
)
def test_a_failure_that_cannot_be_is_named(line: str, says: str):
    with pytest.raises(UsageError, match=f"f.cm:1: .*{says}"):
        read_failures(line, "f.cm")
