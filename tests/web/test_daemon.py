"""The daemon as a process: nobody who crowds its port keeps its owner out, and a full disk costs time alone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from weft.core.errors import FailedError
from weft.engines.local.client import LocalClient
from weft.engines.local.home import Home


def weft(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "weft", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Path], Home]]:
    started: list[Home] = []

    def begin(folder: Path) -> Home:
        home = Home(folder)
        done = weft("cluster", "up", "--home", str(folder), "--nodes", "2")
        assert done.returncode == 0, done.stderr
        started.append(home)
        return home

    yield begin
    for home in started:
        process = LocalClient(home).process()
        if process is not None:
            process.signal(signal.SIGKILL)


def submit(client: LocalClient, number: int, script: str) -> str:
    jobs = client.submit({"command": ["sh", "-c", script], "key": f"key-{number:06d}", "name": "job"})
    return str(jobs[0]["id"])


@pytest.mark.slow
def test_half_open_clients_keep_nobody_out(start: Callable[[Path], Home], tmp_path: Path):
    home = start(tmp_path / ("long-" * 20) / "cluster")
    where, client = home.where(), LocalClient(home)
    assert where is not None
    half = [socket.create_connection(where) for _ in range(400)]
    for each in half:
        each.sendall(b"GET /v1/status HTTP/1.1\r\nx: ")
    assert client.get("v1", "health")["state"] == "ok"
    name = submit(client, 1, "echo out")
    with ThreadPoolExecutor(50) as crowd:
        assert set(crowd.map(lambda _: asked(where, home.token()), range(200))) == {200}
    # Without a request they are ended, each by itself.
    deadline = time.monotonic() + 15
    while client.get("v1", "health")["connections_dropped"] < len(half):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert client.get("v1", "jobs", name)["state"] in ("running", "done", "starting", "waiting")
    assert home.log.stat().st_size < 10_000
    for each in half:
        each.close()
    # A head that is too long is refused as it comes.
    with socket.create_connection(where, timeout=10) as endless:
        endless.sendall(b"GET /v1/status HTTP/1.1\r\nx: " + b"y" * 100_000)
        assert endless.recv(100).startswith(b"HTTP/1.1 400")


def asked(where: tuple[str, int], token: str) -> int:
    connection = HTTPConnection(*where, timeout=30)
    connection.request("GET", "/v1/status", headers={"Authorization": f"Bearer {token}"})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk")
def test_five_seconds_of_full_disk_lose_no_job_and_fail_none(start: Callable[[Path], Home], tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "weft-test", str(disk)], check=True)
    try:
        home = start(disk / "cluster")
        client = LocalClient(home)
        script = "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done"
        taken = [submit(client, number, script) for number in range(4)]
        while client.get("v1", "jobs", taken[0])["state"] != "running":
            time.sleep(0.05)
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        refused = 0
        for number in range(100, 120):
            try:
                taken.append(submit(client, number, "echo late"))
            except FailedError as error:
                refused += "the disk is full" in str(error)
            time.sleep(0.3)
        assert refused > 0
        filler.unlink()
        deadline = time.monotonic() + 10
        while client.get("v1", "health")["state"] != "ok":
            assert time.monotonic() < deadline, client.get("v1", "health")
            time.sleep(0.1)
        states: dict[str, Any] = {}
        deadline = time.monotonic() + 60
        while set(states.values()) != {"done"}:
            states = {name: client.get("v1", "jobs", name)["state"] for name in taken}
            assert time.monotonic() < deadline, states
            time.sleep(0.2)
        for name in taken[:4]:
            text = client.get("v1", "jobs", name, "log")["text"]
            assert text == "".join(f"line {number}\n" for number in range(30))
        # What was refused is not there.
        jobs = client.get("v1", "jobs")["jobs"]
        assert {job["id"] for job in jobs} == set(taken)
        assert all(job["attempt"] == 1 for job in jobs)
        assert json.loads(weft("cluster", "status", "--home", str(home.folder), "--json").stdout)["health"]["stumbles"]
        assert weft("cluster", "down", "--home", str(home.folder)).returncode == 0
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
