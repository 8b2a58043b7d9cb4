"""Chakra traces of a plan: what is written is read back, its bytes are the plan's, and it takes the plan's time."""

import json
from collections import Counter
from collections.abc import Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cli.main import main
from weft.core.errors import UsageError
from weft.netsim.workload.chakra import ChakraNode, NodeType, flows_of_traces, read_trace, written_trace
from weft.netsim.workload.plan_traces import PlanTraces
from weft.netsim.workload.schedules import Near
from weft.netsim.workload.step_traffic import step_of
from weft.planning.report import PlanReport, plan_job
from weft.specs import load_site
from weft.specs.job import JobSpec

ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7
LAYERS = 8


@st.composite
def reports(draw: Any, *, mixtures: bool = True) -> PlanReport:
    """Draw a small job, a fabric of some GPUs, and the best plan of it with some choices held."""
    experts = {"count": 8, "top_k": 2, "ffn": 512} if mixtures and draw(st.booleans()) else None
    length, fixed = 2048, {}
    model = {"layers": LAYERS, "width": 1024, "heads": 16, "kv_heads": draw(st.sampled_from((4, 16))), "ffn": 2816,
             "vocabulary": 32000, "experts": experts}  # fmt: skip
    batch = {"sequences": draw(st.sampled_from((16, 32))), "micro": 1, "length": length}
    site = load_site(draw(st.sampled_from(("bed-64x400g", "h100-400g-16k", "gb200-4x200g-32k"))))
    site = site.model_copy(
        update={"fabric": site.fabric.model_copy(update={"gpus": draw(st.sampled_from((4, 8, 16)))})}
    )
    for name, values in {"pp": "124", "tp": "12", "cp": "12", "zero": "0123"}.items():
        if draw(st.booleans()):
            fixed[name] = draw(st.sampled_from(values))
    if fixed.get("pp", "1") != "1":
        fixed["schedule"] = draw(st.sampled_from(("1f1b", "interleaved", "zero-bubble", "zbv")))
    job = JobSpec.model_validate({"name": "drawn", "steps": 10, "model": model, "batch": batch})
    try:
        return plan_job(site, job, top=1, fixed=fixed)
    except UsageError:
        return plan_job(site, job, top=1)  # those choices do not go together


def traces_of(report: PlanReport) -> list[tuple[ChakraNode, ...]]:
    traces = PlanTraces(report)
    return [traces.trace(rank) for rank in range(traces.sizes["ranks"])]


def finish_s(traces: Sequence[Sequence[ChakraNode]]) -> float:
    """Return when the last node is over, where collectives and sends take the time that is written at them."""
    nodes = {(rank, node.number): node for rank, trace in enumerate(traces) for node in trace}
    sends: dict[tuple[Any, ...], tuple[int, int]] = {
        (rank, node.attributes["comm_dst"], node.attributes["comm_tag"]): (rank, node.number)
        for (rank, _), node in nodes.items()
        if node.kind == NodeType.SEND
    }
    turns: Counter[tuple[int, Any]] = Counter()
    met: dict[tuple[Any, int], list[tuple[int, int]]] = {}
    for (rank, number), node in nodes.items():
        if node.kind == NodeType.COLLECTIVE:
            group = node.attributes["pg_name"]
            met.setdefault((group, turns[rank, group]), []).append((rank, number))
            turns[rank, group] += 1
    waits = {key: {(key[0], before) for before in node.after} for key, node in nodes.items()}
    for keys in met.values():
        together = set().union(*(waits[key] for key in keys))
        waits |= dict.fromkeys(keys, together)
    for (rank, number), node in nodes.items():
        if node.kind == NodeType.RECV:
            waits[rank, number].add(sends[node.attributes["comm_src"], rank, node.attributes["comm_tag"]])
    over: dict[tuple[int, int], int] = {}
    for key in TopologicalSorter(waits).static_order():  # raises where they wait in a circle
        over[key] = max((over[before] for before in waits[key]), default=0) + nodes[key].duration_ps
    return max(over.values()) / 1e12


@given(reports())
@settings(max_examples=12)
def test_what_is_written_is_read_back_and_every_send_has_its_receive(report: PlanReport):
    traces = traces_of(report)
    assert [read_trace(written_trace(trace), "a.et") for trace in traces] == traces
    ends: dict[NodeType, Counter[tuple[Any, ...]]] = {NodeType.SEND: Counter(), NodeType.RECV: Counter()}
    for rank, trace in enumerate(traces):
        for node in trace:
            if node.kind in ends:
                said = node.attributes
                assert said["comm_src" if node.kind == NodeType.SEND else "comm_dst"] == rank
                ends[NodeType(node.kind)][tuple(said[f"comm_{key}"] for key in ("src", "dst", "tag", "size"))] += 1
    assert ends[NodeType.SEND] == ends[NodeType.RECV]
    assert set(ends[NodeType.SEND].values()) <= {1}
    # Our reader takes them: groups are complete, of one kind and size on all ranks, and nothing waits in a circle.
    assert flows_of_traces(traces, 1, Near(0, 10**12))


@given(reports())
@settings(max_examples=12)
def test_the_step_takes_the_time_of_the_plan(report: PlanReport):
    schedule = report.chosen.plans.row(0)["schedule"]
    ratio = finish_s(traces_of(report)) / float(report.chosen.step_s[0])
    # Hops between stages wait for each other in a trace; ZB-V is written with the bubble of zero-bubble.
    most = {"1f1b": 1.01, "interleaved": 1.12, "zero-bubble": 1.1, "zbv": 1.2}[schedule]
    assert 0.9 < ratio < most


def sent(trace: Sequence[ChakraNode], name: str, width: int) -> float:
    """Return the bytes of collectives whose name begins so: what a rank sends, but for the share that it keeps."""
    factor = {ALL_REDUCE: 2, ALL_GATHER: width, REDUCE_SCATTER: 1, ALL_TO_ALL: 1}
    return sum(
        int(node.attributes["comm_size"]) * factor[int(node.attributes["comm_type"])]
        for node in trace
        if node.kind == NodeType.COLLECTIVE and name in node.name
    )


@given(reports(mixtures=False))
@settings(max_examples=12)
def test_the_bytes_are_those_of_the_plan(report: PlanReport):
    row, traces, practice = report.chosen.plans.row(0), traces_of(report), report.practice
    dp, tp, pp, cp, zero = (int(row[name]) for name in ("dp", "tp", "pp", "cp", "zero"))
    rounds, chunks = (
        report.work.sequences // (dp * row["micro"]),
        row["chunks"] if row["schedule"] == "interleaved" else 1,
    )
    plain = {**report.plan_spec.as_written(), "shard": dp if zero == 3 and dp > 1 else 1}
    batch = {**report.job.batch.as_written(), "micro": row["micro"]}
    job = JobSpec.model_validate({**report.job.as_written(), "batch": batch, "plan": plain})
    own = step_of(job, report.site)
    boundaries = pp * chunks - 1 if pp > 1 else 0
    assert sum(node.kind == NodeType.SEND for trace in traces for node in trace) == (
        2 * rounds * boundaries * dp * tp * cp
    )
    assert {node.attributes["comm_size"] for trace in traces for node in trace if node.kind == NodeType.SEND} <= {
        own.activation
    }
    # Both passes have two gathers and two sums a block, and what is computed again its own.
    tokens = rounds * row["micro"] * report.work.length / cp * report.work.model.width
    passes = 3 if row["recompute"] == "full" else 2
    expected = 2 * passes * tokens * LAYERS * (practice.gathered_bytes + practice.value_bytes) if tp > 1 else 0
    columns = dp * tp * cp
    assert sum(sent(trace, " tp", tp) for trace in traces[::columns]) == pytest.approx(expected, rel=1e-5)
    if dp * cp > 1 and row["shard"] == dp * cp and (zero < 3 or cp == 1):
        group = dp * cp
        most = max(sent(t, "weights", group) + sent(t, "gradients", group) for t in traces)
        assert most == pytest.approx(2 * own.gradients, rel=1e-5)


def test_the_command_writes_what_the_simulator_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prefix = str(tmp_path / "step")
    assert main(["plan", "tiny-gpt", "laptop", "--export", "chakra", "--out", prefix]) == 0
    assert "4 traces of 4 ranks" in capsys.readouterr().out
    groups = json.loads((tmp_path / "step.groups.json").read_text())
    traces = [read_trace((tmp_path / f"step.{rank}.et").read_bytes(), str(rank)) for rank in range(4)]
    for rank, trace in enumerate(traces):
        for node in trace:
            if node.kind == NodeType.COLLECTIVE:
                assert rank in groups[str(node.attributes["pg_name"])]
    assert main(["plan", "tiny-gpt", "laptop", "--export", "chakra", "--out", prefix, "--ranks", "stages"]) == 0
    assert "2 traces of 4 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--export", "chakra"), "--export chakra and --out PREFIX go together"),
        (("--export", "megatron", "--out", "step"), "--export chakra and --out PREFIX go together"),
        (("--export", "chakra", "--out", "none/step"), "there is no folder none"),
    ],
)
def test_a_mistake_is_a_sentence(options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "tiny-gpt", "laptop", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_trace_of_each_of_very_many_ranks_is_asked_for_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["plan", "llama3-405b", "h100-400g-16k", "--export", "chakra", "--out", str(tmp_path / "step")]
    assert main(words) == 2
    assert "--ranks stages" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
