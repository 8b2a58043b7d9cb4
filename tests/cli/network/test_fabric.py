import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import main

PATH = ["fabric", "path", "laptop", "--src", "0", "--dst", "nic-i3"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Say exit status, output and errors of one command."""
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status, out, _ = said(capsys, *arguments, "--json")
    return status, json.loads(out)


def test_a_path_is_shown_hop_by_hop(capsys: pytest.CaptureFixture[str]):
    status, out, err = said(capsys, *PATH, "--ev", "p2-u1")
    assert (status, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if "fcbb" in line][1:]
    assert [row[0] for row in rows] == ["nic-i0", "t0-p2-i0", "t1-p2-i1", "t0-p2-i1", "nic-i3"]
    assert [row[-1] for row in rows][:-1] == ["link0-p2-i0", "link1-p2-i0-u1", "link1-p2-i1-u1", "link0-p2-i3"]


def test_the_same_ev_can_be_written_as_a_number(capsys: pytest.CaptureFixture[str]):
    by_name, by_number = document(capsys, *PATH, "--ev", "p2-u1"), document(capsys, *PATH, "--ev", "5")
    assert by_name == by_number
    assert by_name[1]["ev_name"] == "p2-u1"


def test_a_path_as_json_has_every_hop_and_its_provenance(capsys: pytest.CaptureFixture[str]):
    status, found = document(capsys, *PATH, "--ev", "5")
    assert status == 0
    assert found["arrived"] is True
    assert found["death"] is None
    assert found["carrier"] == "fcbb:bbbb:9:c:a:e001::"
    assert found["hops"][1] == {
        "node": "t0-p2-i0",
        "matched": [9, 12],
        "remaining": "fcbb:bbbb:c:a:e001::",
        "port": 3,
        "link": "link1-p2-i0-u1",
    }
    assert set(found["provenance"]) == {"spec", "seed", "version"}


def test_a_packet_that_dies_ends_with_status_1_and_the_place(capsys: pytest.CaptureFixture[str]):
    status, out, err = said(capsys, *PATH, "--ev", "p2-u1", "--down", "t1-p2-i0", "link1-p2-i1-u1")
    assert status == 1
    assert "t1-p2-i1" in out
    assert err.strip() == ("error: the packet dies at t1-p2-i1: its link link1-p2-i1-u1 to t0-p2-i1 is down")
    status, found = document(capsys, *PATH, "--down", "t0-p0-i0")
    assert status == 1
    assert found["death"] == "dies at nic-i0: its link link0-p0-i0 to t0-p0-i0 leads to a dead switch"
    assert found["arrived"] is False


def test_the_131k_site_is_walked_at_full_size(capsys: pytest.CaptureFixture[str]):
    arguments = ("fabric", "path", "gb200-8x100g-131k", "--src", "5", "--dst", "131071", "--ev", "p7-u255")
    status, found = document(capsys, *arguments, "--down", "nicoptic-i6-o0")
    assert status == 0
    assert [hop["node"] for hop in found["hops"]] == ["nic-i5", "t0-p7-i0", "t1-p7-i255", "t0-p7-i511", "nic-i131071"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--src", "4", "--dst", "0"], "there is no NIC '4'; they run from 0 to 3, or from nic-i0 to nic-i3"),
        (["--src", "0", "--dst", "gpu1"], "there is no NIC 'gpu1'"),
        (["--src", "0", "--dst", "-1"], "there is no NIC '-1'"),
        (["--src", "0", "--dst", "1", "--ev", "8"], "'8' is not an entropy value of this fabric; they run from 0 to 7"),
        (["--src", "0", "--dst", "1", "--down", "t9"], "there is no link, switch, optic or NIC called 't9'"),
        (["--src", "0", "--dst", "1", "--down", "t0-p0-i2"], "t0 i2 does not exist: i runs from 0 to 1"),
        (["--src", "0"], "dst"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    status, out, err = said(capsys, "fabric", "path", "laptop", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_table_lists_every_entry(capsys: pytest.CaptureFixture[str]):
    status, out, _ = said(capsys, "fabric", "table", "laptop", "--switch", "t0-p0-i1")
    assert status == 0
    assert "t0-p0-i1: 5 entries" in out
    status, found = document(capsys, "fabric", "table", "laptop", "--switch", "t0-p0-i1")
    assert status == 0
    assert found["entries"][0] == {
        "match": "fcbb:bbbb:2::/48", "usid": 2, "action": "shift", "port": None, "link": None, "to": None,
    }  # fmt: skip
    assert [entry["to"] for entry in found["entries"][1:]] == ["t1-p0-i0", "t1-p0-i1", "nic-i2", "nic-i3"]


def test_a_switch_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]):
    status, _, err = said(capsys, "fabric", "table", "laptop", "--switch", "spine1")
    assert status == 2
    assert "there is no switch called 'spine1'; names look like 't0-p0-i0', 't1-p0-i0'" in err


def test_an_export_is_a_script_and_its_undoing(capsys: pytest.CaptureFixture[str]):
    status, up, _ = said(capsys, "fabric", "export", "laptop", "--prefix", "ab")
    assert status == 0
    lower, upper = "name p3 address 02:00:00:00:00:01 netns ab-h3", "name e1 address 02:00:00:00:00:02 netns ab-t0p3i1"
    assert f"ip link add {lower} type veth peer {upper}" in up.splitlines()
    for line in ("route add fcbb:bbbb:1::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev usid",
                 "route add local fcbb:bbbb:e001::/48 dev lo"):  # fmt: skip
        assert line in up.splitlines()
    status, undo, _ = said(capsys, "fabric", "export", "laptop", "--prefix", "ab", "--down-script")
    assert status == 0
    assert undo.count("ip netns del ab-") == 20
    for script in (up, undo):
        assert subprocess.run(["sh", "-n"], input=script, text=True, check=False, timeout=10).returncode == 0


def test_an_export_as_json_is_a_list_of_commands(capsys: pytest.CaptureFixture[str]):
    status, found = document(capsys, "fabric", "export", "laptop")
    assert status == 0
    assert found["commands"][0] == ["ip", "netns", "add", "w-h0"]


def test_a_site_too_large_for_one_machine_is_refused_and_forced(capsys: pytest.CaptureFixture[str], tmp_path: Any):
    status, out, err = said(capsys, "fabric", "export", "gb200-8x100g-131k")
    assert (status, out) == (2, "")
    assert "needs 137,216 network namespaces (131,072 NICs, 6,144 switches)" in err
    wide = tmp_path / "wide.toml"
    wide.write_text('extends = "laptop"\nname = "wide"\n[fabric]\ngpus = 250\nradix = 32\n'
                    '[fabric.parts.switch]\ncapacity = "1 Tb/s"\n')  # fmt: skip
    assert said(capsys, "fabric", "export", str(wide))[0] == 2
    assert said(capsys, "fabric", "export", str(wide), "--force")[0] == 0


def test_any_network_can_be_read_from_an_edge_list(tmp_path, capsys):
    edges = tmp_path / "edges.csv"
    edges.write_text(
        "a,b,rate,length,plane\ngpu0,leaf,100 Gb/s,3 m,0\ngpu1,leaf,100 Gb/s,3 m,0\nleaf,spine,400 Gb/s,,0\n"
    )
    assert main(["fabric", "import", str(edges), "--hosts", "name:gpu*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["hosts"], found["switches"], found["links"]) == (2, {"t0": 1, "t1": 1}, 3)
    assert main(["fabric", "import", str(edges), "--hosts", "name:gpu*"]) == 0
    assert "switches, tier 1" in capsys.readouterr().out


def test_a_wrong_edge_list_is_refused(tmp_path, capsys):
    edges = tmp_path / "edges.csv"
    edges.write_text("a,b,rate\nx,x,\nx,y,fast\n")
    assert main(["fabric", "import", str(edges), "--hosts", "name:x"]) == 2
    assert main(["fabric", "import", str(tmp_path / "none.csv")]) == 2
    assert main(["fabric", "import", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("form", ["cabling", "containerlab", "nccl-topology"])
def test_other_tools_get_one_file_of_the_whole(form: str, capsys: pytest.CaptureFixture[str]):
    status, out, _ = said(capsys, "fabric", "export", "laptop", "--format", form)
    assert status == 0
    assert out.endswith("\n")
    assert said(capsys, "fabric", "export", "laptop", "--format", form, "--switch", "t0-p0-i0")[0] == 2


@pytest.mark.parametrize("form", ["sonic", "frr"])
def test_other_tools_get_a_file_for_each_switch(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "switches"
    assert said(capsys, "fabric", "export", "laptop", "--format", form, "--folder", str(folder))[0] == 0
    assert len(list(folder.iterdir())) == 16
    one = next(folder.glob("t0-p0-i0.*")).read_text()
    assert said(capsys, "fabric", "export", "laptop", "--format", form, "--switch", "t0-p0-i0")[1] == one
    for wrong in ((), ("--folder", str(folder)), ("--switch", "t9-p0-i0"), ("--folder", str(tmp_path / "a" / "b"))):
        status, _, err = said(capsys, "fabric", "export", "laptop", "--format", form, *wrong)
        assert status in (1, 2)
        assert "Traceback" not in err
