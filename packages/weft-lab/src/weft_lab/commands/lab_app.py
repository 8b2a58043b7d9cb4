"""`weft lab`: a real multi-plane SRv6 fabric on this machine, in network namespaces; its faults and its prober.

Everything that it does is `weft_lab`'s.
"""

import json as to_json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from weft.cli.output import JsonFlag, print_json, print_table, say, writing, written_to
from weft.core import quantity
from weft.core.errors import UsageError
from weft.core.provenance import provenance
from weft.core.quantity import QuantityError
from weft.fabric.fault_localization import Health
from weft.specs import load_site
from weft_lab.measurements.bench import rate_bps, share_per_million
from weft_lab.measurements.survey import PROBES, Survey, survey
from weft_lab.network import faults, lab, switch_queue
from weft_lab.network.faults import FaultChange, Faults, Filter, Into
from weft_lab.network.lab import Lab
from weft_lab.network.machine import machine_for
from weft_lab.network.plan import MTU, LabPlan, LabSpec, queue_for, small_fabric
from weft_lab.network.record import own_records as records
from weft_lab.network.status import LabStatus, status_of

MOST_NAMESPACES = 200
"""Namespaces that one machine is asked for."""

app = App(
    name="lab",
    help="Build a real SRv6 fabric on this machine, break it, send over it.",
    help_format="plaintext",
    help_epilogue="Links and switches are called link0-p3-i5, link1-p3-i0-u1, t1-p0-i1; * stands for anything.",
)

Name = Annotated[str, Parameter(name="--name", help="Which lab; its namespaces begin with it.")]
_RATE = "200 Mb/s"
MOST_PROBES = 1_000_000


@app.command
def up(
    site: str | None = None,
    /,
    *,
    hosts: Annotated[int, Parameter(help="Hosts, where no site is named.")] = 4,
    planes: Annotated[int, Parameter(help="Planes, where no site is named.")] = 4,
    spines: Annotated[int, Parameter(help="T1s of a plane, where no site is named.")] = 2,
    rate: Annotated[str | None, Parameter(help="Link rate; default: the site's, or 200 Mb/s.")] = None,
    queue: Annotated[str | None, Parameter(help="Queue depth; default: 20 ms of the link.")] = None,
    mtu: Annotated[int, Parameter(help="Largest packet of a link, in bytes.")] = MTU,
    trims: Annotated[
        bool, Parameter(name="--trims", negative=(), help="Switches mark packets, and cut them to headers.")
    ] = False,
    name: Name = "w",
    json: JsonFlag = False,
) -> None:
    """Make a lab: hosts, T0 and T1 switches as namespaces, every link with its rate, static tables.

    Parameters
    ----------
    site
        Built-in name or path of a site file; or say hosts, planes and spines.

    """
    asked_bps = None if rate is None else rate_bps(rate)
    if site is None:
        fabric = small_fabric(hosts, planes, spines, asked_bps or rate_bps(_RATE))
    else:
        fabric = load_site(site).fabric
    port_bps = asked_bps or fabric.port_rate
    queue_bytes = queue_for(port_bps) if queue is None else _read(quantity.SIZE, queue)
    spec = LabSpec(name, fabric, port_bps, queue_bytes, mtu, trims and _can_trim(name))
    shape = LabPlan(spec).addressing.shape
    if shape.hosts + shape.switches > MOST_NAMESPACES:
        raise UsageError(
            f"this lab needs {shape.hosts + shape.switches:,} network namespaces, but one machine carries "
            f"{MOST_NAMESPACES} well; take fewer hosts, planes or spines, or a smaller site such as laptop"
        )
    began = time.monotonic()
    made = lab.make(records(), spec)
    _print_status(made, json=json, took_s=time.monotonic() - began)


def _can_trim(name: str) -> bool:
    """Return whether switches of this lab can mark and trim; say why where they cannot."""
    why = switch_queue.missing(machine_for(name))
    if why is not None:
        say(f"{why}; this lab drops at the tail of its queues instead")
    return why is None


@app.command
def status(*, name: Name = "w", json: JsonFlag = False) -> None:
    """Say what a lab is, what is wrong with it, and what its planes have carried."""
    _print_status(lab.find(records(), name), json=json)


@app.command(name="exec")
def execute(
    host: str,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, help="The command and its arguments.")],
    name: Name = "w",
) -> None:
    """Run a command at a host or switch of a lab and end with its status: weft lab exec 0 -- ping fd77:6566:7400:1::2.

    Parameters
    ----------
    host
        Number or name of a NIC, or name of a switch.

    """
    found = lab.find(records(), name)
    node = found.node(host)
    if not command:
        raise UsageError("name a command to run there: weft lab exec 0 -- ip -6 route")
    sys.stdout.flush()
    sys.exit(lab.execute(found, node, list(command)))


@app.command
def cut(*links: str, name: Name = "w", json: JsonFlag = False) -> None:
    """Pull the cables of links: both ends go down.

    Parameters
    ----------
    links
        Names of links; * stands for any.

    """
    _change(name, links, ("link",), lambda plan, now, link, _by: faults.cut(plan, now, link), json=json)


@app.command
def heal(*targets: str, name: Name = "w", json: JsonFlag = False) -> None:
    """End everything that is wrong with links or switches; with everything, where none is named.

    Parameters
    ----------
    targets
        Names of links or switches; * stands for any.

    """
    found = lab.find(records(), name)
    wrong = found.faults
    every = (*sorted({*wrong.cut, *wrong.loss, *wrong.slow}), *sorted(wrong.black_holes))
    _change(name, targets or every, ("link", "switch"), faults.heal, json=json, may_be_none=True)


@app.command
def blackhole(*switches: str, name: Name = "w", json: JsonFlag = False) -> None:
    """Let switches stay up, answer their neighbours and forward nothing.

    Parameters
    ----------
    switches
        Names of switches; * stands for any.

    """
    _change(name, switches, ("switch",), faults.black_hole, json=json)


@app.command
def loss(
    link: str,
    share: str,
    /,
    *,
    into: Annotated[Into, Parameter(help="Which end drops: the lower is the one nearer to the NICs.")] = "both",
    name: Name = "w",
    json: JsonFlag = False,
) -> None:
    """Let a link drop a random share of what arrives at its ends.

    Parameters
    ----------
    link
        Name of a link; * stands for any.
    share
        Share of the packets: 1%, 0.1%; 0% ends it.

    """
    per_million = share_per_million(share)
    _change(
        name,
        (link,),
        ("link",),
        lambda plan, now, one, by: faults.lose(plan, now, one, per_million, into=into, by=by),
        json=json,
    )


@app.command
def slow(link: str, rate: str, /, *, name: Name = "w", json: JsonFlag = False) -> None:
    """Give a link another rate.

    Parameters
    ----------
    link
        Name of a link; * stands for any.
    rate
        The rate, one direction: 100Mb/s.

    """
    slower = rate_bps(rate)
    _change(name, (link,), ("link",), lambda plan, now, one, _by: faults.slow(plan, now, one, slower), json=json)


@app.command
def flap(
    link: str,
    /,
    *,
    times: Annotated[int, Parameter(help="How often it goes down.")] = 5,
    down: Annotated[str, Parameter(help="How long it stays down.")] = "200 ms",
    up: Annotated[str, Parameter(help="How long it stays up in between.")] = "800 ms",
    name: Name = "w",
    json: JsonFlag = False,
) -> None:
    """Let a link go down and come back, again and again; it is up at the end, also when interrupted.

    Parameters
    ----------
    link
        Name of a link; * stands for any.

    """
    spans_s = [_read(quantity.TIME, text) / 1e12 for text in (down, up)]
    found = lab.find(records(), name)
    links = found.names(link, ("link",))
    if any(one in found.faults.cut for one in links):
        raise UsageError(f"{link} is cut; heal it before it can flap")
    try:
        for turn in range(times):
            found.change(links, lambda plan, now, one, _by: faults.cut(plan, now, one))
            time.sleep(spans_s[0])
            found.change(links, lambda plan, now, one, _by: faults.join(plan, now, one))
            time.sleep(spans_s[1] if turn + 1 < times else 0)
    finally:
        found.change(links, lambda plan, now, one, _by: faults.join(plan, now, one))
    _print_changed(found, links, json=json)


@app.command(name="map")
def survey_links(
    *,
    probes: Annotated[int, Parameter(help="Probes on every path.")] = PROBES,
    deny: Annotated[
        Path | None,
        Parameter(name="--deny", help="Write the paths to avoid into FILE, for the transport to read."),
        written_to("--deny"),
    ] = None,
    name: Name = "w",
    json: JsonFlag = False,
) -> None:
    """Probe every link from the hosts and say which are dead or lossy; status 0 whatever is found."""
    if not 1 <= probes <= MOST_PROBES:
        raise UsageError(f"--probes {probes}: write a number from 1 to {MOST_PROBES:,}")
    found = survey(lab.find(records(), name), probes)
    if deny is not None:
        _write_denials(deny, found)
    if json:
        print_json({**found.as_json(), "provenance": provenance(found.lab.record.spec.as_json()).as_json()})
        return
    _print_survey(found)


app.command(
    "weft_lab.commands.traffic_commands:ping", name="ping", help="Send small writes by MRC and time the round trips."
)
app.command(
    "weft_lab.commands.traffic_commands:bench",
    name="bench",
    help="Send a stream by MRC, and TCP beside it, through faults.",
)
app.command(
    "weft_lab.commands.capture_command:capture", name="capture", help="Write the packets of a link to a pcapng file."
)


@app.command
def down(*, name: Name = "w", json: JsonFlag = False) -> None:
    """Remove a lab, or what is left of one, with every process in it; nothing to do is fine."""
    if not re.fullmatch(r"[a-z][a-z0-9]{0,3}", name):
        raise UsageError(f"{name!r} is not the name of a lab; names are one to four of a-z and 0-9, a letter first")
    removed = lab.remove(records(), name)
    if json:
        print_json({"name": name, "namespaces": removed.namespaces, "processes": removed.processes})
    elif removed:
        ended = f", ended {removed.processes} processes in them" if removed.processes else ""
        say(f"removed {removed.namespaces} namespaces of the lab {name}{ended}")
    else:
        say(f"there is no lab called {name}; nothing to remove")


def _change(
    name: str,
    patterns: tuple[str, ...],
    kinds: tuple[Any, ...],
    step: Callable[[LabPlan, Faults, str, Filter], FaultChange],
    *,
    json: bool,
    may_be_none: bool = False,
) -> None:
    found = lab.find(records(), name)
    if not patterns and not may_be_none:
        raise UsageError(f"name at least one {kinds[0]}")
    names = [one for pattern in patterns for one in found.names(pattern, kinds)]
    found.change(names, step)
    _print_changed(found, names, json=json)


def _print_changed(found: Lab, names: list[str], *, json: bool) -> None:
    if json:
        print_json({"name": found.record.spec.name, "changed": names, "faults": found.faults.as_json()})
        return
    for one in names:
        say(f"{one}: {', '.join(found.faults.of(one)) or 'fine'}")
    if not names:
        say("nothing was wrong")


def _print_status(found: Lab, *, json: bool, took_s: float | None = None) -> None:
    state: LabStatus = status_of(found)
    if json:
        took = {} if took_s is None else {"took_s": took_s}
        print_json({**state.as_json(), **took, "provenance": provenance(found.record.spec.as_json()).as_json()})
        return
    spec, shape = found.record.spec, found.plan.addressing.shape
    tiers = " + ".join(f"{count} T{tier}" for tier, count in enumerate((shape.t0, shape.t1, shape.t2)) if count)
    title = (
        f"lab {spec.name}: {shape.hosts} hosts on {quantity.counted(shape.planes, 'plane')} of "
        f"{quantity.RATE.format(spec.rate_bps)}, "
        f"{tiers} switches in each, {sum(shape.links)} links"
    )
    who = "as root" if found.machine.keeper is None else "in a user namespace"
    took = "" if took_s is None else f", made in {took_s:.2f} s"
    rows = [
        (f"p{row.plane}", "up" if row.up else "no port up", f"{row.ports_up} of {row.ports}",
         quantity.SIZE.about(row.sent_bytes), quantity.SIZE.about(row.received_bytes))
        for row in state.planes
    ]  # fmt: skip
    print_table(title, ("plane", "state", "NIC ports up", "sent by NICs", "received"), rows, words=(0, 1))
    say(f"{state.namespaces} of {len(found.plan.namespaces)} namespaces, {who}{took}")
    for one in (
        *sorted({*found.faults.cut, *found.faults.loss, *found.faults.slow}),
        *sorted(found.faults.black_holes),
    ):
        say(f"{one}: {', '.join(found.faults.of(one))}")


def _print_survey(found: Survey) -> None:
    topology = found.lab.plan.topology
    rows = [
        (topology.name_of_link(one.link), _ends(found, one.link), one.health.value, f"{one.loss:.2%}",
         f"{one.low:.2%} to {one.high:.2%}", f"{one.probes:,}")
        for one in found.sick
    ]  # fmt: skip
    fine = sum(one.health is Health.FINE for one in found.verdicts)
    hidden = [topology.name_of_link(one.link) for one in found.verdicts if one.health is Health.HIDDEN]
    probes = sum(one.sent for one in found.observations)
    if rows:
        columns = ("link", "between", "health", "loss of round trips", "95 % interval", "probes")
        print_table(f"{len(rows)} of {len(found.verdicts)} links are sick", columns, rows, words=(0, 1, 2))
    for part in found.parts:
        say(f"{part} is dead altogether: that is one broken part, not several links")
    if hidden:
        say(f"nothing is known of {', '.join(hidden)}: they lie behind dead links")
    trips = [trip for trip in found.round_trips_us if trip is not None]
    median = f", median round trip {quantity.significant(sorted(trips)[len(trips) // 2])} us" if trips else ""
    say(f"{fine} of {len(found.verdicts)} links are fine; {probes:,} probes{median}")
    denied = found.denials()
    if denied:
        count = sum(map(len, denied.values()))
        say(f"{count} paths of {len(denied)} pairs of hosts are better avoided (--deny FILE)")


def _ends(found: Survey, link: int) -> str:
    topology = found.lab.plan.topology
    ends = (topology.links.lower[link], topology.links.upper[link])
    return " and ".join(topology.name_of_node(int(node)) for node in ends)


def _write_denials(target: Path, found: Survey) -> None:
    with writing(target) as part:
        part.write_text(to_json.dumps({"denied": found.as_json()["denied"]}, indent=1) + "\n")


def _read(dimension: quantity.Dimension, text: str) -> int:
    try:
        return dimension.parse(text)
    except QuantityError as error:
        raise UsageError(str(error)) from None
