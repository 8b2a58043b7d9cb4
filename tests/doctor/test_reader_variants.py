"""Files as different versions of their tools write them: units, columns, launchers' marks, several communicators."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.test_gather import MEGATRON, recorder, trace
from verification.timed_jobs import TimedJob, timed_job

from weft.diagnosis.accusation import accuse
from weft.diagnosis.step_program import step_program
from weft.doctor.examination import Examination, examine_evidence
from weft.doctor.gather import gather
from weft.doctor.readers.evidence import Evidence

pl = pytest.importorskip("polars")
LAUNCHERS = ("", "3: ", "[rank3]: ", "[default3]:", "[1,3]<stdout>:", "2026-01-02T03:04:05.678Z stderr F ",
             "\x1b[36m(RayTrainWorker pid=812, ip=10.0.0.1)\x1b[0m ")  # fmt: skip
SLOW = TimedJob(3, 4, 2, 6, 10, "slow-rank", 0.002, 1.7, 6)
SINCE_1970_US = 1_780_000_000_000_000


def told(path: Path, text: str | bytes) -> Evidence:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return gather([path])


def answer(folder: Path) -> Examination:
    return examine_evidence(gather([folder]))


def job_frame() -> Any:
    """Return a job of dp 2 x pp 2 x tp 2 ranks, of which the sixth is slow."""
    rows = timed_job(SLOW)
    return pl.DataFrame({
        "dp": rows.replica // 2, "tp": rows.replica % 2, "pp": rows.stage, "step": rows.step,
        "op": [rows.names[index] for index in rows.name], "start": rows.start_s, "dur": rows.duration_s,
    })  # fmt: skip


def since_1970(column: Any, per_second: float) -> Any:
    return (column * per_second).cast(pl.Int64) + int(SINCE_1970_US * per_second / 1e6)


SHIFTS: dict[str, Callable[[Any], Any]] = {
    "seconds": lambda frame: frame,
    "ms in the heading": lambda frame: frame.with_columns(pl.col("start", "dur") * 1e3).rename(
        {"start": "start (ms)", "dur": "dur [ms]"}
    ),
    "ns since 1970 beside us": lambda frame: frame.with_columns(
        since_1970(pl.col("start"), 1e9), pl.col("dur") * 1e6
    ).rename({"start": "timestamp", "dur": "dur_us"}),
    "us since 1970 with ends": lambda frame: frame.with_columns(
        since_1970(pl.col("start"), 1e6), end=since_1970(pl.col("start") + pl.col("dur"), 1e6)
    ).drop("dur"),
    "dates": lambda frame: frame.with_columns(
        pl.from_epoch(since_1970(pl.col("start"), 1e6), "us").alias("start"), pl.col("dur") * 1e3
    ).rename({"dur": "duration_ms"}),
    "durations in us without a word": lambda frame: frame.with_columns(pl.col("dur") * 1e6),
    "numbers from one": lambda frame: frame.with_columns(pl.col("pp") + 1, pl.col("dp") + 1),
    "ranks in words": lambda frame: frame.with_columns(
        pl.format("rank {}", pl.col("pp") * 4 + pl.col("dp") * 2 + pl.col("tp")).alias("rank_id")
    ),
}


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow", "jsonl"])
@pytest.mark.parametrize("shift", list(SHIFTS))
def test_a_table_is_read_in_any_unit_and_form(tmp_path: Path, shift: str, ending: str) -> None:
    program = step_program(timed_job(SLOW))
    assert program is not None
    expected = accuse(program)
    frame, path = SHIFTS[shift](job_frame()), tmp_path / f"ops.{ending}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "arrow": frame.write_ipc, "jsonl": frame.write_ndjson}[
        ending
    ](path)
    found = answer(tmp_path)
    worst = found.findings()[0]
    assert (worst.cause, len(worst.ranks)) == ("slow-rank", 1), found.evidence.sources
    assert found.sections["operations"].figures["step_s"] == pytest.approx(expected.figures["step_s"], rel=2e-3)
    assert worst.slowdown == pytest.approx(expected.sorted()[0].slowdown, rel=0.01)
    assert worst.ranks == (6,)


def test_rows_that_are_no_numbers_are_left_out_and_a_table_of_others_is_a_sentence(tmp_path: Path) -> None:
    frame = job_frame().with_columns(pl.col("dur").cast(pl.String))
    frame = frame.with_columns(pl.when(pl.int_range(pl.len()) == 17).then(pl.lit("N/A")).otherwise("dur").alias("dur"))
    frame.write_csv(tmp_path / "ops.csv")
    assert answer(tmp_path).findings()[0].ranks == (6,)
    (tmp_path / "ops.csv").unlink()
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet(tmp_path / "other.parquet")
    assert "columns a, b" in gather([tmp_path]).sources[0].found


def kineto(compute_us: float, groups: int = 1, rank: int | None = 3) -> str:
    """Return a trace as newer versions write it: groups before the events, the rank among them."""
    config = [{"pg_name": str(n), "ranks": list(range(64))} for n in range(groups)]
    about = {"backend": "nccl", "rank": rank, "world_size": 64, "pg_count": groups, "pg_config": config}
    head = {"schemaVersion": 1, **({"distributedInfo": about} if rank is not None else {})}
    return json.dumps({**head, "traceEvents": trace(0, compute_us)["traceEvents"], "traceName": "x"})


def test_a_trace_with_more_groups_than_its_head_holds_is_read_with_its_rank(tmp_path: Path) -> None:
    assert "of rank 3 of 64, 2 kernels" in told(tmp_path / "x.json", kineto(700, groups=500)).sources[0].found


def test_process_numbers_in_names_are_no_ranks(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"node{number}_41{number}2.17800000{number}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(kineto(900 if number == 2 else 700, rank=None).encode()))
    worst = next(one for one in answer(tmp_path).findings() if one.cause == "slow-rank")
    assert worst.ranks == ()
    assert "node2_4122" in worst.subject


def test_traces_of_several_steps_of_a_rank_are_one_rank(tmp_path: Path) -> None:
    for step in (10, 20):
        for rank in range(4):
            (tmp_path / f"iteration_{step}_rank{rank}_trace.json").write_text(
                kineto(900 if rank == 1 else 700, rank=rank)
            )
    assert [one.ranks for one in answer(tmp_path).findings() if one.cause == "slow-rank"] == [(1,)]


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_trace_that_was_cut_off_the_beginning_is_read(tmp_path: Path, packed: bool) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10 * n, "dur": 8} for n in range(20_000)]
    whole = json.dumps({"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": events}).encode()
    cut = gzip.compress(whole)[:-3_000] if packed else whole[: len(whole) // 2]
    source = told(tmp_path / "t.json", cut).sources[0]
    assert source.reader == "profiler trace"
    assert "cut off" in source.found
    assert int(source.found.split()[0].replace(",", "")) > 2_000


def test_a_damaged_pack_is_a_sentence(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(json.dumps(trace(0, 10)).encode() * 30))
    whole[12:40] = bytes(28)
    assert "damaged" in told(tmp_path / "a.gz", bytes(whole)).sources[0].found


# --- NCCL


def nccl_line(host: str, pid: int, device: int, text: str, level: str = "INFO") -> str:
    return f"{host}:{pid}:{pid + 1} [{device}] {'' if level == 'INFO' else 'misc/socket.cc:50 '}NCCL {level} {text}\n"


def nccl_job(short: int, launcher: str = "", newest: bool = False) -> str:
    """Return the log of 4 ranks on 2 hosts with a communicator of all and one for each pair; one leaves a call out."""
    lines = [launcher + "some program speaks first\n"]
    for rank in range(4):
        host, device = f"n{rank // 2}", rank % 2
        pid, world, pair = 100 + rank, f"0xa{rank}", f"0xb{rank}"
        say = lambda text, h=host, p=pid, d=device: lines.append(launcher + nccl_line(h, p, d, text))  # noqa: E731
        common = f"cudaDev {device} nvmlDev {device} busId 1{device}000"
        say(f"ncclCommInitRankConfig comm {world} rank {rank} nranks 4 {common} commId 0x77 - Init COMPLETE")
        say(f"ncclCommSplit comm {pair} rank {device} nranks 2 {common} parent {world} splitCount 1 color {rank // 2}"
            f" key {device}- Init COMPLETE".replace(f"parent {world}", "parent 0x77"))  # fmt: skip
        end = f" task 0 globalrank {rank}" if newest else ""
        within = f" task 0 globalrank {device}" if newest else ""
        for number in range(3):
            say(f"AllReduce: opCount {number:x} sendbuff 0x1 recvbuff 0x2 count 64 datatype 7 op 0 root 0 comm {world}"
                f" [nranks=4] stream 0x5{end}")  # fmt: skip
            say(f"{'Send' if device else 'Recv'}: opCount {number:x} sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0"
                f" root {1 - device} comm {pair} [nranks=2] stream 0x5")  # fmt: skip
            if rank != short or number < 2:
                say(f"AllGather: opCount {number:x} sendbuff 0x1 recvbuff 0x2 count 32 datatype 7 op 0 root 0 comm"
                    f" {pair} [nranks=2] stream 0x5{within}")  # fmt: skip
    return "".join(lines)


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_an_nccl_log_are_those_of_the_job_in_any_communicator(
    tmp_path: Path, launcher: str, newest: bool
) -> None:
    evidence = told(tmp_path / "job.log", nccl_job(3, launcher, newest))
    findings = examine_evidence(evidence).findings()
    assert evidence.sources[0].found.startswith("4 ranks")
    assert [one.ranks for one in findings] == [(3,)]
    assert findings[0].verdict == "stuck"


def test_a_healthy_nccl_log_with_sends_and_receives_accuses_nobody(tmp_path: Path) -> None:
    assert examine_evidence(told(tmp_path / "job.log", nccl_job(-1))).healthy


def test_warnings_of_newer_versions_are_seen(tmp_path: Path) -> None:
    forms = [
        "n0:1:2 [0] NCCL WARN old form\n",
        "n0:1:2 [0] transport/net.cc:12 NCCL WARN middle form\n",
        "[2026-07-23 04:16:01] n0:1:2 [-1] misc/x.cc:424 (someFunction) NCCL WARN new form\n",
    ]
    evidence = told(tmp_path / "a.log", "".join(forms))
    assert {one.sentence.split(": ")[1] for one in evidence.findings} == {"old form", "middle form", "new form"}


def ras_rank(rank: int, pid: int, counts: dict[str, int]) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {"rank": rank, "host": "10.0.0.1", "pid": pid, "cuda_dev": pid, "nvml_dev": pid, "status": status,
            "collective_counts": counts}  # fmt: skip


def test_a_rank_of_a_small_communicator_in_a_ras_report_is_told_by_its_number_in_the_job(tmp_path: Path) -> None:
    whole = {"hash": "0x1", "ranks": [ras_rank(n, n, {"AllReduce": 1}) for n in range(4)], "missing_ranks": []}
    pair = {"hash": "0x2", "ranks": [ras_rank(0, 2, {"AllReduce": 9}), ras_rank(1, 3, {"AllReduce": 3})],
            "missing_ranks": []}  # fmt: skip
    text = json.dumps({"nccl_version": "2.28.9", "communicators": [pair, whole]})
    assert examine_evidence(told(tmp_path / "r.json", text)).findings()[0].ranks == (3,)


def test_a_ras_report_of_2_28_is_read_though_it_leaves_out_a_comma(tmp_path: Path) -> None:
    gone = (
        '{"rank": 1, "host": "h", "pid": 1, "cuda_dev": 1,\n "nvml_dev": 1\n'
        ' "status": {"unresponsive": true, "considered_dead": true}}'
    )
    text = json.dumps({"nccl_version": "2.28.9", "communicators": [
        {"hash": "0x1", "ranks": [ras_rank(0, 0, {"AllReduce": 4})], "missing_ranks": ["GONE"]}
    ]}).replace('"GONE"', gone)  # fmt: skip
    findings = told(tmp_path / "r.json", text).findings
    assert [one.ranks for one in findings] == [(1,)]
    assert "considers 1 of them dead" in findings[0].evidence[0]


HEADINGS = {
    "now": "#  size  count  type  redop  root" + 2 * "  time  algbw  busbw #wrong",
    "without a root": "#  size  count  type  redop" + 2 * "  time  algbw  busbw  error",
    "neither": "#  size  count  type" + 2 * "  time  algbw  busbw  error",
}


@pytest.mark.parametrize("form", list(HEADINGS))
@pytest.mark.parametrize("operation", ["sendrecv", "all_gather", "alltoall"])
def test_tables_of_nccl_tests_have_the_columns_of_their_version(tmp_path: Path, form: str, operation: str) -> None:
    words = {"now": ("float", "none", "-1"), "without a root": ("float", "sum"), "neither": ("float",)}[form]
    rows = [f"# {operation}_perf\n" + HEADINGS[form]]
    for kind in (words, ("half", *words[1:])):
        for size, bus in ((8, 0.1), (2**20, 40.0), (2**24, 170.0)):
            rate = bus / (2 if kind[0] == "half" else 1)
            second = "N/A N/A N/A N/A" if operation == "alltoall" else f"{size / 1e3:.2f} {rate:.2f} {rate - 1:.2f} 0"
            rows.append(f"  {size} {size // 4} {' '.join(kind)} {size / 1e3:.2f} {rate:.2f} {rate:.2f} N/A {second}")
    evidence = told(tmp_path / "a.txt", "\n".join(f"0: {row}" for row in rows) + "\n")
    assert len(evidence.bandwidths) == 6
    assert max(row.bus_gb_s for row in evidence.bandwidths) == 170.0
    assert {row.operation for row in evidence.bandwidths} == {operation}
    assert not evidence.findings


# --- flight recorders


def transfer(what: str, one: int, other: int, record: int, state: str) -> dict[str, Any]:
    arrow = "->" if what == "send" else "<-"
    return {"process_group": ["0", "default_pg"], "collective_seq_id": 0, "p2p_seq_id": record, "is_p2p": True,
            "record_id": record, "profiling_name": f"nccl:{what} {one}{arrow}{other}", "input_sizes": [[8]],
            "input_dtypes": ["Float"], "state": state, "time_created_ns": record}  # fmt: skip


def test_a_rank_that_never_sent_is_named(tmp_path: Path) -> None:
    for rank in range(3):
        document = recorder(0)
        if rank > 0:
            document["entries"] += [transfer("recv", rank, rank - 1, 2 * n, "completed") for n in range(3)]
        if rank < 2:
            document["entries"] += [transfer("send", rank, rank + 1, 2 * n + 1, "completed") for n in range(3)]
        if rank == 2:
            document["entries"].append(transfer("recv", 2, 1, 9, "started"))
        document["entries"].sort(key=lambda entry: entry["record_id"])
        document["entries"] = [{**entry, "record_id": n} for n, entry in enumerate(document["entries"])]
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(document))
    findings = answer(tmp_path).findings()
    assert [(one.verdict, one.ranks) for one in findings] == [("stuck", (1,))]


def test_calls_that_left_the_ring_are_counted_by_their_groups_status(tmp_path: Path) -> None:
    for rank in range(3):
        document = recorder(6 if rank == 0 else 0)
        document["pg_status"] = {"0": {"last_enqueued_collective": 6, "last_completed_collective": 6}}
        document["entries"] = [{**entry, "state": "scheduled"} for entry in document["entries"]]
        (tmp_path / f"dump_{rank}").write_text(json.dumps(document))
    assert answer(tmp_path).healthy


def test_the_bare_list_of_older_versions_is_read(tmp_path: Path) -> None:
    for rank in range(3):
        entries = [{"pg_id": 0, "seq_id": n, "profiling_name": "nccl:all_reduce", "state": "scheduled",
                    "input_sizes": [[4]]} for n in range(1, 5 - (rank == 2))]  # fmt: skip
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(entries))
    assert answer(tmp_path).findings()[0].ranks == (2,)


# --- logs of trainings


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_marks_and_progress_bars_hide_no_step(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "m.log").write_text(
        f"{launcher}  seq_length ............................. 4096\n{launcher}  world_size .................... 64\n"
        + "".join(launcher + MEGATRON.format(step=s, ms=2000, loss=5) for s in range(1, 9))
    )
    bar = "".join(f"\rEpoch 0: :  {s}%| {s}/99 [reduced_train_loss=5.0, global_step={s}.0, train_step_timing in s=1.50]"
                  for s in range(1, 9))  # fmt: skip
    (tmp_path / "n.log").write_text(f"{launcher}NeMo\n{launcher}{bar}\n")
    (tmp_path / "d.log").write_text("".join(
        f"{launcher} iteration {s:8d}/ 100 | elapsed time per iteration (s): 2.50 | lm loss: 5 |\n"
        for s in range(1, 9)
    ))  # fmt: skip
    series = dict(zip("dmn", gather([tmp_path]).series, strict=True))
    assert list(series["m"].seconds) == [2.0] * 8
    assert (series["m"].gpus, series["m"].tokens_per_step) == (64, 256 * 4096)
    assert list(series["n"].seconds) == [1.5] * 8
    assert list(series["n"].step) == list(range(1, 9))
    assert list(series["d"].seconds) == [2.5] * 8


# --- device counters


def test_dmon_tables_with_dates_and_dashes_are_read(tmp_path: Path) -> None:
    head = ("#Date       Time        gpu    pwr  gtemp  mtemp     sm   pclk\n"
            "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %    MHz\n")  # fmt: skip
    load = {gpu: (0 if gpu == 3 else 95, 1200 if gpu in {2, 3} else 1980) for gpu in range(6)}
    rows = [f" 20260101 00:00:0{t}  {gpu}  400  60  -  {load[gpu][0]}  {load[gpu][1]}\n"
            for t in range(3) for gpu in range(6)]  # fmt: skip
    evidence = told(tmp_path / "smi.txt", head + "".join(rows))
    assert evidence.sources[0].found == "6 devices, 4 counters"
    assert [one.subject for one in evidence.findings] == ["GPU 2"]  # GPU 3 has nothing to do
    assert {one.unit for one in evidence.samples if one.field == "pclk"} == {"MHz"}
    plain = told(tmp_path / "b.txt", "# gpu    pwr   sm   pclk\n# Idx      W    %    MHz\n    0    43    0   345\n")
    assert plain.sources[0].found == "1 devices, 3 counters"


def test_dcgm_tables_of_parts_and_absent_values_are_read(tmp_path: Path) -> None:
    text = "#Entity   SMACT   SMCLK   DBE\nID\n" + "".join(
        f"{entity}     {'N/A' if entity == 'GPU 1' else 0.9}   {1000 if entity == 'GPU 2' else 1980}   0\n"
        for _ in range(2) for entity in ("GPU 0", "GPU 1", "GPU 2", "GPU 3")
    )  # fmt: skip
    evidence = told(tmp_path / "d.txt", text)
    assert [one.subject for one in evidence.findings] == ["GPU 2"]
    parts = told(tmp_path / "e.txt", "#Entity   GRACT\nID\nGPU-I 0   0.5\nGPU-CI 0/1   0.25\nSwitch 3  N/A\n")
    assert parts.sources[0].found == "2 devices, 1 counters"


def test_lifelong_counters_accuse_only_where_they_rise(tmp_path: Path) -> None:
    head = "index, ecc.errors.uncorrected.aggregate.total, power.draw [W]\n"
    rows = [f"{gpu}, {7 + (t if gpu == 1 else 0)}, [N/A]\n" for t in range(3) for gpu in range(3)]
    assert [one.subject for one in told(tmp_path / "a.csv", head + "".join(rows)).findings] == ["GPU 1"]


# --- MLPerf


def test_older_and_other_mlperf_logs(tmp_path: Path) -> None:
    def line(key: str, value: Any, **metadata: Any) -> str:
        return f":::MLLOG {json.dumps({'key': key, 'value': value, 'time_ms': 5, 'metadata': metadata})}\n"

    old = line("global_batch_size", 32) + "".join(line("tracked_stats", {"throughput": 64.0}, step=s) for s in range(9))
    assert list(told(tmp_path / "old.txt", old).series[0].seconds) == [0.5] * 9
    power = "".join(line("power_reading", 600.0 + n, host="node_0") for n in range(5))
    evidence = told(tmp_path / "power.txt", power)
    assert [(one.device, one.mean) for one in evidence.samples] == [("host node_0", 602.0)]
