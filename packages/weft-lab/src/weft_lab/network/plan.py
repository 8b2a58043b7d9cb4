"""What a lab is made of, as data: batches of commands for `ip`, `tc`, `nft` or `ip6tables`, by namespace.

Pure: nothing is run here. The network itself comes from `fabric.linux`; this adds what a machine room has besides: link
rates, queues, frame sizes, and ordinary addresses for programs that know no carriers.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

from weft.core.errors import UsageError
from weft.core.quantity import RATE
from weft.fabric import linux
from weft.fabric.addressing.forwarding import ForwardingPlane
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import Topology, build
from weft.specs import load_site
from weft.specs.fabric import FabricSpec
from weft_lab.network.plain_routes import PlainRoutes, plain_routes

Program = Literal["ip", "tc", "nft", "ip6tables"]

HEADERS_BYTES = 132
"""Room that a packet needs beside its payload: IPv6 40, UDP 8, MRC with its ICRC up to 44, and some to spare."""
LARGEST_MTU = 65_535
MTU = 9_216
"""Frames of the lab where nothing else is said: what switches call jumbo."""
LOWEST_RATE_BPS = 1_000_000
"""Slower links would spend whole seconds on a window of packets."""
QUEUE_MS = 20
"""Depth of a queue where nothing else is said, in milliseconds of its link."""

_LEAST_QUEUE = 16 * MTU
HIGH_CLASS = 1 << 16 | 0x10
"""The class of a port's scheduler that goes first, as the kernel writes it (1:10)."""
_LOW_SHARE = 20


@dataclass(frozen=True)
class Batch:
    """Lines for one program in one namespace; none for the machine's own."""

    program: Program
    namespace: str | None
    lines: tuple[str, ...]

    def argv(self) -> tuple[str, ...]:
        """Return the program and its arguments; the lines go to its standard input."""
        if self.program in ("ip", "tc"):
            inside = () if self.namespace is None else ("-n", self.namespace)
            return (self.program, *inside, "-batch", "-")
        assert self.namespace is not None, "rules belong to a namespace"
        reader = ("nft", "-f", "-") if self.program == "nft" else ("ip6tables-restore", "--noflush")
        return ("ip", "netns", "exec", self.namespace, *reader)

    def text(self) -> str:
        """Return what the program reads."""
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True)
class LabSpec:
    """What a lab is asked to be."""

    name: str
    """The beginning of all its namespaces' names."""
    fabric: FabricSpec
    """Its network."""
    rate_bps: int
    """Rate of every link, one direction."""
    queue_bytes: int
    """Bytes that wait at a port before further ones are dropped."""
    mtu: int = MTU
    """Largest packet of a link, with its IPv6 header."""
    trims: bool = False
    """Whether switches mark and trim (`network.switch_queue`)."""

    def __post_init__(self) -> None:
        """Refuse what cannot carry the fabric's packets."""
        needed = self.fabric.packet + HEADERS_BYTES
        if not needed <= self.mtu <= LARGEST_MTU:
            raise UsageError(
                f"an MTU of {self.mtu} is {'too small' if self.mtu < needed else 'too large'}: packets of "
                f"{self.fabric.packet} bytes and {HEADERS_BYTES} bytes of headers need {needed}, and Linux takes up to "
                f"{LARGEST_MTU}; leave --mtu out for {MTU}"
            )
        if self.rate_bps < LOWEST_RATE_BPS:
            raise UsageError(
                f"{RATE.format(self.rate_bps)} is too slow for a lab; links start at {RATE.format(LOWEST_RATE_BPS)}"
            )

    def as_json(self) -> dict[str, Any]:
        """Return the spec in a form that `from_json` reads."""
        return {
            "name": self.name,
            "fabric": self.fabric.as_written(),
            "rate_bps": self.rate_bps,
            "queue_bytes": self.queue_bytes,
            "mtu": self.mtu,
            "trims": self.trims,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "LabSpec":
        """Return the spec that `as_json` wrote."""
        sizes = (document["rate_bps"], document["queue_bytes"], document["mtu"], bool(document.get("trims")))
        return cls(document["name"], FabricSpec.model_validate(document["fabric"]), *sizes)


def queue_for(rate_bps: int) -> int:
    """Return the depth of a queue in bytes where none is asked for."""
    return max(_LEAST_QUEUE, rate_bps * QUEUE_MS // 8000)


def small_fabric(hosts: int, planes: int, spines: int, rate_bps: int) -> FabricSpec:
    """Return a two-tier fabric of `planes` planes with `spines` T1s in each and as many hosts under each T0."""
    if min(hosts, planes, spines) < 1:
        raise UsageError("a lab has at least one host, one plane and one spine")
    if hosts > 2 * spines * spines:
        raise UsageError(
            f"{spines} spines carry at most {2 * spines * spines} hosts ({spines} under each of {2 * spines} T0s), "
            f"not {hosts}; ask for more spines"
        )
    written = load_site("laptop").fabric.as_written()
    nic_rate = RATE.format(planes * rate_bps)
    written |= {"gpus": hosts, "planes": planes, "radix": 2 * spines, "nic_rate": nic_rate}
    written["port_rate"] = RATE.format(rate_bps)
    for part, rate in (("nic", nic_rate), ("optic", nic_rate)):
        written["parts"][part]["rate"] = rate
    written["parts"]["switch"]["capacity"] = RATE.format(2 * spines * rate_bps)
    return FabricSpec.model_validate(written)


@dataclass(frozen=True)
class LabPlan:
    """A lab worked out: its wiring, its addresses and the batches that make it."""

    spec: LabSpec

    @cached_property
    def addressing(self) -> Addressing:
        """Return who has which carrier."""
        return Addressing(shape_of(self.spec.fabric))

    @cached_property
    def topology(self) -> Topology:
        """Return every node and link."""
        return build(self.spec.fabric)

    @cached_property
    def tables(self) -> ForwardingPlane:
        """Return the static tables."""
        return ForwardingPlane(self.topology, self.addressing.plan)

    @cached_property
    def plain(self) -> PlainRoutes:
        """Return the ordinary routes."""
        return plain_routes(self.addressing, self.tables)

    @cached_property
    def export(self) -> linux.Export:
        """Return the network as Linux commands."""
        return linux.export(self.topology, self.addressing.plan, self.spec.name)

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Return the namespace of every node."""
        return self.export.namespaces

    def host_namespace(self, nic: int) -> str:
        """Return the namespace of a NIC."""
        return linux.namespace_of(self.topology, nic, self.spec.name)

    def ends(self, link: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return namespace and device at the lower end of a link, and at its upper end."""
        lower, upper = (
            (linux.namespace_of(self.topology, node, self.spec.name), linux.device_of(self.topology, node, port))
            for node, port in linux.ends_of(self.topology, link)
        )
        return lower, upper

    def settings(self) -> list[tuple[str, ...]]:
        """Return the commands that are not batches: what `sysctl` writes."""
        return [command.argv() for command in self.export.up if command.program == "sysctl"]

    def up(self) -> list[Batch]:
        """Return what makes the network, before `settings`: namespaces and links."""
        words = [command.words for command in self.export.up if command.namespace is None and command.program == "ip"]
        return [Batch("ip", None, lines(words))]

    def bring_to_life(self) -> list[Batch]:
        """Return what fills the namespaces, after `settings`: devices, addresses, routes, rates."""
        inside = {name: list[tuple[str, ...]]() for name in self.namespaces}
        for command in self.export.up:
            if command.namespace is not None and command.program == "ip":
                inside[command.namespace].append(command.words)
        batches: list[Batch] = []
        for node, name in enumerate(self.namespaces):
            ports = [int(port) for port in self.topology.neighbours(node).port]
            devices = [linux.device_of(self.topology, node, port) for port in ports]
            frames = [("link", "set", "dev", device, "mtu", str(self.spec.mtu)) for device in devices]
            plain = [*self.plain.own(node), *(words for port in ports for words in self.plain.at_port(node, port))]
            batches.append(Batch("ip", name, lines([*frames, *inside[name], *plain])))
            shaped = [line for device in devices for line in self.shaper(device, self.spec.rate_bps, first=True)]
            batches.append(Batch("tc", name, tuple(shaped)))
        return batches

    def shaper(self, device: str, rate_bps: int, *, first: bool = False) -> tuple[str, ...]:
        """Return the lines for `tc` that give a device its rate and its queues, the first time or another rate."""
        # A millisecond of tokens: the kernel's timers are good to that, and a queue seen by a packet stays true.
        burst = max(2 * self.spec.mtu, rate_bps // 8000)
        queue = max(_LEAST_QUEUE, self.spec.queue_bytes * rate_bps // self.spec.rate_bps)
        if not self.spec.trims:
            return (f"qdisc replace dev {device} root tbf rate {rate_bps}bit burst {burst} limit {queue}",)
        held = f"ceil {rate_bps}bit burst {burst} cburst {burst} quantum {self.spec.mtu}"
        return (
            *((f"qdisc replace dev {device} root handle 1: htb default 20",) if first else ()),
            f"class replace dev {device} parent 1: classid 1:1 htb rate {rate_bps}bit {held}",
            # Control and headers of cut packets go first; data has a little for sure and borrows the rest.
            f"class replace dev {device} parent 1:1 classid 1:10 htb rate {rate_bps}bit {held} prio 0",
            f"class replace dev {device} parent 1:1 classid 1:20 htb rate {rate_bps // _LOW_SHARE}bit {held} prio 1",
            *(f"qdisc replace dev {device} parent 1:{leaf} handle {leaf}: bfifo limit {queue}" for leaf in (10, 20)),
        )


def lines(words: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return commands as lines of a batch."""
    return tuple(shlex.join(one) for one in words)


def batches_of(commands: Iterable[linux.Command]) -> list[Batch]:
    """Return `ip` commands as batches, those of one namespace together where they follow each other."""
    return [
        Batch("ip", namespace, lines(command.words for command in group))
        for namespace, group in groupby(commands, key=lambda command: command.namespace)
    ]
