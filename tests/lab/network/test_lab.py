"""The lab in the kernel: it goes up, breaks as told, heals and leaves nothing behind; root is needed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.conftest import NAME, Weft

from weft.fabric.addressing import srv6
from weft_lab.network import faults
from weft_lab.network import lab as labs
from weft_lab.network import machine as machine_module
from weft_lab.network.lab import Lab
from weft_lab.network.machine import SYSTEM_PATH, LabMachine, keepers
from weft_lab.network.plain_routes import plane_address

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

Make = Callable[..., Lab]
WEFT = (sys.executable, "-c", "from weft.cli.main import run; run()", "lab")
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all")
"""Root without its rights: what any user has, and the right to be root in a namespace of one's own."""
ASK = """
import socket, sys
one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
one.bind(("::", 7011))
one.settimeout(float(sys.argv[2]))
size, came = int(sys.argv[3]), 0
for carrier in sys.argv[4:]:
    for _ in range(int(sys.argv[1])):
        try:
            one.sendto(bytes(size), (carrier, 7011))
            one.recv(65536)
            came += 1
        except OSError:
            pass
print(came)
"""


def echoes(lab: Lab, nic: int, evs: list[int], count: int = 3, size: int = 100, wait_s: float = 0.3) -> int:
    """Say how many packets come back that a NIC sends to itself, out by the T1 of each EV and back the same way."""
    addressing, shape = lab.plan.addressing, lab.plan.addressing.shape
    carriers: list[str] = []
    for ev in evs:
        plane, uplink, _ = addressing.evs.coordinates(ev)
        t0 = addressing.plan.usid(shape.switch_grids[0].id(plane, shape.t0_of(nic)))
        t1 = addressing.plan.usid(shape.switch_grids[1].id(plane, uplink))
        carriers.append(srv6.to_text(srv6.pack((t0, t1, t0, srv6.LOCAL + shape.down_port(nic)))))
    asked = [*lab.inside(nic), sys.executable, "-c", ASK, str(count), str(wait_s), str(size), *carriers]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout)


def machine() -> tuple[list[str], str, bool]:
    """Say what a lab could leave behind: namespaces, mounts, records."""
    folder = Path("/run/netns")
    mounts = re.sub(r"^\d+ \d+ ", "", Path("/proc/self/mountinfo").read_text(), flags=re.MULTILINE)
    named = (
        sorted(path.name for path in folder.iterdir() if path.name.startswith(f"{NAME}-")) if folder.exists() else []
    )
    return named, mounts, Path(f"/run/weft/lab/{NAME}.json").exists()


def test_up_and_down_leave_the_machine_as_it_was(weft: Weft):
    before = machine()
    assert weft("up", "--hosts", "2", "--planes", "2", "--spines", "1") == 0
    assert machine() != before
    assert weft("status", "--json") == 0
    state = json.loads("\n".join(weft.said))
    assert (state["namespaces"], state["namespaces_wanted"], state["links"]) == (8, 8, 8)
    assert weft("down") == 0
    assert machine() == before
    assert weft("down") == 0
    assert "nothing to remove" in weft.said[0]


def test_a_second_lab_is_refused_under_the_same_name_and_made_under_another(
    weft: Weft, capsys: pytest.CaptureFixture[str]
):
    assert weft("up", "--hosts", "2", "--planes", "1", "--spines", "1") == 0
    assert weft("up") == 2
    assert weft.said == [
        f"error: a lab called {NAME} is up; weft lab down --name {NAME} removes it, --name makes another"
    ]
    other = Weft(capsys, name="u" + NAME[1:])
    try:
        assert other("up", "--hosts", "2", "--planes", "1", "--spines", "1") == 0
        assert echoes(weft.lab(), 0, [0]) == 3
        assert echoes(other.lab(), 0, [0]) == 3
    finally:
        assert other("down") == 0
    assert echoes(weft.lab(), 1, [0]) == 3


def test_namespaces_of_a_stranger_are_not_taken_over(weft: Weft):
    subprocess.run(["ip", "netns", "add", f"{NAME}-h0"], check=True)
    assert weft("up") == 2
    assert "exist already" in weft.said[0]


def test_every_path_carries_full_frames_and_every_plane_has_an_ordinary_address(lab: Make):
    made = lab()
    assert echoes(made, 0, list(range(8)), size=9000) == 24
    listen = "import socket,sys; s=socket.create_server((sys.argv[1],7012),family=socket.AF_INET6); s.settimeout(10);"
    listen += "print(flush=True); print(s.accept()[0].recv(100).decode())"
    send = "import socket,sys; socket.create_connection((sys.argv[1],7012),10).send(sys.argv[1].encode())"
    for plane in range(4):
        address = plane_address(plane, 3)
        there = [*made.inside(3), sys.executable, "-c", listen, address]
        with subprocess.Popen(there, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            server.stdout.readline()
            subprocess.run([*made.inside(0), sys.executable, "-c", send, address], check=True, timeout=30)
            assert server.stdout.read().strip() == address


def test_a_cut_link_carries_nothing_and_a_healed_one_everything(weft: Weft, lab: Make):
    made = lab("--hosts", "4", "--planes", "2", "--spines", "2")
    assert weft("cut", "link1-p0-i0-u1") == 0
    assert [echoes(made, 0, [ev]) for ev in range(4)] == [3, 0, 3, 3]
    assert weft("cut", "link0-p0-i0", "link0-p1-i0") == 0
    assert echoes(made, 0, [0, 1, 2, 3]) == 0
    assert echoes(made, 2, [0, 1, 2, 3]) == 12
    assert weft("heal") == 0
    assert echoes(made, 0, [0, 1, 2, 3]) == 12


def test_a_black_hole_stays_up_and_forwards_nothing(weft: Weft, lab: Make):
    made = lab("--hosts", "4", "--planes", "2", "--spines", "2")
    assert weft("blackhole", "t1-p1-i0") == 0
    assert [echoes(made, 3, [ev]) for ev in range(4)] == [3, 3, 0, 3]
    shown = made.machine.run(("ip", "-n", f"{NAME}-t1p1i0", "-br", "link"))
    assert shown.count("LOWER_UP") == 5  # two links, lo, and the pair that carries its own uSIDs
    assert weft("heal", "t1-p1-i0") == 0
    assert echoes(made, 3, [2]) == 3


def test_a_lossy_link_loses_its_share_and_heals(weft: Weft, lab: Make):
    made = lab("--hosts", "2", "--planes", "1", "--spines", "1")
    assert weft("loss", "link0-p0-i0", "20%", "--into", "lower") == 0
    came = echoes(made, 0, [0], count=400, wait_s=0.01)
    # Nobody asks over the link who is there: a lost answer would take a second of packets with it.
    for namespace in made.plan.namespaces:
        neighbours = made.machine.run(("ip", "-n", namespace, "-6", "neighbour")).splitlines()
        assert neighbours
        assert all("PERMANENT" in line for line in neighbours)
    # 320 are expected; a fair coin of this weight leaves 250..380 once in more than 10^12 runs.
    assert 250 < came < 380
    assert weft("heal", "link0-p0-i0") == 0
    assert echoes(made, 0, [0], count=100) == 100


@pytest.mark.skipif(shutil.which("ip6tables", path=SYSTEM_PATH) is None, reason="ip6tables is not there")
def test_ip6tables_does_what_nft_does(lab: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_module, "filter_program", lambda: "ip6tables")
    made = lab("--hosts", "2", "--planes", "1", "--spines", "1")
    made.change(["link0-p0-i0"], lambda plan, now, name, by: faults.lose(plan, now, name, 200_000, into="lower", by=by))
    assert 250 < echoes(made, 0, [0], count=400, wait_s=0.01) < 380
    made.change(["link0-p0-i0"], faults.heal)
    made.change(["t1-p0-i0"], faults.black_hole)
    assert echoes(made, 0, [0]) == 0
    made.change(["t1-p0-i0"], faults.heal)
    assert echoes(made, 0, [0], count=100) == 100


def test_a_slowed_link_has_its_rate(weft: Weft, lab: Make):
    made = lab("--hosts", "2", "--planes", "1", "--spines", "1")
    assert weft("slow", "link0-p0-i0", "100Mb/s") == 0
    shown = made.machine.run(("tc", "-n", f"{NAME}-h0", "qdisc", "show", "dev", "p0"))
    assert "tbf" in shown
    assert "rate 100Mbit" in shown
    assert weft("heal", "link0-p0-i0") == 0
    assert "rate 200Mbit" in made.machine.run(("tc", "-n", f"{NAME}-h0", "qdisc", "show", "dev", "p0"))


def test_a_flapping_link_is_up_at_the_end(weft: Weft, lab: Make):
    made = lab("--hosts", "2", "--planes", "1", "--spines", "1")
    assert weft("flap", "link1-p0-i0-u0", "--times", "2", "--down", "50 ms", "--up", "50 ms") == 0
    assert not weft.lab().faults
    assert echoes(made, 0, [0]) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("cut", "link7-p0-i0"), "there is no link called 'link7-p0-i0'; names look like 'link0-p0-i0'"),
        (("cut", "link0-p9-i0"), "p runs from 0 to 0"),
        (("cut", "nothing*"), "no name fits 'nothing*'"),
        (("cut",), "name at least one link"),
        (("blackhole", "link0-p0-i0"), "there is no switch called"),
        (("loss", "link0-p0-i0", "1"), "'1' is not a share of packets; write it as '1%'"),
        (("loss", "link0-p0-i0", "101%"), "is not a share of packets"),
        (("slow", "link0-p0-i0", "fast"), "is not a rate; write it as '800 Gb/s'"),
        (("exec", "7", "--", "true"), "there is no host 7; they run from 0 to 1"),
        (("exec", "0"), "name a command to run there"),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_one_message_and_changes_nothing(weft: Weft, lab: Make, words: tuple[str, ...], says: str):
    made = lab("--hosts", "2", "--planes", "1", "--spines", "1")
    arguments = list(words)
    if "--" in arguments:
        arguments[1:1] = ["--name", NAME]
        weft.capture.readouterr()
        from weft.cli.main import main

        assert main(["lab", *arguments]) == 2
        weft.said = weft.capture.readouterr().err.splitlines()
    else:
        assert weft(*arguments) == 2
    assert len(weft.said) == 1
    assert says in weft.said[0]
    assert weft.lab().faults == made.faults


def test_a_small_mtu_and_an_absent_lab_are_refused_before_anything_is_made(weft: Weft):
    before = machine()
    assert weft("up", "--mtu", "1500") == 2
    assert "an MTU of 1500 is too small" in weft.said[0]
    assert weft("status") == 2
    assert "there is no lab called" in weft.said[0]
    assert machine() == before


def test_exec_runs_at_the_host_and_ends_with_its_status(lab: Make):
    lab("--hosts", "2", "--planes", "1", "--spines", "1")
    shown = subprocess.run(
        [*WEFT, "exec", "--name", NAME, "1", "--", "ip", "-br", "link"], capture_output=True, text=True, check=True
    )
    assert "p0@" in shown.stdout
    ended = subprocess.run([*WEFT, "exec", "--name", NAME, "t0-p0-i0", "--", "sh", "-c", "exit 7"], check=False)
    assert ended.returncode == 7


def test_down_ends_what_runs_inside(weft: Weft, lab: Make):
    made = lab("--hosts", "2", "--planes", "1", "--spines", "1")
    with subprocess.Popen([*made.inside(0), "sleep", "1000"], start_new_session=True) as sleeper:
        while not (inside := made.machine.run(("ip", "netns", "pids", f"{NAME}-h0")).split()):
            time.sleep(0.01)
        assert weft("down") == 0
        assert sleeper.wait(10) != 0
        assert not Path(f"/proc/{inside[0]}").exists()


@pytest.mark.parametrize("rights", [(), WITHOUT_RIGHTS], ids=["root", "user-namespace"])
@pytest.mark.parametrize("steps", [1, 3, 12, 25])
def test_killed_at_any_point_of_going_up_down_still_clears_everything(
    weft: Weft, rights: tuple[str, ...], steps: int, tmp_path: Path
):
    before = machine()
    # The process ends itself, silently, when it is about to run its n-th command of the system.
    dying = f"""
import os, signal
from weft_lab.network.machine import LabMachine
run, left = LabMachine.run, [{steps}]
def dies(*words, **more):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return run(*words, **more)
LabMachine.run = dies
from weft.cli.main import run as weft
weft()
"""
    asked = [*rights, sys.executable, "-c", dying, "lab", "up", "--name", NAME]
    killed = subprocess.run(asked, capture_output=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if rights:
        assert keepers(NAME)
    again = subprocess.run([*rights, *WEFT, "up", "--name", NAME], capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "was left half-made" in again.stderr
    assert subprocess.run([*rights, *WEFT, "down", "--name", NAME], check=False).returncode == 0
    assert machine() == before
    assert keepers(NAME) == []


def test_without_rights_a_lab_lives_in_a_user_namespace_and_the_machine_does_not_see_it(weft: Weft):
    before = machine()
    asked = [*WITHOUT_RIGHTS, *WEFT, "up", "--name", NAME, "--hosts", "2", "--planes", "1", "--spines", "1", "--json"]
    made = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert json.loads(made.stdout)["world"] == "user"
    assert labs.remains(LabMachine(), NAME) == {}
    there = Lab(weft.lab().records, weft.lab().record)
    assert echoes(there, 0, [0], size=9000) == 3
    cut = subprocess.run([*WITHOUT_RIGHTS, *WEFT, "cut", "--name", NAME, "link1-p0-i0-u0"], check=False)
    assert cut.returncode == 0
    assert echoes(there, 0, [0]) == 0
    assert subprocess.run([*WITHOUT_RIGHTS, *WEFT, "down", "--name", NAME], check=False).returncode == 0
    assert machine() == before
    assert keepers(NAME) == []


@pytest.mark.parametrize(
    ("rights", "says"),
    [
        ((), "this process may not make network namespaces"),
        (WITHOUT_RIGHTS, "a lab needs root or user namespaces, and this system gives neither"),
    ],
    ids=["root-of-nothing", "nobody"],
)
def test_without_permission_there_is_one_message(rights: tuple[str, ...], says: str):
    # A user namespace in which no further ones are allowed: nothing outside it can be changed from there.
    refused = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 >/proc/sys/user/max_user_namespaces; "$@"']
    asked = [*refused, "sh", *rights, *WEFT, "up", "--name", NAME]
    ran = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.count("error:") == 1
    assert says in ran.stderr
