"""Files beside the usual ones: other packings, languages and endings, and two jobs in what should be one."""

import bz2
import gzip
import io
import json
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doctor.test_gather import MEGATRON, recorder, trace
from tests.doctor.test_reader_variants import nccl_job

from weft.cli.main import main
from weft.doctor.examination import Examination, examine_evidence
from weft.doctor.gather import gather
from weft.doctor.readers.kineto import _Cleaned
from weft.doctor.readers.training_log import _number

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "marked": b"\xef\xbb\xbf".__add__,
}  # fmt: skip


def log(first: int, count: int, ms: float) -> str:
    return "".join(MEGATRON.format(step=step, ms=ms, loss=5) for step in range(first, first + count))


def told(path: Path, data: str | bytes) -> Examination:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return examine_evidence(gather([path]))


@pytest.mark.parametrize("form", list(PACKED))
def test_a_log_and_a_trace_are_read_in_any_packing(tmp_path: Path, form: str) -> None:
    (series,) = told(tmp_path / "a.log", PACKED[form](log(1, 12, 2000).encode())).evidence.series
    assert list(series.seconds) == [2.0] * 12
    (timeline,) = told(tmp_path / "b.json", PACKED[form](json.dumps(trace(2, 10)).encode())).evidence.timelines
    assert timeline.rank == 2


@pytest.mark.parametrize("form", ["bz2", "xz"])
def test_of_a_pack_that_was_cut_off_the_beginning_is_read(tmp_path: Path, form: str) -> None:
    whole = PACKED[form]("".join(log(first, 1, 2000 + first % 97) for first in range(3_000)).encode())
    found = told(tmp_path / "a.log", whole[: len(whole) * 2 // 3])
    if found.evidence.series:
        assert 0 < len(found.evidence.series[0].step) < 3_000
    assert "cut off" in found.evidence.sources[0].found or "damaged" in found.evidence.sources[0].found


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x28\xb5\x2f\xfd123", "is packed by zstd; unpack it first"),
        (b"PK\x03\x04123", "is packed by zip; unpack it first"),
        (log(1, 9, 2000).encode("utf-16"), "is text in UTF-16; write it in UTF-8"),
        (b"", "is empty"),
        (b"{", "is in no format that weft reads"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_reason(
    tmp_path: Path, data: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(data)
    assert main(["doctor", str(tmp_path / "a.log")]) == 2
    assert f"{tmp_path / 'a.log'} could not be read: it {said}" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path)]) == 2
    assert "none of 2 files could be read" in capsys.readouterr().err


@given(st.integers(0, 10**9), st.integers(0, 999))
def test_commas_are_thousands_or_a_decimal_point(whole: int, parts: int) -> None:
    assert _number(f"{whole:,}") == whole
    assert _number(f"{whole:,}.{parts:03d}") == float(f"{whole}.{parts:03d}")
    assert _number(f"{whole},{parts % 10}") == float(f"{whole}.{parts % 10}")


@pytest.mark.parametrize("later", [1.0, 1.6])
def test_two_runs_in_one_log_are_two_and_none_is_blamed_for_the_other(tmp_path: Path, later: float) -> None:
    found = told(tmp_path / "a.log", log(1, 30, 2000) + log(1, 30, 2000 * later))
    assert [len(one.step) for one in found.evidence.series] == [30, 30]
    assert found.healthy
    assert found.evidence.sources[0].found.endswith("of 2 runs")


def test_a_run_that_came_back_is_one_and_a_step_that_several_ranks_wrote_counts_once(tmp_path: Path) -> None:
    (back,) = told(tmp_path / "a.log", log(1, 30, 2000) + log(20, 30, 2000)).evidence.series
    assert len(back.step) == 60
    several = "".join(f"{rank}: {log(step, 1, 2000)}" for step in range(1, 20) for rank in range(4))
    (once,) = told(tmp_path / "b.log", several).evidence.series
    assert list(once.step) == list(range(1, 20))


SMI = "timestamp; index; utilization.gpu [%]; power.draw [W]; clocks.current.sm [MHz]\n"


def test_a_slow_clock_is_seen_in_tables_with_decimal_commas(tmp_path: Path) -> None:
    clock = {gpu: "1200,5" if gpu == 3 else "1980,0" for gpu in range(8)}
    rows = "".join(f"2025; {gpu}; 98,1 %; 650,25 W; {clock[gpu]} MHz\n" for _ in range(5) for gpu in range(8))
    dcgm = "#Entity   SMCLK  POWER  GPUTL\nID\n" + "".join(f"GPU {g}  {clock[g]}  650,1  98\n" for g in range(8)) * 5
    for text in (SMI + rows, dcgm):
        (finding,) = told(tmp_path / "a.csv", text).findings()
        assert finding.subject == "GPU 3"
        assert "1200 MHz in the mean, the others at 1980" in finding.sentence


def dumps(folder: Path, missing: int | None, damaged: int | None = None) -> None:
    folder.mkdir(exist_ok=True)
    for rank in range(4):
        document: dict[str, Any] = recorder(5)
        document["pg_config"]["0"]["ranks"] = "[0, 1, 2, 3]"
        entries = document["entries"][:1] * 5
        document["entries"] = [
            {**entry, "record_id": n, "collective_seq_id": n + 1, "state": "completed" if n < 4 else "started"}
            for n, entry in enumerate(entries[: 4 if rank == missing else 5])
        ]
        data = pickle.dumps(document)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data[:-60] if rank == damaged else data)


def test_who_is_behind_is_named_though_a_dump_is_damaged(tmp_path: Path) -> None:
    dumps(tmp_path / "a", missing=2, damaged=1)
    assert [one.ranks for one in examine_evidence(gather([tmp_path])).findings()] == [(2,)]


def test_dumps_of_a_second_job_are_left_out_and_named(tmp_path: Path) -> None:
    dumps(tmp_path / "a", missing=2)
    dumps(tmp_path / "b", missing=None)
    found = examine_evidence(gather([tmp_path]))
    assert [one.ranks for one in found.findings()] == [(2,)]
    left_out = [one for one in found.evidence.sources if not one.reader]
    assert [Path(one.path).parent.name for one in left_out] == ["b"] * 4
    assert all("is not the first dump of rank" in one.found for one in left_out)


def test_a_call_whose_line_was_cut_off_accuses_nobody(tmp_path: Path) -> None:
    whole = nccl_job(-1)
    found = told(tmp_path / "job.log", whole[: whole.rindex("recvbuff")])
    assert found.healthy
    assert found.evidence.sources[0].found.endswith(
        "it ends in the middle of a call, and what came behind that is not known"
    )


@given(st.integers(1, 400), st.sampled_from(("NaN", "nan", "Infinity", "-Infinity", "-inf")), st.booleans())
def test_numbers_that_are_none_and_broken_text_become_json(size: int, word: str, broken: bool) -> None:
    text = json.dumps({"traceEvents": [{"dur": 1.5, "args": ["W", 2, "W"], "name": "W, [W"}] * 9, "x": "W"})
    data = text.replace('"W"', word).encode()
    data = data.replace(b"name", b"na\xff\xfeme\xc3") if broken else data
    cleaned, stream = _Cleaned(io.BytesIO(data)), b""
    while piece := cleaned.read(size):
        stream += piece
    assert json.loads(stream)["traceEvents"][8]["args"] == [None, 2, None]


def test_a_trace_without_kernels_is_not_called_fast(tmp_path: Path) -> None:
    document = trace(0, 10)
    document["traceEvents"] = [{**one, "cat": "cpu_op"} for one in document["traceEvents"]]
    found = told(tmp_path / "a.json", json.dumps(document))
    assert found.verdict() == "what was read does not say how fast anything was"
