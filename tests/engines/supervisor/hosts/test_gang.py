"""Two agents with two ranks each, as two process groups: what one machine does, several do, whoever dies."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verification.pods import Gang, gang, until

from weft.core.specfile import read_table, validate
from weft.specs.faults import FaultsSpec
from weft.training.run_dir import RunRecord

EXAMPLES = Path(__file__).parents[4] / "examples"
ALIKE = ("kind", "seen", "step", "rank", "slot", "node", "action", "restored_from", "restored_step", "outcome")
Undisturbed = Callable[[int], str]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def told(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: line[key] for key in ALIKE} for line in incidents]


def lines(record: RunRecord) -> list[tuple[int, float, str | None]]:
    return [(line["step"], line["loss"], line.get("weights_digest")) for line in record.steps()]


@pytest.mark.parametrize("name", ["faults", "planes"])
def test_faults_have_the_same_incidents_blame_and_weights_on_two_hosts_as_on_one(field: Any, tmp_path: Path, name: str):
    table = validate(read_table(str(EXAMPLES / f"{name}.toml")), FaultsSpec, name)
    # Ranks of several hosts are never replaced one by one, so those of one are not here either.
    job = field.job(
        steps=44, seed=table.seed, faults=table.as_written()["faults"], backend="mrc" if name == "planes" else "auto",
        recovery={"snapshots": 4, "in_step": False}, checkpoint={"every": 10},
    )  # fmt: skip
    here = field.run_job(job)
    with gang(tmp_path / "gang", job) as pods:
        assert pods.statuses() == {0: 0, 1: 0}
        there = pods.result()
        assert there["weights_digest"] == here["weights_digest"]
        assert told(there["incidents"]) == told(here["incidents"])
        alone = RunRecord(field.folder / "runs" / here["run"])
        assert lines(pods.record()) == lines(alone)


def test_a_mistake_of_the_user_ends_all_pods_after_one_generation_with_its_sentence(field: Any, tmp_path: Path):
    with gang(tmp_path / "gang", field.job(data={"corpus": str(tmp_path / "nowhere.txt")})) as pods:
        assert pods.statuses() == {0: 2, 1: 2}
        for place in pods.pods:
            assert "nowhere.txt" in pods.log(place).read_text()
            assert "Traceback" not in pods.log(place).read_text()


@pytest.mark.parametrize("step", [2, 6])
def test_a_stopped_rank_is_blamed_within_ten_seconds(field: Any, undisturbed: Undisturbed, tmp_path: Path, step: int):
    with gang(tmp_path / "gang", field.job(faults=[{"kind": "stop", "rank": 3, "step": step}])) as pods:
        assert pods.statuses() == {0: 0, 1: 0}
        (incident,) = pods.result()["incidents"]
        assert (incident["kind"], incident["rank"], incident["node"]) == ("stopped", 3, 1)
        assert incident["detect_seconds"] < 10
        assert pods.result()["weights_digest"] == undisturbed(8)


def _kill_the_agent_beside(pods: Gang) -> str:
    pods.lose(1 - pods.coordinator().place)
    return "lost"


def _kill_the_agent_with_the_coordinator(pods: Gang) -> str:
    pods.lose(pods.coordinator().place)
    return "coordinator"


def _kill_the_coordinator(pods: Gang) -> str:
    os.kill(pods.coordinator().pid, signal.SIGKILL)
    return "coordinator"


def _freeze_the_coordinator(pods: Gang) -> str:
    os.kill(pods.coordinator().pid, signal.SIGSTOP)
    return "coordinator"


@pytest.mark.parametrize(
    "disturb",
    [_kill_the_agent_beside, _kill_the_agent_with_the_coordinator, _kill_the_coordinator, _freeze_the_coordinator],
)
def test_whoever_dies_the_run_ends_with_the_same_bits(
    field: Any, undisturbed: Undisturbed, tmp_path: Path, disturb: Callable[[Gang], str]
):
    steps = 200
    with gang(tmp_path / "gang", field.job(steps=steps, recovery={"policy": "shrink", "spares": 0})) as pods:
        until(lambda: pods.steps() > 5)
        kind = disturb(pods)
        left = {place: status for place, status in pods.statuses().items() if status != -signal.SIGKILL}
        assert left
        assert set(left.values()) == {0}
        assert kind in [line["kind"] for line in pods.result()["incidents"]]
        assert pods.result()["weights_digest"] == undisturbed(steps)
        assert [line["step"] for line in pods.record().steps()] == list(range(1, steps + 1))


def test_a_lost_host_that_is_replaced_is_waited_for_where_the_job_says_so(
    field: Any, undisturbed: Undisturbed, tmp_path: Path
):
    with gang(tmp_path / "gang", field.job(steps=200, recovery={"policy": "wait", "spares": 0})) as pods:
        until(lambda: pods.steps() > 5)
        pods.lose(1)
        time.sleep(3)
        pods.start(1)
        assert pods.statuses() == {0: 0, 1: 0}
        assert pods.result()["weights_digest"] == undisturbed(200)


def test_noise_and_forged_words_at_every_port_change_nothing(field: Any, undisturbed: Undisturbed, tmp_path: Path):
    from weft.engines.supervisor.hosts.host_words import WIRE, Hello
    from weft.training.launch.authenticated_channel import AuthenticatedChannel

    with gang(tmp_path / "gang", field.job(steps=100)) as pods:
        port = pods.coordinator().port
        for turn in range(40):
            with socket.create_connection(("127.0.0.1", port)) as caller:
                caller.sendall(os.urandom(1 << turn % 12))
        for place in (0, 1, 7):
            with contextlib.closing(AuthenticatedChannel.dial(("127.0.0.1", port), os.urandom(32), WIRE)) as forged:
                forged.send(Hello(place, "forged", "nowhere"))
                with pytest.raises(OSError, match=r"hung up|nothing|reset"):
                    forged.recv()
        assert pods.statuses() == {0: 0, 1: 0}
        assert pods.result()["incidents"] == []
        assert pods.result()["weights_digest"] == undisturbed(100)


def test_pods_that_are_asked_to_leave_save_and_go_on_in_the_next_attempt(
    field: Any, undisturbed: Undisturbed, tmp_path: Path
):
    with gang(tmp_path / "gang", field.job(steps=300)) as pods:
        until(lambda: pods.steps() > 5)
        pods.pods[1].terminate()
        assert pods.statuses() == {0: 130, 1: 130}
        pods.attempt = 2
        for place in (0, 1):
            pods.start(place)
        assert pods.statuses() == {0: 0, 1: 0}
        assert pods.result()["weights_digest"] == undisturbed(300)
