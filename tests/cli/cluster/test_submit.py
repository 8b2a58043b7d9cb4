"""`weft submit` against a cluster in memory: every option reaches the submission, wrong ones reach nobody."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cluster.fake_cluster import FakeCluster, job

from weft.cli.cluster import submit as module
from weft.cli.main import main

Cluster = Callable[..., FakeCluster]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    """Give what makes the cluster that is submitted to, from an empty working folder."""
    monkeypatch.chdir(tmp_path)

    def make(*jobs: dict[str, Any], **answers: Any) -> FakeCluster:
        found = {"submit": list(jobs) or [job("a-1", "waiting")]} | {
            key.replace("__", "/"): answers[key] for key in answers
        }
        fake = FakeCluster(found)
        monkeypatch.setattr(module, "client_of", lambda *_: fake)
        monkeypatch.setattr(module, "remote_of", lambda *given: fake.asked.append(("remote", {"given": given})) or fake)
        return fake

    return make


def submitted(fake: FakeCluster, *words: str) -> dict[str, Any]:
    assert main(["submit", *words]) == 0
    (found,) = fake.submitted
    return found


@pytest.mark.parametrize(("options", "key", "value"), [
    (("--name", "mine"), "name", "mine"),
    (("--team", "red"), "team", "red"),
    (("--priority", "7"), "priority", 7),
    (("--time-limit", "10 min"), "time_limit", "10 min"),
    (("--nodes", "3"), "nodes", 3),
    (("--gpus", "2"), "gpus_per_node", 2),
    (("--kind", "service"), "kind", "service"),
    (("--after", "x-1", "--after", "y-2"), "after", ["x-1", "y-2"]),
    (("--sweep", "lr=1,2", "--sweep", "wd=0,1"), "sweep", {"lr": ["1", "2"], "wd": ["0", "1"]}),
    (("--at-once", "2"), "at_once", 2),
    (("--metric", "max:accuracy"), "metric", "max:accuracy"),
    ((), "kind", "experiment"),
    ((), "nodes", 1),
    ((), "command", ["python", "x.py"]),
    ((), "name", "x"),
    ((), "snapshot", "snapshot-1"),
])  # fmt: skip
def test_an_option_reaches_the_submission(options: tuple[str, ...], key: str, value: Any, cluster: Cluster):
    assert submitted(cluster(), *options, "--", "python", "x.py")[key] == value


@pytest.mark.parametrize(("words", "name"), [
    (("python", "train.py"), "train"), (("/usr/bin/env", "echo"), "env"), (("bash", "-c", "run.sh"), "run"),
    (("./Über Program",), "ber-program"), (("...",), "job"), (("x" * 60,), "x" * 40),
])  # fmt: skip
def test_a_command_is_named_after_its_program(words: tuple[str, ...], name: str):
    assert module._name_of(words) == name


def test_variables_are_passed_by_name_or_by_value(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN", "secret")
    found = submitted(cluster(), "--env", "TOKEN", "--env", "MODE=fast", "--", "true")["environment"]
    assert found["TOKEN"] == "secret"
    assert found["MODE"] == "fast"
    assert "PATH" in found


def test_the_working_folder_is_uploaded_unless_it_is_not_wanted(cluster: Cluster):
    fake = cluster()
    submitted(fake, "--", "true")
    assert fake.uploads == 1
    fake = cluster()
    assert "snapshot" not in submitted(fake, "--no-snapshot", "--", "true")
    assert fake.uploads == 0


def test_the_submission_is_checked_before_the_upload(cluster: Cluster):
    fake = cluster()
    submitted(fake, "--", "true")
    assert fake.posted[0][0] == "check"
    assert "snapshot" not in fake.posted[0][1]


def test_two_submissions_have_two_keys(cluster: Cluster):
    keys = {submitted(cluster(), "--", "true")["key"] for _ in range(2)}
    assert len(keys) == 2


def test_a_training_is_submitted_as_its_file_with_changes(cluster: Cluster):
    found = submitted(cluster(), "tiny-gpt", "--set", "steps=3", "--set", "plan.dp=1", "--team", "red")
    assert found["kind"] == "training"
    assert found["job"]["steps"] == 3
    assert found["job"]["team"] == "red"
    assert "command" not in found


def test_another_context_gets_image_and_volumes(cluster: Cluster):
    fake = cluster()
    submitted(fake, "--on", "prod", "--image", "img:1", "--volume", "/data=claim", "--no-snapshot", "--", "true")
    assert fake.asked[0] == ("remote", {"given": ("prod", "img:1", ("/data=claim",))})


@pytest.mark.parametrize(("words", "hint"), [
    ((), "name a job file"),
    (("--sweep", "lr", "--", "true"), "KEY=A,B,C"),
    (("--sweep", "=1,2", "--", "true"), "KEY=A,B,C"),
    (("--sweep", "lr=1,,2", "--", "true"), "KEY=A,B,C"),
    (("--env", "NO_SUCH_VARIABLE_X", "--", "true"), "NO_SUCH_VARIABLE_X=VALUE"),
    (("--set", "steps=1", "--", "true"), "for trainings"),
    (("--faults", "f.toml", "--", "true"), "for trainings"),
    (("--nodes", "0", "--", "true"), "nodes"),
    (("--nodes", "many", "--", "true"), "many"),
    (("--priority", "2000", "--", "true"), "priority"),
    (("--time-limit", "soon", "--", "true"), "soon"),
    (("--kind", "pet", "--", "true"), "pet"),
    (("--metric", "best:loss", "--", "true"), "metric"),
    (("--render", "helm", "--", "true"), "helm"),
    (("tiny-gpt", "--set", "steps"), "KEY=VALUE"),
    (("tiny-gpt", "--set", "stepz=1"), "stepz"),
    (("nothing.toml",), "nothing.toml"),
])  # fmt: skip
def test_what_is_wrong_is_refused_before_anything_is_sent(
    words: tuple[str, ...], hint: str, cluster: Cluster, capsys: Any
):
    fake = cluster()
    assert main(["submit", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert hint in err
    assert "Traceback" not in err
    assert not fake.submitted
    assert not fake.uploads


def test_one_job_says_how_to_follow_it(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    submitted(cluster(), "--", "true")
    assert capsys.readouterr().out == "submitted a-1; weft logs -f a-1 follows it\n"


def test_a_sweep_says_how_to_compare_it(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    submitted(cluster(job("s-1", array="s"), job("s-2", array="s")), "--sweep", "lr=1,2", "--", "true")
    assert capsys.readouterr().out == "submitted s: 2 jobs; weft jobs s compares them\n"


def test_json_has_the_jobs_and_the_array(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    submitted(cluster(), "--json", "--", "true")
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"jobs", "array"}
    assert found["array"] is None


ENDED = {"text": "out\n", "next": 4, "attempt": 1, "newest_attempt": 1, "more": False, "state": "done"}


def test_waiting_shows_the_output_and_ends_well_with_the_job(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    fake = cluster(jobs__a__log=ENDED, **{"jobs__a-1": job("a-1", "done"), "jobs__a-1__log": ENDED})
    submitted(fake, "--wait", "--", "true")
    assert capsys.readouterr().out == "out\n"


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_waiting_ends_with_status_1_where_the_job_does_not(state: str, cluster: Cluster, capsys: Any):
    cluster(**{"jobs__a-1": job("a-1", state, text="exit 3"), "jobs__a-1__log": ENDED})
    assert main(["submit", "--wait", "--", "true"]) == 1
    assert f"a-1 {state}: exit 3" in capsys.readouterr().err


def test_waiting_for_a_sweep_compares_it(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    done = [job(name, "done", array="s", sweep={"lr": "1"}, score=1.0) for name in ("s-1", "s-2")]
    answers = {"jobs__s-1": done[0], "jobs__s-2": done[1]}
    answers["arrays__s"] = {"array": "s", "metric": "min:loss", "members": done}
    fake = cluster(*done, **answers)
    submitted(fake, "--wait", "--sweep", "lr=1,2", "--", "true")
    assert "s, best first" in capsys.readouterr().out


def test_a_corpus_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from weft.specs import load_job

    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    spec = load_job("tiny-gpt")
    here = spec.model_copy(update={"data": spec.data.model_copy(update={"corpus": "texts"})})
    assert module.findable(here).data.corpus == str(tmp_path / "texts")
    there = spec.model_copy(update={"data": spec.data.model_copy(update={"corpus": "elsewhere"})})
    assert module.findable(there).data.corpus == "elsewhere"
