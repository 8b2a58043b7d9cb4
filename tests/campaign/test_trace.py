"""Traces: what is read, what is refused, and that decisions never see durations."""

from dataclasses import fields, replace

import pytest

from weft.campaign.trace import COLUMNS, TraceJob, admit_all, generated, read, written
from weft.cluster.records.job import Job, Team
from weft.cluster.records.node import Node
from weft.core.errors import UsageError
from weft.core.seeds import Seed

HEADER = ",".join(COLUMNS)


def test_a_trace_is_written_and_read_back():
    lines = generated(200, 100, 8, Seed(1))
    assert read(written(lines), "trace.csv") == lines


def test_what_gangs_require_of_the_topology_is_written_and_read_back():
    lines = generated(6, 100, 8, Seed(2))
    lines[1] = replace(lines[1], within="domain", slice_nodes=4)
    lines[4] = replace(lines[4], apart="rack")
    assert read(written(lines), "trace.csv") == lines
    gang = lines[1].request(1, checkpoint_ms=1, grace_ms=0, min_run_ms=0).gang
    assert (gang.within, gang.slice_nodes, gang.apart) == ("domain", 4, "")


def test_what_the_cluster_sees_of_a_line_has_no_place_for_its_duration():
    line = TraceJob(0, 123_457, 900_000, 1, 8, "red", 100, "training")
    job = line.request(1, checkpoint_ms=1000, grace_ms=0, min_run_ms=0)
    assert 123_457 not in [getattr(job, field.name) for field in fields(Job)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "lacks submit_s"),
        (HEADER + ",more\n", "'more' that means nothing"),
        (HEADER + ",within\n0,5,10,1,1,red,100,training,shelf\n", "'shelf' is none of domain, rack, t0, pod"),
        (HEADER + ",slice_nodes\n0,5,10,1,1,red,100,training,-2\n", "from 0 to 10,000,000"),
        (HEADER + "\n", "no lines below its header"),
        (HEADER + "\n0,nan,10,1,1,red,100,training\n", "trace.csv:2  duration_s"),
        (HEADER + "\n0,5,-1,1,1,red,100,training\n", "between 0 and ten years"),
        (HEADER + "\n0,5,10,0,1,red,100,training\n", "from 1 to 10,000,000"),
        (HEADER + "\n0,5,10,1.5,1,red,100,training\n", "'1.5' is no whole number"),
        (HEADER + "\n0,5,10,1,1,red,-5,training\n", "from 0 to 1,000"),
        (HEADER + "\n0,5,10,1,1,red,100,party\n", "'party' is no kind of job"),
        (HEADER + "\n0,5,10,1,1,,100,training\n", "no team"),
        (HEADER + "\n0,5\n", "2 values; write 8"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(text: str, words: str):
    with pytest.raises(UsageError, match=words):
        read(text, "trace.csv")


def test_a_job_bigger_than_the_cluster_is_refused():
    nodes = (Node(0, "n0", 8),)
    lines = [TraceJob(0, 1, None, 2, 8, "red", 100, "training")]
    with pytest.raises(UsageError, match="needs 2 nodes with 8 GPUs each; the cluster has 1"):
        admit_all(lines, nodes, (Team("red", 8),), "trace.csv")
