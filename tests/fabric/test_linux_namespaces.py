"""The export in the kernel: real namespaces, real packets, and where they were really seen."""

import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from weft.fabric import linux
from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import ForwardingPlane
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.addressing.walk import FailedParts, Walk, Walker
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import Topology, build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

CLONE_NEWNET = 0x40000000
ETH_P_IPV6 = 0x86DD
PORT = 7000
# Two runs at once on one machine must not meet; a process id in base 36 fits the prefix.
PREFIX = "t" + "".join("0123456789abcdefghijklmnopqrstuvwxyz"[os.getpid() // 36**n % 36] for n in range(3))
ARRIVAL_S = 2.0
SILENCE_S = 0.3


def small(**changes: Any) -> FabricSpec:
    """Say the laptop's fabric with some fields changed, its parts large enough for them."""
    written: dict[str, Any] = load_site("laptop").fabric.as_written()
    written |= {"planes": 1, "port_rate": "800 Mb/s", **changes}
    written["parts"]["switch"]["capacity"] = "1 Tb/s"
    written["links"]["t1_t2"] = written["links"]["t0_t1"]
    return FabricSpec.model_validate(written)


SITES = {
    "laptop": load_site("laptop").fabric,
    "bundles": small(gpus=8, radix=8, build="compact"),
    "three-tiers": small(gpus=6, radix=4, tiers=3),
}


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Let this thread make sockets in a namespace; they stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open() as home, Path("/var/run/netns", namespace).open() as there:
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")
        try:
            yield
        finally:
            assert libc.setns(home.fileno(), CLONE_NEWNET) == 0


@dataclass
class Lab:
    """A fabric that is up, with a listener at every NIC and a watcher at every switch."""

    addressing: Addressing
    topology: Topology
    tables: ForwardingPlane
    prefix: str
    nics: list[socket.socket]
    watchers: list[socket.socket]
    sent: int = 0

    def run(self, commands: tuple[linux.Command, ...]) -> None:
        for command in commands:
            subprocess.run(command.argv(), check=True, timeout=10, capture_output=True)

    def send(self, source: int, carrier: int) -> bytes:
        self.sent += 1
        payload = f"weft packet {self.sent} of {self.prefix}".encode()
        self.nics[source].sendto(payload, (srv6.to_text(carrier), PORT))
        return payload

    def arrives(self, nic: int, payload: bytes, wait_s: float) -> bool:
        self.nics[nic].settimeout(wait_s)
        with suppress(TimeoutError):
            for _ in range(100):
                if self.nics[nic].recv(2048) == payload:
                    return True
        return False

    def seen(self, payload: bytes) -> set[tuple[str, str]]:
        """Say (switch, device) of every place where a switch took the packet in."""
        found: set[tuple[str, str]] = set()
        for switch, watcher in enumerate(self.watchers):
            with suppress(BlockingIOError):
                for _ in range(10_000):
                    data, address = watcher.recvfrom(4096)
                    if data.endswith(payload):
                        found.add((self.topology.names.of("switch", switch), address[0]))
        return found

    def predicted(self, walk: Walk) -> set[tuple[str, str]]:
        """Say where the walker says that switches take the packet in."""
        places: set[tuple[str, str]] = set()
        for link, hop in zip(walk.links, walk.hops[1:], strict=True):
            if hop.node < self.topology.nics:
                continue
            ends = {
                int(self.topology.links.lower[link]): int(self.topology.links.lower_port[link]),
                int(self.topology.links.upper[link]): int(self.topology.links.upper_port[link]),
            }
            device = linux.device_of(self.topology, hop.node, ends[hop.node])
            places.add((self.topology.name_of_node(hop.node), device))
        return places


@contextmanager
def lab_of(spec: FabricSpec) -> Iterator[Lab]:
    topology, addressing = build(spec), Addressing(shape_of(spec))
    export = linux.export(topology, addressing.plan, PREFIX)
    with ExitStack() as cleanup:
        up = subprocess.run(["sh"], input=export.up_script(), text=True, capture_output=True, timeout=60, check=False)
        assert up.returncode == 0, up.stderr
        cleanup.callback(subprocess.run, ["sh"], input=export.down_script(), text=True, timeout=60, check=True)
        nics: list[socket.socket] = []
        watchers: list[socket.socket] = []
        for node, namespace in enumerate(export.namespaces):
            with inside(namespace):
                if node < topology.nics:
                    one = cleanup.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
                    one.bind(("::", PORT))
                    nics.append(one)
                else:
                    kind = socket.htons(ETH_P_IPV6)
                    one = cleanup.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, kind))
                    one.setblocking(False)
                    watchers.append(one)
        yield Lab(addressing, topology, ForwardingPlane(topology, addressing.plan), PREFIX, nics, watchers)


def leftovers() -> set[str]:
    folder = Path("/var/run/netns")
    return {path.name for path in folder.glob(f"{PREFIX}-*")} if folder.exists() else set()


@pytest.mark.parametrize("name", SITES)
def test_a_real_packet_crosses_the_switches_that_its_ev_names_and_no_other(name: str):
    with lab_of(SITES[name]) as lab:
        hosts = lab.topology.nics
        walker = Walker(lab.tables)
        spines: set[str] = set()
        for source, destination in ((0, hosts - 1), (hosts - 1, 0), (0, 1)):
            for ev in range(lab.addressing.evs.count):
                carrier = lab.addressing.carrier(source, destination, ev)
                walk = walker.walk(source, carrier)
                payload = lab.send(source, carrier)
                assert lab.arrives(destination, payload, ARRIVAL_S), (source, destination, ev)
                seen = lab.seen(payload)
                assert seen == lab.predicted(walk), (source, destination, ev)
                spines |= {switch for switch, _ in seen if switch.startswith(f"t{SITES[name].tiers - 1}")}
        # Over all EVs, every switch of the top tier was the chosen one.
        top = SITES[name].tiers - 1
        assert len(spines) == int((lab.topology.switches.tier == top).sum())
    assert leftovers() == set()


def test_a_dead_link_kills_its_own_ev_where_the_walker_says_and_spares_the_others():
    with lab_of(SITES["laptop"]) as lab:
        dead = lab.topology.names.find("link1-p2-i0-u1", ("link",))[1]
        walker = Walker(lab.tables, FailedParts(links=frozenset({dead})))
        lab.run(linux.link_down(lab.topology, dead, lab.prefix))
        died: list[str] = []
        for ev in range(lab.addressing.evs.count):
            carrier = lab.addressing.carrier(0, 3, ev)
            walk = walker.walk(0, carrier)
            payload = lab.send(0, carrier)
            arrived = lab.arrives(3, payload, SILENCE_S if walk.death else ARRIVAL_S)
            assert arrived == (walk.death is None), ev
            assert lab.seen(payload) == lab.predicted(walk), ev
            died += [] if arrived else [lab.addressing.evs.name(ev)]
        assert died == ["p2-u1"]
        lab.run(linux.link_up(lab.tables, dead, lab.prefix))
        deadline = time.monotonic() + ARRIVAL_S
        carrier = lab.addressing.carrier(0, 3, lab.addressing.evs.parse("p2-u1"))
        while not lab.arrives(3, lab.send(0, carrier), SILENCE_S):
            assert time.monotonic() < deadline, "the link did not come back"
    assert leftovers() == set()


def test_a_script_that_fails_half_way_leaves_nothing_behind():
    topology = build(SITES["laptop"])
    export = linux.export(topology, Addressing(shape_of(SITES["laptop"])).plan, PREFIX)
    broken = export.up_script() + "ip netns exec no-such-namespace true\n"
    ran = subprocess.run(["sh"], input=broken, text=True, capture_output=True, timeout=60, check=False)
    assert ran.returncode != 0
    assert leftovers() == set()
