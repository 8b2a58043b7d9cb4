"""Processes that only help a run may die: none of them is hardware, and none takes the run with it."""

import multiprocessing.forkserver
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from tests.engines.supervisor.conftest import Field

from weft.engines.supervisor import Supervisor, fork_server_host
from weft.specs.faults import FaultsSpec


def run_with(field: Field, act: Callable[[], None], step: int, *faults: dict[str, Any]) -> dict[str, Any]:
    """Run the tiny training, do `act` once after `step`, and return its result."""
    acted: list[bool] = []

    def follow(line: Mapping[str, Any]) -> None:
        if line.get("step") == step and "loss" in line and not acted:
            acted.append(True)
            act()

    spec = FaultsSpec.model_validate({"faults": list(faults)})
    result = Supervisor(field.job(dp=2), field.folder / "runs", faults=spec, on_line=follow).run()
    assert acted
    return result


def kill_fork_server() -> None:
    os.kill(vars(multiprocessing.forkserver)["_forkserver"]._forkserver_pid, signal.SIGKILL)


@pytest.mark.parametrize("later", [(), ({"kind": "kill", "rank": 1, "step": 6},)])
def test_a_dead_fork_server_ends_no_rank(
    field: Field, undisturbed: Callable[[int], str], later: tuple[dict[str, Any], ...]
) -> None:
    result = run_with(field, kill_fork_server, 3, *later)
    assert result["weights_digest"] == undisturbed(8)
    assert [one["cause"] for one in result["recoveries"]] == ["killed"] * len(later)


def test_dead_keepers_are_replaced_and_no_hardware_is_lost(
    field: Field, undisturbed: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Seen(fork_server_host.Domains):
        def __init__(self, nodes: Sequence[int], key: bytes | None) -> None:
            super().__init__(nodes, key)
            made.append(self)

    monkeypatch.setattr(fork_server_host, "Domains", Seen)

    def kill() -> None:
        for process, _, _ in list(made[0]._keepers.values()):
            process.kill()
            process.join()

    result = run_with(field, kill, 3)
    assert result["weights_digest"] == undisturbed(8)
    noted = [one for one in result["incidents"] if one["kind"] == "helper"]
    assert len(noted) == 2
    assert all("was replaced" in one["seen"] for one in noted)
