"""`weft fabric`: follow a packet through a site's network, print a switch's table, export the network to Linux."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from weft.cli.output import JsonFlag, console, print_json, print_table
from weft.core.errors import FailedError, UsageError
from weft.core.provenance import provenance
from weft.fabric import linux
from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import ForwardingAction, ForwardingPlane
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.addressing.walk import Hop, Walk, Walker, failures_named
from weft.fabric.graph.edges import HostRule, import_edges
from weft.fabric.graph.invariants import violations
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import Topology, build
from weft.specs import SiteSpec, load_site

MOST_NAMESPACES = 200
"""Namespaces that one machine is asked for without --force."""

_DOES = {
    ForwardingAction.SHIFT: "shift, look up again",
    ForwardingAction.FORWARD: "send",
    ForwardingAction.DELIVER: "deliver",
}


def path(
    site: str,
    /,
    *,
    src: Annotated[str, Parameter(help="NIC that sends: its number or name (5 or nic-i5).")],
    dst: Annotated[str, Parameter(help="NIC that receives.")],
    ev: Annotated[str, Parameter(help="Entropy value: a number, or plane and uplinks as p3-u17.")] = "0",
    down: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            consume_multiple=True,
            show_default=False,
            help="What has failed: names of links, switches, optics or NICs.",
        ),
    ] = (),
    json: JsonFlag = False,
) -> None:
    """Follow a packet through the static tables of a site, hop by hop; status 1 where it does not arrive.

    Parameters
    ----------
    site
        Built-in name or path of a site file.

    """
    spec = load_site(site)
    addressing = Addressing(shape_of(spec.fabric))
    # Names are checked before two million links are written out.
    source, destination = _nic(addressing, src), _nic(addressing, dst)
    entropy = addressing.evs.parse(ev)
    carrier = addressing.carrier(source, destination, entropy)
    topology = build(spec.fabric)
    walk = Walker(ForwardingPlane(topology, addressing.plan), failures_named(topology, down)).walk(source, carrier)
    names = (topology.name_of_node(source), topology.name_of_node(destination), addressing.evs.name(entropy))
    if json:
        print_json(_path_document(spec, topology, walk, names=names, ev=entropy, carrier=carrier, down=down))
    else:
        title = f"{names[0]} to {names[1]} on EV {entropy} ({names[2]}): {srv6.to_text(carrier)}"
        columns = ("node", "uSID matched", "remaining address", "port", "link")
        print_table(title, columns, [_hop_cells(topology, hop) for hop in walk.hops], words=range(len(columns)))
    if walk.arrived != destination:
        raise FailedError(f"the packet {walk.death}" if walk.death else "the packet arrived at another NIC")


def import_network(
    file: Path,
    /,
    *,
    hosts: Annotated[str, Parameter(help="Which nodes are hosts: name:gpu* or degree:1.")] = "degree:1",
    json: JsonFlag = False,
) -> None:
    """Read any network from an edge list and say what it is: hosts, switches by tier, links, planes, what is odd.

    Parameters
    ----------
    file
        CSV with columns a and b, and optionally rate, length and plane; one line for each link.

    """
    rule = HostRule.parse(hosts)
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{file} can not be read: {reason}") from None
    topology = import_edges(text, rule, file=str(file))
    tiers = [int(count) for count in np.bincount(topology.switches.tier)]
    document = {
        "hosts": topology.nics,
        "switches": {f"t{tier}": count for tier, count in enumerate(tiers)},
        "links": len(topology.links),
        "planes": len(np.unique(topology.links.plane)),
        "odd": violations(topology),
    }
    if json:
        print_json({**document, "provenance": provenance({"edges": text, "hosts": str(rule)}).as_json()})
        return
    rows = [(name, str(value)) for name, value in document.items() if name not in ("odd", "switches")]
    rows[1:1] = [(f"switches, tier {tier}", f"{count:,}") for tier, count in enumerate(tiers)]
    print_table(f"{file}: a network of {topology.nics:,} hosts", ("what", "count"), rows)
    for sentence in document["odd"]:
        console().print(f"odd: {sentence}", markup=False)


def table(
    site: str,
    /,
    *,
    switch: Annotated[str, Parameter(help="Name of the switch, such as t0-p3-i17.")],
    json: JsonFlag = False,
) -> None:
    """Print the static forwarding table of one switch.

    Parameters
    ----------
    site
        Built-in name or path of a site file.

    """
    spec = load_site(site)
    topology = build(spec.fabric)
    number = topology.names.find(switch, ("switch",))[1]
    plan = Addressing(shape_of(spec.fabric)).plan
    node = topology.switch_node(number)
    rows: list[dict[str, Any]] = []
    for entry in ForwardingPlane(topology, plan).table_of(number).entries():
        sends = entry.action is ForwardingAction.FORWARD
        link = int(topology.ports.of(node)[entry.port]) if sends else None
        rows.append({
            "match": entry.match(plan.block),
            "usid": entry.usid,
            "action": entry.action.name.lower(),
            "port": entry.port if sends else None,
            "link": None if link is None else topology.name_of_link(link),
            "to": None if link is None else topology.name_of_node(topology.far_end(link, node)),
        })  # fmt: skip
    if json:
        print_json({"switch": switch, "entries": rows, "provenance": _provenance(spec)})
        return
    columns = ("match", "does", "port", "link", "to")
    shown = [
        (
            row["match"],
            _DOES[ForwardingAction[row["action"].upper()]],
            _text(row["port"]),
            _text(row["link"]),
            _text(row["to"]),
        )
        for row in rows
    ]
    print_table(f"{switch}: {len(rows)} entries, never changed", columns, shown, words=range(len(columns)))


def export(
    site: str,
    /,
    *,
    prefix: Annotated[str, Parameter(help="Beginning of every namespace's name, up to four letters.")] = "w",
    down_script: Annotated[bool, Parameter(negative="", help="Print what removes it instead.")] = False,
    force: Annotated[bool, Parameter(negative="", help="Print it however large it is.")] = False,
    json: JsonFlag = False,
) -> None:
    """Print a site's fabric as a shell script of Linux commands (iproute2): namespaces, veth links, SRv6 routes.

    Parameters
    ----------
    site
        Built-in name or path of a site file.

    """
    spec = load_site(site)
    shape = shape_of(spec.fabric)
    needed = shape.hosts + shape.switches
    if needed > MOST_NAMESPACES and not force:
        raise UsageError(
            f"{site} needs {needed:,} network namespaces ({shape.hosts:,} NICs, {shape.switches:,} switches), but one "
            f"machine carries {MOST_NAMESPACES} well; export a smaller site such as laptop, or add --force"
        )
    topology = build(spec.fabric)
    made = linux.export(topology, Addressing(shape).plan, prefix)
    if json:
        commands = made.down if down_script else made.up
        print_json({"commands": [list(one.argv()) for one in commands], "provenance": _provenance(spec)})
        return
    script = made.down_script() if down_script else made.up_script()
    console().out(script, end="", highlight=False)


def _nic(addressing: Addressing, text: str) -> int:
    """Return the NIC that `text` means, a number or a name."""
    grid = addressing.shape.nic
    number = re.fullmatch(r"(?:nic-i)?(\d{1,9})", text, re.ASCII)
    if number is None or int(number[1]) >= grid.size:
        last = grid.size - 1
        raise UsageError(f"there is no NIC {text!r}; they run from 0 to {last}, or from nic-i0 to nic-i{last}")
    return int(number[1])


def _hop_cells(topology: Topology, hop: Hop) -> tuple[str, ...]:
    return (
        topology.name_of_node(hop.node),
        ", ".join(f"{usid:04x}" for usid in hop.matched),
        srv6.to_text(hop.remaining),
        _text(hop.port),
        "" if hop.link is None else topology.name_of_link(hop.link),
    )


def _path_document(
    spec: SiteSpec,
    topology: Topology,
    walk: Walk,
    *,
    names: tuple[str, str, str],
    ev: int,
    carrier: int,
    down: Sequence[str],
) -> dict[str, Any]:
    source, destination, ev_name = names
    hops = [
        {
            "node": topology.name_of_node(hop.node),
            "matched": list(hop.matched),
            "remaining": srv6.to_text(hop.remaining),
            "port": hop.port,
            "link": None if hop.link is None else topology.name_of_link(hop.link),
        }
        for hop in walk.hops
    ]
    return {
        "source": source,
        "destination": destination,
        "ev": ev,
        "ev_name": ev_name,
        "carrier": srv6.to_text(carrier),
        "down": list(down),
        "arrived": walk.arrived is not None,
        "death": walk.death,
        "hops": hops,
        "provenance": _provenance(spec),
    }


def _provenance(spec: SiteSpec) -> dict[str, Any]:
    return provenance(spec.as_written()).as_json()


def _text(value: object) -> str:
    return "" if value is None else str(value)
