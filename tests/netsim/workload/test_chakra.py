"""Chakra traces: what is read from their bytes, which flows they become, and what is said about mistakes in them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.cli.main import main
from weft.core.errors import UsageError
from weft.netsim.model.flow import Flow
from weft.netsim.workload.chakra import ChakraNode, NodeType, flows_of_traces, read_trace
from weft.netsim.workload.schedules import Near
from weft.planning.cost_model.machine import machine_of
from weft.specs import load_site
from weft.specs.scenario import ScenarioSpec

US = 10**6
NEAR = Near(1000, 10**12)
COMP, SEND, RECV, COLLECTIVE = (int(NodeType[name]) for name in ("COMP", "SEND", "RECV", "COLLECTIVE"))
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, BARRIER = 0, 2, 6, 9


def varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(place: int, value: int) -> bytes:
    return varint(place << 3) + varint(value)


def text(place: int, value: bytes) -> bytes:
    return varint(place << 3 | 2) + varint(len(value)) + value


def attribute(name: str, value: int | str) -> bytes:
    # Whole numbers as int64, texts as strings.
    body = number(9, value & (2**64 - 1)) if isinstance(value, int) else text(29, value.encode())
    return text(1, name.encode()) + body


def node(
    n: int, kind: int, after: Sequence[int] = (), us: int = 0, packed: bool = True, **attributes: int | str
) -> bytes:
    body = number(1, n) + text(2, f"node{n}".encode()) + number(3, kind)
    body += text(5, b"".join(varint(each) for each in after)) if packed else b"".join(number(4, each) for each in after)
    # A field that is not looked at: inputs, a message of its own.
    body += number(7, us) + text(8, text(1, b"[]"))
    return body + b"".join(text(10, attribute(*each)) for each in attributes.items())


def trace(*nodes: bytes) -> bytes:
    return b"".join(varint(len(each)) + each for each in (text(1, b"0.0.4"), *nodes))


def read(*nodes: bytes) -> tuple[ChakraNode, ...]:
    return read_trace(trace(*nodes), "t.0.et")


def collective(n: int, kind: int = ALL_REDUCE, size: int = 4096, after: Sequence[int] = (), group: str = "") -> bytes:
    return node(n, COLLECTIVE, after, comm_type=kind, comm_size=size, pg_name=group)


def flows_of(*ranks: Sequence[bytes], domain: int = 1) -> tuple[Flow, ...]:
    return flows_of_traces([read(*rank) for rank in ranks], domain, NEAR)


def crossing(flows: Sequence[Flow]) -> list[Flow]:
    return [flow for flow in flows if not flow.is_wait]


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**64 - 1), max_size=5, unique=True),
    st.integers(0, 2**40),
    st.booleans(),
    st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 2**63 - 1) | st.text(max_size=9), max_size=3),
)
def test_what_was_written_is_read(n: int, after: list[int], us: int, packed: bool, more: Mapping[str, int | str]):
    others = [node(each, COMP) for each in after if each != n]
    wanted = [each for each in after if each != n]
    body = node(n, COMP, wanted, us, packed) + b"".join(text(10, attribute(*each)) for each in more.items())
    found = read(*others, body)[-1]
    assert (found.number, found.kind, found.after) == (n, COMP, tuple(wanted))
    assert (found.duration_ps, found.attributes) == (us * US, more)


def test_a_ring_waits_for_the_compute_of_each_rank():
    flows = flows_of(*([node(1, COMP, us=10 * (rank + 1)), collective(2, after=[1])] for rank in range(4)))
    sends = crossing(flows)
    assert len(sends) == 4 * 2 * 3
    assert sum(flow.size for flow in sends) == 4 * 2 * 3 * 1024
    computes = [n for n, flow in enumerate(flows) if flow.is_wait and flow.at_ps]
    assert [flows[n].at_ps for n in computes] == [10 * US, 20 * US, 30 * US, 40 * US]
    for flow in sends:
        assert computes[flow.source] in flow.after, "nobody sends what it has not computed"
    assert all(max(flow.after, default=-1) < n for n, flow in enumerate(flows))


def test_an_all_gather_sends_what_each_rank_puts_in():
    assert {flow.size for flow in crossing(flows_of(*[[collective(1, ALL_GATHER, 1000)]] * 4))} == {1000}


def test_an_all_to_all_sends_a_part_to_everybody():
    flows = crossing(flows_of(*[[collective(1, ALL_TO_ALL, 4000)]] * 4))
    assert {(flow.source, flow.destination) for flow in flows} == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert {flow.size for flow in flows} == {1000}


def test_groups_are_the_ranks_that_name_them():
    flows = crossing(flows_of(*([collective(1, group=f"pair{rank // 2}")] for rank in range(4))))
    assert {(flow.source, flow.destination) for flow in flows} == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_what_stays_in_a_domain_is_time():
    flows = flows_of(*[[collective(1, ALL_TO_ALL, 4000)]] * 4, domain=2)
    assert all(flow.source // 2 != flow.destination // 2 for flow in crossing(flows))
    assert {flow.at_ps for flow in flows if flow.is_wait and flow.at_ps} == {NEAR.takes_ps(1000)}


def test_a_barrier_lets_nobody_through_before_all_have_come():
    ranks = [[node(1, COMP, us=7), collective(2, BARRIER, after=[1]), collective(3, after=[2])] for _ in range(3)]
    flows = flows_of(*ranks)
    computes = {n for n, flow in enumerate(flows) if flow.at_ps}
    for flow in crossing(flows):
        before: set[int] = set()
        layer = set(flow.after)
        while layer:
            before |= layer
            layer = {each for n in layer for each in flows[n].after}
        assert computes <= before


def test_sends_meet_receives_in_their_order():
    one = [node(n, SEND, comm_dst=1, comm_size=100 * n, comm_tag=5) for n in (1, 2)]
    two = [node(n, RECV, comm_src=0, comm_size=0, comm_tag=5) for n in (1, 2)]
    two.append(node(3, SEND, [2], comm_dst=0, comm_size=50))
    flows = flows_of([*one, node(3, RECV, comm_src=1)], two)
    sends = crossing(flows)
    assert [(flow.source, flow.size) for flow in sends] == [(0, 100), (0, 200), (1, 50)]
    reached: set[int] = set()
    layer = set(sends[2].after)
    while layer:
        reached |= layer
        layer = {each for n in layer for each in flows[n].after}
    assert flows.index(sends[1]) in reached


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([[collective(1)], [node(1, COMP)]], "rank 1 does not come to it"),
        ([[collective(1)], [collective(1, size=8)]], "of 8 bytes on rank 1"),
        ([[collective(1, 3)], [collective(1, 3)]], "is a gather, which is not simulated"),
        ([[collective(1, 77)], [collective(1, 77)]], "type 77"),
        ([[node(1, COLLECTIVE)], [node(1, COLLECTIVE)]], "has no number called comm_type"),
        ([[node(1, RECV, comm_src=1)], [node(1, COMP)]], "receives what nobody sends"),
        ([[node(1, SEND, comm_dst=7, comm_size=1)], [node(1, COMP)]], "sends to rank 7; there are 0 to 1"),
        ([[node(1, COMP, [2]), node(2, COMP, [1])], [node(1, COMP)]], "waits for itself in a circle"),
        ([[node(1, COMP)], [node(1, COMP)]], "nothing in these traces takes time"),
    ],
)
def test_a_mistake_is_named(ranks: list[list[bytes]], says: str):
    with pytest.raises(UsageError, match=says):
        flows_of(*ranks)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xff", "is no Chakra trace"),
        (b"{}", "is no Chakra trace"),
        (trace(), "has no nodes"),
        (trace(node(1, COMP, [9])), "waits for node 9, which is not there"),
        (trace(b"\x0b"), "is no Chakra trace"),
        (trace(node(1, COMP), node(1, COMP)), "two nodes have the id 1"),
    ],
)
def test_a_broken_file_is_named(data: bytes, says: str):
    with pytest.raises(UsageError, match=says):
        read_trace(data, "t.0.et")


def written(folder: Path, ranks: int) -> Path:
    for rank in range(ranks):
        nodes = [node(1, COMP, us=20), collective(2, size=65536, after=[1]), node(3, COMP, [2], us=30)]
        (folder / f"step.{rank}.et").write_bytes(trace(*nodes))
    return folder / "step"


def test_a_step_takes_its_compute_and_its_exchange(tmp_path: Path):
    prefix = written(tmp_path, 10)
    scenario = ScenarioSpec.model_construct(name="step", site="h100-400g-16k")
    (report,) = weft.simulate(scenario, ("mrc",), traces=prefix, engine="reference", fast=False)
    exchange_ps = max(flow.arrived_ps for flow in report.flows) - min(flow.began_ps for flow in report.flows)
    assert min(flow.began_ps for flow in report.flows) == 20 * US
    makespan_ps = report.makespan_ps()
    assert makespan_ps is not None
    assert makespan_ps >= 50 * US + exchange_ps
    assert {(flow.source // 8, flow.destination // 8) for flow in report.flows} == {(0, 1), (1, 0)}
    assert report.over_ideal() == pytest.approx(1, abs=0.1)
    (cut,) = weft.simulate(scenario, ("roce:4",), traces=prefix, engine="reference", fast=False)
    assert len(cut.flows) == len(report.flows)
    assert cut.makespan_ps() == pytest.approx(makespan_ps, rel=0.1)


@pytest.mark.parametrize("engine", ["reference", "engine"])
def test_a_step_that_stays_in_a_domain_takes_its_time_there(tmp_path: Path, engine: Literal["reference", "engine"]):
    scenario = ScenarioSpec.model_construct(name="step", site="h100-400g-16k")
    (report,) = weft.simulate(scenario, ("mrc",), traces=written(tmp_path, 8), engine=engine, fast=False)
    machine = machine_of(load_site("h100-400g-16k"))
    # A ring of 8 ranks sends an eighth of the buffer 14 times.
    exchange_s = 14 * (machine.domain_latency_s + 65536 / 8 / machine.domain_rate)
    assert report.flows == ()
    assert report.makespan_ps() == pytest.approx((50e-6 + exchange_s) * 10**12, rel=1e-3)
    assert report.over_ideal() == pytest.approx(1)


def test_the_command_runs_traces_and_names_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    prefix = str(written(tmp_path, 10))
    assert main(["simulate", "--chakra", prefix, "--site", "h100-400g-16k", "--engine", "reference", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["completed"] == document["flows"] > 0
    assert document["makespan_us"] > 50
    for arguments, says in (
        (["--chakra", prefix], "needs a site"),
        (["--chakra", str(tmp_path / "none"), "--site", "laptop"], "none.0.et is not there"),
        (["--chakra", prefix, "--site", "laptop"], "one rank more than laptop has GPUs"),
        (["--chakra", prefix, "--collective", "ring"], "either a scenario or a collective"),
    ):
        assert main(["simulate", *arguments]) == 2
        assert says in " ".join(capsys.readouterr().err.split())
