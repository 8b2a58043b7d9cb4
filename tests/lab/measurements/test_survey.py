"""The prober in the kernel: what is broken on purpose is what it names; root is needed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.conftest import Weft

from weft.fabric.fault_localization import Health
from weft_lab.measurements.survey import survey
from weft_lab.network.lab import Lab

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

Make = Callable[..., Lab]


def test_a_healthy_lab_has_no_sick_link(lab: Make):
    found = survey(lab(), probes=200)
    assert {one.health for one in found.verdicts} == {Health.FINE}
    assert found.denials() == {}


def test_dead_lossy_and_black_holed_parts_are_told_apart(weft: Weft, lab: Make):
    made = lab()
    assert weft("cut", "link0-p0-i0", "link1-p1-i1-u0") == 0
    assert weft("loss", "link1-p1-i0-u1", "2%") == 0
    assert weft("loss", "link0-p2-i3", "5%", "--into", "lower") == 0
    assert weft("blackhole", "t1-p3-i0") == 0
    found = survey(made)
    names = {made.plan.topology.name_of_link(one.link): one.health for one in found.sick}
    assert names == {
        "link0-p0-i0": Health.DEAD,
        "link1-p1-i1-u0": Health.DEAD,
        "link1-p1-i0-u1": Health.LOSSY,
        "link0-p2-i3": Health.LOSSY,
        "link1-p3-i0-u0": Health.DEAD,
        "link1-p3-i1-u0": Health.DEAD,
    }
    assert found.parts == ["t1-p3-i0"]


def test_what_lies_behind_a_dead_switch_is_not_accused(weft: Weft, lab: Make):
    made = lab("--hosts", "4", "--planes", "2", "--spines", "2")
    assert weft("blackhole", "t0-p1-i0") == 0
    found = survey(made, probes=50)
    name = made.plan.topology.name_of_link
    assert {name(one.link) for one in found.sick} == {"link0-p1-i0", "link0-p1-i1"}
    hidden = {name(one.link) for one in found.verdicts if one.health is Health.HIDDEN}
    assert hidden == {"link1-p1-i0-u0", "link1-p1-i0-u1"}
    assert found.parts == ["t0-p1-i0"]


def test_the_command_writes_the_paths_to_avoid(weft: Weft, lab: Make, tmp_path: Path):
    lab("--hosts", "4", "--planes", "2", "--spines", "2")
    assert weft("cut", "link1-p1-i0-u0") == 0
    assert weft("map", "--probes", "50", "--deny", str(tmp_path / "deny.json"), "--json") == 0
    shown = json.loads("\n".join(weft.said))
    assert [one["link"] for one in shown["links"] if one["health"] == "dead"] == ["link1-p1-i0-u0"]
    written = json.loads((tmp_path / "deny.json").read_text())
    assert written["denied"] == shown["denied"]
    # EV 2 is plane 1, uplink 0; hosts 0 and 1 are under T0 0, hosts 2 and 3 under T0 1.
    pairs = {(one["source"], one["destination"]): one["evs"] for one in written["denied"]}
    assert pairs == {(s, d): [2] for s in range(4) for d in range(4) if (s < 2) != (d < 2)}
    assert weft("map", "--probes", "0") == 2
    assert "--probes 0" in weft.said[0]
