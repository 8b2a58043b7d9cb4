"""Files that are cut, flipped or hold other things than their tools write cost a sentence; the rest is still read."""

import gzip
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.doctor.examination import examine_evidence
from weft.doctor.gather import gather
from weft.doctor.page import page_of
from weft.doctor.trace_file import trace_of

_ENTRY = {
    "process_group": ["0", "default_pg"], "collective_seq_id": 1, "profiling_name": "gloo:all_reduce",
    "time_created_ns": 17, "input_sizes": [[4, 2]], "input_dtypes": ["Float"], "state": "completed", "is_p2p": False,
}  # fmt: skip
_KERNEL = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 100, "dur": 5, "tid": 7}
_RAS = {
    "nccl_version": "2.28.7",
    "communicators": [{"hash": "0xab", "ranks": [
        {"rank": rank, "host": "n1", "status": {"async_error": 0}, "collective_counts": {"AllReduce": 4 - rank}}
        for rank in range(3)
    ], "missing_ranks": [{"rank": 3, "host": "n2", "considered_dead": True}]}],
}  # fmt: skip
_MLLOG = [
    {"time_ms": 1, "key": "init_start", "value": None}, {"time_ms": 9, "key": "init_stop", "value": None},
    {"time_ms": 9, "key": "global_batch_size", "value": 32}, {"time_ms": 9, "key": "max_sequence_length", "value": 64},
    {"time_ms": 9, "key": "submission_platform", "value": "1xDGX-8xB200"},
    *({"key": "tracked_stats", "value": {"train_step_time": 0.5, "reduced_train_loss": 3.0}, "metadata": {"step": step}}
      for step in range(20)),
]  # fmt: skip
_TABLE = "rank,stage,step,operation,start_us,duration_us,micro_batch\n" + "".join(
    f"{rank},{rank},{step},{name},{step * 1000 + at * 100 + rank},{50 + at},{at}\n"
    for rank in range(3)
    for step in range(10)
    for at, name in enumerate(("forward", "backward", "allreduce"))
)
SAMPLES = {
    "dump_rank0.json": json.dumps({"pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}, "pg_status": {},
                                   "entries": [_ENTRY, {**_ENTRY, "collective_seq_id": 2}]}),
    "ras.json": json.dumps(_RAS),
    "rank3.json": json.dumps({"distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": [_KERNEL] * 5}),
    "ops.csv": _TABLE,
    "mlperf.txt": "\n".join(":::MLLOG " + json.dumps(one) for one in _MLLOG),
    "smi.csv": "index, clocks.sm [MHz]\n" + "".join(f"{gpu}, {1900 - gpu} MHz\n" for gpu in range(4)),
    "metrics.jsonl": "\n".join(
        json.dumps({"step": step, "seconds": {"compute": 0.1}, "loss": 3.0, "loss_bits": "x", "tokens": 9})
        for step in range(20)
    ),
}  # fmt: skip
_OTHERS = st.sampled_from(["null", '"x"', "-1", "1e400", "NaN", "{}", "[]", "[[]]", "true", "9" * 23, '"', "1.5"])


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a file that is cut, has flipped bits, or has other values than its tool writes."""
    name = draw(st.sampled_from(sorted(SAMPLES)))
    text = SAMPLES[name]
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text) - 1))
        ends = [end for end in (text.find(mark, at) for mark in ',}]"\n ') if end > at]
        text = text[:at] + draw(_OTHERS) + text[min(ends, default=len(text)) :]
    data = bytearray(text.encode())
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    whole = gzip.compress(bytes(data)) if draw(st.booleans()) else bytes(data)
    return name, whole[: draw(st.integers(1, len(whole)))] if draw(st.booleans()) else whole


@given(damaged())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_costs_a_sentence_and_never_more(file: tuple[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / file[0]).write_bytes(file[1])
        (Path(folder) / "whole_metrics").mkdir()
        (Path(folder) / "whole_metrics" / "metrics.jsonl").write_text(SAMPLES["metrics.jsonl"])
        evidence = gather([folder])
        found = examine_evidence(evidence)
        json.dumps(found.as_json(), allow_nan=False)
        json.dumps(trace_of(found))
        assert found.verdict() in page_of(found).replace("&#x27;", "'").replace("&quot;", '"') or "&" in page_of(found)
        assert [one.found for one in evidence.sources if "whole_metrics" in one.path] == ["20 steps"]
        assert all(one.found and "\n" not in one.found for one in evidence.sources)
