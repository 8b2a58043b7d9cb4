"""Ranks outside the lab whose packets cross it: bits as on loopback, though a real plane is pulled out; needs root."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.conftest import Weft

from weft.core.errors import UsageError
from weft.transport.endpoint import Endpoint
from weft.transport.queue_pair import QueuePair
from weft.transport.torch_backend.links import LAB_VARIABLE
from weft_lab.network import faults
from weft_lab.network.lab import Lab
from weft_lab.underlay import rank_underlay

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


def _trained(**environment: str) -> tuple[set[str], list[list[str]]]:
    """Return over what the ranks of a job talked, and the bits of their losses."""
    done = subprocess.run(
        (sys.executable, "-m", "tests.lab.job"),
        env=os.environ | environment, capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {world for world, _ in found}, [bits for _, bits in found]


def test_a_job_over_the_lab_has_the_bits_of_loopback(lab: Callable[..., Lab]):
    worlds, on_loopback = _trained()
    assert worlds == {"Loopback"}
    made = lab("--hosts", "2", "--planes", "4", "--spines", "2")
    made.change(["link0-p1-i0"], lambda plan, now, name, _by: faults.cut(plan, now, name))
    worlds, in_lab = _trained(**{LAB_VARIABLE: made.record.spec.name})
    assert worlds == {"LabHost"}
    assert in_lab == on_loopback


def test_a_socket_is_made_at_the_host_and_the_thread_comes_back(lab: Callable[..., Lab]):
    made = lab("--hosts", "2", "--planes", "1", "--spines", "1")
    here = Path("/proc/thread-self/ns/net").readlink()
    with rank_underlay(made.record.spec.name, 1, 2).inside():
        assert Path("/proc/thread-self/ns/net").readlink() != here
    assert Path("/proc/thread-self/ns/net").readlink() == here


def _goes(pair: QueuePair, plane: int, *, up: bool) -> bool:
    """Wait until an endpoint uses a plane, or does not; return whether that came."""
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        if bool(int(pair.endpoint.state.sender.qp[pair.index]["local_up"]) >> plane & 1) == up:
            return True
        time.sleep(0.01)
    return False


def test_a_rank_watches_the_ports_of_its_host(lab: Callable[..., Lab], weft: Weft):
    made = lab("--hosts", "2", "--planes", "3", "--spines", "1")
    assert weft("cut", "link0-p2-i0") == 0
    name = made.record.spec.name
    with Endpoint(rank_underlay(name, 0, 2)) as here, Endpoint(rank_underlay(name, 1, 2)) as there:
        out, back = here.offer("rank 1"), there.offer("rank 0")
        out.connect(back.card)
        back.connect(out.card)
        # Down before anybody met; then another one goes and comes back.
        assert _goes(out, 2, up=False)
        assert weft("cut", "link0-p1-i0") == 0
        assert _goes(out, 1, up=False)
        assert weft("heal") == 0
        assert _goes(out, 1, up=True)
        assert _goes(out, 2, up=True)
        assert _goes(back, 1, up=True)


def test_more_ranks_than_hosts_and_unknown_labs_are_refused(lab: Callable[..., Lab], weft: Weft):
    lab("--hosts", "2", "--planes", "1", "--spines", "1")
    with pytest.raises(UsageError, match="has 2 hosts, and the job has 3 ranks"):
        rank_underlay(weft.name, 0, 3)
    with pytest.raises(UsageError, match="there is no lab called nix"):
        rank_underlay("nix", 0, 2)
