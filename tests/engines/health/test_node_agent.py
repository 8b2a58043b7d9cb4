"""The agent says each thing once, keeps it until it is heard, and does what it is ordered once."""

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.health.recorded_faults import GPUS
from tests.engines.health.http_receiver import receiving

from weft.cli.main import main
from weft.engines.health.fault_data import gpu_addresses
from weft.engines.health.node_agent import AGAIN_MS, AgentSettings, HealthAgent

DEAD = "[1.5] NVRM: Xid (PCI:0000:43:00): 79, pid=1, GPU has fallen off the bus.\n"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    for address in GPUS:
        folder = tmp_path / "sys" / "bus" / "pci" / "devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
    return tmp_path / "sys"


def agent(tmp_path: Path, system: Path, **more: Any) -> tuple[HealthAgent, list[Any]]:
    said: list[Any] = []
    log = tmp_path / "log"
    log.touch()
    settings = AgentSettings("n1", log, tmp_path / "state", system=system, **more)
    return HealthAgent(settings, said.append), said


def add(tmp_path: Path, text: str) -> None:
    with (tmp_path / "log").open("a") as file:
        file.write(text)


def test_a_fault_is_reported_with_its_gpu_once_and_again_after_a_while(tmp_path: Path, system: Path) -> None:
    with receiving() as server:
        watch, said = agent(tmp_path, system, report=server.url)
        add(tmp_path, DEAD * 3)
        watch.look(1_000, 0.0)
        assert [each["seen"][0]["text"] for each in server.taken] == [
            "XID 79 at 0000:43:00 (GPU 1): the GPU has fallen off the bus"
        ]
        assert [each["action"] for each in said] == ["reboot"]
        add(tmp_path, DEAD)
        watch.look(2_000, 1.0)
        assert len(server.taken) == 1
        add(tmp_path, DEAD)
        watch.look(1_000 + AGAIN_MS, 700.0)
        assert len(server.taken) == 2
        watch.close()


def test_reports_wait_for_a_server_that_fails_and_outlive_the_agent(tmp_path: Path, system: Path) -> None:
    with receiving() as server:
        server.statuses = [503]
        watch, _ = agent(tmp_path, system, report=server.url)
        add(tmp_path, DEAD)
        watch.look(1_000, 0.0)
        watch.close()
        assert server.taken == []
        second, _ = agent(tmp_path, system, report=server.url)
        second.look(2_000, 0.0)
        assert [len(each["seen"]) for each in server.taken] == [1]
        second.close()


def test_a_gpu_that_vanishes_is_reported_also_when_the_agent_was_not_there(tmp_path: Path, system: Path) -> None:
    first, _ = agent(tmp_path, system)
    assert first.look(0, 0.0) == []
    first.close()
    gone = system / "bus" / "pci" / "devices" / GPUS[3]
    for path in gone.iterdir():
        path.unlink()
    gone.rmdir()
    second, _ = agent(tmp_path, system)
    assert [one.text for one in second.look(0, 0.0)] == [f"the GPU at {GPUS[3]} is no longer there"]
    second.close()


def test_a_bus_that_is_numbered_anew_and_a_board_that_was_changed_are_no_loss(tmp_path: Path, system: Path) -> None:
    devices = system / "bus" / "pci" / "devices"
    agent(tmp_path, system)[0].close()
    (devices / GPUS[0]).rename(tmp_path / "gone")
    lost, _ = agent(tmp_path, system)
    assert len(lost.look(0, 0.0)) == 1
    lost.close()
    for number, address in enumerate(GPUS[1:]):
        (devices / address).rename(devices / f"0001:{number:02x}:00.0")
    (tmp_path / "gone").rename(devices / "0001:40:00.0")
    again, _ = agent(tmp_path, system)
    assert again.look(0, 0.0) == []
    add(tmp_path, "NVRM: Xid (PCI:0001:40:00): 64, Row Remapper Error\n")
    assert [one.gpu for one in again.look(1, 1.0)] == [7]
    again.close()


def test_a_part_of_a_gpu_with_an_address_of_its_own_does_not_shift_the_numbers(tmp_path: Path, system: Path) -> None:
    devices = system / "bus" / "pci" / "devices"
    part = devices / "0000:1b:00.4"
    part.mkdir()
    (part / "vendor").write_text("0x10de\n")
    (part / "class").write_text("0x030200\n")
    (part / "physfn").symlink_to(devices / GPUS[0])
    assert gpu_addresses(system) == list(GPUS)


@pytest.mark.parametrize("once", [False, True])
def test_a_log_that_stood_there_is_judged_by_its_own_times(tmp_path: Path, system: Path, once: bool) -> None:
    now = datetime.datetime.now(datetime.UTC)
    flap = "g kernel: mlx5_core 0000:5e:00.0 eth4: Link down"
    days = [now - datetime.timedelta(days=each) for each in range(90, 1, -1)]
    add(tmp_path, "".join(f"{day.isoformat()} {flap}\n" for day in days))
    add(tmp_path, f"{days[0].isoformat()} g kernel: {DEAD.removeprefix('[1.5] ')}")
    watch, said = agent(tmp_path, system, history=once)
    watch.look(round(now.timestamp() * 1000), 0.0)
    assert [each["action"] for each in said] == (["reboot"] if once else []), "one flap a day is healthy"
    add(tmp_path, f"{days[0].isoformat()} {flap}\n" * 3)
    watch.look(round(now.timestamp() * 1000) + 500, 0.5)
    assert said[-1]["action"] == "cordon", "what is written now was said now, whatever the clock of its writer shows"
    watch.close()


def test_a_nic_that_counts_too_many_errors_is_reported(tmp_path: Path, system: Path) -> None:
    counter = system / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "counters" / "symbol_error"
    counter.parent.mkdir(parents=True)
    counter.write_text("5\n")
    watch, _ = agent(tmp_path, system)
    assert watch.look(0, 0.0) == []
    counter.write_text("65535\n")
    assert [(one.check, one.severity, one.repair) for one in watch.look(60_000, 60.0)] == [("nic", "warning", "nic")]
    watch.close()
    counter.write_text("3\n")
    again, _ = agent(tmp_path, system)
    found = again.look(0, 0.0)
    assert all("65,5" in one.text for one in found), "a counter that was reset counts from zero"
    again.close()


def test_an_order_is_carried_out_once_also_after_a_restart(tmp_path: Path, system: Path) -> None:
    done = tmp_path / "done"
    command = f"sh -c 'echo {{gpu}} >>{done}'"
    with receiving() as server:
        server.answer = {"orders": [{"id": "a", "kind": "reset-gpu", "gpu": 1}, {"id": "b", "kind": "unknown"}]}
        for start in range(2):
            watch, _ = agent(tmp_path, system, report=server.url, commands={"reset-gpu": command})
            for second in range(3):
                watch.look(0, start + 100.0 * second)
            watch.close()
    assert done.read_text() == "1\n"


def test_a_test_that_is_ordered_is_run_once_and_held_against_what_is_expected(tmp_path: Path, system: Path) -> None:
    with receiving() as server:
        for expected, passed in (({"memory.gb_per_s": 1e9}, False), ({"memory.gb_per_s": 1e-9}, True)):
            order = {"id": f"t-{passed}", "kind": "test", "program": "idle"}
            server.answer = {"orders": [order], "out": True}
            watch, _ = agent(tmp_path, system, report=server.url, expected=expected)
            found: list[Any] = []
            for second in range(600):
                found = [one for one in watch.look(second, 10.0 * second) if one.check == "test:idle"]
                if found:
                    break
                time.sleep(0.1)
            assert [one.severity == "note" for one in found] == [passed], found
            watch.look(1000, 10_000.0)
            watch.close()
    reports = [one for body in server.taken for one in body["seen"]]
    assert ["of the expected" in one["text"] for one in reports] == [True, False]


def test_the_test_of_an_idle_node_gives_way_when_it_is_not_ordered_any_more(tmp_path: Path, system: Path) -> None:
    with receiving() as server:
        server.answer = {"orders": [{"id": "1-idle", "kind": "test", "program": "idle"}], "out": True}
        watch, said = agent(tmp_path, system, report=server.url)
        watch.look(0, 0.0)
        watch.look(1, 100.0)
        server.answer = {"orders": [], "out": False}
        watch.look(2, 200.0)
        assert [each for each in said if "test" in each["action"]] == []
        began = time.monotonic()
        watch.close()
        assert time.monotonic() - began < 60
        server.answer = {"orders": [{"id": "2-idle", "kind": "test", "program": "idle"}], "out": True}
        again, said = agent(tmp_path, system, report=server.url)
        for second in range(600):
            again.look(second, 10.0 * second)
            if said:
                break
            time.sleep(0.1)
        assert [each["id"] for each in said] == ["2-idle"]
        again.close()


def test_the_token_is_read_anew_for_each_report(tmp_path: Path, system: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    with receiving() as server:
        watch, _ = agent(tmp_path, system, report=server.url, token=token)
        watch.look(0, 0.0)
        token.write_text("new")
        add(tmp_path, DEAD)
        watch.look(0, 1.0)
        watch.close()
        assert [headers["authorization"] for _, _, headers in server.seen] == ["Bearer old", "Bearer new"]


def test_the_command_prints_a_line_for_each_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(DEAD + "[1.5] usb 1-1: new device\n")
    arguments = ["health", "agent", "--log", str(log), "--state", str(tmp_path / "s"), "--node", "n7", "--once"]
    assert main(arguments) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["node"], one["action"]) for one in found if one["check"] == "xid"] == [("n7", "reboot")]
    assert main(["health", "agent", "--log", str(tmp_path / "none"), "--once"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_the_catalogue_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "catalogue", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"name": "xid 79", "action": "reboot"}.items() <= next(
        row for row in rows if row["name"] == "xid 79"
    ).items()
