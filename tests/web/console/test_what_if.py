"""What-if says what the commands say, of every built-in site and job, and why not where it does not go."""

import json
import shlex
import zlib
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from weft import api
from weft.cli.main import main
from weft.core.toml import written
from weft.planning.rehearsal import rehearse
from weft.specs import JOBS, SITES, JobSpec, SiteSpec, load_job, load_site


def ask(client: TestClient, **asked: Any) -> dict[str, Any]:
    answer = client.post("/api/what-if", json={"site": "laptop", "job": "tiny-gpt", **asked})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("site", SITES.names())
def test_every_site_with_some_job_has_an_answer_or_a_reason(client: TestClient, site: str):
    names = JOBS.names()
    for job in (names[zlib.crc32(site.encode()) % len(names)], "tiny-gpt"):
        found = ask(client, site=site, job=job)
        if found["problem"] is None:
            assert found["lines"] == [each.as_json() for each in rehearse(api.plan(job, site))]
        else:
            assert len(found["problem"]) > 20


@pytest.mark.parametrize(
    "asked",
    [
        {"site": "gb200-8x100g-131k", "job": "gpt-1t", "changes": ["planes=4", "batch=8192", "precision=fp8"]},
        {"site": "h100-400g-16k", "job": "llama3-405b", "changes": ["nodes=512"], "fixed": ["tp=8"]},
        {"site": "laptop", "job": "tiny-gpt", "changes": ["steps=7", "plan=auto"]},
    ],
)
def test_the_command_and_the_files_say_the_same(
    client: TestClient, asked: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    found = ask(client, **asked)
    assert found["problem"] is None
    assert main([*shlex.split(found["command"])[1:], "--json", "--no-simulate", "--folder", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == found["lines"]
    (tmp_path / "site.toml").write_text(found["site_toml"])
    (tmp_path / "job.toml").write_text(found["job_toml"])
    more = [word for pair in asked.get("fixed", []) for word in ("--fix", pair)]
    words = ["rehearse", str(tmp_path / "site.toml"), str(tmp_path / "job.toml"), *more, "--json", "--no-simulate"]
    assert main([*words, "--folder", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == found["lines"]


def test_files_of_the_folder_can_be_asked_about_and_no_others(client: TestClient, runs: Path):
    site, job = load_site("laptop"), load_job("tiny-gpt")
    (runs / "my-site.toml").write_text(written(site.as_written()))
    (runs / "my-job.toml").write_text(written(job.as_written()))
    (runs / "bad-site.toml").write_text("[fabric]\ngpus = -1\n")
    offered = client.get("/api/choices").json()
    names = {each["name"]: each for each in [*offered["sites"], *offered["jobs"]]}
    assert names["my-site.toml"]["error"] is None
    assert "gpus" in names["bad-site.toml"]["error"]
    assert ask(client, site="my-site.toml", job="my-job.toml")["problem"] is None
    for strange in ("/etc/passwd", "../runs/my-site.toml", str(runs / "my-site.toml")):
        assert "there is no site" in ask(client, site=strange)["problem"]
    assert {SiteSpec, JobSpec} == {type(site), type(job)}


@pytest.mark.parametrize(
    ("body", "words"),
    [({}, "site"), ({"site": 1, "job": "x"}, "site"), ({"site": "laptop", "job": "tiny-gpt", "more": 1}, "more"),
     ([], "JSON object"), ({"site": "laptop", "job": "tiny-gpt", "changes": ["x"] * 99}, "changes")],
)  # fmt: skip
def test_a_wrong_request_is_refused_with_a_sentence(client: TestClient, body: Any, words: str):
    answer = client.post("/api/what-if", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    "change", ["nodes=0", "batch=x", "precision=fp99", "plan=x", "foo=1", "memory=1 B", "planes=3"]
)
def test_a_change_that_cannot_be_made_is_an_answer(client: TestClient, change: str):
    assert ask(client, site="gb200-8x100g-131k", job="gpt-1t", changes=[change])["problem"]


def test_large_and_foreign_bodies_are_refused(client: TestClient):
    assert (
        client.post("/api/what-if", content=b"x" * 70_000, headers={"content-type": "application/json"}).status_code
        == 413
    )
    assert client.post("/api/what-if", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
