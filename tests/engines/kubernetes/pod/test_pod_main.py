"""The program inside a pod: what it reads from its environment, what it unpacks and what it runs."""

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.records.exit_status import STOPPED, TRY_AGAIN
from weft.core.errors import FailedError, UsageError
from weft.engines.kubernetes.api.crds import JobBody
from weft.engines.kubernetes.controller.observed import Owner, Placed
from weft.engines.kubernetes.controller.pod_template import PodContext, environment, pod, port_of
from weft.engines.kubernetes.pod import pod_main as module
from weft.engines.kubernetes.pod.pod_main import own_address, read, run, spelled_out, unpack
from weft.engines.supervisor.hosts.coordinator import GangTask
from weft.engines.supervisor.hosts.host_words import Ending

_TRAINING = {"name": "t", "model": {"shape": "tiny"}}


def _environment(place: int = 0, nodes: int = 2, **more: Any) -> dict[str, str]:
    body = JobBody.model_validate({"nodes": nodes, "gpusPerNode": 4, "command": ["true"], **more})
    placed = Placed(tuple(f"n{number}" for number in range(nodes)), 4, attempt=3)
    owner = Owner("space", "job", "0123456789abcdef")
    return environment(owner, body, placed, place, PodContext({"n0": "10.0.0.1"}, "http://engine"))


@given(st.integers(1, 50), st.data())
def test_what_a_pod_is_told_can_be_read_again(nodes: int, data: Any) -> None:
    place = data.draw(st.integers(0, nodes - 1))
    given_ = spelled_out(_environment(place, nodes))
    found = read(given_)
    assert (found.job, found.uid, found.place, found.nodes, found.gpus) == ("job", "0123456789abcdef", place, nodes, 4)
    assert (found.attempt, found.address, found.port) == (3, "10.0.0.1", port_of("0123456789abcdef"))
    assert given_["WORLD_SIZE"] == str(4 * nodes)
    assert given_["NODE_RANK"] == given_["WEFT_NODE_RANK"] == str(place)
    assert given_["WEFT_NODE"] == f"n{place}"
    assert given_["WEFT_NAMESPACE"] == "space"


def test_what_is_spelled_out_already_stays() -> None:
    assert spelled_out({"A": "b"}) == {"A": "b"}


@pytest.mark.parametrize("devices", [((0, 3),), ()])
@pytest.mark.parametrize("image", [{}, {"image": "pytorch/pytorch"}])
def test_the_device_plugin_numbers_the_gpus_of_a_container(
    devices: tuple[tuple[int, ...], ...], image: dict[str, str]
) -> None:
    body = JobBody.model_validate({"gpusPerNode": 2, "command": ["true"], **image})
    placed = Placed(("n0",), 2, devices)
    told = spelled_out(environment(Owner("s", "j", "u"), body, placed, 0, PodContext({})))
    assert "CUDA_VISIBLE_DEVICES" not in told
    assert "NVIDIA_VISIBLE_DEVICES" not in told
    assert told["MASTER_ADDR"] == "n0", "without an address the node's name"


@given(st.text(min_size=1, max_size=40))
def test_ports_of_jobs_are_below_those_of_outgoing_connections(uid: str) -> None:
    assert 20_000 <= port_of(uid) < 32_000


def test_jobs_that_share_a_node_meet_at_ports_of_their_own() -> None:
    ports = [port_of(f"uid-{number}") for number in range(100)]
    assert len(set(ports)) > 90


def test_volumes_and_folders_are_mounted() -> None:
    volumes = [{"path": "/runs", "claim": "c", "readOnly": True}, {"path": "/data", "hostPath": "/srv"}]
    folder = {"configMap": "folder", "digest": "0" * 16}
    body = JobBody.model_validate({"command": ["true"], "volumes": volumes, "folder": folder, "priorityClass": "high"})
    made = pod(Owner("s", "j", "u"), body, Placed(("n0",), 8), 0, PodContext({}))
    spec = made["spec"]
    assert [one["name"] for one in spec["volumes"]] == ["volume0", "volume1", "folder", "work"]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "c", "readOnly": True}
    assert spec["volumes"][1]["hostPath"] == {"path": "/srv"}
    assert [one["mountPath"] for one in spec["containers"][0]["volumeMounts"]][:2] == ["/runs", "/data"]
    assert spec["priorityClassName"] == "high"
    assert spec["nodeName"] == "n0"
    names = {one["name"] for one in spec["containers"][0]["env"]}
    assert {"WEFT_FOLDER", "WEFT_WORK", "WEFT_FOLDER_DIGEST"} <= names


@pytest.mark.parametrize("lacking", ["WEFT_JOB", "WEFT_NODE_RANK", "MASTER_PORT", "WEFT_RUNS"])
def test_an_environment_that_lacks_something_is_the_users_mistake(lacking: str) -> None:
    given_ = spelled_out(_environment())
    del given_[lacking]
    with pytest.raises(UsageError, match=lacking):
        read(given_)


def test_a_variable_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UsageError, match="WEFT_POD cannot be read"):
        run((), {"WEFT_POD": "nonsense"})
    with pytest.raises(UsageError, match="a command or a training"):
        run((), _environment())


def _unpacked(environment: dict[str, str]) -> Path | None:
    around = read(spelled_out(environment))
    return unpack(around.folder, around.work, around.digest)


def test_the_folder_is_unpacked_for_an_image_that_has_no_weft(tmp_path: Path) -> None:
    digest = _archive(tmp_path / "in", {"train.py": "pass"})
    more = {"WEFT_FOLDER": str(tmp_path / "in"), "WEFT_WORK": str(tmp_path / "out"), "WEFT_FOLDER_DIGEST": digest[:16]}
    assert run((), {"WEFT_UNPACK_ONLY": "1", **more}) == 0
    assert (tmp_path / "out" / "train.py").read_text() == "pass"
    with pytest.raises(UsageError, match="lacks 'WEFT_FOLDER'"):
        run((), {"WEFT_UNPACK_ONLY": "1"})


def _archive(folder: Path, files: dict[str, str]) -> str:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as packed:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            packed.addfile(info, io.BytesIO(text.encode()))
    folder.mkdir()
    (folder / "folder.tar.gz").write_bytes(held.getvalue())
    return hashlib.sha256(held.getvalue()).hexdigest()


def _with_folder(tmp_path: Path, digest: str) -> dict[str, str]:
    more = {"WEFT_FOLDER": str(tmp_path / "in"), "WEFT_WORK": str(tmp_path / "out"), "WEFT_FOLDER_DIGEST": digest}
    return {**_environment(), **more}


def test_the_submitters_folder_is_unpacked_and_a_damaged_one_refused(tmp_path: Path) -> None:
    digest = _archive(tmp_path / "in", {"a/b.txt": "hello"})
    found = _unpacked(_with_folder(tmp_path, digest[:16]))
    assert found == tmp_path / "out"
    assert (tmp_path / "out" / "a" / "b.txt").read_text() == "hello"
    with pytest.raises(FailedError, match="is damaged"):
        _unpacked(_with_folder(tmp_path, "0" * 16))
    assert _unpacked(_environment()) is None


def test_a_command_takes_the_place_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = _archive(tmp_path / "in", {"x": "y"})
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *call: seen.append((Path.cwd(), *call)))
    with pytest.raises(UsageError, match="a command or a training"):
        run(("echo", "hi"), _with_folder(tmp_path, digest))
    (where, name, command, told) = seen[0]
    assert (where, name, command) == (tmp_path / "out", "echo", ("echo", "hi"))
    assert told["WEFT_JOB"] == "job"


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(FailedError, match="no-such-program cannot be run"):
        run(("no-such-program",), _environment())


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(module, "validate", lambda table, *_: table)
    return {**_environment(nodes=1), "WEFT_RUNS": str(tmp_path), "WEFT_TRAINING": json.dumps(_TRAINING)}


@pytest.mark.parametrize(("state", "status"), [("finished", 0), ("stopped", STOPPED)])
def test_a_training_on_one_pod_has_the_supervisor_whole(
    training: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, status: int
) -> None:
    calls: list[Any] = []

    class _Supervisor:
        def __init__(self, job: Any, folder: Path, *, resume: bool) -> None:
            calls.append((job, folder, resume))

        def run(self) -> dict[str, str]:
            return {"state": state}

    monkeypatch.setattr("weft.engines.supervisor.Supervisor", _Supervisor)
    assert run((), training) == status
    assert calls == [(_TRAINING, tmp_path / "job-01234567", True)]


@pytest.mark.parametrize(("ending", "status"), [("finished", 0), ("stopped", STOPPED), ("AloneError", TRY_AGAIN)])
@pytest.mark.parametrize("place", [0, 1])
def test_a_training_on_several_pods_is_served_by_the_agent_of_each(
    training: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str, status: int, place: int
) -> None:
    served: list[GangTask] = []

    def serve(task: GangTask) -> Ending:
        served.append(task)
        return Ending(ending)

    monkeypatch.setattr("weft.engines.supervisor.hosts.agent.served", serve)
    monkeypatch.setattr(module, "own_address", lambda towards, _: f"towards {towards}")
    told = {**training, **{name: _environment(place)[name] for name in ("WEFT_POD",)}}
    assert run((), told) == status
    wanted: Any = _TRAINING
    assert served == [GangTask(wanted, tmp_path / "job-01234567", 2, place, "towards 10.0.0.1", 3)]


def test_a_pod_is_reached_where_the_way_to_the_first_one_begins() -> None:
    assert own_address("127.0.0.1", 9) == "127.0.0.1"
    with pytest.raises(FailedError, match="no way to the first pod"):
        own_address("no-such-pod.invalid", 9)
