"""`weft jobs|logs|cancel|why|nodes|drain|undrain` against a cluster in memory: what is asked, what is printed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.cluster.fake_cluster import NOW_MS, FakeCluster, job, node

from weft.cli.cluster import local, queue
from weft.cli.cluster.local import ago
from weft.cli.main import main

Cluster = Callable[..., FakeCluster]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Give what makes the cluster that commands find."""

    def make(**answers: Any) -> FakeCluster:
        fake = FakeCluster({"status": {"now_ms": NOW_MS}} | {key.replace("__", "/"): answers[key] for key in answers})
        monkeypatch.setattr(queue, "client_of", lambda *_: fake)
        return fake

    return make


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(printed(capsys, *words, "--json"))


def test_open_jobs_are_listed_with_where_they_run_or_why_not(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    waiting = job("b-2", "waiting", on=[], start_ms=None, text="no free node")
    cluster(jobs={"jobs": [job("a-1"), waiting]})
    out = printed(capsys, "jobs")
    assert "a-1" in out
    assert "slot-0" in out
    assert "no free node" in out


@pytest.mark.parametrize(("flags", "state"), [((), "open"), (("--all",), "all"), (("-a",), "all")])
def test_finished_jobs_are_asked_for_with_all(flags: tuple[str, ...], state: str, cluster: Cluster):
    fake = cluster(jobs={"jobs": []})
    assert main(["jobs", *flags]) == 0
    assert fake.asked[0] == ("jobs", {"state": state})


@pytest.mark.parametrize(("flags", "hint"), [((), "weft jobs --all"), (("--all",), "weft submit")])
def test_an_empty_queue_says_what_to_do(flags: tuple[str, ...], hint: str, cluster: Cluster, capsys: Any):
    cluster(jobs={"jobs": []})
    assert hint in printed(capsys, "jobs", *flags)


def test_a_list_as_json_is_what_the_cluster_answers(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(jobs={"jobs": [job("a-1")]})
    assert parsed(capsys, "jobs") == [job("a-1")]


def test_one_job_is_shown_with_its_history_and_incidents(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    incident = {
        "step": 12, "kind": "crash", "slot": 1, "action": "restart", "outcome": "resumed", "seconds_lost": 1.5,
        "gpu_seconds_lost": 3.0,
    }  # fmt: skip
    cluster(jobs__a={**job("a", "done"), "incidents": [incident]})
    out = printed(capsys, "jobs", "a")
    assert "python train.py" in out
    assert "30.0 s" in out
    assert all(word in out for word in ("crash", "restart", "resumed", "1.50", "3.00"))


def test_a_training_is_shown_by_its_name(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(jobs__t={**job("t"), "command": [], "training": {"name": "tiny-gpt"}})
    assert "training tiny-gpt" in printed(capsys, "jobs", "t")


def members() -> dict[str, Any]:
    found = [
        job("s-1", "done", sweep={"lr": "0.1"}, score=1.25),
        job("s-2", "failed", sweep={"lr": "1"}, text="exit 1"),
    ]
    return {"array": "s", "metric": "min:loss", "members": found}


def test_a_sweep_is_compared_by_its_metric(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(arrays__s=members())
    out = printed(capsys, "jobs", "s")
    assert out.index("1.25") < out.index("exit 1")
    assert "min:loss" in out


def test_a_sweep_as_json_keeps_its_order(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(arrays__s=members())
    assert [member["id"] for member in parsed(capsys, "jobs", "s")["members"]] == ["s-1", "s-2"]


def test_a_job_that_does_not_exist_is_a_usage_error(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster()
    assert main(["jobs", "nope"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "nope" in err


def part(text: str, following: int, **changed: Any) -> dict[str, Any]:
    return {
        "text": text,
        "next": following,
        "attempt": 1,
        "newest_attempt": 1,
        "more": True,
        "state": "running",
    } | changed


def test_logs_are_read_to_their_end(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    fake = cluster(jobs__a__log=[part("one\n", 4), part("two\n", 8), part("", 8)])
    assert printed(capsys, "logs", "a") == "one\ntwo\n"
    assert [query["offset"] for _, query in fake.asked] == [0, 4, 8]


def test_logs_of_another_rank_are_asked_for(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    fake = cluster(jobs__a__log=[part("", 0)])
    printed(capsys, "logs", "a", "--rank", "3")
    assert fake.asked[0][1]["rank"] == 3


@pytest.mark.parametrize("flag", ["-f", "--follow"])
def test_followed_logs_end_with_the_job(flag: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(jobs__a__log=[part("one\n", 4), part("two\n", 8, more=False)])
    assert printed(capsys, "logs", "a", flag) == "one\ntwo\n"


def test_followed_logs_go_on_with_the_next_attempt(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    fake = cluster(jobs__a__log=[
        part("first\n", 6), part("", 6, newest_attempt=2), part("second\n", 7, attempt=2, newest_attempt=2, more=False),
    ])  # fmt: skip
    assert printed(capsys, "logs", "a", "-f") == "first\nsecond\n"
    assert fake.asked[-1][1]["attempt"] == 2
    assert fake.asked[-1][1]["offset"] == 0


def test_logs_as_json_are_one_document(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(jobs__a__log=part("x", 1))
    assert parsed(capsys, "logs", "a") == part("x", 1)


def test_cancel_asks_for_every_name_in_turn(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    fake = cluster(jobs__a__cancel={"jobs": [job("a", "cancelled")]}, jobs__b__cancel={"jobs": [job("b", "asked")]})
    out = printed(capsys, "cancel", "a", "b")
    assert out == "a: cancelled\nb: asked\n"
    assert [path for path, _ in fake.posted] == ["jobs/a/cancel", "jobs/b/cancel"]


def test_cancel_needs_a_name(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster()
    assert main(["cancel"]) == 2
    assert "weft jobs lists them" in capsys.readouterr().err


def why(**changed: Any) -> dict[str, Any]:
    return {
        "job": "a", "state": "waiting", "code": "nodes", "text": "no free node", "position": 3, "before": ["x", "y"],
        "holds": ["z"], "expected_ms": NOW_MS + 7_200_000, "now_ms": NOW_MS, "sooner": ["it asked for 1 node"],
        "history": [],
    } | changed  # fmt: skip


def test_why_says_who_is_before_it_and_what_would_help(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(jobs__a__why=why())
    out = printed(capsys, "why", "a")
    assert "no free node" in out
    assert "x, y and 1 more" in out
    assert "held by: z" in out
    assert "in 2 h" in out
    assert "sooner if: it asked for 1 node" in out


def test_why_admits_what_is_unknown(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(jobs__a__why=why(expected_ms=None, before=[], holds=[], sooner=[]))
    out = printed(capsys, "why", "a")
    assert "it starts: unknown" in out
    assert "before it" not in out


def test_why_of_a_running_job_is_one_line(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(jobs__a__why=why(state="running", text="it runs"))
    assert printed(capsys, "why", "a") == "a is running: it runs\n"


def test_nodes_are_listed_with_their_evidence(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    seen = [{"check": "xid", "text": "XID 79"}, {"check": "memory"}]
    cluster(nodes={"nodes": [node("slot-0", jobs=["a-1"]), node("slot-1", "suspect", evidence=seen)]})
    out = printed(capsys, "nodes")
    assert "a-1" in out
    assert "XID 79; memory" in out


def test_the_operator_of_an_override_is_shown_before_evidence(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(nodes={"nodes": [node("slot-0", "drained", override_by="ann", evidence=[{"check": "xid"}])]})
    out = printed(capsys, "nodes")
    assert "ann" in out
    assert "xid" not in out


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_a_node_is_cordoned_or_returned_with_a_reason_and_a_name(verb: str, cluster: Cluster, capsys: Any):
    fake = cluster(**{f"nodes__slot-0__{verb}": node("slot-0", "draining")})
    assert "slot-0 is draining" in printed(capsys, verb, "slot-0", "--reason", "fan")
    ((path, body),) = fake.posted
    assert path == f"nodes/slot-0/{verb}"
    assert body["reason"] == "fan"
    assert body["by"]


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_a_cordoned_node_is_printed_as_json(verb: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    cluster(**{f"nodes__slot-0__{verb}": node("slot-0")})
    assert parsed(capsys, verb, "slot-0") == node("slot-0")


def test_a_user_without_a_name_is_an_operator(monkeypatch: pytest.MonkeyPatch):
    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr(queue.getpass, "getuser", nobody)
    assert queue._user() == "operator"


@pytest.mark.parametrize(("span_ms", "text"), [
    (-5, "0 s"), (0, "0 s"), (999, "0 s"), (1_000, "1 s"), (119_999, "119 s"), (120_000, "2 min"),
    (7_199_999, "119 min"), (7_200_000, "2 h"), (172_799_999, "47 h"), (172_800_000, "2 d"), (10**10, "115 d"),
])  # fmt: skip
def test_a_span_is_given_in_the_largest_unit_that_it_holds_twice(span_ms: int, text: str):
    assert ago(span_ms) == text


@pytest.mark.parametrize("words", [["jobs"], ["logs", "a"], ["why", "a"], ["nodes"], ["drain", "n"], ["cancel", "a"]])
def test_without_a_cluster_every_command_says_how_to_start_one(words: list[str], tmp_path: Any, capsys: Any):
    assert main([*words, "--home", str(tmp_path / "none")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "weft cluster up" in err
    assert "Traceback" not in err


def test_the_home_of_a_cluster_is_given_set_or_the_users(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WEFT_CLUSTER", str(tmp_path / "set"))
    assert local.home_of(tmp_path / "given").folder == tmp_path / "given"
    assert local.home_of(None).folder == tmp_path / "set"
    monkeypatch.delenv("WEFT_CLUSTER")
    assert local.home_of(None).folder.parts[-2:] == (".weft", "cluster")
