"""Changes to a site or a job in a word: `planes=4`, `nodes=-8`, `link_rate=400 Gb/s`.

A change is made in the form in which files are written and checked like a file, so that a change which cannot be built
is refused with the same sentence.
"""

from collections.abc import Iterable
from typing import Any

from weft.core.errors import UsageError
from weft.core.quantity import RATE, QuantityError
from weft.core.specfile import validate
from weft.fabric.graph.shape import THREE_TIERS, TWO_TIERS
from weft.specs.fabric import clos_capacity
from weft.specs.job import JobSpec
from weft.specs.site import SiteSpec

CHANGES = (
    "planes", "nodes", "link_rate", "scale_up", "memory", "power", "batch", "length", "steps", "precision", "plan",
)  # fmt: skip
"""What can be changed."""
_OF_JOB = {"batch": "sequences", "length": "length"}


def changed_all(site: SiteSpec, job: JobSpec, changes: Iterable[str]) -> tuple[SiteSpec, JobSpec]:
    """Return site and job after several changes, each made to what the one before it gave."""
    for change in changes:
        site, job = changed(site, job, change)
    return site, job


def changed(site: SiteSpec, job: JobSpec, change: str) -> tuple[SiteSpec, JobSpec]:
    """Return site and job after a change written as NAME=VALUE."""
    name, equals, value = (part.strip() for part in change.partition("="))
    if not equals or name not in CHANGES:
        raise UsageError(f"--what-if {change!r} is not a change; write one of {', '.join(f'{c}=...' for c in CHANGES)}")
    table, task = site.as_written(), job.as_written()
    if name in (*_OF_JOB, "steps", "precision", "plan"):
        _job(task, name, change, value)
        return site, validate(task, JobSpec, f"--what-if {change}")
    if name == "nodes":
        wanted = site.fabric.gpus // site.node.gpus
        wanted = wanted + _whole(change, value) if value[:1] in "+-" else _whole(change, value)
        table["fabric"]["gpus"] = wanted * site.node.gpus
    elif name == "planes":
        _split(table, site, _whole(change, value))
    elif name == "link_rate":
        _rate(table, site, change, value)
    elif name == "scale_up":
        table["scale_up"]["gpus"] = _whole(change, value)
    else:
        # The memory of a GPU, or its power limit.
        table["gpu"][name] = value
    return validate(table, SiteSpec, f"--what-if {change}"), job


def _job(task: dict[str, Any], name: str, change: str, value: str) -> None:
    """Change what a job says of itself."""
    if name in _OF_JOB:
        task["batch"][_OF_JOB[name]] = _whole(change, value)
    elif name == "steps":
        task["steps"] = _whole(change, value)
    elif name == "precision":
        # Habits that are not written stay as they are resolved; the precision alone is named.
        task["software"] = {**(task.get("software") or {}), "precision": value}
    elif value == "auto":
        task["plan"] = value
    else:
        raise UsageError(f"--what-if {change}: {value!r} is no plan; write plan=auto to let the planner choose")


def _whole(change: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"--what-if {change}: {value!r} is not a whole number") from None


def _split(table: dict[str, Any], site: SiteSpec, planes: int) -> None:
    """Split the NIC over `planes`: slower ports, and as many more of them on a switch."""
    fabric = site.fabric
    if planes < 1 or fabric.nic_rate % planes:
        raise UsageError(f"--what-if planes={planes}: {RATE.format(fabric.nic_rate)} cannot be split into {planes}")
    port = fabric.nic_rate // planes
    radix = fabric.parts.switch.capacity // port // 2 * 2
    table["fabric"] |= {"planes": planes, "port_rate": RATE.format(port), "radix": radix}
    # Slower ports and more of them reach more GPUs in two tiers; where two do not reach all of them, a third one does.
    if fabric.tiers == 1:
        return
    if clos_capacity(TWO_TIERS, radix, fabric.oversubscription) >= fabric.gpus:
        table["fabric"]["tiers"] = TWO_TIERS
    else:
        # As many switches as these GPUs need: a core that could grow to millions of ports is no part of the question.
        links = table["fabric"]["links"]
        table["fabric"] |= {"tiers": THREE_TIERS, "build": "compact"}
        links.setdefault("t1_t2", links["t0_t1"])


def _rate(table: dict[str, Any], site: SiteSpec, change: str, value: str) -> None:
    """Give every NIC another rate; ports follow, and switches and NICs that carry it."""
    try:
        nic = RATE.parse(value)
    except QuantityError as error:
        raise UsageError(f"--what-if {change}: {error}") from None
    fabric = site.fabric
    if nic <= 0 or nic % fabric.planes:
        raise UsageError(f"--what-if {change}: {value} cannot be split over {fabric.planes} planes")
    port = nic // fabric.planes
    table["fabric"] |= {"nic_rate": RATE.format(nic), "port_rate": RATE.format(port)}
    parts = table["fabric"]["parts"]
    parts["nic"]["rate"] = RATE.format(max(nic, fabric.parts.nic.rate))
    parts["switch"]["capacity"] = RATE.format(max(port * fabric.radix, fabric.parts.switch.capacity))
