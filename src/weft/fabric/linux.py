"""A fabric as Linux commands: a network namespace for every node, a veth pair for every link, its tables as routes.

Pure: commands are data here, and other layers run them. They say exactly what `tables` says, entry by entry: an own
uSID becomes a seg6local End with the NEXT-CSID flavour (Linux 6.1 or newer), a neighbour's uSID a route through its
link, a NIC's last uSID a local route. A program reaches a NIC by an ordinary `sendto` to a carrier; no SRH and no
encapsulation is needed. Rates and delays are not imitated.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from weft.core.errors import UsageError
from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import NO_PORT, ForwardingAction, ForwardingEntry, ForwardingPlane
from weft.fabric.addressing.srv6 import UsidPlan
from weft.fabric.graph.topology import Topology

LONGEST_NAME = 15
"""Characters of a device name in Linux (IFNAMSIZ less its end)."""
NIC_NETWORK = 0xFD776566740000000000000000000000
"""Addresses of the NICs themselves: fd77:6566:7400::/64, the first of them ::1."""

_PREFIX = re.compile(r"[a-z][a-z0-9]{0,3}")
_LOWER, _UPPER = "fe80::1", "fe80::2"
_HARDWARE = {_LOWER: "02:00:00:00:00:01", _UPPER: "02:00:00:00:00:02"}
"""Hardware addresses by end. Every link is a network of its own, so all links share them."""
_OWN_DEVICES = ("usid", "usid-end")
_SWITCH_SETTINGS = ("net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.default.forwarding=1")
_EVERY_SETTING = ("net.ipv6.conf.all.seg6_enabled=1", "net.ipv6.conf.default.seg6_enabled=1")


@dataclass(frozen=True)
class Command:
    """One command to run as root."""

    words: tuple[str, ...]
    """Arguments of `ip`, or the settings that `sysctl` writes."""
    namespace: str | None = None
    """The namespace it acts in; none for the machine's own."""
    program: str = "ip"
    """`ip` or `sysctl`."""

    def argv(self) -> tuple[str, ...]:
        """Return the program and its arguments."""
        if self.program == "sysctl":
            assert self.namespace is not None
            return ("ip", "netns", "exec", self.namespace, "sysctl", "-qw", *self.words)
        return ("ip", *(() if self.namespace is None else ("-n", self.namespace)), *self.words)


@dataclass(frozen=True)
class Export:
    """The commands that make a fabric, and those that remove it."""

    namespaces: tuple[str, ...]
    """The namespace of every node: NICs first, then switches."""
    up: tuple[Command, ...]
    """Makes everything, in order."""
    down: tuple[Command, ...]
    """Removes everything; links go with their namespaces."""

    def up_script(self) -> str:
        """Return a shell script that makes the fabric; where it fails, it removes what it made."""
        lines = [
            "#!/bin/sh",
            "# Makes a fabric of network namespaces. Run as root. Needs iproute2 6.1 and Linux 6.1 or newer.",
            "set -eu",
            f"namespaces={shlex.quote(' '.join(self.namespaces))}",
            "for name in $namespaces; do",
            '    if [ -e "/var/run/netns/$name" ]; then',
            '        echo "namespace $name exists already; choose another prefix or remove it" >&2',
            "        exit 1",
            "    fi",
            "done",
            'undo() { for name in $namespaces; do ip netns del "$name" 2>/dev/null || true; done; }',
            "trap 'undo; exit 1' INT TERM",
            "trap '[ $? -eq 0 ] || undo' EXIT",
        ]
        return "\n".join([*lines, *_script_lines(self.up)]) + "\n"

    def down_script(self) -> str:
        """Return a shell script that removes the fabric, or what there is of it."""
        lines = ["#!/bin/sh", "# Removes a fabric of network namespaces. Run as root.", "set -u"]
        removals = [f"{shlex.join(command.argv())} 2>/dev/null || true" for command in self.down]
        return "\n".join([*lines, *removals]) + "\n"


def export(topology: Topology, plan: UsidPlan, prefix: str = "w") -> Export:
    """Return the commands that make `topology` out of namespaces whose names begin with `prefix`."""
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"{prefix!r} cannot begin names; write one to four of a-z and 0-9, a letter first")
    names = tuple(namespace_of(topology, node, prefix) for node in range(topology.nodes))
    tables = ForwardingPlane(topology, plan)
    up = [Command(("netns", "add", name)) for name in names]
    up += [_settings(name, switch=node >= topology.nics) for node, name in enumerate(names)]
    up += [_wire(topology, names, link) for link in range(len(topology.links))]
    for node, name in enumerate(names):
        up += [Command(words, name) for words in _node(tables, node)]
    return Export(names, tuple(up), tuple(Command(("netns", "del", name)) for name in names))


def namespace_of(topology: Topology, node: int, prefix: str = "w") -> str:
    """Return the namespace of a node: "w-h5" for NIC 5, "w-t0p3i17" for a built switch, "w-s17" for an imported one."""
    if node < topology.nics:
        name = f"{prefix}-h{node}"
    elif topology.shape is None:
        name = f"{prefix}-s{node - topology.nics}"
    else:
        name = f"{prefix}-{topology.name_of_node(node).replace('-', '')}"
    if len(name) > LONGEST_NAME:
        raise UsageError(f"the namespace name {name} is longer than {LONGEST_NAME}; choose a shorter prefix")
    return name


def device_of(topology: Topology, node: int, port: int) -> str:
    """Return the device at a port: "p3" at a NIC (there, ports are planes), "e17" at a switch."""
    return f"{'p' if node < topology.nics else 'e'}{port}"


def addresses_at(topology: Topology, node: int, port: int) -> tuple[str, str]:
    """Return the link-local addresses at a port: its own, and that of the other end of its link."""
    link = int(topology.ports.of(node)[port])
    return (_LOWER, _UPPER) if topology.links.lower[link] == node else (_UPPER, _LOWER)


def nic_address(nic: int) -> str:
    """Return the address of a NIC itself, which its packets carry as their source."""
    return srv6.to_text(NIC_NETWORK + nic + 1)


def _settings(namespace: str, *, switch: bool) -> Command:
    return Command((*(_SWITCH_SETTINGS if switch else ()), *_EVERY_SETTING), namespace, "sysctl")


def _wire(topology: Topology, names: tuple[str, ...], link: int) -> Command:
    (lower, lower_port), (upper, upper_port) = ends_of(topology, link)
    near = ("name", device_of(topology, lower, lower_port), "address", _HARDWARE[_LOWER], "netns", names[lower])
    far = ("name", device_of(topology, upper, upper_port), "address", _HARDWARE[_UPPER], "netns", names[upper])
    return Command(("link", "add", *near, "type", "veth", "peer", *far))


def link_down(topology: Topology, link: int, prefix: str = "w") -> tuple[Command, ...]:
    """Return the commands that fail a link: both ends go down."""
    return tuple(
        Command(("link", "set", "dev", device_of(topology, node, port), "down"), namespace_of(topology, node, prefix))
        for node, port in ends_of(topology, link)
    )


def link_up(tables: ForwardingPlane, link: int, prefix: str = "w") -> tuple[Command, ...]:
    """Return the commands that bring a failed link back, with the addresses and routes that Linux drops with it."""
    return tuple(
        Command(words, namespace_of(tables.topology, node, prefix))
        for node, port in ends_of(tables.topology, link)
        for words in _port(tables, node, port, _by_port(tables, node))
    )


def ends_of(topology: Topology, link: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return node and port at the lower end of a link, and at its upper end."""
    links = topology.links
    return (
        (int(links.lower[link]), int(links.lower_port[link])),
        (int(links.upper[link]), int(links.upper_port[link])),
    )


def _node(tables: ForwardingPlane, node: int) -> list[tuple[str, ...]]:
    """Return what is done inside the namespace of one node."""
    words: list[tuple[str, ...]] = [("link", "set", "dev", "lo", "up")]
    if node < tables.topology.nics:
        words.append(("address", "add", f"{nic_address(node)}/128", "dev", "lo", "nodad"))
    else:
        # A pair of devices of its own carries the switch's uSIDs, so that no failing link takes them along. Linux
        # refuses them on lo, and a veth pair needs no driver that the links do not need anyway.
        words.append(("link", "add", "name", _OWN_DEVICES[0], "type", "veth", "peer", "name", _OWN_DEVICES[1]))
        words += [("link", "set", "dev", device, "addrgenmode", "none", "up") for device in _OWN_DEVICES]
    by_port = _by_port(tables, node)
    words += [_own(entry, tables.plan.block) for entry in by_port[NO_PORT]]
    for port in tables.topology.neighbours(node).port.tolist():
        words += _port(tables, node, port, by_port)
    return words


def _by_port(tables: ForwardingPlane, node: int) -> dict[int, list[ForwardingEntry]]:
    """Return the entries of a node's table, those that send nothing under `NO_PORT`."""
    found: dict[int, list[ForwardingEntry]] = {}
    for entry in tables.of_node(node).entries():
        found.setdefault(entry.port, []).append(entry)
    return found


def _own(entry: ForwardingEntry, block: int) -> tuple[str, ...]:
    match = entry.match(block)
    if entry.action is ForwardingAction.DELIVER:
        # On lo, so that it is the host's own whichever plane's port a packet comes in by.
        return ("route", "add", "local", match, "dev", "lo")
    flavour = ("flavors", "next-csid", "lblen", "32", "nflen", "16")
    return ("route", "add", match, "encap", "seg6local", "action", "End", *flavour, "dev", _OWN_DEVICES[0])


def _port(
    tables: ForwardingPlane, node: int, port: int, by_port: Mapping[int, Sequence[ForwardingEntry]]
) -> list[tuple[str, ...]]:
    """Return what brings one port to life: its device, its address, its neighbour and the routes through it."""
    topology = tables.topology
    device, (own, gateway) = device_of(topology, node, port), addresses_at(topology, node, port)
    matches = [entry.match(tables.plan.block) for entry in by_port[port]]
    return [
        # No automatic link-local address: both ends are known, so that routes can name the other one.
        ("link", "set", "dev", device, "addrgenmode", "none", "up"),
        ("address", "add", f"{own}/64", "dev", device, "nodad"),
        # Nothing is asked over the link: on a lossy one, a lost answer would stop all its packets for a second.
        ("neighbour", "replace", gateway, "lladdr", _HARDWARE[gateway], "dev", device, "nud", "permanent"),
        *(("route", "add", match, "via", gateway, "dev", device) for match in matches),
    ]


def _script_lines(commands: Iterable[Command]) -> list[str]:
    """Return commands as shell lines; runs of `ip` in one namespace become one batch, which is far quicker."""
    lines: list[str] = []
    for (program, namespace), group in groupby(commands, key=lambda command: (command.program, command.namespace)):
        if program == "sysctl" or namespace is None:
            lines += [shlex.join(command.argv()) for command in group]
        else:
            batch = [" ".join(command.words) for command in group]
            lines += [f"ip -n {shlex.quote(namespace)} -batch - <<'END'", *batch, "END"]
    return lines
