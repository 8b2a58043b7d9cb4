"""Chakra traces of ranks that run one program, and of one that leaves a collective out or calls another."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from weft.doctor.examination import examine_evidence
from weft.doctor.gather import gather
from weft.netsim.workload.chakra import ChakraNode, NodeType, read_trace, written_trace

US = 10**6
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = 0, 2, 6


def _collective(number: int, kind: int, size: int, group: str) -> ChakraNode:
    more = {"is_cpu_op": 0, "comm_type": kind, "comm_size": size, "pg_name": group}
    return ChakraNode(number, f"c{number}", NodeType.COLLECTIVE, (), 0, more)


def _write(folder: Path, ranks: list[list[ChakraNode]]) -> None:
    for old in folder.iterdir():
        old.unlink()
    for rank, nodes in enumerate(ranks):
        (folder / f"run.{rank}.et").write_bytes(written_trace(nodes))


CALLS = st.lists(
    st.tuples(st.sampled_from([ALL_REDUCE, ALL_GATHER, ALL_TO_ALL]), st.integers(1, 2**40), st.sampled_from("ab")),
    min_size=2, max_size=12,
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=CALLS, ranks=st.integers(3, 9), data=st.data())
def test_the_rank_that_leaves_a_collective_out_is_named(
    tmp_path: Path, calls: list[tuple[int, int, str]], ranks: int, data: st.DataObject
) -> None:
    program = [_collective(number, *call) for number, call in enumerate(calls)]
    _write(tmp_path, [program] * ranks)
    whole = examine_evidence(gather([tmp_path]))
    assert whole.sections["collectives"].findings == []
    # A rank that enters no collective of a group is not known to belong to it.
    often = [place for place, call in enumerate(calls) if sum(other[2] == call[2] for other in calls) > 1]
    assume(often)
    odd, left = data.draw(st.integers(0, ranks - 1)), data.draw(st.sampled_from(often))
    _write(tmp_path, [program if rank != odd else program[:left] + program[left + 1 :] for rank in range(ranks)])
    found = examine_evidence(gather([tmp_path])).sections["collectives"].findings
    assert found
    assert {rank for one in found for rank in one.ranks} == {odd}


def test_sizes_of_an_exchange_differ_rightly_and_of_a_sum_not(tmp_path: Path) -> None:
    for kind, guilty in ((ALL_TO_ALL, set()), (ALL_REDUCE, {2})):
        _write(tmp_path, [[_collective(0, kind, 8 if rank == 2 else 4, "")] for rank in range(5)])
        found = examine_evidence(gather([tmp_path])).sections["collectives"].findings
        assert {rank for one in found for rank in one.ranks} == guilty


def test_what_a_device_does_is_told_where_the_trace_says_when(tmp_path: Path) -> None:
    device, host = {"is_cpu_op": 0}, {"is_cpu_op": 1}
    nodes = [
        ChakraNode(0, "launch", NodeType.COMP, (), 900 * US, host, 1 * US),
        ChakraNode(1, "gemm", NodeType.COMP, (), 60 * US, device, 100 * US),
        ChakraNode(2, "sum", NodeType.COLLECTIVE, (), 60 * US, {**device, "comm_type": 0, "comm_size": 4}, 140 * US),
    ]
    assert read_trace(written_trace(nodes), "it") == tuple(nodes)
    _write(tmp_path, [nodes])
    evidence = gather([tmp_path])
    (shares,) = evidence.timelines
    assert shares.rank == 0
    assert shares.span_s == pytest.approx(100e-6)
    assert shares.exposed_communication == pytest.approx(0.4)
    assert "60 us of compute" in evidence.sources[0].found


def test_what_is_no_trace_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.0.et").write_bytes(written_trace([_collective(0, 0, 4, "")]))
    (tmp_path / "run.1.et").write_bytes(b"\xff\xff\xff\xff nothing")
    (tmp_path / "run.et").write_bytes(written_trace([_collective(0, 0, 4, "")]))
    (tmp_path / "run.groups.json").write_text('{"0": [0, 1]}')
    (tmp_path / "bad.groups.json").write_text("[1]")
    found = {Path(one.path).name: one.found for one in gather([tmp_path]).sources}
    assert found["run.0.et"].startswith("rank 0: 1 nodes, 1 collectives")
    assert "no Chakra trace" in found["run.1.et"]
    assert "whose trace it is" in found["run.et"]
    assert found["run.groups.json"] == "1 process groups"
    assert "no table of groups" in found["bad.groups.json"]
