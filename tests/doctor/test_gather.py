"""Files of every known kind are recognised and read; broken and foreign ones cost a sentence, and nothing runs code."""

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from verification.timed_jobs import TimedJob, timed_job

from weft.core.errors import UsageError
from weft.doctor.examination import examine_evidence
from weft.doctor.gather import find_files, gather
from weft.doctor.readers.evidence import Evidence

pl = pytest.importorskip("polars")


def kernel(name: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur}


def trace(rank: int, compute_us: float) -> dict[str, Any]:
    events = [kernel("gemm", 0, compute_us), kernel("ncclDevKernel_AllReduce", compute_us, 1000 - compute_us)]
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4}, "traceEvents": events}


def recorder(count: int, operation: str = "nccl:all_reduce") -> dict[str, Any]:
    entries = [
        {"process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": operation,
         "is_p2p": False, "input_sizes": [[8]], "input_dtypes": ["Float"],
         "state": "completed" if number < count else "started", "time_created_ns": number, "pg_id": 0}
        for number in range(1, count + 1)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def ras(counts: list[int], missing: tuple[int, ...] = ()) -> dict[str, Any]:
    ranks = [
        {"rank": rank, "host": f"n{rank}", "pid": 1, "cuda_dev": 0, "nvml_dev": 0,
         "status": {"init_state": 0, "async_error": 0, "abort_flag": False}, "collective_counts": {"AllReduce": count}}
        for rank, count in enumerate(counts) if rank not in missing
    ]  # fmt: skip
    gone = [{"rank": rank, "host": f"n{rank}", "considered_dead": True} for rank in missing]
    return {"nccl_version": "2.28.9", "communicators_count": 1,
            "communicators": [{"hash": "0xa1", "size": len(counts), "ranks": ranks,
                               "missing_ranks": gone}]}  # fmt: skip


TESTS = """# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728
#  Rank  0 Group  0 Pid   1 on  host device  0 [0x00] NVIDIA H100
#  Rank  1 Group  0 Pid   1 on  host device  1 [0x00] NVIDIA H100
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    30.00   34.95   34.95   {wrong}    31.00   33.82   33.82   0
    16777216       4194304     float     sum      -1   100.00  167.77  167.77      0   101.00  166.11  166.11      0
   134217728      33554432     float     sum      -1  2000.00   67.11   67.11      0  2001.00   67.08   67.08      0
"""
NCCL = """host1:10:10 [0] NCCL INFO comm 0x1 rank {rank} nranks 2 cudaDev 0 busId 1b000 commId 0x77 - Init COMPLETE
host1:10:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/{net}/0
host1:10:10 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7 recvbuff 0x7 count 8 datatype 7 op 0 comm 0x1 [nranks=2]
"""
MEGATRON = (
    " iteration {step:8d}/  500000 | consumed samples: 1 | elapsed time per iteration (ms): {ms:.1f} |"
    " learning rate: 1.5E-04 | global batch size: 256 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.3 |\n"
)
TITAN = (
    "[titan] 2026-03-0{day} 10:{minute:02d}:{second:02d},000 - root - INFO - \x1b[31mstep: {step:2d}  "
    "\x1b[32mloss:  {loss:.4f}  \x1b[33mmemory: 40.0GiB(50%)  \x1b[34mtps: 7,000\x1b[0m\n"
)
NEMO = (
    "Training epoch 0, iteration {step}/99 | lr: 1e-05 | reduced_train_loss: {loss:.3f} |"
    " train_step_timing in s: 9.4{step}\n"
)


def mllog(key: str, value: Any, at: int, **metadata: Any) -> str:
    entry = {
        "namespace": "",
        "time_ms": at,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f"0: :::MLLOG {json.dumps(entry)}\n"


def read(*paths: Path) -> Evidence:
    return gather(paths)


def the_reader(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    source = read(path).sources[0]
    return source.reader or source.found


def test_a_table_is_read_by_many_names_units_and_both_formats(tmp_path: Path) -> None:
    rows = timed_job(TimedJob(1, 2, 2, 4, 6, "slow-rank", 0.002, 1.6, 1))
    frame = pl.DataFrame({
        "pp_rank": rows.stage, "dp_rank": rows.replica, "iteration": rows.step,
        "op_type": [rows.names[index] for index in rows.name], "start_us": rows.start_s * 1e6,
        "dur_us": rows.duration_s * 1e6,
    })  # fmt: skip
    frame.write_csv(tmp_path / "a.csv")
    frame.rename({"start_us": "start_ts", "dur_us": "duration"}).with_columns(
        pl.col("start_ts") / 1e6, pl.col("duration") / 1e6
    ).write_parquet(tmp_path / "b.parquet")
    by_csv, by_parquet = (examine_evidence(read(tmp_path / name)) for name in ("a.csv", "b.parquet"))
    assert by_csv.findings()[0].ranks == by_parquet.findings()[0].ranks == (1,)
    assert by_csv.sections["operations"].figures == pytest.approx(by_parquet.sections["operations"].figures, rel=1e-6)


def test_a_table_of_many_ranks_in_a_file_each_is_one_job(tmp_path: Path) -> None:
    rows = timed_job(TimedJob(1, 3, 1, 4, 8, "slow-rank", 0.002, 1.6, 2))
    names = [rows.names[index] for index in rows.name]
    frame = pl.DataFrame(
        {"rank": rows.rank, "step": rows.step, "op": names, "start": rows.start_s, "duration": rows.duration_s}
    )
    for rank in range(3):
        frame.filter(pl.col("rank") == rank).drop("rank").write_csv(tmp_path / f"ops_rank{rank}.csv")
    assert examine_evidence(read(tmp_path)).findings()[0].ranks == (2,)


def test_the_rank_of_many_traces_that_computes_longest_is_named(tmp_path: Path) -> None:
    for rank in range(4):
        content = json.dumps(trace(rank, 900 if rank == 3 else 700)).encode()
        path = tmp_path / f"t{rank}.json.gz"
        path.write_bytes(gzip.compress(content))
    found = examine_evidence(read(tmp_path))
    assert [one.ranks for one in found.findings() if one.cause == "slow-rank"] == [(3,)]
    assert found.sections["timelines"].figures["ranks"] == 4


@pytest.mark.parametrize("form", ["json", "pickle"])
def test_a_dump_of_the_flight_recorder_names_who_never_came(tmp_path: Path, form: str) -> None:
    for rank in range(3):
        document = recorder(5 - (rank == 1))
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(json.dumps(document).encode() if form == "json" else pickle.dumps(document, protocol=2))
    worst = examine_evidence(read(tmp_path)).findings()[0]
    assert (worst.verdict, worst.ranks) == ("stuck", (1,))


def test_no_code_in_a_pickle_runs(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    document = {**recorder(2), "pg_status": Hostile()}
    (tmp_path / "dump_0").write_bytes(pickle.dumps(document, protocol=2))
    evidence = read(tmp_path / "dump_0")
    assert not (tmp_path / "ran").exists()
    assert "refused" in evidence.sources[0].found
    assert not evidence.calls


def test_a_ras_report_names_the_rank_behind_and_the_rank_gone(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(json.dumps(ras([7, 7, 6, 7])))
    assert examine_evidence(read(tmp_path)).findings()[0].ranks == (2,)
    (tmp_path / "ras.json").write_text(json.dumps(ras([7, 7, 7], missing=(1,))))
    assert {one.ranks for one in examine_evidence(read(tmp_path)).findings()} == {(1,)}


def test_nccl_tests_give_bandwidths_and_their_troubles(tmp_path: Path) -> None:
    (tmp_path / "all_reduce_perf.txt").write_text(TESTS.format(wrong=3))
    evidence = read(tmp_path)
    assert [row.bus_gb_s for row in evidence.bandwidths] == [34.95, 167.77, 67.11]
    assert {one.cause for one in evidence.findings} == {"wrong-results", "bandwidth-dip"}
    assert all(row.operation == "all_reduce" and row.ranks == 2 for row in evidence.bandwidths)


def test_an_nccl_log_tells_of_sockets_and_of_calls(tmp_path: Path) -> None:
    for rank in range(2):
        more = NCCL.splitlines()[-1].replace("opCount 0", "opCount 1") + "\n" if rank == 0 else ""
        (tmp_path / f"n{rank}.log").write_text(NCCL.format(rank=rank, net="Socket") + more)
    found = examine_evidence(read(tmp_path)).findings()
    assert found[0].ranks == (1,)
    assert any(one.cause == "tcp-instead-of-rdma" for one in found)
    (tmp_path / "n0.log").write_text(NCCL.format(rank=0, net="IB"))
    assert not read(tmp_path / "n0.log").findings


def test_training_logs_give_steps_and_losses(tmp_path: Path) -> None:
    (tmp_path / "megatron.log").write_text("".join(MEGATRON.format(step=s, ms=2000 + s, loss=5) for s in range(1, 9)))
    (tmp_path / "titan.log").write_text(
        "".join(TITAN.format(day=1, minute=s // 20, second=3 * s % 60, step=s, loss=5) for s in range(1, 9))
    )
    (tmp_path / "nemo.log").write_text("".join(NEMO.format(step=s, loss=5) for s in range(1, 9)))
    by_name = {one.source: one for one in read(tmp_path).series}
    assert list(by_name["Megatron-LM"].seconds) == pytest.approx([2 + s / 1000 for s in range(1, 9)])
    assert list(by_name["torchtitan"].seconds) == [3.0] * 7
    assert list(by_name["NeMo"].seconds) == pytest.approx([float(f"9.4{s}") for s in range(1, 9)])


def test_an_mlperf_log_gives_cold_start_batch_and_gpus(tmp_path: Path) -> None:
    lines = [mllog("init_start", None, 1000), mllog("submission_platform", "2xXE9680x8B200-SXM", 1500)]
    lines += [
        mllog("global_batch_size", 16, 1500),
        mllog("max_sequence_length", 8192, 1500),
        mllog("init_stop", None, 41000),
    ]
    lines += [
        mllog("tracked_stats", {"train_step_time": 0.5, "reduced_train_loss": 4.0}, 50000, step=s) for s in range(9)
    ]
    (tmp_path / "result_0.txt").write_text("".join(lines))
    series = read(tmp_path).series[0]
    assert (series.cold_start_s, series.gpus, series.tokens_per_step) == (40.0, 16, 16 * 8192)
    assert examine_evidence(read(tmp_path)).sections[series.source].figures["tokens_per_s"] == pytest.approx(262144)


def test_a_device_with_errors_or_a_slow_clock_is_named(tmp_path: Path) -> None:
    heading = "timestamp, index, clocks.current.sm [MHz], ecc.errors.uncorrected.volatile.total\n"
    rows = [
        f"2026/01/01 00:00:0{t}, {gpu}, {1200 if gpu == 2 else 1980} MHz, {int(gpu == 5)}\n"
        for t in range(3)
        for gpu in range(8)
    ]
    (tmp_path / "smi.csv").write_text(heading + "".join(rows))
    assert {(one.cause, one.subject) for one in read(tmp_path).findings} == {
        ("slow-clock", "GPU 2"),
        ("device-errors", "GPU 5"),
    }


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "noise": os.urandom(4096) + b"\0",
    "cut.parquet": b"PAR1" + bytes(100),
    "cut.json": json.dumps(trace(0, 10)).encode()[:-40],
    "cut.json.gz": gzip.compress(json.dumps(trace(0, 10)).encode() * 50)[:-30],
    "deep.json": b'{"pg_config": {}, "pg_status": ' + b"[" * 100_000,
    "cut_3": pickle.dumps(recorder(3), protocol=2)[:-20],
    "ras.json": b'{"nccl_version": "2.28", "communicators": [{"ranks": [{}]}]}',
    "columns.csv": b"step,operation,start\n1,forward,0.1\n",
    "words.csv": b"rank,step,operation,start,duration\nx,y,forward,a,b\n",
    "text.txt": b"nothing of interest\n" * 10,
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_file_costs_a_sentence_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BROKEN[name])
    (tmp_path / "good.log").write_text("".join(MEGATRON.format(step=s, ms=2000, loss=5) for s in range(1, 9)))
    evidence = read(tmp_path)
    assert len(evidence.sources) == 2
    assert all(source.found and "\n" not in source.found for source in evidence.sources)
    assert len(evidence.series) == 1


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "regular" in read(tmp_path / "pipe").sources[0].found


def test_a_path_or_pattern_that_names_nothing_is_refused(tmp_path: Path) -> None:
    for missing in (tmp_path / "no", str(tmp_path / "*.json"), tmp_path):
        with pytest.raises(UsageError):
            list(find_files([missing]))


def test_a_reader_is_chosen_by_content_and_not_by_name(tmp_path: Path) -> None:
    assert the_reader(tmp_path / "x.txt", json.dumps(trace(0, 10))) == "profiler trace"
    assert the_reader(tmp_path / "y_2.csv", json.dumps(recorder(2))) == "flight recorder"
    assert the_reader(tmp_path / "z.bin", TESTS.format(wrong=0)) == "nccl-tests output"
