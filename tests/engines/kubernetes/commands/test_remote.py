"""The commands that people type, against a fake API server: the same answers as the local engine's."""

import asyncio
import base64
import contextlib
import gzip
import hashlib
import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft.core.errors import FailedError, UsageError, WeftError
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.resources import CONFIG_MAPS, JOB_LABEL, JOBS, NODES, PODS, RANK_LABEL, TEAMS, Resource
from weft.engines.kubernetes.commands.remote import Remote
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.observed import CANCEL
from weft.engines.kubernetes.controller.settings import Settings
from weft.testing.api_server import FakeApiServer
from weft.testing.api_store import Target
from weft.testing.kubelets import SimulatedNodes, node_object


class _Hosted:
    """A fake server that listens in a thread of its own, for commands that run loops of their own."""

    def __init__(self) -> None:
        self.server = FakeApiServer()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait(30)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self.server.listening() as self.address:
            self._ready.set()
            await self._over.wait()

    @contextlib.contextmanager
    def engine(self) -> Iterator[None]:
        """Run an engine in the server's loop beside the block."""

        async def run() -> None:
            async with self.server.client("engine") as client:
                await KubernetesEngine(client, Settings(heart_s=0.1), self.server.now_ms).run()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            yield
        finally:
            future.cancel()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)

    def remote(self, **more: Any) -> Remote:
        return Remote(Access(self.address, "fake"), **more)

    def add(self, resource: Resource, body: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
        space = "default" if resource.namespaced else None
        made = self.server.store.create(Target(resource, space, None, None), body)
        if status is not None:
            target = Target(resource, space, body["metadata"]["name"], "status")
            made = self.server.store.merge(target, {"status": status})
        return made

    def nodes(self, count: int) -> None:
        for number in range(count):
            self.add(NODES, node_object(SimulatedNodes(count, prefix="n"), number, "2024-01-01T00:00:00Z"))

    def job(self, name: str, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
        return self.add(JOBS, {"metadata": {"name": name}, "spec": {"command": ["true"], **spec}}, status)


@pytest.fixture
def hosted() -> Iterator[_Hosted]:
    one = _Hosted()
    yield one
    one.stop()


def test_a_submission_becomes_a_job_and_the_same_one_twice_is_one(hosted: _Hosted) -> None:
    remote = hosted.remote(image="me:1", volumes=("/data=claim",))
    table = {"command": ["python", "x.py"], "name": "My Job", "nodes": 2, "gpus_per_node": 4, "key": "k1",
             "environment": {"A": "1", "PATH": "/bin"}}  # fmt: skip
    assert remote.post("v1", "check", body=table)
    assert [one["id"] for one in remote.submit(table)] == ["my-job-1"]
    assert [one["id"] for one in remote.submit(table)] == ["my-job-1"], "the key says that it is the same"
    assert [one["id"] for one in remote.submit({**table, "key": "k2"})] == ["my-job-2"]
    spec = hosted.server.store.objects(JOBS)["default/my-job-1"]["spec"]
    assert spec["image"] == "me:1"
    assert spec["volumes"] == [{"path": "/data", "claim": "claim"}]
    assert spec["environment"] == {"A": "1"}
    assert (spec["nodes"], spec["gpusPerNode"]) == (2, 4)


def test_a_folder_is_kept_once_and_the_next_submission_uses_it(hosted: _Hosted) -> None:
    remote = hosted.remote()
    digest = remote.upload(b"a folder")
    assert remote.upload(b"a folder") == digest
    (held,) = hosted.server.store.objects(CONFIG_MAPS).values()
    archive = base64.b64decode(held["binaryData"]["folder.tar.gz"])
    assert gzip.decompress(archive) == b"a folder"
    assert hashlib.sha256(archive).hexdigest() == digest
    assert held["immutable"]
    remote.submit({"command": ["true"], "name": "job"})
    (job,) = hosted.server.store.objects(JOBS).values()
    assert job["spec"]["folder"] == {"configMap": held["metadata"]["name"], "digest": digest[:32]}


def test_a_folder_that_is_too_large_is_refused(hosted: _Hosted) -> None:
    with pytest.raises(UsageError, match="KiB when packed"):
        hosted.remote().upload(random.Random(1).randbytes(1_000_000))


def test_jobs_are_listed_the_newest_first_and_those_that_ended_when_asked(hosted: _Hosted) -> None:
    hosted.job("old", {"state": "done"})
    hosted.job("new", {"state": "running"})
    hosted.job("fresh")
    remote = hosted.remote()
    assert {one["id"] for one in remote.get("v1", "jobs")["jobs"]} == {"new", "fresh"}
    assert [one["id"] for one in remote.get("v1", "jobs", state="all")["jobs"]] == ["fresh", "new", "old"]


def test_one_job_is_told_with_its_history(hosted: _Hosted) -> None:
    conditions = [{"type": "Placed", "status": "True", "reason": "Running", "message": "2 nodes",
                   "lastTransitionTime": "2030-01-01T00:00:00Z"}]  # fmt: skip
    placement = {"nodes": [f"n{number}" for number in range(10)], "gpusPerNode": 8, "attempt": 2, "first": 1}
    status = {"state": "running", "attempt": 2, "conditions": conditions, "placement": placement,
              "record": {"start_ms": 7, "preemptions": 3}}  # fmt: skip
    hosted.job("job", status, nodes=10, timeLimit="1h", after=["other"])
    found = hosted.remote().get("v1", "jobs", "job")
    assert (found["state"], found["attempt"], found["start_ms"], found["preemptions"]) == ("running", 2, 7, 3)
    assert found["on"][-1] == "and 2 more"
    assert found["limit_ms"] == 3_600_000
    assert found["after"] == ["other"]
    assert [one["text"] for one in found["history"]] == ["submitted", "Placed True: Running 2 nodes"]
    with pytest.raises(UsageError, match="there is no job 'none' in namespace default of fake"):
        hosted.remote().get("v1", "jobs", "none")


def test_a_job_that_cannot_be_read_is_listed_all_the_same(hosted: _Hosted) -> None:
    hosted.add(
        JOBS, {"metadata": {"name": "spoilt"}, "spec": {"nodes": "many"}}, {"state": "refused", "why": "because"}
    )
    (found,) = hosted.remote().get("v1", "jobs", state="all")["jobs"]
    assert (found["state"], found["text"], found["nodes"]) == ("refused", "because", 0)
    assert hosted.remote().get("v1", "jobs", "spoilt")["training"] is None


def test_a_job_is_called_off_by_an_annotation(hosted: _Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada")
    hosted.job("job")
    hosted.remote().post("v1", "jobs", "job", "cancel")
    assert hosted.server.store.objects(JOBS)["default/job"]["metadata"]["annotations"] == {CANCEL: "ada"}


def test_a_node_is_cordoned_and_returned(hosted: _Hosted) -> None:
    hosted.nodes(1)
    remote = hosted.remote()
    assert remote.post("v1", "nodes", "n-00000", "drain")["state"] == "cordoned"
    assert hosted.server.store.objects(NODES)["n-00000"]["spec"]["unschedulable"]
    remote.post("v1", "nodes", "n-00000", "undrain")
    assert "unschedulable" not in hosted.server.store.objects(NODES)["n-00000"]["spec"]
    with pytest.raises(UsageError, match="there is no node 'x'"):
        remote.post("v1", "nodes", "x", "drain")


def test_a_log_is_read_on_from_where_it_was_left(hosted: _Hosted) -> None:
    hosted.job("job", {"state": "done", "attempt": 1})
    remote = hosted.remote()
    assert remote.get("v1", "jobs", "job", "log") == {
        "text": "", "next": 0, "attempt": 1, "newest_attempt": 1, "more": False,
    }  # fmt: skip
    labels = {JOB_LABEL: "job", RANK_LABEL: "0"}
    hosted.add(PODS, {"metadata": {"name": "job-1-0", "labels": labels}, "spec": {}})
    hosted.server.logs["default/job-1-0"] = "first\nsecond\n"
    first = remote.get("v1", "jobs", "job", "log", rank=0)
    assert first["text"] == "first\nsecond\n"
    assert remote.get("v1", "jobs", "job", "log", offset=6)["text"] == "second\n"
    assert remote.get("v1", "jobs", "job", "log", offset=first["next"])["text"] == ""
    assert remote.get("v1", "jobs", "job", "log", rank=3)["text"] == ""
    hosted.server.fail(404, "GET", "/log")
    with pytest.raises(FailedError, match="the log of pod job-1-0"):
        remote.get("v1", "jobs", "job", "log")


def test_a_log_that_has_nothing_new_is_waited_for_while_the_job_runs(
    hosted: _Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.engines.kubernetes.commands.remote._LOOK_S", 0.01)
    hosted.job("job", {"state": "running"})
    assert hosted.remote().get("v1", "jobs", "job", "log", wait=True)["more"]


def test_why_a_job_waits_is_answered_by_the_same_decisions(hosted: _Hosted) -> None:
    hosted.nodes(2)
    hosted.add(TEAMS, {"metadata": {"name": "default"}, "spec": {"quota": 100}})
    hosted.job("fits")
    hosted.job("large", nodes=5)
    with hosted.engine():
        large = hosted.remote().get("v1", "jobs", "large", "why")
        assert (large["state"], large["job"]) == ("waiting", "large")
        assert large["text"]
        assert large["code"]
        again = hosted.remote().get("v1", "jobs", "large", "why")
        assert again["code"] == large["code"]
    hosted.job("running", {"state": "running"})
    assert hosted.remote().get("v1", "jobs", "running", "why")["code"] == ""


def test_without_an_engine_the_answer_is_what_is_known(hosted: _Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.engines.kubernetes.commands.remote._ANSWER_TRIES", 1)
    hosted.job("fits")
    found = hosted.remote().get("v1", "jobs", "fits", "why")
    assert (found["state"], found["text"]) == ("waiting", "the engine has not looked at it yet")


def _rules(*roles: str) -> list[dict[str, Any]]:
    """Return the rules of shipped roles, one verb of one resource each."""
    path = Path(__file__).parents[4] / "deploy" / "kubernetes" / "rbac.yaml"
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    return [
        {"apiGroups": rule["apiGroups"], "resources": [resource], "verbs": [verb]}
        for one in documents
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] in roles
        for rule in one["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def _everything_that_a_submitter_does(remote: Remote, name: str) -> None:
    remote.upload(f"packed-{name}".encode())
    remote.submit({"command": ["true"], "name": name, "key": name})
    remote.get("v1", "jobs", state="all")
    remote.get("v1", "jobs", f"{name}-1")
    remote.get("v1", "jobs", f"{name}-1", "why")
    remote.get("v1", "jobs", "ran", "log")
    remote.post("v1", "jobs", f"{name}-1", "cancel")
    remote.get("v1", "nodes")


def test_the_shipped_roles_are_enough_and_each_verb_is_needed(hosted: _Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.engines.kubernetes.commands.remote._ANSWER_TRIES", 1)
    hosted.nodes(1)
    hosted.job("ran", {"state": "running"})
    labels = {JOB_LABEL: "ran", RANK_LABEL: "0"}
    hosted.add(PODS, {"metadata": {"name": "ran-1-0", "labels": labels}, "spec": {"containers": []}})
    rules: list[Mapping[str, Any]] = [*_rules("weft-submitter", "weft-viewer")]
    remote = Remote(Access(hosted.address, "fake", token="t"))
    hosted.server.users = {"t": rules}
    _everything_that_a_submitter_does(remote, "all")
    # A real server wants it for what an apply makes anew; the fake one asks for patch alone.
    only_real = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
    for number, taken in enumerate(one for one in rules if one != only_real):
        hosted.server.users = {"t": [one for one in rules if one is not taken]}
        with pytest.raises(WeftError, match=r"permission is missing|forbidden"):
            _everything_that_a_submitter_does(remote, f"less-{number}")


def test_nodes_are_shown_with_their_state_and_jobs(hosted: _Hosted) -> None:
    hosted.nodes(3)
    placement = {"nodes": ["n-00001"], "gpusPerNode": 8, "attempt": 1, "first": 1}
    record = {"state": "running", "start_ms": 5}
    hosted.job("job", {"state": "running", "placement": placement, "record": record})
    nodes = {one["name"]: one for one in hosted.remote().get("v1", "nodes")["nodes"]}
    assert {one["state"] for one in nodes.values()} == {"ready"}
    assert nodes["n-00001"]["jobs"] == ["default/job"]
    assert nodes["n-00000"]["gpus"] == 8


def test_questions_that_only_the_local_engine_answers(hosted: _Hosted) -> None:
    remote = hosted.remote()
    assert remote.get("v1", "status")["now_ms"] > 0
    with pytest.raises(UsageError, match="no sweep 'x'"):
        remote.get("v1", "arrays", "x")
    with pytest.raises(AssertionError):
        remote.get("v1", "nothing")
    with pytest.raises(AssertionError):
        remote.post("v1", "nothing")


@pytest.mark.parametrize(
    ("users", "words"), [({}, "does not accept the credentials"), ({"t": []}, "a permission is missing")]
)
def test_a_refusal_is_told_in_words(hosted: _Hosted, users: dict[str, Any], words: str) -> None:
    hosted.server.users = users
    with pytest.raises(UsageError, match=words):
        Remote(Access(hosted.address, "fake", token="t")).get("v1", "jobs")


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.engines.kubernetes.api.api_client._WAIT_S", 0.001)
    with pytest.raises(FailedError, match=r"127.0.0.1:1 of context 'fake' failed: it cannot be reached"):
        Remote(Access("http://127.0.0.1:1", "fake")).get("v1", "jobs")


def test_a_workload_of_another_controller_is_asked_for_by_its_own_name(hosted: _Hosted) -> None:
    stands = {"kind": "JobSet", "name": "pretrain", "uid": "u"}
    status = {"state": "failed", "why": "its JobSet has failed"}
    hosted.add(JOBS, {"metadata": {"name": "jobset-pretrain"}, "spec": {"workload": stands}}, status)
    answer = hosted.remote().get("v1", "jobs", "pretrain", "why")
    assert (answer["state"], answer["text"]) == ("failed", "its JobSet has failed")
    assert hosted.remote().post("v1", "jobs", "pretrain", "cancel")["jobs"][0]["id"] == "jobset-pretrain"
