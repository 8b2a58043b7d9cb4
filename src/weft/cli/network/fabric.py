"""`weft fabric`: follow a packet through a site's network, print a switch's table, export the network to Linux."""

import json as json_format
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from cyclopts import Parameter

from weft.cli.output import JsonFlag, SiteArgument, counting, print_json, print_table, say, write_text
from weft.core.errors import FailedError, UsageError
from weft.core.input_files import read_text
from weft.core.provenance import provenance
from weft.fabric import formats, infragraph, linux, netbox
from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import ForwardingAction, ForwardingPlane
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.addressing.walk import Hop, Walk, Walker, failures_named
from weft.fabric.graph.edges import HostRule, import_edges
from weft.fabric.graph.invariants import violations
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import Topology, build
from weft.specs import SiteSpec, load_site

Format: TypeAlias = Literal[
    "iproute2", "sonic", "frr", "cabling", "containerlab", "nccl-topo", "nccl-topology", "infragraph"
]

MOST_NAMESPACES = 200
"""Namespaces that one machine is asked for without --force."""

_DOES = {
    ForwardingAction.SHIFT: "shift, look up again",
    ForwardingAction.FORWARD: "send",
    ForwardingAction.DELIVER: "deliver",
}


def path(
    site: SiteArgument,
    /,
    *,
    src: Annotated[str, Parameter(help="Sending NIC: number or name (5 or nic-i5).")],
    dst: Annotated[str, Parameter(help="Receiving NIC.")],
    ev: Annotated[str, Parameter(help="Entropy value: a number, or plane and uplinks as p3-u17.")] = "0",
    down: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            consume_multiple=True,
            show_default=False,
            help="Failed parts: links, switches, optics or NICs.",
        ),
    ] = (),
    json: JsonFlag = False,
) -> None:
    """Follow a packet through the static tables of a site, hop by hop; status 1 where it does not arrive."""
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
        print_json({
            "source": names[0], "destination": names[1], "ev": entropy, "ev_name": names[2],
            "carrier": srv6.to_text(carrier), "down": list(down), "arrived": walk.arrived is not None,
            "death": walk.death, "hops": _path_hops(topology, walk), "provenance": _provenance(spec),
        })  # fmt: skip
    else:
        title = f"{names[0]} to {names[1]} on EV {entropy} ({names[2]}): {srv6.to_text(carrier)}"
        columns = ("node", "uSID matched", "remaining address", "port", "link")
        print_table(title, columns, [_hop_cells(topology, hop) for hop in walk.hops], words=range(len(columns)))
    if walk.arrived != destination:
        raise FailedError(f"the packet {walk.death}" if walk.death else "the packet arrived at another NIC")


def import_network(
    file: Annotated[
        Path,
        Parameter(
            help="CSV with columns a and b, and optionally rate, length and plane; an InfraGraph; cables of NetBox."
        ),
    ],
    /,
    *,
    hosts: Annotated[
        str | None,
        Parameter(help="Which nodes are hosts: name:gpu* or degree:1; default: the file's own NICs, or degree:1."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Read any network from its links and report its hosts, switches by tier, links, planes and oddities."""
    asked = None if hosts is None else HostRule.parse(hosts)
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{file} cannot be read: {reason}") from None
    text, own = _edge_list(text, str(file))
    rule = asked or own or HostRule.parse("degree:1")
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
        say(f"odd: {sentence}")


def _edge_list(text: str, file: str) -> tuple[str, HostRule | None]:
    """Return what was written in another tool's form as an edge list, and which nodes are hosts if it says so."""
    if text.lstrip()[:1] not in {"{", "["}:
        found = netbox.edges_of_netbox_csv(text, file) if netbox.is_netbox_csv(text.split("\n", 1)[0]) else text
        return found, None
    try:
        document = json_format.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is no whole JSON: {error}") from None
    if isinstance(document, dict) and "instances" in document:
        made = infragraph.edges_of_infragraph(document, file)
        return made.text, HostRule(names=made.hosts) if made.hosts else None
    return netbox.edges_of_netbox_json(document, file), None


def table(
    site: SiteArgument,
    /,
    *,
    switch: Annotated[str, Parameter(help="Name of the switch, such as t0-p3-i17.")],
    json: JsonFlag = False,
) -> None:
    """Print the static forwarding table of one switch."""
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
    print_table(f"{switch}: {len(rows)} entries, static", columns, shown, words=range(len(columns)))


def export(
    site: SiteArgument,
    /,
    *,
    prefix: Annotated[str, Parameter(help="Prefix of the namespaces' names, up to four letters.")] = "w",
    down_script: Annotated[bool, Parameter(negative="", help="Print the commands that remove it instead.")] = False,
    form: Annotated[Format, Parameter(name="--format", help="Tool that is to read it.")] = "iproute2",
    switch: Annotated[str | None, Parameter(help="Switch whose sonic or frr file to print, as t0-p0-i0.")] = None,
    folder: Annotated[Path | None, Parameter(help="Write the sonic or frr file of every switch into FOLDER.")] = None,
    force: Annotated[bool, Parameter(negative="", help="Print it however large it is.")] = False,
    json: JsonFlag = False,
) -> None:
    """Print a site's fabric for another tool: Linux commands (iproute2), SONiC, FRR, cabling, containerlab, NCCL."""
    spec = load_site(site)
    per_switch = form in {"sonic", "frr"}
    if (switch is not None or folder is not None) and not per_switch:
        raise UsageError(f"--format {form} is one file for the whole fabric; leave --switch and --folder out")
    if form != "iproute2":
        if json or down_script:
            raise UsageError(f"--format {form} is one text; leave --json and --down-script out")
        _print_format(spec, form, switch, folder)
        return
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
    write_text(script)


def _print_format(spec: SiteSpec, form: Format, switch: str | None, folder: Path | None) -> None:
    """Print a fabric, or a switch of it, in another tool's form."""
    if form in {"nccl-topo", "nccl-topology"}:
        write_text(formats.nccl_topology(spec))
        return
    topology = build(spec.fabric)
    plan = Addressing(shape_of(spec.fabric)).plan
    if form not in {"sonic", "frr"}:
        make = {
            "cabling": lambda: formats.cabling(topology),
            "infragraph": lambda: infragraph.infragraph(topology, spec.name),
            "containerlab": lambda: formats.containerlab(topology, spec.name),
        }
        write_text(make[form]())
        return
    if (switch is None) == (folder is None):
        raise UsageError(
            f"--format {form} is a file for each switch; name one with --switch, or a folder with --folder"
        )
    if switch is not None:
        _, number = topology.names.find(switch, ("switch",))
        node = topology.switch_node(number)
        text = (formats.sonic if form == "sonic" else formats.frr)(topology, plan, node)
        write_text(text)
        return
    assert folder is not None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--folder {folder} exists and is not an empty folder; name a new one")
    try:
        folder.mkdir(exist_ok=True)
        with counting("writing", len(topology.switches.tier)) as step:
            for name, text in formats.of_switches(topology, plan, form):
                (folder / name).write_text(text)
                step()
    except OSError as error:
        raise FailedError(f"--folder {folder} cannot be written: {error.strerror}") from None
    say(f"{len(topology.switches.tier):,} files in {folder}")


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


def _path_hops(topology: Topology, walk: Walk) -> list[dict[str, Any]]:
    return [
        {
            "node": topology.name_of_node(hop.node),
            "matched": list(hop.matched),
            "remaining": srv6.to_text(hop.remaining),
            "port": hop.port,
            "link": None if hop.link is None else topology.name_of_link(hop.link),
        }
        for hop in walk.hops
    ]


def _provenance(spec: SiteSpec) -> dict[str, Any]:
    return provenance(spec.as_written()).as_json()


def _text(value: object) -> str:
    return "" if value is None else str(value)
