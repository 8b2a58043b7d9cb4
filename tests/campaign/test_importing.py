"""Traces of other projects: whatever the format, the same jobs come out; what cannot be read is a sentence."""

import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign.worlds_of_traces import FORMATS, JOBS, Asked, pai

from weft.campaign.importing import OWN, READERS, at_load, import_trace, shape
from weft.campaign.readers.base import BrokenLineError, ForeignTrace, span
from weft.campaign.trace import COLUMNS, LONGEST_S, generated, written
from weft.core.errors import UsageError
from weft.core.seeds import Seed

NODE = 8
LIMITED = ("Slurm sacct", "SWF")


def _read(name: str, jobs: list[Asked]):
    def beside(file: str) -> str | None:
        return pai(jobs)[1] if name == "Alibaba 2020" and file == "pai_job_table.csv" else None

    return import_trace(ForeignTrace(FORMATS[name](jobs), beside), "trace", NODE)


def _packed(name: str, job: Asked) -> tuple[int, int]:
    if name == "SWF":
        return shape(1, job.nodes * job.gpus, NODE)
    return shape(job.gpus, 1 if name == "Alibaba 2023" else job.nodes, NODE)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25)
@given(jobs=JOBS)
def test_every_format_gives_the_jobs_that_were_written(name: str, jobs: list[Asked]):
    found = _read(name, jobs)
    begin_s = min(job.submit_s for job in jobs)
    whole = name == "Alibaba 2023"
    expected = [
        ((job.submit_s - begin_s) * 1000, job.run_s * 1000, *_packed(name, job),
         job.limit_min * 60_000 if name in LIMITED and job.limit_min is not None else None)
        for job in jobs
    ]  # fmt: skip
    got = [(line.submit_ms, line.duration_ms, line.nodes, line.gpus_per_node, line.limit_ms) for line in found.lines]
    assert sorted(got, key=str) == sorted(expected, key=str)
    assert found.format == name
    assert sum(found.left_out.values()) == (2 if whole else 1)
    # Who shared a team shares one still, under a name that a cluster takes.
    assert len({line.team for line in found.lines}) == len({job.team for job in jobs})
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*", line.team) for line in found.lines)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25)
@given(jobs=JOBS, data=st.data())
def test_a_broken_line_is_one_sentence_with_its_number(name: str, jobs: list[Asked], data: st.DataObject):
    lines = FORMATS[name](jobs).splitlines()
    first = {"SWF": 2, "Philly": 2, "Alibaba 2020": 0}.get(name, 1)
    at = data.draw(st.integers(first, len(lines) - 1 - (name == "Philly")))
    lines[at] = data.draw(st.sampled_from(("}{", "1 2 3", "x|y")))
    with pytest.raises(UsageError, match=r"^trace(:\d+ is broken| is no trace)") as caught:
        import_trace(ForeignTrace("\n".join(lines)), "trace", NODE)
    sentence = str(caught.value)
    assert "\n" not in sentence
    if at > first + 1 and name != "Philly":
        assert sentence.startswith(f"trace:{at + 1} is broken")


@given(st.integers(1, 512), st.integers(1, 300), st.integers(1, 16))
def test_packing_holds_all_gpus_on_no_more_nodes_than_needed(gpus: int, pieces: int, node: int):
    nodes, each = shape(gpus, pieces, node)
    assert 1 <= each <= node
    assert nodes * each >= gpus * pieces
    per_node = max(1, node // gpus) * gpus if gpus <= node else node
    assert (nodes - 1) * per_node < gpus * pieces
    # Pieces are never cut where they fit a node.
    assert gpus > node or each % gpus == 0


@settings(max_examples=25)
@given(jobs=st.integers(2, 60), load=st.floats(0.1, 3), seed=st.integers(0, 99))
def test_a_load_is_what_jobs_ask_for_between_first_and_last_submission(jobs: int, load: float, seed: int):
    lines = at_load(generated(jobs, 16, 8, Seed(seed)), 432, load)
    asked = sum(line.duration_ms * line.nodes * line.gpus_per_node for line in lines)
    assert asked / 432 / lines[-1].submit_ms == pytest.approx(load, rel=0.01)


def test_our_own_tables_are_read_as_before_and_nothing_else_passes_for_one():
    lines = generated(20, 8, 8, Seed(1))
    assert import_trace(ForeignTrace(written(lines)), "t.csv", NODE).lines == lines
    assert import_trace(ForeignTrace(written(lines)), "t.csv", NODE).format == OWN
    with pytest.raises(UsageError, match="is empty"):
        import_trace(ForeignTrace(""), "t.csv", NODE)
    with pytest.raises(UsageError, match="no trace that is known here"):
        import_trace(ForeignTrace("a,b\n1,2\n"), "t.csv", NODE)
    with pytest.raises(UsageError, match="lacks"):
        import_trace(ForeignTrace(",".join(COLUMNS[:-1]) + "\n"), "t.csv", NODE)


@given(text=st.text(alphabet='[]{}|,;:"\n\r\0 -0123456789ejobid vc attempts', max_size=200))
def test_no_text_is_worth_a_traceback(text: str):
    for make in READERS:
        reader, trace = make(), ForeignTrace(text)
        if reader.recognises(trace):
            with suppress(BrokenLineError):
                list(reader.jobs(trace))
    with suppress(UsageError):
        import_trace(ForeignTrace(text), "t", NODE)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("30:05", 1805), ("1:30:05", 5405), ("2-0", 172_800), ("2-03", 183_600), ("2-03:04", 183_840),
     ("2-03:04:05", 183_845)],
)  # fmt: skip
def test_spans_are_slurms(text: str, seconds: int):
    assert span(1, "Timelimit", text) == seconds


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("Helios", ("COMPLETED", f"COMPLETED,{'9' * 30}"), "values where there are"),
        ("SWF", (" -1 1 3 ", " nan 1 3 "), ""),
        ("Alibaba 2023", ("Running,0,", "Running,-5,"), "from 0 on"),
    ],
)
def test_what_is_wrong_is_named(name: str, change: tuple[str, str], words: str):
    jobs = [Asked(0, 0, 60, 1, 8, 10, "vcJkd"), Asked(5, 0, 60, 2, 8, 10, "vcJkd")]
    text = FORMATS[name](jobs).replace(*change)
    if not words:
        assert import_trace(ForeignTrace(text), "t", NODE).lines
        return
    with pytest.raises(UsageError, match=words):
        import_trace(ForeignTrace(text), "t", NODE)


def test_a_job_that_runs_for_longer_than_ten_years_is_refused_with_its_line():
    jobs = [Asked(0, 0, LONGEST_S + 1, 1, 8, None, "vcJkd")]
    with pytest.raises(UsageError, match=r"^t:2 is broken \(Alibaba 2023\): its run time"):
        import_trace(ForeignTrace(FORMATS["Alibaba 2023"](jobs)), "t", NODE)
