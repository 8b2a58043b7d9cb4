"""The cluster's HTTP interface: closed without its token, and nothing that is sent to it makes it fail."""

import errno
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance
from starlette.testclient import TestClient
from tests.engines.local.conftest import drive, new_home
from tests.engines.local.disk_faults import DiskFaults

from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home
from weft.engines.local.supervised_loop import EngineLoop
from weft.web import cluster
from weft.web.cluster import OPERATIONS, ClusterInterface
from weft.web.http.openapi import Operation, described

EXAMPLES = 15
TOKEN = "t" * 64
BYTES = {"content-type": "application/octet-stream"}
AUTHORISED = {"authorization": f"Bearer {TOKEN}"}
CHANGING = [one for one in OPERATIONS if one.method != "GET"]
CLOSED = [one for one in OPERATIONS if not one.open]


class Site:
    """An engine with its interface; jobs are taken in and never started, because nobody runs the loop."""

    def __init__(self, home: Home) -> None:
        self.home, self.engine = home, LocalEngine(home)
        (home.folder / "token").write_text(TOKEN)
        self.loop = EngineLoop(self.engine, home)
        self.app = ClusterInterface(self.engine, self.loop, home, lambda: None).application()
        self.client = TestClient(self.app, raise_server_exceptions=False)

    def call(self, method: str, path: str, **more: Any) -> Any:
        return self.client.request(method, path, headers={**AUTHORISED, **more.pop("headers", {})}, **more)


@pytest.fixture
def site(tmp_path: Any) -> Iterator[Site]:
    site = Site(new_home(tmp_path / "cluster"))
    yield site
    site.client.close()
    site.engine.close()


def path_of(operation: Operation) -> str:
    return operation.path.replace("{job}", "job-1").replace("{node}", "slot-0")


@pytest.mark.parametrize("operation", CLOSED, ids=lambda one: one.name)
@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}], ids=str)
def test_every_route_refuses_without_the_token_and_changes_nothing(site: Site, operation: Operation, given: Any):
    site.engine.submit(_submission("true"))
    before = (site.engine.memory.store.counts(), site.engine.node("slot-0"), list(site.home.snapshots.iterdir()))
    answer = site.client.request(operation.method, path_of(operation), headers=given, json={"command": ["true"]})
    assert answer.status_code == 401
    assert "token" in answer.json()["error"]
    after = (site.engine.memory.store.counts(), site.engine.node("slot-0"), list(site.home.snapshots.iterdir()))
    assert before == after


def _submission(*command: str) -> Any:
    from tests.engines.local.conftest import submission

    return submission(*command)


def test_the_document_is_open_and_names_every_route(site: Site):
    document = site.client.get("/openapi.json").json()
    assert document == described(OPERATIONS)
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == {
        (one.path, one.method.lower()) for one in OPERATIONS
    }
    assert "JobSpec" in document["components"]["schemas"]


def test_a_job_can_be_submitted_seen_and_called_off(site: Site):
    answer = site.call("POST", "/v1/jobs", json={"command": ["sh", "-c", "echo hi; sleep 60"], "name": "e"})
    assert answer.status_code == 200
    assert [job["id"] for job in answer.json()["jobs"]] == ["e-1"]
    drive(site.engine, lambda: site.call("GET", "/v1/jobs/e-1/log").json()["text"] == "hi\n")
    assert site.call("GET", "/v1/jobs/e-1").json()["on"] == ["slot-0"]
    assert site.call("GET", "/v1/nodes").json()["nodes"][0]["jobs"] == ["e-1"]
    assert site.call("POST", "/v1/jobs/e-1/cancel").json()["jobs"][0]["state"] == "stopping"
    drive(site.engine, lambda: site.call("GET", "/v1/jobs/e-1").json()["state"] == "cancelled")
    assert site.call("GET", "/v1/jobs?state=open").json() == {"jobs": []}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"command": ["true"], "nodes": 99}, "it needs 99 nodes"),
        ({"command": ["true"], "team": "nobody"}, "there is no team 'nobody'"),
        ({"command": ["true"], "priority": -1}, "priority"),
        ({"command": ["true"], "name": "Illegal Name"}, "name"),
        ({"command": []}, "give a command or a job"),
        ({"command": ["true"], "unknown": 1}, "unknown"),
        ({"command": ["true"], "time_limit": 5}, "has no unit"),
        ({"command": ["a\x00b"]}, "command"),
        ([], "no JSON object"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence_and_nothing_is_made(site: Site, body: Any, words: str):
    answer = site.call("POST", "/v1/jobs", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert site.engine.memory.store.newest(5) == []


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"content-type": "text/plain"}, b"{}", 415),
        ({"content-type": "application/json"}, b"{", 400),
        ({"content-type": "application/json"}, b"[" * 100_000, 400),
        ({"content-type": "application/json"}, b'{"priority": NaN}', 400),
        ({"content-type": "application/json"}, b" " * (5 * 2**20), 413),
        ({"content-type": "application/json"}, b"\xff\xfe", 400),
    ],
)
def test_bodies_of_any_kind_are_answered(site: Site, headers: dict[str, str], content: bytes, status: int):
    assert site.call("POST", "/v1/jobs", headers=headers, content=content).status_code == status


def test_nobody_can_unpack_outside_of_a_snapshot(site: Site):
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../escaped"))
    answer = site.call(
        "POST", "/v1/snapshots", content=buffer.getvalue(), headers={"content-type": "application/octet-stream"}
    )
    assert answer.status_code == 400
    assert list(site.home.snapshots.iterdir()) == []
    assert not (site.home.folder.parent / "escaped").exists()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.slow
def test_whatever_follows_the_document_is_answered_as_the_document_says(site: Site, mode: GenerationMode):
    """Requests made up from the interface's own document, right and wrong ones: no route fails, no answer surprises.

    The token is put over whatever was made up for it; the test above is about the token. Rules over several fields
    (a command or a job) cannot be written in the document, so some of what follows it is refused.
    """
    for command in ("true", "false"):
        site.engine.submit(_submission(command))
    schema = schemathesis.openapi.from_asgi("/openapi.json", site.app)
    seen: Counter[int] = Counter()
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy(generation_mode=mode))
        def attack(case: Any) -> None:
            response = case.call(headers=AUTHORISED)
            seen[response.status_code] += 1
            case.validate_response(response, excluded_checks=[ignored_auth, positive_data_acceptance])

        try:
            attack()
        except Unsatisfiable:
            # A route without anything to get wrong.
            assert mode is GenerationMode.NEGATIVE
    assert max(seen) < 500, seen
    assert sum(seen.values()) > 5 * len(OPERATIONS), seen


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 507), (errno.EIO, 503)])
def test_what_cannot_be_stored_is_refused_and_nothing_of_it_is_there(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: int, status: int
):
    with monkeypatch.context() as patch:
        faults = DiskFaults(patch, number)
        site.engine.reopen()
        before = site.engine.memory.store.counts()
        faults.full = True
        answer = site.call("POST", "/v1/jobs", json={"command": ["true"], "key": "key-that-fails"})
        assert (answer.status_code, "nothing was done" in answer.json()["error"]) == (status, True)
        assert site.call("GET", "/v1/health").json()["state"] == "stumbling"
        assert site.call("POST", "/v1/snapshots", content=b"x", headers=BYTES).status_code == status
        assert site.engine.memory.store.counts() == before
        faults.full = False
        answer = site.call("POST", "/v1/jobs", json={"command": ["true"], "key": "key-that-fails"})
        assert answer.status_code == 200
        site.loop.turn()
        assert site.call("GET", "/v1/health").json()["state"] == "ok"
    site.engine.reopen()
    assert sum(site.engine.memory.store.counts().values()) == sum(before.values()) + 1


def test_health_is_part_of_the_status(site: Site):
    site.loop.turn()
    health = site.call("GET", "/v1/status").json()["health"]
    assert health["state"] == "ok"
    assert health.keys() >= {"turned_s_ago", "stumbles", "last_error", "disk_free_bytes", "disk_total_bytes"}


def test_uploads_and_large_requests_have_a_bound_together(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "_MOST_READING_BYTES", 10)
    answer = site.call("POST", "/v1/jobs", json={"command": ["true"] * 10})
    assert (answer.status_code, "too many" in answer.json()["error"]) == (503, True)
    monkeypatch.setattr(cluster, "_MOST_UPLOADS", 0)
    assert site.call("POST", "/v1/snapshots", content=b"x", headers=BYTES).status_code == 503
    monkeypatch.undo()
    # What was refused holds no room.
    assert site.call("POST", "/v1/jobs", json={"command": ["true"] * 10}).status_code == 200
